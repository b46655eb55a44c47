"""The stock networks: fully connected actor and critic."""

import copy
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfdpg.networks.encoder import encoder as stock_encoder
from tfdpg.networks.encoder import observation_inputs
from tfdpg.spec import Spec


def mlp_actor(
    spec: Spec,
    *,
    hidden_units: Sequence[int] = (256, 256),
    activation: str = "relu",
    encoder: keras.Model | None = None,
    seed: int = 0,
) -> keras.Model:
    """A deterministic policy: features, hidden layers, tanh, then each dimension stretched to its bounds.

    Args:
        spec: the spaces.
        hidden_units: the units of each hidden layer.
        activation: a Keras activation for the hidden layers.
        encoder: a model from raw observations to features `[batch, features]`; a copy is used, with its
            weights. The default is the stock encoder.
        seed: fixes the initial weights (Glorot uniform kernels, zero biases).

    Returns:
        A functional model, observation → action `[batch, act_dim]` in the environment's units.
    """
    observation = observation_inputs(spec)
    x = _features(spec, encoder)(observation)
    x = _hidden_layers(x, hidden_units, activation, seed)
    x = _dense(spec.act_dim, "tanh", seed, len(hidden_units))(x)
    action = keras.layers.Rescaling(spec.half_range.tolist(), spec.center.tolist())(x)
    return keras.Model(observation, action, name="pi")


def mlp_critic(
    spec: Spec,
    *,
    hidden_units: Sequence[int] = (256, 256),
    activation: str = "relu",
    encoder: keras.Model | None = None,
    seed: int = 0,
    name: str = "q1",
) -> keras.Model:
    """An action-value function: features and the action, scaled to [-1, 1], through hidden layers to a number.

    Args:
        spec: the spaces.
        hidden_units: the units of each hidden layer.
        activation: a Keras activation for the hidden layers.
        encoder: as for `mlp_actor`.
        seed: fixes the initial weights.
        name: the name of the model.

    Returns:
        A functional model, `[observation, action]` → values `[batch]`.
    """
    observation = observation_inputs(spec)
    action = keras.Input((spec.act_dim,), name="a")
    scaled = keras.layers.Rescaling((1 / spec.half_range).tolist(), (-spec.center / spec.half_range).tolist())(action)
    x = keras.layers.Concatenate()([_features(spec, encoder)(observation), scaled])
    x = _hidden_layers(x, hidden_units, activation, seed)
    x = _dense(1, None, seed, len(hidden_units))(x)
    return keras.Model([observation, action], keras.ops.squeeze(x, axis=-1), name=name)


def _features(spec: Spec, encoder: keras.Model | None) -> keras.Model:
    return stock_encoder(spec) if encoder is None else copy.deepcopy(encoder)


def _hidden_layers(x: keras.KerasTensor, hidden_units: Sequence[int], activation: str, seed: int) -> keras.KerasTensor:
    for depth, units in enumerate(hidden_units):
        x = _dense(units, activation, seed, depth)(x)
    return x


def _dense(units: int, activation: str | None, seed: int, depth: int) -> keras.layers.Dense:
    layer_seed = int(np.random.SeedSequence([seed, depth]).generate_state(1)[0])
    initializer: Any = keras.initializers.GlorotUniform(layer_seed)
    return keras.layers.Dense(units, activation=activation, kernel_initializer=initializer)
