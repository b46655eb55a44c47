"""Networks that learn embeddings of observations and actions, and policies and critics that receive them.

A state encoder maps an observation to an embedding zs, and an action encoder maps zs and an action to an embedding zsa,
which predicts zs of the next observation. Source: Fujimoto et al. 2023, "For SALE: State-Action Representation Learning
for Deep Reinforcement Learning", section 4.
"""

from collections.abc import Sequence
from typing import Any

import keras

from tfdpg.acting.torsos import normalized
from tfdpg.networks.dense import Activation, Dense
from tfdpg.networks.encoder import observation_inputs
from tfdpg.networks.heads import Value
from tfdpg.networks.mlp import action_input, actor_output, box_action, features, hidden_layers, scaled_action
from tfdpg.streams import Purpose, seeds

PREACTIVATION = "preactivation"
"""The name of the last linear layer of `embedding_policy`."""


@keras.saving.register_keras_serializable("tfdpg")
class AvgL1Norm(keras.layers.Layer):
    """Divide the features `[batch, n]` of each row by the mean of their absolute values.

    The divisor is at least 1e-8.

    Source: Fujimoto et al. 2023, "For SALE", section 4.
    """

    def call(self, x: Any) -> Any:
        """Return features `[batch, n]` of mean absolute value 1."""
        return x / keras.ops.maximum(keras.ops.mean(keras.ops.abs(x), axis=-1, keepdims=True), 1e-8)


def state_encoder(context: Any, units: Sequence[int], activation: str, width: int) -> keras.Model:
    """Build a model from an observation to its embedding zs, `[batch, width]`: hidden layers, linear, AvgL1Norm.

    Args:
        context: the component's context.
        units: units of the hidden layers.
        activation: Keras activation of the hidden layers.
        width: number of elements of an embedding.
    """
    observation = observation_inputs(context.spec)
    x = _hidden(_features(context, observation), units, activation, context.seed)
    zs = AvgL1Norm(dtype="float32")(_linear(x, width, context.seed, len(units), dtype="float32"))
    return keras.Model(observation, zs, name="state_encoder")


def action_encoder(context: Any, units: Sequence[int], activation: str, width: int) -> keras.Model:
    """Build a model from `[zs, action]` to zsa, `[batch, width]`: hidden layers, linear. See `state_encoder`."""
    zs = keras.Input((width,), name="zs")
    action = action_input(context.spec)
    x = keras.layers.Concatenate()([zs, scaled_action(context.spec, action)])
    x = _hidden(x, units, activation, context.seed)
    zsa = _linear(x, width, context.seed, len(units), dtype="float32")
    return keras.Model([zs, action], zsa, name="action_encoder")


def embedding_policy(
    context: Any, units: Sequence[int], activation: str, width: int, norm: str | None = None
) -> keras.Model:
    """Build a policy, from `[observation, zs]` to actions `[batch, act_dim]` in the environment's units.

    The observation passes through a linear layer of `units[0]` units and AvgL1Norm, then it joins zs; hidden layers,
    tanh and rescaling follow.

    Args:
        context: the component's context.
        units: units of the hidden layers.
        activation: Keras activation of the hidden layers.
        width: number of elements of an embedding.
        norm: "layer" or "batch" normalises each hidden layer before its activation (LayerNorm); None does not.
    """
    observation = observation_inputs(context.spec)
    zs = keras.Input((width,), name="zs")
    x = _normalized_linear(_features(context, observation), units, context.seed)
    x = _hidden(keras.layers.Concatenate()([x, zs]), units, activation, context.seed, norm)
    kernel = _initializers(context.seed, len(units), units[-1])
    action = actor_output(box_action(context.spec), x, **kernel, name=PREACTIVATION)
    return keras.Model([observation, zs], action, name="pi")


def with_preactivation(policy: keras.Model) -> keras.Model:
    """Return a model of the layers of an `embedding_policy`, with two outputs: preactivation (before tanh), action."""
    return keras.Model(policy.input, [policy.get_layer(PREACTIVATION).output, policy.output])


def embedding_critic(
    context: Any, units: Sequence[int], activation: str, width: int, norm: str | None = None
) -> keras.Model:
    """Build a critic, from `[observation, action, zsa, zs]` to values `[batch]`.

    The observation and the action pass through a linear layer of `units[0]` units and AvgL1Norm, then they join zsa and
    zs; hidden layers and a linear layer follow. With `norm="batch"`, all inputs are normalised and enter the first
    hidden layer, and each hidden layer is normalised after its activation (batch renormalisation). See
    `embedding_policy` for the arguments.
    """
    observation = observation_inputs(context.spec)
    action = action_input(context.spec)
    zsa, zs = (keras.Input((width,), name=name) for name in ("zsa", "zs"))
    x = keras.layers.Concatenate()([_features(context, observation), scaled_action(context.spec, action)])
    if norm == "batch":
        x = keras.layers.Concatenate()([x, zsa, zs])
        x = hidden_layers(x, normalized(units, activation, norm, 0), context.seed)
    else:
        x = keras.layers.Concatenate()([_normalized_linear(x, units, context.seed), zsa, zs])
        x = _hidden(x, units, activation, context.seed, norm)
    kernel = _initializers(context.seed, len(units), units[-1])["kernel_initializer"]
    value = Value(kernel_initializer=kernel, l2=0.0, dtype="float32")(x)  # its bias starts from 0
    return keras.Model([observation, action, zsa, zs], value)


def _features(context: Any, observation: Any) -> Any:
    return features(context.spec, context.encoder, context.normalizer)(observation)


def _hidden(x: Any, units: Sequence[int], activation: str, seed: int, norm: str | None = None) -> Any:
    for depth, width in enumerate(units):
        x = _linear(x, width, seed, depth)
        if norm is not None:
            x = keras.layers.LayerNormalization()(x)
        x = Activation(activation)(x)
    return x


def _normalized_linear(x: Any, units: Sequence[int], seed: int) -> Any:
    return AvgL1Norm()(_linear(x, units[0], seed, len(units) + 1))


def _linear(x: Any, units: int, seed: int, number: int, dtype: str | None = None) -> Any:
    """A linear layer, whose initial weights depend on the component's seed and the layer's number.

    As in the authors' program, they are uniform in ±1 / √n for n inputs, and so are the biases (PyTorch's default).
    """
    return Dense(units, **_initializers(seed, number, x.shape[-1]), dtype=dtype)(x)


def _initializers(seed: int, number: int, inputs: int) -> dict[str, Any]:
    kernel_seed, bias_seed = seeds(Purpose.LAYERS, seed, number, count=2)
    limit = inputs**-0.5
    return {
        "kernel_initializer": keras.initializers.RandomUniform(-limit, limit, kernel_seed),
        "bias_initializer": keras.initializers.RandomUniform(-limit, limit, bias_seed),
    }
