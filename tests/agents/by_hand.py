"""TD3 with networks of one layer, whose updates can be computed by hand, and a minibatch."""

import keras
import numpy as np
import tensorflow as tf
from gymnasium import spaces

import tfdpg
from tfdpg.networks import unpack_transitions
from tfdpg.replay import TransitionLayout

ACTION = spaces.Box(np.array([-1.0], np.float32), np.array([3.0], np.float32))
SPEC = tfdpg.Spec(spaces.Box(-9, 9, (1,)), ACTION)
LAYOUT = TransitionLayout.of(SPEC)
PI = 0.4
Q1 = (0.5, -0.3)
Q2 = (0.2, 0.7)
PI_T = -0.3  # weights of the target networks
Q1_T = (0.6, 0.4)
Q2_T = (0.1, 0.8)


def linear(inputs, weights):
    x = inputs if not isinstance(inputs, list) else keras.layers.Concatenate()(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, use_bias=False)(x))
    model.set_weights([np.array(weights, np.float32).reshape(-1, 1)])
    return model


def linear_agent(**changes):
    def inputs():
        return [keras.Input((1,)), keras.Input((1,))]

    arguments = {"batch_size": 2, "policy_delay": 2, "polyak": 0.9, "pi_lr": 0.01, "q_lr": 0.1, "jit_compile": False}
    return tfdpg.TD3(
        SPEC,
        pi=linear(keras.Input((1,)), [PI]),
        q1=linear(inputs(), Q1),
        q2=linear(inputs(), Q2),
        **arguments | changes,
    )


def set_targets(agent):
    """Give the target networks weights that differ from those of the networks."""
    for name, weights in {"pi": PI_T, "q1": Q1_T, "q2": Q2_T}.items():
        if name in agent.targets:
            agent.targets[name].set_weights([np.array(weights, np.float32).reshape(-1, 1)])


def minibatch(observation, action, reward, discount, next_observation):
    packed = np.zeros((len(observation), LAYOUT.width), np.float32)
    columns = (LAYOUT.observation, LAYOUT.action, LAYOUT.next_observation)
    for column, values in zip(columns, (observation, action, next_observation), strict=True):
        packed[:, column] = np.reshape(values, (-1, 1))
    packed[:, LAYOUT.reward] = reward
    packed[:, LAYOUT.discount] = discount
    packed[:, LAYOUT.weight] = 1
    return unpack_transitions(SPEC, (tf.constant(packed),))


S = np.array([1.0, 2.0])
A = np.array([0.5, -0.5])
R = np.array([1.0, -1.0])
D = np.array([0.99, 0.0])
S2 = np.array([2.0, -1.0])
BATCH = minibatch(S, A, R, D, S2)


def adam_first_step(gradient, rate):
    """Return Adam's first step, for which m̂ = g and v̂ = g², apart from Keras' epsilon."""
    m = 0.1 * gradient
    v = 0.001 * gradient**2
    return rate * np.sqrt(0.001) / 0.1 * m / (np.sqrt(v) + 1e-7)


def expected_target(agent, counter):
    noise = agent.smoothing_noise(tf.constant(counter, tf.int64)).numpy()[:, 0]
    action = np.clip(PI_T * S2 + np.clip(noise, -0.5 * 2, 0.5 * 2), -1, 3)
    q = np.minimum(Q1_T[0] * S2 + Q1_T[1] * action, Q2_T[0] * S2 + Q2_T[1] * action)
    return R + D * q
