"""ACER apart from its update: update phases, both action spaces, learning, saving and export."""

import gymnasium as gym
import keras
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import tfdpg
from tests.agents.roster import fit_briefly
from tests.agents.test_acer_update import ACTIONS, SMALL, SPECS
from tests.environments import Counter, Identity
from tfdpg.replay import WindowLayout, buffer

RNG = np.random.default_rng(0)


@pytest.mark.slow  # test_agents.py tests this for the defaults
@pytest.mark.parametrize("options", [{}, {"learn_sigma": True}, {"dueling": False}, {"critic_average": 0.9}], ids=str)
def test_many_updates_at_once_equal_one_by_one_and_xla_computes_the_same(options, tmp_path):
    def fitted(jit):
        agent = tfdpg.ACER(gym.make("Pendulum-v1"), **SMALL | {"n_steps": 1000, "jit_compile": jit} | options)
        fit_briefly(agent, gym.make("Pendulum-v1"), epochs=1, steps_per_epoch=60)
        agent.save(tmp_path / "agent")
        return tfdpg.load_agent(tmp_path / "agent", n_steps=5)

    one = fitted(False)
    many = fitted(False)
    compiled = fitted(True)
    for _ in range(7):
        one.learn(updates=1)
    many.learn(updates=7)
    compiled.learn(updates=7)
    for x, y, z in zip(one.get_weights(), many.get_weights(), compiled.get_weights(), strict=True):
        np.testing.assert_array_equal(x, y)
        np.testing.assert_allclose(x, z, rtol=1e-3, atol=1e-4)


def test_the_unclipped_sample_is_stored_and_the_environment_gets_the_clipped_one():
    agent = tfdpg.ACER(SPECS["box"], sigma=3.0, **SMALL)
    observation = np.zeros((64, 2), np.float32)
    actions = agent.act(observation)
    agent.observe(np.zeros(64), observation, np.zeros(64), np.zeros(64), observation)
    transitions = agent.replay.transitions()
    stored = np.concatenate([transitions["actions"], transitions["behaviours"]], axis=1)
    np.testing.assert_array_equal(actions, np.clip(stored[:, :2], ACTIONS.low, ACTIONS.high))
    assert (stored[:, :2] != actions).any()
    np.testing.assert_allclose(stored[:, 2:4], agent.predict(observation), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(stored[:, 4:], np.broadcast_to([6.0, 1.5], (64, 2)), rtol=1e-6)


def test_discrete_actions_begin_where_the_space_says_and_follow_the_probabilities():
    agent = tfdpg.ACER(SPECS["discrete"], **SMALL)
    agent.pi.layers[-2].set_weights([np.zeros((8, 3), np.float32), np.log(np.array([0.7, 0.2, 0.1], np.float32))])
    agent.data.actor.refresh()
    observation = np.zeros((4000, 2), np.float32)
    actions = agent.act(observation)
    assert actions.dtype == np.int64 and actions.shape == (4000,)
    np.testing.assert_allclose(np.bincount(actions, minlength=4) / 4000, [0, 0.7, 0.2, 0.1], atol=0.03)
    assert (agent.predict(observation) == 1).all() and (agent.act(observation, explore=False) == 1).all()
    single = agent.act(observation[0])
    assert single.shape == () and agent.spec.action_space.contains(single)


def test_an_update_phase_is_one_update_on_the_newest_windows_and_then_some_on_sampled_ones():
    env = SyncVectorEnv([lambda: Counter(length=7)] * 3)
    agent = tfdpg.ACER(env, **SMALL | {"replay_ratio": 0, "on_policy": True, "n_steps": 10})
    drawn = []
    pack = agent.data.minibatch_builder.pack
    agent.data.minibatch_builder.pack = lambda rows, weights: drawn.append(pack(rows, weights)[0]) or (drawn[-1],)
    fit_briefly(agent, env, epochs=1, steps_per_epoch=90)
    assert agent.updates == len(drawn) == 3
    layout = WindowLayout.of(agent.spec, 1 + agent.family.record_width)
    for number, packed in enumerate(drawn):
        assert packed[0, :, :, layout.acted].sum() == 30
        steps = packed[0, :, :-1, layout.reward].reshape(3, 10)
        assert (steps == [(10 * number + t) % 7 + 1 for t in range(10)]).all()


@pytest.mark.parametrize("kind", ["discrete", "box"])
@pytest.mark.slow
def test_identity_is_learnt(kind):
    def make():
        return Choice() if kind == "discrete" else Identity()

    env = SyncVectorEnv([make] * 4)
    agent = tfdpg.ACER(env, hidden_units=(32,), n_steps=10, replay_start=100, lr=2e-3, seed=0)
    agent.fit(env, epochs=1, steps_per_epoch=6000, verbose=0)
    assert agent.evaluate(make(), 100)["return"] > -0.05
    greedy, drawn = (agent.evaluate(make(), 100, stochastic=stochastic)["return"] for stochastic in (False, True))
    assert drawn < greedy or (kind, drawn, greedy) == ("discrete", 0, 0)  # all probabilities may be 0 or 1


class Choice(gym.Env):
    """Episodes of one step; the reward is 0 if the action names the observation (one of three) and −1 otherwise."""

    observation_space = spaces.Discrete(3)
    action_space = spaces.Discrete(3, start=5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.wanted = int(self.np_random.integers(3))
        return self.wanted, {}

    def step(self, action):
        return self.wanted, 0.0 if action == self.wanted + 5 else -1.0, True, False, {}


@pytest.mark.parametrize(
    "kind, options",
    [
        ("discrete", {}),
        pytest.param("box", {"shared_torso": True}, marks=pytest.mark.slow),
        pytest.param("discrete", {"shared_torso": True}, marks=pytest.mark.slow),
        pytest.param("box", {}, marks=pytest.mark.slow),
    ],
    ids=["discrete-separate", "box-shared", "discrete-shared", "box-separate"],
)
def test_exports_have_modes_values_and_distributions(kind, options, tmp_path):
    agent = tfdpg.ACER(SPECS[kind], reward_scale=0.1, **SMALL | options)
    policy = tfdpg.load(agent.export(tmp_path / "model"))
    assert policy.metadata["critics"] == 1
    x = RNG.normal(size=(6, 2)).astype(np.float32)
    action = policy(x)
    np.testing.assert_allclose(action, agent.predict(x), rtol=1e-4, atol=1e-5)
    assert policy(x[0]).shape == agent(x[0]).shape == action.shape[1:]
    np.testing.assert_array_equal(policy.q1(x, action), policy.q2(x, action))
    np.testing.assert_array_equal(policy.q1(x, action), policy.q1(x, action))
    described = policy.distribution(x)
    if kind == "discrete":
        assert action.dtype == np.int64 and set(action) <= {1, 2, 3}
        q = agent.q1(x).numpy()
        np.testing.assert_allclose(described["probs"], agent.pi(x), rtol=1e-4)
        np.testing.assert_allclose(policy.v(x), (agent.pi(x) * q).numpy().sum(axis=1) * 10, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(policy.q1(x, action), q[np.arange(6), action - 1] * 10, rtol=1e-3, atol=1e-5)
        no_actions = np.array([0, 4, -1, 7, 0, 4])
        with pytest.raises(ValueError, match=r"`action` must .*Discrete\(3, start=1\)"):
            policy.q1(x, no_actions)
        served = tf.saved_model.load(policy.directory).signatures["q1"](x=tf.constant(x), a=tf.constant(no_actions))
        assert np.isnan(served["q1"].numpy()).all()
    else:
        np.testing.assert_allclose(described["loc"], agent.pi(x), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(described["scale"], np.broadcast_to([0.6, 0.15], (6, 2)), rtol=1e-5)
        np.testing.assert_allclose(policy.v(x), agent.v(x) * 10, rtol=1e-3, atol=1e-5)
    assert policy.v(x[0]).shape == ()
    shared = {id(v) for v in agent.pi.trainable_variables} & {
        id(v) for v in agent.networks.get("v", agent.q1).trainable_variables
    }
    assert bool(shared) == bool(options)


@pytest.mark.parametrize("kind", ["discrete", "box"])
@pytest.mark.slow
def test_custom_networks_and_a_shared_encoder_are_saved_and_resumed(kind, tmp_path):
    encoder = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4, "tanh")])
    agent = tfdpg.ACER(SPECS[kind], encoder=encoder, shared_torso=True, learn_sigma=kind == "box", **SMALL)
    observation = np.ones((4, 2), np.float32)
    for t in range(20):
        agent.act(observation * t / 20)
        agent.observe(np.ones(4), observation * (t + 1) / 20, np.zeros(4), np.zeros(4), observation)
    agent.learn(updates=2)
    agent.save(tmp_path / "agent")
    again = tfdpg.load_agent(tmp_path / "agent")
    for each in (agent, again):
        each.learn(updates=3)
    for x, y in zip(agent.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(x, y)
    width = 3 if kind == "discrete" else 2
    own = keras.Sequential([keras.Input((2,)), keras.layers.Dense(width, "softmax" if kind == "discrete" else "tanh")])
    mine = tfdpg.ACER(SPECS[kind], pi=own, **SMALL)
    mine.save(tmp_path / "own")
    np.testing.assert_array_equal(tfdpg.load_agent(tmp_path / "own").predict(observation), mine.predict(observation))
    if kind == "discrete":
        logits = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, bias_initializer="ones")])
        with pytest.raises(ValueError, match="`pi` must be .* returns probabilities"):
            tfdpg.ACER(SPECS[kind], pi=logits, **SMALL)
    with pytest.raises(ValueError, match=rf"`pi` must .*shape \(batch, {width}\)"):
        tfdpg.ACER(SPECS[kind], pi=keras.Sequential([keras.Input((2,)), keras.layers.Dense(5)]), **SMALL)


def test_the_optimizer_and_the_learning_rate_can_change(tmp_path):
    agent = tfdpg.ACER(SPECS["discrete"], **SMALL)
    agent.save(tmp_path / "agent")
    again = tfdpg.load_agent(tmp_path / "agent", lr=0.5, c=3.0)
    assert float(again.optimizers["all"].learning_rate) == 0.5 and again.c == 3.0
    schedule = keras.optimizers.schedules.PolynomialDecay(0.1, 10)
    other = tfdpg.load_agent(tmp_path / "agent", optimizer=keras.optimizers.SGD(schedule))
    assert isinstance(other.optimizers["all"], keras.optimizers.SGD)
    for name in ("critic_average", "reward_scale"):
        with pytest.raises(ValueError, match=f"`{name}` cannot change"):
            tfdpg.load_agent(tmp_path / "agent", **{name: 0.9})


@pytest.mark.parametrize(
    "kind, options, message",
    [
        ("discrete", {"sigma": 0.5}, "`sigma` does .*actions are Discrete"),
        ("discrete", {"dueling": False}, "`dueling` does nothing where"),
        ("box", {"dueling": False, "dueling_samples": 3}, "`dueling_samples` .*`dueling` is False"),
        ("box", {"replay_ratio": 0}, "`replay_ratio` .*above 0.*`on_policy`"),
        ("box", {"replay_start": 10**6}, "`replay_start` .*most replay_size=50000"),
        ("box", {"c": 0}, "`c` must be .*above 0, or infinity"),
        ("box", {"c": "10"}, "`c` must .*or None. Received: c='10'"),
        ("box", {"ent_coef": 0.1}, "`ent_coef` does .*scale .*is fixed"),
        ("discrete", {"replay_ratio": 0, "replay_start": 50}, "`replay_start` .*`replay_ratio` is 0"),
        ("box", {"on_policy": "yes"}, "`on_policy` must be True or False"),
        ("box", {"dueling": "no"}, "`dueling` must be True or False"),
        ("box", {"delta": -1.0}, "`delta` must be a number above 0"),
        ("box", {"learn_sigma": True, "sigma": 0.01}, "`sigma` must be above 0.01"),
        ("box", {"optimizer": keras.optimizers.SGD(0.1), "lr": 0.1}, "`lr` does .*`optimizer` is your own"),
        ("box", {"optimizer": "sgd"}, "`optimizer` must be a Keras optimizer"),
        ("box", {"clip_value": 1.0}, "`clip_norm` or `clip_value`, not both"),
        ("box", {"retrace_lambda": 2.0}, r"`retrace_lambda` must .*in \[0, 1\]"),
        ("box", {"n_steps": 0}, "`n_steps` must be a positive integer"),
        ("box", {"n_steps": 100, "replay_size": 100}, "`n_steps` must .*than replay_size=100"),
        ("box", {"alpha": 1.5}, r"`alpha` must .*in \[0, 1\]"),
    ],
)
def test_options_out_of_range_or_without_effect_are_rejected(kind, options, message):
    with pytest.raises(ValueError, match=message):
        tfdpg.ACER(SPECS[kind], **options)


def test_deterministic_policies_refuse_discrete_actions():
    for agent in (tfdpg.TD3, tfdpg.DDPG, tfdpg.D4PG):
        with pytest.raises(ValueError, match="Discrete.*not supported.*tfdpg.ACER"):
            agent(SPECS["discrete"])


@pytest.mark.parametrize(
    "start", [pytest.param(-1, marks=pytest.mark.slow), pytest.param(0, marks=pytest.mark.slow), 5]
)
def test_windows_without_steps_and_truncations_give_finite_weights(start, monkeypatch):
    """Unwritten rows may hold anything, here NaN. With one sub-environment, 2 of the 3 newest windows have no step."""
    monkeypatch.setattr(buffer, "allocate_array", lambda shape, dtype, directory: np.full(shape, np.nan, dtype))
    spec = tfdpg.Spec(SPECS["box"].observation_space, spaces.Discrete(2, start=start))
    agent = tfdpg.ACER(spec, **SMALL | {"replay_start": 5})
    observation = np.zeros(2, np.float32)
    for t in range(40):
        assert agent.act(observation) - start in (0, 1)
        agent.observe(1.0, observation + t, False, t % 7 == 6)
        agent.learn()
    assert agent.updates > 8 and all(np.isfinite(w).all() for w in agent.get_weights())
    agent.pi.layers[-2].bias.assign([200.0, -200.0])
    assert np.isfinite(list(agent.learn(updates=1).values())).all()  # a probability of 0


def test_gradients_are_clipped_by_norm_by_value_or_by_a_custom_optimizer(tmp_path):
    assert tfdpg.ACER(SPECS["box"]).optimizers["all"].global_clipnorm == 10
    agent = tfdpg.ACER(SPECS["box"], clip_norm=None, clip_value=0.25, **SMALL)
    assert agent.optimizers["all"].clipvalue == 0.25 and agent.optimizers["all"].global_clipnorm is None
    agent = tfdpg.ACER(SPECS["box"], clip_norm=None, **SMALL)
    agent.save(tmp_path / "agent")
    again = tfdpg.load_agent(tmp_path / "agent", optimizer=keras.optimizers.SGD(0.1, clipvalue=0.5))
    assert again.optimizers["all"].clipvalue == 0.5


@pytest.mark.slow
def test_removed_sub_environments_have_no_newest_windows():
    agent = tfdpg.ACER(SyncVectorEnv([Counter] * 3), **SMALL | {"replay_ratio": 0, "on_policy": True, "batch_size": 1})
    agent.fit(SyncVectorEnv([Counter] * 3), epochs=1, steps_per_epoch=15, verbose=0)
    assert agent.updates == 3
    agent.fit(Counter(), epochs=1, steps_per_epoch=5, verbose=0)
    assert agent.updates == 4
