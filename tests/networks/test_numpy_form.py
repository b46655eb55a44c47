"""Networks as data for NumPy: what is converted computes what Keras does, and what is not converted is recognised."""

import keras
import numpy as np
import pytest
from gymnasium import spaces

from tests.acting.test_acting import in_numpy
from tfdpg import Spec, networks
from tfdpg.networks import numpy_critic, numpy_policy
from tfdpg.networks.actor import CompiledActor

SPEC = Spec(spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,)))
PACKED = (np.random.default_rng(0).normal(0, 2, (5, 3)).astype(np.float32),)


def model_of(compute):
    observation = networks.observation_inputs(SPEC)
    return keras.Model(observation, compute(observation))


def twice(x):
    """A layer that is called twice, and a model that is called twice."""
    layer = keras.layers.Dense(3, "tanh")
    inside = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    functional = keras.Model(inside.inputs[0], inside.outputs[0])
    return keras.layers.Concatenate()([layer(layer(x)), functional(functional(x))])


def sums(x):
    return keras.layers.Add()([keras.layers.Dense(3)(x), x, x]) + x + 0.5


def operations(x):
    y = keras.ops.clip(keras.layers.Dense(4)(x), -0.3, 0.4)
    return keras.layers.Concatenate()([keras.ops.tanh(y[:, 1:3]), keras.ops.softplus(y[:, :1])])


@pytest.mark.parametrize("compute", [twice, sums, operations])
def test_what_is_converted_equals_keras(compute):
    pi = model_of(compute)
    given = PACKED[0].copy()
    found = in_numpy(SPEC, pi)(PACKED)
    np.testing.assert_allclose(found, CompiledActor(SPEC, pi)(PACKED), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(PACKED[0], given)  # observations are not written to


class Dense(keras.layers.Dense):
    """A user's layer with the name of one of Keras."""

    def call(self, x):
        return 2 * super().call(x)


def changed_before_the_encoder(x):
    return keras.layers.Dense(2)(networks.encoder(SPEC)(keras.ops.clip(x, -0.1, 0.1)))


@pytest.mark.parametrize(
    "compute",
    [
        changed_before_the_encoder,
        keras.layers.Dense(2, use_bias=False),
        keras.layers.Dense(2, "gelu"),
        keras.layers.Dense(2, dtype="float64"),
        keras.layers.LayerNormalization(center=False),
        Dense(2),
        lambda x: keras.ops.clip(x, np.zeros(3, np.float32), np.ones(3, np.float32)),
        lambda x: x[:, ::2],
        lambda x: keras.ops.square(x),
    ],
)
def test_what_numpy_cannot_compute_is_recognised(compute):
    assert numpy_policy(SPEC, model_of(compute), None) is None


def test_models_that_are_not_functional_are_recognised():
    class Subclassed(keras.Model):
        def call(self, x):
            return x[:, :2]

    subclassed = Subclassed()
    subclassed(PACKED[0])
    assert numpy_policy(SPEC, subclassed, None) is None


def test_a_critic_without_a_head_is_not_converted():
    observation, action = networks.observation_inputs(SPEC), keras.Input((2,))
    x = keras.layers.Concatenate()([observation, action])
    critic = keras.Model([observation, action], keras.layers.Dense(1)(x))
    assert numpy_critic(SPEC, critic) is None
    assert numpy_critic(SPEC, networks.mlp_critic(SPEC)) is not None
