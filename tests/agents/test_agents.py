"""Guarantees of every agent."""

import contextlib
import functools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import tfdpg
from tests.agents.roster import SMALL, fit_briefly, needs, parametrize_agents
from tests.environments import Counter
from tfdpg.training.learning.updates import should_use_xla


def pendulum():
    return gym.make("Pendulum-v1")


def fitted(make, env=None, epochs=2, steps=40, **changes):
    env = env or pendulum()
    agent = make(env, **changes)
    fit_briefly(agent, env, epochs=epochs, steps_per_epoch=steps)
    return agent


def assert_same_weights(a, b):
    for x, y in zip(a.get_weights(), b.get_weights(), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.fixture(scope="module")
def one():
    """A trained agent of each kind, for tests that do not change it."""
    return functools.cache(fitted)


@parametrize_agents("TD3")
def test_many_updates_at_once_equal_one_by_one(make):
    one, many = (fitted(make, update_after=400) for _ in range(2))
    assert one.updates == 0
    for _ in range(13):
        one.learn(updates=1)
    many.learn(updates=13)
    assert one.updates == many.updates == 13
    assert_same_weights(one, many)


@parametrize_agents("DDPG")
def test_an_average_of_the_policy_is_evaluated_and_exported(make, tmp_path):
    needs(make, "average_policy")
    agent = fitted(make, update_after=400, average_policy=0.5)
    names = agent.data.evaluation_networks
    expected = [agent.parts[name].get_weights() for name in names]
    for kept in (0, 0, 1 / 3, 1 / 2):  # max(0, 1 - 50 / (0.5 * 50 * n))
        agent.learn(updates=50)
        for name, average in zip(names, expected, strict=True):
            newest = agent.parts[name.removesuffix("_average")].get_weights()
            average[:] = [kept * old + (1 - kept) * new for old, new in zip(average, newest, strict=True)]
            for found, weight in zip(agent.parts[name].get_weights(), average, strict=True):
                np.testing.assert_allclose(found, weight, rtol=1e-5, atol=1e-6)
    observations = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    actions = agent.predict(observations)
    exported = tfdpg.load(agent.export(tmp_path / "model"))
    np.testing.assert_allclose(exported(observations), actions, rtol=1e-4, atol=1e-5)
    agent.save(tmp_path / "agent")
    np.testing.assert_array_equal(tfdpg.load_agent(tmp_path / "agent").predict(observations), actions)
    agent.copy_weights(*names)
    assert np.abs(agent.predict(observations) - actions).max() > 1e-4


@parametrize_agents("TD3")
def test_xla_computes_the_same_updates(make):
    plain, compiled = (fitted(make, update_after=400, jit_compile=jit) for jit in (False, True))
    for agent in (plain, compiled):
        agent.learn(updates=20)
    for x, y in zip(plain.get_weights(), compiled.get_weights(), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


@parametrize_agents("DDPG")
def test_the_same_seed_and_a_loaded_agent_give_bit_identical_weights(make, one, tmp_path):
    agent = fitted(make)
    assert_same_weights(one(make), agent)
    seeds = [make(pendulum(), seed=seed).get_weights()[0] for seed in (0, 0, 1)]
    assert np.array_equal(*seeds[:2]) and not np.array_equal(*seeds[1:])
    agent.save(tmp_path / "agent")
    again = tfdpg.load_agent(tmp_path / "agent", pendulum())
    assert type(again) is type(agent)
    assert again.options == agent.options
    assert (again.env_steps, again.updates, again.epoch) == (agent.env_steps, agent.updates, 2)
    assert_same_weights(agent, again)
    third = tfdpg.load_agent(tmp_path / "agent")
    for each in (third, again):
        fit_briefly(each, pendulum(), epochs=4, initial_epoch=2, steps_per_epoch=40)
    assert_same_weights(third, again)


@parametrize_agents("ACER", "DDPG")
def test_weights_files_and_lists_round_trip(make, one, tmp_path):
    agent = one(make)
    other = make(pendulum(), seed=5)
    agent.save_weights(tmp_path / "a.weights.h5")
    other.load_weights(tmp_path / "a.weights.h5")
    assert_same_weights(agent, other)
    observation = pendulum().reset(seed=0)[0]
    np.testing.assert_allclose(agent.act(observation, explore=False), other.act(observation, explore=False))
    with pytest.raises(FileExistsError):
        agent.save_weights(tmp_path / "a.weights.h5", overwrite=False)
    with pytest.raises(ValueError, match="must have the shape"):
        other.set_weights(agent.get_weights()[1:])


@parametrize_agents("ACER", "DDPG")
def test_acting_predicting_and_policy_agree(make, one):
    agent = one(make)
    observations = np.stack([pendulum().reset(seed=seed)[0] for seed in range(4)])
    predicted = agent.predict(observations)
    assert predicted.shape == (4, 1)
    np.testing.assert_allclose(agent.policy()(observations), predicted, rtol=1e-4, atol=1e-5)
    for act in (agent, agent.predict, agent.policy()):
        np.testing.assert_allclose(act(observations[0]), predicted[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(agent.act(observations, explore=False), predicted, rtol=1e-4, atol=1e-5)


@parametrize_agents("ACER", "DDPG")
def test_a_reset_in_a_custom_loop_does_not_join_episodes(make):
    env = Counter(length=9)
    agent = make(env, update_after=400)
    fit_briefly(agent, env, epochs=1, steps_per_epoch=3)
    for _ in range(2):
        observation, _ = env.reset()
        for _ in range(2):
            observation, *outcome, _ = env.step(agent.act(observation))
            agent.observe(outcome[0], observation, *outcome[1:])
    stored = agent.replay.transitions()
    np.testing.assert_array_equal(stored["next_observations"], stored["observations"] + [0, 1])
    assert len(stored["rewards"]) == 3 + 2 + 2


@parametrize_agents("ACER", "DDPG")
def test_an_environment_that_modifies_the_action_does_not_change_the_stored_one(make):
    class Scales(Counter):
        def step(self, action):
            action *= 100
            return super().step(action)

    agent = fitted(make, Scales(), update_after=400)
    action = agent.replay.transitions()["actions"]
    assert len(action) == 80 and np.abs(action).max() <= 1


@parametrize_agents("ACER", "DDPG")
@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_custom_loop_over_a_vector_environment_in_each_autoreset_mode(make, mode):
    envs = SyncVectorEnv([lambda: Counter(length=3, ends="truncated")] * 2, autoreset_mode=mode)
    agent = make(envs)
    observations, _ = envs.reset(seed=0)
    for _ in range(12):
        observations, reward, terminated, truncated, info = envs.step(agent.act(observations))
        final = info.get("final_obs")
        if mode == AutoresetMode.DISABLED:
            final = observations
        agent.observe(reward, observations, terminated, truncated, final)
        if mode == AutoresetMode.DISABLED and truncated.any():
            observations, _ = envs.reset(options={"reset_mask": truncated})
    assert agent.env_steps == (2 * 9 if mode == AutoresetMode.NEXT_STEP else 2 * 12)
    stored = agent.replay.transitions()
    np.testing.assert_array_equal(stored["next_observations"], stored["observations"] + [0, 1])
    np.testing.assert_array_equal(stored["rewards"], stored["observations"][:, 1] + 1)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_ends_without_final_observations_are_those_of_the_autoreset_mode(mode):
    envs = SyncVectorEnv([lambda: Counter(length=3)] * 2, autoreset_mode=mode)
    agent = tfdpg.TD3(envs, **SMALL)
    observations, _ = envs.reset(seed=0)

    def step():
        nonlocal observations
        observations, reward, terminated, truncated, _ = envs.step(agent.act(observations))
        agent.observe(reward, observations, terminated, truncated)

    for _ in range(2):
        step()
    if mode == AutoresetMode.SAME_STEP:
        with pytest.raises(ValueError, match="`final_observation` must be info.*SAME_STEP.*Received: None"):
            step()
        assert len(agent.replay) == 4
        return
    for _ in range(3):
        step()
        if observations[0, 1] == 3 and mode == AutoresetMode.DISABLED:
            observations, _ = envs.reset(options={"reset_mask": np.ones(2, bool)})
    assert len(agent.replay) == (2 * 4 if mode == AutoresetMode.NEXT_STEP else 2 * 5)  # a reset is a step of NEXT_STEP


def test_a_batch_of_one_from_an_environment_is_not_taken_for_a_vector_environment():
    env = Counter(length=3)
    agent = tfdpg.TD3(env, **SMALL)
    for _ in range(3):
        observation, _ = env.reset()
        for _ in range(3):
            observation, reward, terminated, truncated, _ = env.step(agent.act(observation[None])[0])
            agent.observe([reward], observation[None], [terminated], [truncated])
    assert len(agent.replay) == 9


def test_actions_whose_outcomes_are_not_stored_are_reported_once():
    agent = tfdpg.TD3(Counter(), **SMALL)
    observation = np.zeros(2, np.float32)
    for acts in (1, 2, 2):
        for explore in [True, False][:acts]:
            agent.act(observation, explore=explore)
        is_first = acts == 2 and agent.env_steps == 1
        message = "`act` was called 2 times before `observe`.*use `predict` or `policy`"
        with pytest.warns(UserWarning, match=message) if is_first else contextlib.nullcontext():
            agent.observe(1.0, observation, False, False)


@parametrize_agents("ACER", "DDPG")
def test_wrong_calls_of_act_and_observe_are_rejected(make):
    agent = make(Counter())
    with pytest.raises(RuntimeError, match="must follow act"):
        agent.observe(0.0, np.zeros(2), False, False)
    agent.act(np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="reward is not .*environment step 1"):
        agent.observe(np.nan, np.zeros(2), False, False)
    for wrong in (
        ("1.0", False, False),
        (1.0, "False", False),
        (1.0, False, {}),
        (1.0, np.nan, False),
        (1.0, 2, False),
    ):
        with pytest.raises(ValueError, match="`(reward|terminated|truncated)` must be a .*Received"):
            agent.observe(wrong[0], np.zeros(2), *wrong[1:])
    assert agent.env_steps == 0 and agent.replay.size == 1
    agent.observe(1.0, np.zeros(2), False, False)
    assert agent.env_steps == 1
    with pytest.raises(ValueError, match="no transition"):
        make(Counter()).learn(updates=1)


@parametrize_agents("ACER", "DDPG")
@pytest.mark.parametrize(
    "argument, value",
    [
        ("gamma", 1.5),
        ("gamma", float("nan")),
        ("polyak", 2),
        ("batch_size", 0),
        ("target_update_every", 0),
        ("clip_norm", 0.0),
        ("l2", -1.0),
        ("noise", "pink"),
        ("act_noise", (0.1, 0.1, 0.1)),
        ("replay", "fifo"),
        ("bc_weight", -1.0),
        ("pi_lr", 0.0),
        ("q_lr", -1e-3),
        ("act_noise", -0.1),
        ("start_steps", -1),
        ("update_every", 0),
        ("update_every", "epoch"),
        ("gradient_steps", 0),
        ("n_step", 0),
        ("replay_size", 1),
        ("hidden_units", (64, 0)),
        ("seed", -1),
        ("jit_compile", "yes"),
    ],
)
def test_arguments_out_of_range_are_named_with_the_received_value(make, argument, value):
    needs(make, argument)
    with pytest.raises(ValueError, match=rf"`{argument}` must .*Received: {argument}="):
        make(pendulum(), **{argument: value})


@parametrize_agents("D4PG")
def test_an_image_agent_learns_on_raw_bytes_through_an_encoder(make):
    import keras
    from gymnasium import spaces

    space = spaces.Dict(picture=spaces.Box(0, 255, (6, 6, 1), np.uint8), speed=spaces.Box(-1, 1, (2,)))
    spec = tfdpg.Spec(space, spaces.Box(-1, 1, (2,)))
    inputs = {"picture": keras.Input((6, 6, 1), name="picture"), "speed": keras.Input((2,), name="speed")}
    seen = keras.layers.Flatten()(keras.layers.Conv2D(2, 3)(keras.layers.Rescaling(1 / 255)(inputs["picture"])))
    encoder = keras.Model(inputs, keras.layers.Concatenate()([seen, inputs["speed"]]))
    agent = make(spec, encoder=encoder, jit_compile="auto")
    space.seed(0)
    for _ in range(12):
        agent.act(space.sample())
        agent.observe(1.0, space.sample(), False, False)
    before = agent.networks["q1"].get_weights()[0]
    logs = agent.learn(updates=3)
    assert np.isfinite(logs["loss_q"]) and not np.array_equal(before, agent.networks["q1"].get_weights()[0])
    assert agent.replay.transitions()["observations"]["picture"].dtype == np.uint8
    assert not should_use_xla(list(agent.networks.values()))  # jit_compile="auto" does not compile convolutions
