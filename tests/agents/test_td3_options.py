"""TD3's options: one critic, custom critics, the policy's objective, target updates and decaying noise."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

import tfdpg
from tests.agents.by_hand import (
    BATCH,
    PI,
    Q1,
    Q2,
    S2,
    SPEC,
    A,
    D,
    R,
    S,
    adam_first_step,
    expected_target,
    linear,
    linear_agent,
    minibatch,
    set_targets,
)


def test_with_one_critic_it_is_delayed_ddpg():
    agent = tfdpg.TD3(
        SPEC,
        critics=1,
        pi=linear(keras.Input((1,)), [PI]),
        q1=linear([keras.Input((1,)), keras.Input((1,))], Q1),
        batch_size=2,
        q_lr=0.1,
        jit_compile=False,
    )
    assert set(agent.networks) == {"pi", "q1"} == set(agent.targets)
    measured = agent.update(BATCH, tf.constant(1, tf.int64))
    assert np.isnan(measured["loss_pi"]).all()
    noise = agent.smoothing_noise(tf.constant(1, tf.int64)).numpy()[:, 0]
    action = np.clip(PI * S2 + np.clip(noise, -1, 1), -1, 3)
    target = R + D * (Q1[0] * S2 + Q1[1] * action)
    np.testing.assert_allclose(measured["loss_q"], (Q1[0] * S + Q1[1] * A - target) ** 2, rtol=1e-4)
    assert [metric.name for metric in agent.metrics] == ["loss_q", "loss_pi", "q1", "td_error"]
    for options in ({"q2": agent.networks["q1"]}, {"policy_gradient": "min"}):
        with pytest.raises(ValueError, match="needs? two critics"):
            tfdpg.TD3(SPEC, critics=1, **options)


def test_three_critics_learn_from_the_smallest_of_their_targets():
    agent = tfdpg.TD3(SPEC, critics=3, hidden_units=(4,), batch_size=2, policy_gradient="min", jit_compile=False)
    expected = agent.networks["q3"]([BATCH.observation, BATCH.action]).numpy()
    action = agent.target_action(BATCH, tf.constant(1, tf.int64))
    value = np.min([q([BATCH.next_observation, action]) for name, q in agent.targets.items() if name != "pi"], axis=0)
    before = agent.networks["q3"].get_weights()
    measured = agent.update(BATCH, tf.constant(1, tf.int64))
    assert set(measured) == {"loss_q", "loss_pi", "q1", "q2", "q3", "td_error"}
    np.testing.assert_allclose(measured["q3"], expected, rtol=1e-5)
    errors = np.abs(R + D * value - [measured[name] for name in ("q1", "q2", "q3")])
    np.testing.assert_allclose(measured["td_error"], errors.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(measured["loss_q"], (errors**2).sum(axis=0), rtol=1e-5)
    assert not np.array_equal(before[0], agent.networks["q3"].get_weights()[0])
    with pytest.raises(ValueError, match="for one or two critics. Received: critics=3"):
        tfdpg.TD3(SPEC, critics=3, q1=agent.networks["q1"], q2=agent.networks["q2"])


def test_with_lap_priorities_come_from_the_larger_error_and_the_loss_is_hubers():
    agent = linear_agent(replay="lap")
    set_targets(agent)
    target = expected_target(agent, 1)
    measured = agent.update(BATCH, tf.constant(1, tf.int64))
    errors = np.abs([q[0] * S + q[1] * A - target for q in (Q1, Q2)])
    np.testing.assert_allclose(measured["td_error"], errors.max(axis=0), rtol=1e-4)
    huber = np.where(errors < 1, errors**2 / 2, errors - 0.5)
    np.testing.assert_allclose(measured["loss_q"], huber.sum(axis=0), rtol=1e-4)
    with pytest.raises(ValueError, match="cross-entropy"):
        tfdpg.D4PG(SPEC, replay="lap")
    with pytest.raises(ValueError, match="`beta` does nothing"):
        tfdpg.TD3(SPEC, replay="lap", beta=0.5)


def test_critics_may_differ_in_structure():
    deep = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
    inputs = [keras.Input((1,)), keras.Input((1,))]
    q2 = keras.Model(inputs, deep(keras.layers.Concatenate()(inputs)))
    agent = tfdpg.TD3(
        SPEC, q1=linear([keras.Input((1,)), keras.Input((1,))], Q1), q2=q2, hidden_units=(4,), batch_size=2
    )
    before = [network.get_weights() for network in (agent.networks["q1"], agent.networks["q2"])]
    agent.update(BATCH, tf.constant(1, tf.int64))
    for old, network in zip(before, (agent.networks["q1"], agent.networks["q2"]), strict=True):
        assert all(not np.array_equal(a, b) for a, b in zip(old[:1], network.get_weights()[:1], strict=True))


def test_a_critic_with_custom_basis_functions_is_fitted():
    """Q(s, a) = W · B(s, a) with B = [s², s a, a²], fitted to targets for which an exact W exists."""
    s = keras.Input((1,))
    a = keras.Input((1,))
    basis = keras.layers.Concatenate()([s * s, s * a, a * a])
    weights = keras.layers.Dense(1, use_bias=False)
    q1 = keras.Model([s, a], weights(basis))
    weights.set_weights([np.array([[0.1], [0.2], [0.3]], np.float32)])
    agent = tfdpg.TD3(SPEC, critics=1, q1=q1, hidden_units=(4,), batch_size=64, q_lr=0.05)
    rng = np.random.default_rng(0)
    observation, action = rng.uniform(-1, 1, (2, 64))
    target = 2 * observation**2 - observation * action + 0.5 * action**2
    batch = minibatch(observation, action, target, np.zeros(64), observation)
    update = tf.function(agent.update, autograph=False)
    for i in range(1, 400):
        update(batch, tf.constant(i, tf.int64))
    np.testing.assert_allclose(agent.networks["q1"].get_weights()[0][:, 0], [2, -1, 0.5], atol=0.02)


def test_policy_gradient_min_maximises_the_smaller_critic():
    agent = linear_agent(policy_gradient="min")
    measured = agent.update(BATCH, tf.constant(2, tf.int64))
    w1, w2 = (agent.networks[name].get_weights()[0][:, 0] for name in ("q1", "q2"))
    q1, q2 = (w[0] * S + w[1] * PI * S for w in (w1, w2))
    np.testing.assert_allclose(measured["loss_pi"], -np.minimum(q1, q2), rtol=1e-5)
    gradient = np.mean(np.where(q1 < q2, -w1[1] * S, -w2[1] * S))
    moved = PI - adam_first_step(gradient, 0.01)
    np.testing.assert_allclose(agent.networks["pi"].get_weights()[0], [[moved]], rtol=1e-5)


@pytest.mark.parametrize("every, polyak", [(1, 0.9), (3, 0.0), (3, 0.9)])
def test_targets_are_updated_smoothly_periodically_or_both(every, polyak):
    agent = linear_agent(target_update_every=every, polyak=polyak)
    for counter in range(1, 7):
        old = agent.targets["q1"].get_weights()[0]
        agent.update(BATCH, tf.constant(counter, tf.int64))
        online = agent.networks["q1"].get_weights()[0]
        new = agent.targets["q1"].get_weights()[0]
        expected = polyak * old + (1 - polyak) * online if counter % every == 0 else old
        np.testing.assert_allclose(new, expected, rtol=1e-5)


def test_target_noise_decays_to_its_minimum_and_may_differ_by_dimension():
    spec = tfdpg.Spec(spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (2,)))
    options = {"hidden_units": (4,), "batch_size": 20_000, "target_noise": (0.2, 0.4)}
    agent = tfdpg.TD3(spec, target_noise_decay=0.1, target_noise_min=0.5, **options)
    for counter, factor in ((1, 1.0), (3, 0.81), (50, 0.5)):
        noise = agent.smoothing_noise(tf.constant(counter, tf.int64)).numpy()
        np.testing.assert_allclose(noise.std(axis=0), [0.2 * factor, 0.4 * factor], rtol=0.03)
