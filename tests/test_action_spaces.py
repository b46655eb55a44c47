"""Pendulum with actions of integers and without axes, from training to exports."""

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import tfdpg
from tests.agents.roster import ACER, EAGER, SMALL, brief, fit_briefly
from tests.export.runtimes import client

pytestmark = brief
SPACES = {
    "integers": spaces.Box(np.array([-3, 0]), np.array([4, 5]), dtype=np.int64),
    "bytes": spaces.Box(0, 255, (2, 2), np.uint8),
    "number": spaces.Box(-2, 1, (), np.float32),
    "integer": spaces.Box(-2, 2, (), np.int32),
}
each_space = pytest.mark.parametrize("kind", SPACES)
RANDOM = SMALL | {"start_steps": 50, "update_after": 50}
OBSERVATIONS = np.random.default_rng(0).uniform([-1, -1, -8], [1, 1, 8], (5, 3)).astype(np.float32)


class Checked(gym.Wrapper):
    """Pendulum, pushed by the mean of actions of another space; it keeps them."""

    def __init__(self, kind):
        super().__init__(gym.make("Pendulum-v1", max_episode_steps=20))
        self.action_space = SPACES[kind]
        self.taken = []

    def step(self, action):
        action = np.asarray(action)  # vector environments pass an element of an array
        assert self.action_space.contains(action), repr(action)
        self.taken.append(np.copy(action))
        low = self.action_space.low.astype(np.float64)
        share = (action - low) / (self.action_space.high - low)
        return self.env.step(np.float32([4 * share.mean() - 2]))


@pytest.fixture(scope="module")
def trained():
    """An agent for each space and its environment, for tests that do not change them."""
    agents = {}

    def of(kind):
        if kind not in agents:
            env = Checked(kind)
            agents[kind] = tfdpg.TD3(env, **SMALL | EAGER), env
            fit_briefly(agents[kind][0], env, epochs=2, steps_per_epoch=25)
        return agents[kind]

    return of


@each_space
def test_nothing_is_wrong_with_the_space(kind, capsys):
    assert tfdpg.check(Checked(kind), steps=50) == []
    assert (" integer" in capsys.readouterr().out) == (kind != "number")


@each_space
def test_the_replay_buffer_holds_the_actions_that_the_environment_got(kind, trained):
    agent, env = trained(kind)
    stored = agent.replay.transitions()["actions"]
    np.testing.assert_array_equal(stored, env.taken[: len(stored)])
    assert (stored.dtype.kind == "f") == (kind == "number")


@each_space
def test_vector_environments_get_the_same_actions(kind):
    stored = []
    for vectorize in (False, True):
        env = Checked(kind)
        if vectorize:
            env = SyncVectorEnv([lambda: Checked(kind)], autoreset_mode=AutoresetMode.SAME_STEP)
        agent = tfdpg.DDPG(env, **RANDOM)
        fit_briefly(agent, env, epochs=1, steps_per_epoch=42)
        stored.append(agent.replay.transitions())
    np.testing.assert_equal(stored[1], stored[0])


@each_space
def test_random_actions_are_uniform(kind):
    spec = tfdpg.Spec(spaces.Box(-1, 1, (1,)), SPACES[kind])
    behaviour = tfdpg.DDPG(spec, **SMALL).data.behaviour
    drawn = spec.to_user(behaviour.act_uniformly((np.zeros((20_000, 1), np.float32),), np.random.default_rng(0)))
    space = SPACES[kind]
    if kind != "number":
        for low, high, column in zip(space.low.flat, space.high.flat, drawn.reshape(len(drawn), -1).T, strict=True):
            counts = np.bincount(column - int(low))
            assert len(counts) == int(high) - int(low) + 1
            np.testing.assert_allclose(counts, len(drawn) / len(counts), rtol=0.6 if kind == "bytes" else 0.1)
    assert drawn.shape[1:] == space.shape and (drawn >= space.low).all() and (drawn <= space.high).all()


@pytest.mark.parametrize("kind", ["integers", pytest.param("number", marks=pytest.mark.slow)])
def test_training_resumes_where_it_was_saved(kind, trained, tmp_path):
    agent = tfdpg.TD3(Checked(kind), **SMALL | EAGER)
    fit_briefly(agent, Checked(kind), epochs=1, steps_per_epoch=25)
    agent.save(tmp_path / "agent")
    agent = tfdpg.load_agent(tmp_path / "agent")
    assert agent.spec.action_space == SPACES[kind]
    fit_briefly(agent, Checked(kind), epochs=2, initial_epoch=1, steps_per_epoch=25)
    np.testing.assert_equal(agent.get_weights(), trained(kind)[0].get_weights())
    np.testing.assert_equal(agent.replay.transitions(), trained(kind)[0].replay.transitions())


@pytest.mark.parametrize(
    "kind", ["integers", *(pytest.param(k, marks=pytest.mark.slow) for k in ("integer", "bytes", "number"))]
)
def test_exports_choose_the_actions_of_the_agent(kind, trained, tmp_path):
    agent, _ = trained(kind)
    space = SPACES[kind]
    directory = agent.export(tmp_path / "model", signatures="tf-agents")
    expected = agent.predict(OBSERVATIONS)
    assert expected.shape == (5, *space.shape) and (kind in ("number", "bytes") or expected.dtype == space.dtype)
    signatures = tf.saved_model.load(str(directory)).signatures
    found = signatures["pi"](x=tf.constant(OBSERVATIONS))["pi"]
    assert found.dtype == tf.float32
    np.testing.assert_allclose(found, expected.reshape(5, -1), rtol=1e-4, atol=1e-5)
    assert signatures["action"].structured_outputs["action"].shape.as_list() == [None, *space.shape]
    policy = tfdpg.load(tmp_path / "model")
    for loaded in (policy, policy.numpy(), agent.policy()):
        np.testing.assert_allclose(loaded(OBSERVATIONS), expected, rtol=1e-4, atol=1e-5)
        one = loaded(OBSERVATIONS[0])
        assert isinstance(one, np.ndarray) and one.shape == space.shape and one.dtype == expected.dtype
        assert space.contains(one.astype(space.dtype)) and (one == expected[0]).all() or kind == "number"
    action, q1, q2 = policy.pi_and_q(OBSERVATIONS[0])
    np.testing.assert_allclose(action, expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        [q1, q2], [policy.q1(OBSERVATIONS, expected)[0], policy.q2(OBSERVATIONS[0], expected[0])], rtol=1e-4
    )
    scores = [tfdpg.evaluate(each, Checked(kind), episodes=1)["return"] for each in (policy, agent)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-4)


@each_space
def test_an_observation_that_is_not_finite_has_no_action(kind, trained):
    agent, _ = trained(kind)
    observations = OBSERVATIONS.copy()
    observations[1] = np.nan
    actions = agent.predict(observations)
    np.testing.assert_array_equal(np.delete(actions, 1, axis=0), np.delete(agent.predict(OBSERVATIONS), 1, axis=0))
    np.testing.assert_array_equal(actions[1], np.full(SPACES[kind].shape, agent.spec.no_action))
    if kind != "number":
        assert (agent.spec.no_action < SPACES[kind].low).all()
        for action in (actions, np.full((1, agent.spec.act_dim), np.nan)):
            with pytest.raises(FloatingPointError, match="is not finite"):
                agent.spec.to_env(action)


@pytest.mark.parametrize("kind", ["integers", "number"])
def test_recorded_transitions_are_data(kind, tmp_path):
    agent = tfdpg.DDPG(Checked(kind), **RANDOM, recorders=[tmp_path / "data"])
    fit_briefly(agent, Checked(kind), epochs=1, steps_per_epoch=40)
    stored = agent.replay.transitions()
    for given in (tmp_path / "data", stored):
        again = tfdpg.DDPG(Checked(kind), **SMALL | EAGER)
        again.fit_offline(given, epochs=1, steps_per_epoch=1, verbose=0)
        np.testing.assert_equal(again.replay.transitions(), stored)
    batch = {name: values[:8] for name, values in stored.items()}
    assert np.isfinite(again.train_on_batch(batch)["loss_q"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["integers", "number"])
def test_a_stochastic_policy(kind):
    env = Checked(kind)
    agent = tfdpg.ACER(env, **ACER)
    fit_briefly(agent, env, epochs=1, steps_per_epoch=20)
    sampled = agent.replay.transitions()["actions"]
    np.testing.assert_array_equal(np.clip(sampled, SPACES[kind].low, SPACES[kind].high), env.taken[: len(sampled)])


@pytest.mark.slow
def test_a_policy_that_remembers_its_actions(tmp_path):
    options = {"recurrent": "lstm", "recurrent_units": 4, "sequence_length": 4, "burn_in": 2}
    agent = tfdpg.TD3(Checked("integers"), **SMALL | EAGER | options)
    fit_briefly(agent, Checked("integers"), epochs=1, steps_per_epoch=40)
    agent.export(tmp_path / "model")
    policy = tfdpg.load(tmp_path / "model")
    scores = [
        tfdpg.evaluate(each, Checked("integers"), episodes=1)["return"] for each in (policy, policy.numpy(), agent)
    ]
    np.testing.assert_allclose(scores, scores[0], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", "litert", "c"])
def test_other_formats_round(format, trained, tmp_path):
    """`export` compares the actions of each format with those of the agent."""
    agent, _ = trained("integers")
    directory = agent.export(tmp_path / "model", format=format)
    if format == "onnx":
        expected = agent.predict(OBSERVATIONS)
        inputs = {"x": OBSERVATIONS, "a": expected.astype(np.float32)}
        (found,) = client("onnx", directory, [inputs], tmp_path)
        np.testing.assert_array_equal(found["pi"]["pi"], expected)


class Guess(gym.Env):
    """The reward is 0 if the action is the observed integer, and lower by each step away from it."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Box(0, 4, (), np.int64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.wanted = self.np_random.integers(5)
        return np.float32([self.wanted / 2 - 1]), {}

    def step(self, action):
        reward = -abs(float(action - self.wanted))
        return self.reset()[0], reward, False, False, {}


@pytest.mark.slow
def test_an_agent_learns_which_integer_is_wanted():
    agent = tfdpg.TD3(Guess(), hidden_units=(32, 32), batch_size=64, start_steps=200, update_after=200, gamma=0.0)
    fit_briefly(agent, Guess(), epochs=1, steps_per_epoch=1500, max_ep_len=50)
    wanted = np.arange(5)
    np.testing.assert_array_equal(agent.predict(np.float32(wanted[:, None] / 2 - 1)), wanted)
