"""Each option of the agents has its documented effect; contradictory options are rejected."""

import dataclasses

import keras
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import tfdpg
from tests.agents.roster import AGENTS, EAGER, fit_briefly, needs, options_of, parametrize_agents
from tests.environments import Counter
from tfdpg.replay import Recorder, ReplayBuffer

everyone = parametrize_agents(*AGENTS)


def fitted(make, env=None, steps=40, **changes):
    env = env or Counter()
    agent = make(env, **changes)
    fit_briefly(agent, env, epochs=1, steps_per_epoch=steps)
    return agent


def doubled(reward, step, steps):
    return 2 * reward


def first_step(make, **changes):
    """Return the change of the critic's weights in the first update, with an optimizer whose step is the gradient."""
    optimizer = keras.optimizers.SGD(1.0, **changes.pop("sgd", {}))
    agent = make(Counter(), update_after=1000, run_eagerly=True, q_optimizer=optimizer, **changes)
    fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=40)
    before = [w.copy() for w in agent.networks["q1"].get_weights()]
    agent.learn(updates=1)
    return [b - a for b, a in zip(before, agent.networks["q1"].get_weights(), strict=True)]


@parametrize_agents("DDPG")
def test_custom_optimizers_are_copied_for_each_network(make):
    needs(make, "pi_optimizer")
    pi = keras.optimizers.RMSprop(0.01)
    q = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5))
    agent = fitted(make, pi_optimizer=pi, q_optimizer=q, **EAGER)
    assert isinstance(agent.optimizers["pi"], keras.optimizers.RMSprop) and agent.optimizers["pi"] is not pi
    assert isinstance(agent.optimizers["q1"], keras.optimizers.SGD)
    assert float(agent.optimizers["q1"].learning_rate) == pytest.approx(0.1 * 0.5 ** (agent.updates / 5), rel=1e-4)
    assert len({optimizer.name for optimizer in agent.optimizers.values()}) == len(agent.optimizers)
    with pytest.raises(ValueError, match="`pi_optimizer` must be a Keras optimizer"):
        make(Counter(), pi_optimizer="adam")


@pytest.mark.parametrize("option", ["clip_norm", "clip_value"])
@parametrize_agents("DDPG")
def test_optimizers_clip_gradients(make, option):
    needs(make, "q_optimizer")
    agent = make(Counter(), **{option: 0.25})
    key = {"clip_norm": "global_clipnorm", "clip_value": "clipvalue"}[option]
    assert all(getattr(optimizer, key) == 0.25 for optimizer in agent.optimizers.values())
    with pytest.raises(ValueError, match="not both"):
        make(Counter(), clip_norm=1.0, clip_value=1.0)
    own = dict.fromkeys(("pi_optimizer", "q_optimizer"), keras.optimizers.SGD(0.1))
    if "encoder" in agent.optimizers:  # Adam, which clips
        assert getattr(make(Counter(), **own, **{option: 0.25}).optimizers["encoder"], key) == 0.25
    else:
        with pytest.raises(ValueError, match="does .*both optimizers are your own"):
            make(Counter(), **own, **{option: 1.0})


@parametrize_agents("DDPG")
def test_clipped_gradients_are_smaller_and_l2_pulls_kernels_to_zero(make):
    needs(make, "l2")
    kernels = [w for w in make(Counter()).networks["q1"].get_weights() if w.ndim == 2]
    free = first_step(make)
    norm = np.sqrt(sum((g**2).sum() for g in free))
    assert norm > 0.3
    expected = {
        "global_clipnorm": [g * 0.25 / norm for g in free],
        "clipvalue": [np.clip(g, -0.25, 0.25) for g in free],
    }
    for key, gradients in expected.items():
        for x, y in zip(first_step(make, sgd={key: 0.25}), gradients, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-6)
    differences = [b - a for a, b in zip(free, first_step(make, l2=0.5), strict=True)]
    for difference, kernel in zip([d for d in differences if d.ndim == 2], kernels, strict=True):
        np.testing.assert_allclose(difference, 2 * 0.5 * kernel, rtol=1e-3, atol=1e-4)
    assert all(np.abs(d).max() < 1e-4 for d in differences if d.ndim == 1)


@parametrize_agents("DDPG")
def test_ornstein_uhlenbeck_noise_explores_and_resumes(make, tmp_path):
    needs(make, "noise")
    agent = fitted(make, Counter(length=50), noise="ou", ou_theta=0.1, start_steps=0, update_after=1000)
    assert np.abs(agent.data.behaviour.exploration.noise.state).max() > 0
    agent.act(np.zeros(2, np.float32))
    agent.observe(0.0, np.ones(2, np.float32), False, False)
    agent.save(tmp_path / "agent")
    again = tfdpg.load_agent(tmp_path / "agent")
    np.testing.assert_array_equal(
        agent.data.behaviour.exploration.noise.state, again.data.behaviour.exploration.noise.state
    )
    np.testing.assert_array_equal(agent.act(np.ones(2, np.float32)), again.act(np.ones(2, np.float32)))


@parametrize_agents("DDPG")
def test_the_noise_schedule_counts_environment_steps(make):
    needs(make, "act_noise_schedule")
    env = Counter(length=50)
    schedule = tfdpg.exploration.Linear(steps=20)
    agent = make(env, start_steps=0, update_after=1000, act_noise_schedule=schedule)
    agent.set_weights([0 * weight for weight in agent.get_weights()])  # away from the bounds
    observation, _ = env.reset()
    noisy = []
    for _ in range(40):
        action = agent.act(observation)
        noisy.append(not np.allclose(action, agent(observation), rtol=1e-5, atol=1e-6))
        observation, reward, terminated, truncated, _ = env.step(action)
        agent.observe(reward, observation, terminated, truncated)
    assert sum(noisy[:15]) == 15 and not any(noisy[21:])


@parametrize_agents("ACER", "DDPG")
def test_shaped_rewards_are_stored_and_raw_ones_logged(make, tmp_path):
    env = Counter()
    seen = []

    def shaper(reward, step, steps):
        seen.append((step, steps))
        return reward - 10

    agent = make(env, reward_shaper=shaper, update_after=400)
    history = fit_briefly(agent, env, epochs=2, steps_per_epoch=20)
    assert history.history["return"] == [15, 15]
    assert sorted(set(agent.replay.transitions()["rewards"])) == [-9, -8, -7, -6, -5]
    assert seen[0] == (0, 40) and seen[-1] == (39, 40)
    with pytest.raises(ValueError, match="`reward_shaper` must .*finite rewards"):
        fitted(make, reward_shaper=lambda reward, step, steps: reward * np.nan)
    agent.save(tmp_path / "agent")
    with pytest.raises(ValueError, match="could not be saved.*, reward_shaper="):
        tfdpg.load_agent(tmp_path / "agent")
    assert tfdpg.load_agent(tmp_path / "agent", reward_shaper=doubled).options.reward_shaper is doubled

    if "act_noise_schedule" not in agent.options.values():
        return

    @dataclasses.dataclass
    class Local:
        factor: float = 0.5

        def __call__(self, step):
            return self.factor

    make(env, act_noise_schedule=Local()).save(tmp_path / "local")
    with pytest.raises(ValueError, match="`act_noise_schedule` could not be saved"):
        tfdpg.load_agent(tmp_path / "local")
    assert (
        tfdpg.load_agent(tmp_path / "local", act_noise_schedule=Local(0.25)).data.behaviour.exploration.factor(0)
        == 0.25
    )


@parametrize_agents("DDPG")
def test_observations_are_normalised_in_the_network_and_everywhere(make, tmp_path):
    env = Counter(length=9)
    agent = fitted(make, env, steps=60, normalize_observations=True, **EAGER)
    (held,) = agent.replay.observation(np.arange(agent.data.observation_statistics.rows_seen))
    assert len(agent.data.normalizers) == 1 + len(agent.targets)
    for normalizer in agent.data.normalizers:  # target networks use the same statistics
        np.testing.assert_allclose(normalizer.mean, held.mean(axis=0), rtol=1e-5)
        np.testing.assert_allclose(normalizer.variance, held.var(axis=0), rtol=1e-4)
    seen = np.array([[3.0, 4.0], [90.0, -90.0]], np.float32)
    shifted = agent.predict(seen)
    np.testing.assert_allclose(agent.act(seen, explore=False), shifted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(tfdpg.load(agent.export(tmp_path / "model"))(seen), shifted, rtol=1e-4, atol=1e-5)
    normal = (seen - held.mean(axis=0)) / (held.std(axis=0) + 1e-8)
    raw = make(env, normalize_observations=True)
    raw.set_weights(agent.get_weights())
    for normalizer in raw.data.normalizers:
        normalizer.mean.assign(np.zeros(2))
        normalizer.variance.assign(np.ones(2))
    np.testing.assert_allclose(raw.predict(np.clip(normal, -5, 5).astype(np.float32)), shifted, rtol=1e-4, atol=1e-5)
    agent.save(tmp_path / "agent")
    again = tfdpg.load_agent(tmp_path / "agent")
    assert again.data.observation_statistics.count == agent.data.observation_statistics.count
    np.testing.assert_array_equal(again.predict(seen), shifted)
    with pytest.raises(ValueError, match="`normalize_observations` needs"):
        make(env, normalize_observations=True, encoder=keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)]))


@parametrize_agents("DDPG")
def test_dict_observations_are_normalised_but_for_one_hot_features(make):
    env = Counter(length=9, as_dict=True)
    agent = fitted(make, env, steps=60, normalize_observations=True, **EAGER)
    (held,) = agent.replay.observation(np.arange(agent.data.observation_statistics.rows_seen))
    mean = agent.data.normalizers[0].mean.numpy()
    variance = agent.data.normalizers[0].variance.numpy()
    np.testing.assert_allclose(mean, [*held[:, :2].mean(axis=0), 0, 0, 0], rtol=1e-5)
    np.testing.assert_allclose(variance, [*held[:, :2].var(axis=0), 1, 1, 1], rtol=1e-4)


@parametrize_agents("DDPG")
def test_priorities_follow_the_td_errors(make, tmp_path):
    needs(make, "replay")
    agent = fitted(make, replay="prioritized", alpha=0.7, beta=0.5, beta_steps=100, batch_size=16, **EAGER)
    rows, weights = agent.data.minibatch_builder.sampler.sample(agent.updates, 1)
    assert weights.shape == (1, 16) and weights.min() < 1
    assert (weights.max() == 1) == agent.options.values().get("normalize_weights", True)
    agent.save(tmp_path / "agent")
    again = tfdpg.load_agent(tmp_path / "agent")
    np.testing.assert_array_equal(
        again.data.minibatch_builder.sampler.sample(agent.updates, 3)[0],
        agent.data.minibatch_builder.sampler.sample(agent.updates, 3)[0],
    )
    agent.learn(updates=3)
    again.learn(updates=3)
    for x, y in zip(agent.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(x, y)
    changed = tfdpg.load_agent(tmp_path / "agent", replay="uniform", alpha=None, beta=None, beta_steps=None)
    assert changed.learn(updates=1)
    for name, value in (("alpha", 0.5), ("beta", 0.5), ("beta_steps", 10)):
        with pytest.raises(ValueError, match=f"`{name}` does .*`replay` is 'uniform'"):
            make(Counter(), **{name: value})


@parametrize_agents("DDPG")
def test_an_update_phase_of_passes_samples_each_row_once_per_pass(make):
    needs(make, "epochs_per_round")
    passes = {"update_every": 40, "update_after": 0, "epochs_per_round": 2, "run_eagerly": True}
    agent = make(Counter(), batch_size=8, **passes)
    drawn = []
    draw = agent.data.minibatch_builder.sampler.sample
    agent.data.minibatch_builder.sampler.sample = lambda *args: drawn.append(draw(*args)) or drawn[-1]
    agent.fit(Counter(), epochs=1, steps_per_epoch=40, verbose=0)
    rows = np.concatenate([slots for slots, _ in drawn])
    assert agent.updates == 10 == len(rows)
    for one_pass in (rows[:5].ravel(), rows[5:].ravel()):
        assert len(set(one_pass.tolist())) == 40
    assert not np.array_equal(rows[:5], rows[5:])
    few = make(Counter(), max_minibatches_per_round=6, **passes)
    few.fit(Counter(), epochs=1, steps_per_epoch=40, verbose=0)
    assert few.updates == 6
    with pytest.raises(ValueError, match="both say how many updates"):
        make(Counter(), epochs_per_round=1, gradient_steps=1)
    with pytest.raises(ValueError, match="`max_minibatches_per_round` does nothing"):
        make(Counter(), max_minibatches_per_round=1)
    with pytest.raises(ValueError, match="no place for priorities"):
        make(Counter(), epochs_per_round=1, replay="prioritized")


@parametrize_agents("ACER", "DDPG")
def test_recorders_receive_every_transition_and_train_another_agent(make, tmp_path):
    env = Counter(ends="truncated")
    spec = tfdpg.Spec.of(env)
    buffer = ReplayBuffer(spec, 500)
    recorders = [buffer, tmp_path / "run", Recorder(tmp_path / "small", spec, rows=10)]
    agent = fitted(make, env, steps=43, recorders=recorders, update_after=400)
    recorded, stored = buffer.transitions(), agent.replay.transitions()
    for name in ("observations", "rewards", "next_observations", "terminations", "truncations"):
        np.testing.assert_array_equal(recorded[name], stored[name])
    np.testing.assert_array_equal(recorded["actions"], np.clip(stored["actions"], -1, 1))
    assert [file.name for file in sorted((tmp_path / "small").iterdir())] == [f"{i:06}.npz" for i in range(5)]
    with np.load(tmp_path / "run/000000.npz") as file:
        assert file["rewards"].tolist() == ([1, 2, 3, 4, 5] * 9)[:43]
        assert np.flatnonzero(file["truncations"]).tolist() == [*range(4, 43, 5)]
        np.testing.assert_array_equal(file["next_observations"][:4], file["observations"][1:5])
    (tmp_path / "small/000001.npz").unlink()
    again = fitted(make, env, steps=3, recorders=str(tmp_path / "small"))
    assert again.env_steps == 3 and (tmp_path / "small/000005.npz").exists()
    other = make(spec, run_eagerly=True)
    if "n_steps" in other.options.values():
        with pytest.raises(ValueError, match="`data` must .*and with the distribution"):
            other.fit_offline(tmp_path / "run", epochs=1, steps_per_epoch=3, verbose=0)
        return
    other.fit_offline(tmp_path / "run", epochs=1, steps_per_epoch=3, verbose=0)
    assert len(other.replay) == 43 and other.updates == 3
    for name, values in other.replay.transitions().items():
        np.testing.assert_array_equal(values[:5], stored[name][:5])


@parametrize_agents("DDPG")
def test_a_custom_loop_gives_the_same_weights_as_fit_despite_predictions_and_evaluations(make):
    options = {"normalize_observations": True} | EAGER
    if "noise" in options_of(make):
        options |= {"noise": "ou", "replay": "prioritized", "n_step": 3}
    by_fit = fitted(make, Counter(length=7), steps=40, **options)
    env = Counter(length=7)
    agent = make(env, **options)
    observation, _ = env.reset(seed=agent.next_reset_seed(0))
    for _ in range(40):
        action = agent.act(observation)
        agent.predict(np.zeros((2, 2), np.float32))
        agent.evaluate(Counter(length=3), episodes=1)
        observation, reward, terminated, truncated, _ = env.step(action)
        agent.observe(reward, observation, terminated, truncated)
        agent.learn()
        if terminated or truncated:
            observation, _ = env.reset(seed=agent.next_reset_seed(0))
    assert agent.updates == by_fit.updates > 0
    for x, y in zip(by_fit.get_weights(), agent.get_weights(), strict=True):
        np.testing.assert_array_equal(x, y)


@parametrize_agents("DDPG")
def test_a_custom_loop_over_a_vector_environment_gives_the_same_weights_as_fit(make):
    def make_vector_env():
        return SyncVectorEnv(
            [lambda: Counter(length=7), lambda: Counter(length=4)], autoreset_mode=AutoresetMode.DISABLED
        )

    options = {"start_steps": 0, "update_every": 6} | EAGER
    if "noise" in options_of(make):
        options |= {"noise": "ou"}
    by_fit = fitted(make, make_vector_env(), steps=60, **options)
    env = make_vector_env()
    agent = make(env, **options)
    observation, _ = env.reset(seed=[agent.next_reset_seed(env_index) for env_index in range(2)])
    for _ in range(30):
        action = agent.act(observation)
        observation, reward, terminated, truncated, _ = env.step(action)
        agent.observe(reward, observation, terminated, truncated, observation)
        agent.learn()
        ended = terminated | truncated
        if ended.any():
            seeds = [agent.next_reset_seed(env_index) if ended[env_index] else None for env_index in range(2)]
            observation, _ = env.reset(seed=seeds, options={"reset_mask": ended})
    assert agent.updates == by_fit.updates > 0
    for x, y in zip(by_fit.get_weights(), agent.get_weights(), strict=True):
        np.testing.assert_array_equal(x, y)


@everyone
def test_n_step_and_discount_reach_the_minibatch(make):
    needs(make, "n_step")
    env = Counter(length=9)
    agent = make(env, n_step=3, gamma=0.5, start_steps=100, update_after=1000)
    fit_briefly(agent, env, epochs=1, steps_per_epoch=9)
    packed = agent.data.minibatch_builder.pack(np.arange(9)[None])[0][0]
    np.testing.assert_allclose(packed[0, 3:5], [1 + 0.5 * 2 + 0.25 * 3, 0.125])
    np.testing.assert_allclose(packed[7, 3:5], [8 + 0.5 * 9, 0.0])


@parametrize_agents("ACER", "DDPG")
@pytest.mark.parametrize(
    "options, named",
    [
        ({"pi_optimizer": keras.optimizers.SGD(0.1), "pi_lr": 0.1}, "pi_lr"),
        ({"ou_theta": 0.2}, "ou_theta"),
        ({"normalize_clip": 3.0}, "normalize_clip"),
        ({"normalize_epsilon": 0.1}, "normalize_epsilon"),
    ],
)
def test_an_option_without_effect_is_refused(make, options, named):
    needs(make, named)
    with pytest.raises(ValueError, match=f"`{named}` does nothing where"):
        make(Counter(), **options)
    make(Counter(), normalize_clip=5)  # their defaults are accepted
