"""The stock networks: fully connected actor and critic."""

import copy
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdpg.networks.encoder import Normalizer, observation_inputs
from tfdpg.networks.encoder import encoder as stock_encoder
from tfdpg.spec import Spec


def mlp_actor(
    spec: Spec,
    *,
    hidden_units: Sequence[int] = (256, 256),
    activation: str = "relu",
    encoder: keras.Model | None = None,
    normalizer: Normalizer | None = None,
    l2: float = 0.0,
    seed: int = 0,
) -> keras.Model:
    """A deterministic policy: features, hidden layers, tanh, then each dimension stretched to its bounds.

    Args:
        spec: the spaces.
        hidden_units: the units of each hidden layer.
        activation: a Keras activation for the hidden layers.
        encoder: a model from raw observations to features `[batch, features]`; a copy is used, with its
            weights. The default is the stock encoder.
        normalizer: a layer for the stock encoder's features, which networks may share.
        l2: each kernel adds l2 · Σ w² to the loss.
        seed: fixes the initial weights (Glorot uniform kernels, zero biases).

    Returns:
        A functional model, observation → action `[batch, act_dim]` in the environment's units, float32 whatever
        Keras' dtype policy.
    """
    observation = observation_inputs(spec)
    x = _features(spec, encoder, normalizer)(observation)
    x = _hidden_layers(x, hidden_units, activation, seed, l2)
    x = _dense(spec.act_dim, "tanh", seed, len(hidden_units), l2, dtype="float32")(x)
    action = keras.layers.Rescaling(spec.half_range.tolist(), spec.center.tolist(), dtype="float32")(x)
    return keras.Model(observation, action, name="pi")


def mlp_critic(
    spec: Spec,
    *,
    hidden_units: Sequence[int] = (256, 256),
    activation: str = "relu",
    encoder: keras.Model | None = None,
    normalizer: Normalizer | None = None,
    l2: float = 0.0,
    seed: int = 0,
    name: str = "q1",
) -> keras.Model:
    """An action-value function: features and the action, scaled to [-1, 1], through hidden layers to a number.

    Args:
        spec: the spaces.
        hidden_units: the units of each hidden layer.
        activation: a Keras activation for the hidden layers.
        encoder: as for `mlp_actor`.
        normalizer: as for `mlp_actor`.
        l2: as for `mlp_actor`.
        seed: fixes the initial weights.
        name: the name of the model.

    Returns:
        A functional model, `[observation, action]` → values `[batch]`, float32 whatever Keras' dtype policy.
    """
    observation = observation_inputs(spec)
    action = keras.Input((spec.act_dim,), name="a")
    scaled = keras.layers.Rescaling((1 / spec.half_range).tolist(), (-spec.center / spec.half_range).tolist())(action)
    x = keras.layers.Concatenate()([_features(spec, encoder, normalizer)(observation), scaled])
    x = _hidden_layers(x, hidden_units, activation, seed, l2)
    value = Value(_glorot(seed, len(hidden_units)), l2, dtype="float32")(x)
    return keras.Model([observation, action], value, name=name)


@keras.saving.register_keras_serializable("tfdpg")
class Value(keras.layers.Layer):
    """`Dense(1)` without its last axis: `[batch, features]` → `[batch]`, with the same weights.

    A sum of products, where `Dense` has a product with a one-column matrix: XLA fuses that product's gradient
    with the activation before it into a loop over columns, which takes ten times as long.
    """

    def __init__(self, kernel_initializer: Any = "glorot_uniform", l2: float = 0.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.kernel_initializer, self.l2 = keras.initializers.get(kernel_initializer), l2

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Makes the weights."""
        self.kernel = self.add_weight(
            name="kernel",
            shape=(input_shape[-1], 1),
            initializer=self.kernel_initializer,
            regularizer=keras.regularizers.L2(self.l2) if self.l2 else None,
        )
        self.bias = self.add_weight(name="bias", shape=(1,), initializer="zeros")

    def call(self, features: Any) -> Any:
        """The values."""
        return _product(features, self.kernel[:, 0]) + self.bias[0]

    def get_config(self) -> dict[str, Any]:
        """The initializer and the regularization."""
        initializer = keras.initializers.serialize(self.kernel_initializer)
        return super().get_config() | {"kernel_initializer": initializer, "l2": self.l2}


@tf.custom_gradient
def _product(features: tf.Tensor, kernel: tf.Tensor) -> Any:
    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        upstream = upstream[:, None]
        return upstream * kernel, tf.reduce_sum(upstream * features, axis=0)

    return tf.linalg.matvec(features, kernel), gradient


def _features(spec: Spec, encoder: keras.Model | None, normalizer: Normalizer | None) -> keras.Model:
    return stock_encoder(spec, normalizer) if encoder is None else copy.deepcopy(encoder)


def _hidden_layers(
    x: keras.KerasTensor, hidden_units: Sequence[int], activation: str, seed: int, l2: float
) -> keras.KerasTensor:
    for depth, units in enumerate(hidden_units):
        x = _dense(units, activation, seed, depth, l2)(x)
    return x


def _dense(
    units: int, activation: str, seed: int, depth: int, l2: float, dtype: str | None = None
) -> keras.layers.Dense:
    return keras.layers.Dense(
        units,
        activation=activation,
        kernel_initializer=_glorot(seed, depth),
        kernel_regularizer=keras.regularizers.L2(l2) if l2 else None,
        dtype=dtype,
    )


def _glorot(seed: int, depth: int) -> Any:
    return keras.initializers.GlorotUniform(int(np.random.SeedSequence([seed, depth]).generate_state(1)[0]))
