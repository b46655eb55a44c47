"""DDPG's update compared with arithmetic by hand."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdpg
from tests.agents.by_hand import BATCH, PI, PI_T, Q1, Q1_T, S2, SPEC, A, D, R, S, adam_first_step, linear, set_targets
from tests.environments import Identity


def linear_agent(**changes):
    arguments = {"batch_size": 2, "polyak": 0.9, "pi_lr": 0.01, "q_lr": 0.1, "jit_compile": False}
    q1 = linear([keras.Input((1,)), keras.Input((1,))], Q1)
    return tfdpg.DDPG(SPEC, pi=linear(keras.Input((1,)), [PI]), q1=q1, **arguments | changes)


def test_an_update_matches_the_source_document():
    agent = linear_agent()
    set_targets(agent)
    measured = agent.update(BATCH, tf.constant(1, tf.int64))
    target = R + D * (Q1_T[0] * S2 + Q1_T[1] * PI_T * S2)
    q = Q1[0] * S + Q1[1] * A
    gradient = np.array([np.mean(2 * (q - target) * S), np.mean(2 * (q - target) * A)])
    critic = np.array(Q1) - adam_first_step(gradient, 0.1)
    np.testing.assert_allclose(agent.q1.get_weights()[0][:, 0], critic, rtol=1e-4)
    policy = PI - adam_first_step(np.mean(-critic[1] * S), 0.01)  # the policy follows the updated critic
    np.testing.assert_allclose(agent.pi.get_weights()[0], [[policy]], rtol=1e-5)
    np.testing.assert_allclose(measured["loss_q"], (q - target) ** 2, rtol=1e-5)
    np.testing.assert_allclose(measured["td_error"], abs(q - target), rtol=1e-5)
    np.testing.assert_allclose(measured["loss_pi"], -(critic[0] * S + critic[1] * PI * S), rtol=1e-4)
    np.testing.assert_allclose(agent.pi_target.get_weights()[0], [[0.9 * PI_T + 0.1 * policy]], rtol=1e-5)
    np.testing.assert_allclose(agent.q1_target.get_weights()[0][:, 0], 0.9 * np.array(Q1_T) + 0.1 * critic, rtol=1e-5)


def test_targets_start_equal_to_the_networks_and_can_be_updated_periodically():
    agent = linear_agent(target_update_every=2, polyak=0.0)
    old = {"pi": [[PI]], "q1": np.reshape(Q1, (2, 1))}
    for counter in (1, 2):
        agent.update(BATCH, tf.constant(counter, tf.int64))
        for name, target in agent.targets.items():
            expected = agent.networks[name].get_weights()[0] if counter == 2 else old[name]
            np.testing.assert_allclose(target.get_weights()[0], expected, rtol=1e-6)


def test_with_lap_the_critic_minimises_the_huber_loss():
    agent = linear_agent(replay="lap")
    set_targets(agent)
    measured = agent.update(BATCH, tf.constant(1, tf.int64))
    target = R + D * (Q1_T[0] * S2 + Q1_T[1] * PI_T * S2)
    error = Q1[0] * S + Q1[1] * A - target
    assert (np.abs(error) > 1).any()
    slope = np.clip(error, -1, 1)
    critic = np.array(Q1) - adam_first_step(np.array([np.mean(slope * S), np.mean(slope * A)]), 0.1)
    np.testing.assert_allclose(agent.q1.get_weights()[0][:, 0], critic, rtol=1e-4)
    huber = np.where(np.abs(error) < 1, error**2 / 2, np.abs(error) - 0.5)
    np.testing.assert_allclose(measured["loss_q"], huber, rtol=1e-4)


@pytest.mark.slow
def test_identity_is_learnt():
    env = Identity()
    options = {"hidden_units": (32, 32), "start_steps": 200, "update_after": 100, "jit_compile": False}
    agent = tfdpg.DDPG(env, pi_lr=3e-3, q_lr=3e-3, **options)
    agent.fit(env, epochs=1, steps_per_epoch=1000, verbose=0)
    assert agent.evaluate(Identity(), episodes=20)["return"] > -0.02
