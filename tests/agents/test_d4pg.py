"""D4PG's update compared with arithmetic by hand; its heads, its support and its options."""

import types

import gymnasium as gym
import keras
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

import tfdpg
from tests.agents.by_hand import BATCH, PI, PI_T, S2, SPEC, A, D, R, S, adam_first_step, linear, minibatch
from tests.agents.roster import EAGER, SMALL, fit_briefly
from tests.environments import Counter, Identity
from tests.losses.test_distributional import slow_projection
from tfdpg.agents.support_range import FIRST_UPDATES, warn_of_edges
from tfdpg.networks import Categorical, Mixture, head_of
from tfdpg.replay import TransitionLayout, return_range

ATOMS = np.linspace(-2, 2, 5)
KERNEL = np.array([[0.2, -0.1, 0.4, 0.3, -0.5], [0.1, 0.3, -0.2, 0.6, 0.2]], np.float32)
KERNEL_T = KERNEL[:, ::-1] * np.float32(0.7)
HEADS = ("categorical", "mixture", "scalar")


def critic(layer, kernel):
    inputs = [keras.Input((1,)), keras.Input((1,))]
    model = keras.Model(inputs, layer(keras.layers.Concatenate()(inputs)))
    layer.kernel.assign(kernel)
    return model


def categorical_agent(**changes):
    arguments = {"batch_size": 2, "pi_lr": 0.01, "q_lr": 0.1, "jit_compile": False}
    if "pi_optimizer" in changes:
        del arguments["pi_lr"]
    q1 = critic(Categorical(-9, 9, 5), KERNEL)
    agent = tfdpg.D4PG(SPEC, pi=linear(keras.Input((1,)), [PI]), q1=q1, **arguments | changes)
    for network in (*agent.networks.values(), *agent.targets.values()):
        if head_of(network) is not None:
            head_of(network).set_range(-2, 2)  # differs from the range in the constructor
    agent.targets["pi"].set_weights([np.array([[PI_T]], np.float32)])
    head_of(agent.targets["q1"]).kernel.assign(KERNEL_T)
    return agent


def logits(s, a, kernel=KERNEL):
    return np.stack([s, a], axis=1) @ kernel


def softmax(x):
    return np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)


def target_probs():
    probs = softmax(logits(S2, PI_T * S2, KERNEL_T))
    return np.stack([slow_projection(r + d * ATOMS, p, ATOMS) for r, d, p in zip(R, D, probs, strict=True)])


def test_a_critic_update_matches_the_paper():
    agent = categorical_agent()
    measured = agent.update(BATCH, tf.constant(1, tf.int64))
    target = target_probs()
    probs = softmax(logits(S, A))
    np.testing.assert_allclose(measured["loss_q"], -(target * np.log(probs)).sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(measured["q1"], probs @ ATOMS, rtol=1e-5)
    mean_t = R + D * (softmax(logits(S2, PI_T * S2, KERNEL_T)) @ ATOMS)
    np.testing.assert_allclose(measured["td_error"], np.abs(mean_t - probs @ ATOMS), rtol=1e-5)
    np.testing.assert_allclose(measured["edge_mass"], target[:, 0] + target[:, -1], rtol=1e-5)
    gradient = np.stack([S, A], axis=1).T @ (probs - target) / 2
    np.testing.assert_allclose(agent.head.kernel, KERNEL - adam_first_step(gradient, 0.1), atol=2e-6)
    np.testing.assert_array_equal(agent.head.atoms, ATOMS)


def test_importance_weights_apply_to_the_critic_loss_only():
    weighty = BATCH._replace(weight=tf.constant([3.0, 0.0]))
    sgd = {"pi_optimizer": keras.optimizers.SGD(0.1)}
    plain = categorical_agent(q_lr=1e-12, **sgd)
    weighted = categorical_agent(q_lr=1e-12, **sgd)
    plain.update(BATCH, tf.constant(1, tf.int64))
    weighted.update(weighty, tf.constant(1, tf.int64))
    np.testing.assert_array_equal(plain.pi.get_weights()[0], weighted.pi.get_weights()[0])
    weighted = categorical_agent()
    weighted.update(weighty, tf.constant(1, tf.int64))
    target = target_probs()
    probs = softmax(logits(S, A))
    gradient = np.stack([S, A], axis=1)[:1].T * 3 @ (probs - target)[:1] / 2
    np.testing.assert_allclose(weighted.head.kernel, KERNEL - adam_first_step(gradient, 0.1), atol=2e-6)


def test_the_policy_maximises_the_mean():
    agent = categorical_agent(q_lr=1e-12)
    measured = agent.update(BATCH, tf.constant(1, tf.int64))
    probs = softmax(logits(S, PI * S))
    q = probs @ ATOMS
    np.testing.assert_allclose(measured["loss_pi"], -q, rtol=1e-5)
    by_action = (probs * (KERNEL[1] - (probs @ KERNEL[1])[:, None])) @ ATOMS
    moved = PI + adam_first_step(np.mean(by_action * S), 0.01)
    np.testing.assert_allclose(agent.pi.get_weights()[0], [[moved]], rtol=1e-5)


@pytest.mark.parametrize("limit", [0.05, 100.0])
def test_the_gradient_by_the_action_is_clipped_for_each_sample(limit):
    agent = categorical_agent(q_lr=1e-12, clip_action_gradient=limit, pi_optimizer=keras.optimizers.SGD(0.01))
    measured = agent.update(BATCH, tf.constant(1, tf.int64))
    probs = softmax(logits(S, PI * S))
    np.testing.assert_allclose(measured["loss_pi"], -(probs @ ATOMS), rtol=1e-5)
    by_action = (probs * (KERNEL[1] - (probs @ KERNEL[1])[:, None])) @ ATOMS
    clipped = np.clip(by_action, -limit / 2, limit / 2)  # the action scale is 2
    assert (limit == 0.05) == (clipped != by_action).any()
    np.testing.assert_allclose(agent.pi.get_weights()[0], [[PI + 0.01 * np.mean(clipped * S)]], rtol=1e-6)


def test_targets_are_copied_when_due():
    agent = categorical_agent(target_update_every=3)
    for counter in (1, 2, 3):
        agent.update(BATCH, tf.constant(counter, tf.int64))
        same = np.array_equal(head_of(agent.targets["q1"]).kernel, agent.head.kernel)
        assert same == (counter == 3)


def test_of_two_critics_the_distribution_with_the_smaller_mean_is_the_target():
    other = np.array([[-0.3, 0.2, 0.1, -0.4, 0.5], [0.5, -0.6, 0.1, 0.2, 0.7]], np.float32)
    q2 = critic(Categorical(-9, 9, 5), other)
    agent = categorical_agent(critics=2, q2=q2)
    both = np.stack([logits(S2, PI_T * S2, kernel) for kernel in (KERNEL_T, other)])
    means = softmax(both) @ ATOMS
    chosen = means.argmin(axis=0)
    assert set(chosen) == {0, 1}
    np.testing.assert_allclose(agent.smaller(*tf.constant(both, tf.float32)), both[chosen, np.arange(2)], rtol=1e-5)
    before = [network.get_weights()[0].copy() for network in (agent.networks["q1"], agent.networks["q2"])]
    agent.update(BATCH, tf.constant(1, tf.int64))
    for old, network in zip(before, (agent.networks["q1"], agent.networks["q2"]), strict=True):
        assert not np.array_equal(old, network.get_weights()[0])


@pytest.mark.slow
def test_a_mixture_learns_a_discrete_distribution():
    """The terminal reward is -3 or 2 in the same state. The critic learns its mean and its tails."""
    spec = tfdpg.Spec(spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (1,)))
    agent = tfdpg.D4PG(spec, critic="mixture", hidden_units=(16,), batch_size=64, q_lr=0.01, seed=1)
    reward = np.where(np.arange(64) % 4 == 0, -3.0, 2.0)
    batch = minibatch(np.zeros(64), np.zeros(64), reward, np.zeros(64), np.zeros(64))
    step = tf.function(agent.update)
    for i in range(1, 2500):
        step(batch, tf.constant(i, tf.int64))
    output = agent.networks["q1"]([tf.zeros((1, 1)), tf.zeros((1, 1))])
    np.testing.assert_allclose(agent.head.mean(output), [0.75], atol=0.1)
    quantiles = agent.head.quantiles(output, tf.constant([0.1, 0.2, 0.4, 0.9]))
    np.testing.assert_allclose(quantiles, [[-3, -3, 2, 2]], atol=0.3)
    np.testing.assert_allclose(agent.head.cvar(output, tf.constant([0.25])), [[-3]], atol=0.5)


def test_both_critics_must_have_the_same_support():
    q2 = critic(Categorical(-100, 100, 5), KERNEL[:, ::-1])
    with pytest.raises(ValueError, match="`q1` and `q2` must .*the same settings"):
        tfdpg.D4PG(SPEC, critics=2, q1=critic(Categorical(-2, 2, 5), KERNEL), q2=q2)
    inputs = [keras.Input((1,)), keras.Input((1,))]
    soft = keras.layers.Softmax()(Categorical(-2, 2, 5)(keras.layers.Concatenate()(inputs)))
    with pytest.raises(ValueError, match="`q1` must end in a .*Categorical layer"):
        tfdpg.D4PG(SPEC, q1=keras.Model(inputs, soft))


def test_mixture_targets_bootstrap_and_differ_from_update_to_update():
    head = Mixture(2, target_samples=4000)
    head.build((None, 3))
    output = tf.constant([[0.0, 0.0, -10.0, 30.0, -5.0, -5.0]] * 2)
    reward = tf.constant([1.0, 1.0])
    discount = tf.constant([0.5, 0.0])
    first, second = (head.target(reward, discount, output, tf.constant([0, i], tf.int64)).numpy() for i in (1, 2))
    np.testing.assert_allclose(np.unique(np.round(first[:, 0], 0)), [-4, 16])
    np.testing.assert_allclose(first.mean(axis=0), [1 + 0.5 * 10, 1], atol=0.5)
    stddev = 0.5 * (np.log1p(np.exp(-5)) + head.min_stddev)
    for mean in (-4, 16):  # the samples of each component are normally distributed around its mean
        normal = (first[np.isclose(first[:, 0], mean, atol=1), 0] - mean) / stddev
        np.testing.assert_allclose([normal.mean(), normal.std()], [0, 1], atol=0.1)
    assert not np.array_equal(first, second)


@pytest.mark.slow  # test_agents.py tests this for the categorical head
@pytest.mark.parametrize("kind", HEADS)
def test_many_updates_at_once_equal_one_by_one_and_xla_computes_the_same(kind):
    one, many, compiled = (waiting(critic=kind, jit_compile=jit) for jit in (False, False, True))
    assert_many_equal_one_by_one(one, many)
    compiled.learn(updates=13)
    for x, y in zip(many.get_weights(), compiled.get_weights(), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_many_updates_of_a_mixture_equal_one_by_one():
    assert_many_equal_one_by_one(*(waiting(critic="mixture") for _ in range(2)))


def waiting(**options):
    """Return an agent with a filled replay buffer and no update."""
    env = gym.make("Pendulum-v1")
    agent = tfdpg.D4PG(env, **SMALL | {"replay": "uniform", "update_after": 1000} | options)
    fit_briefly(agent, env, epochs=1, steps_per_epoch=40)
    return agent


def assert_many_equal_one_by_one(one, many):
    for _ in range(13):
        one.learn(updates=1)
    many.learn(updates=13)
    assert one.updates == many.updates == 13
    for x, y in zip(one.get_weights(), many.get_weights(), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("kind", HEADS)
def test_heads_share_one_interface(kind):
    agent = tfdpg.D4PG(Identity(), critic=kind, **SMALL)
    output = agent.networks["q1"]([tf.zeros((4, 1)), tf.ones((4, 1))])
    head = agent.head
    described = agent.head.describe(output)
    assert head.mean(output).shape == (4,) and head.cvar(output, tf.constant([0.1, 0.9])).shape == (4, 2)
    weight, value = ("weights", "means") if kind == "mixture" else ("probs", "atoms")
    np.testing.assert_allclose(
        tf.reduce_sum(described[weight] * described[value], axis=1), head.mean(output), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(head.cvar(output, tf.constant([1.0])), head.mean(output)[:, None], atol=1e-2)
    if kind != "scalar":
        np.testing.assert_allclose(head.distribution(output).mean(), head.mean(output), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", HEADS)
def test_identity_is_learnt(kind):
    env = Identity()
    options = {"hidden_units": (32, 32), "batch_size": 64, "pi_lr": 3e-3, "q_lr": 3e-3, "n_step": 1, "seed": 0}
    if kind == "categorical":
        options |= {"v_min": -17, "v_max": 2, "jit_compile": False}  # the other heads learn under XLA
    agent = tfdpg.D4PG(env, critic=kind, start_steps=300, update_after=300, replay_size=2000, **options)
    agent.fit(env, epochs=1, steps_per_epoch=1300, verbose=0)
    assert agent.evaluate(env, 50)["return"] > -0.05


def test_the_range_comes_from_the_returns_seen():
    env = Counter(length=4)
    agent = tfdpg.D4PG(env, **SMALL | EAGER | {"gamma": 0.5, "start_steps": 20, "update_after": 20})
    fit_briefly(agent, env, epochs=1, steps_per_epoch=20)
    low, high = return_range(agent.replay, 0.5)
    longest = 1 + 2 / 2 + 3 / 4 + 4 / 8, 2 + 3 / 2 + 4 / 4, 3 + 4 / 2, 4  # the return from each step of an episode
    extremes = [*longest, *(np.quantile(np.tile([1, 2, 3, 4], 5), [0.01, 0.99]) / 0.5)]
    margin = 0.1 * (max(extremes) - min(extremes))
    np.testing.assert_allclose([low, high], [min(extremes) - margin, max(extremes) + margin], rtol=1e-5)
    logs = agent.learn(updates=2)
    for network in (agent.networks["q1"], agent.targets["q1"]):
        np.testing.assert_allclose(head_of(network).atoms.numpy()[[0, -1]], [low, high], rtol=1e-6)
    assert logs["v_min"] == pytest.approx(low, rel=1e-5) and logs["v_max"] == pytest.approx(high, rel=1e-5)
    agent.fit(env, epochs=1, steps_per_epoch=20, verbose=0)
    np.testing.assert_allclose(agent.head.atoms.numpy()[[0, -1]], [low, high], rtol=1e-6)


@pytest.mark.slow
def test_checkpoints_and_weights_keep_the_estimated_range(tmp_path):
    env = Counter(length=4)
    agent = tfdpg.D4PG(env, **SMALL)
    agent.fit(env, epochs=1, steps_per_epoch=40, verbose=0)
    agent.save(tmp_path / "agent")
    np.testing.assert_array_equal(tfdpg.load_agent(tmp_path / "agent").head.atoms, agent.head.atoms)
    longer = Counter(length=9)
    for support in ({}, {"v_min": -150, "v_max": 150}):
        known = agent if not support else tfdpg.D4PG(env, **support, **SMALL)
        other = tfdpg.D4PG(longer, **SMALL)
        other.set_weights(known.get_weights())
        other.fit(longer, epochs=1, steps_per_epoch=40, verbose=0)
        np.testing.assert_array_equal(other.head.atoms, known.head.atoms)


def test_v_range_auto_estimates_the_range_of_a_custom_critic():
    env = Counter(length=4)
    inputs = [keras.Input((2,)), keras.Input((1,))]
    q1 = keras.Model(inputs, Categorical(-2, 2, 5)(keras.layers.Concatenate()(inputs)))
    options = {name: value for name, value in SMALL.items() if name != "hidden_units"} | EAGER
    agent = tfdpg.D4PG(env, q1=q1, v_range="auto", **options)
    agent.fit(env, epochs=1, steps_per_epoch=20, verbose=0)
    assert agent.head.atoms.numpy()[-1] > 9


def test_a_support_that_is_too_small_gives_a_warning_with_the_figure():
    env = Counter(length=30)
    agent = tfdpg.D4PG(env, v_min=-1, v_max=1, **SMALL)
    with pytest.warns(UserWarning, match=r"100\.0% of .*edge atoms .*\[-1, 1\]") as caught:
        history = agent.fit(env, epochs=1, steps_per_epoch=250, verbose=0).history
    assert len(caught) == 1 and history["edge_mass"][0] > 0.9


def test_an_untrained_critic_gives_no_warning_of_a_small_support():
    random_weights = 0.071  # the largest of eight training runs with truncated episodes
    logs = {"v_min": -500.0, "v_max": 500.0, "q1": 2.4}
    agent = types.SimpleNamespace(
        updates=FIRST_UPDATES, host_state={"edges_warned": None}, metrics=[tfdpg.Metric("q1", spread=True)]
    )
    warn_of_edges(agent, logs | {"edge_mass": random_weights})
    with pytest.warns(UserWarning, match=r"15\.0% of .*edge atoms .*\[-500, 500\]"):
        warn_of_edges(agent, logs | {"edge_mass": 0.15})


@pytest.mark.slow
def test_a_wide_or_adaptive_support_gives_no_warning():
    env = Counter(length=30)
    options = SMALL | {"hidden_units": (8, 8)}
    agent = tfdpg.D4PG(env, v_min=-100, v_max=2000, **options)
    assert agent.fit(env, epochs=1, steps_per_epoch=250, verbose=0).history["edge_mass"][0] < 0.05
    agent = tfdpg.D4PG(env, v_range="running", **options)
    agent.head.set_range(-1, 1)
    assert agent.fit(env, epochs=1, steps_per_epoch=250, verbose=0).history["edge_mass"][0] > 0.9


def test_importance_weights_are_those_of_the_source_document():
    env = Counter(length=9)
    rarely = SMALL | EAGER | {"update_every": 10}
    agent = tfdpg.D4PG(env, v_min=-9, v_max=90, **rarely)
    agent.fit(env, epochs=1, steps_per_epoch=60, verbose=0)
    rows, weights = agent.data.minibatch_builder.sampler.sample(7, 40)
    priorities = agent.data.minibatch_builder.sampler.state()["priorities"]
    np.testing.assert_allclose(weights, priorities.sum() / (len(agent.replay) * priorities[rows]), rtol=1e-4)
    np.testing.assert_array_equal(
        agent.data.minibatch_builder.pack(rows, weights)[0][..., TransitionLayout.of(agent.spec).weight], weights
    )
    normalised = tfdpg.D4PG(env, normalize_weights=True, **rarely)
    normalised.fit(env, epochs=1, steps_per_epoch=60, verbose=0)
    assert (normalised.data.minibatch_builder.sampler.sample(7, 40)[1].max(axis=1) == 1).all()
