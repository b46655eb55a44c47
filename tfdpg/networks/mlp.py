"""The built-in networks: fully connected actors and critics."""

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from tfdpg.acting import Torso, feature_columns, make_torso
from tfdpg.acting.torsos import EXPANSION, Hidden, Layer, Norm, Residual
from tfdpg.networks.dense import Activation, Dense
from tfdpg.networks.encoder import Normalizer, observation_inputs
from tfdpg.networks.encoder import encoder as built_in_encoder
from tfdpg.networks.heads import Head, Value
from tfdpg.networks.renormalization import BatchRenormalization
from tfdpg.spec import Spec
from tfdpg.streams import Purpose, seeds

MIN_SIGMA = 1e-2
"""The smallest learnt scale of a Gaussian, as a fraction of the action scale."""


class OutputTransform(NamedTuple):
    """What turns the last linear layer of a policy into its output.

    Attributes:
        units: the width of that layer.
        apply: maps the layer's output, a Keras tensor `[batch, units]`, to the policy's output. It may use Keras layers
            and `keras.ops`. The policy acts in NumPy if all of them are registered for NumPy.

    Example:
        ```python
        means_and_log_stds = OutputTransform(2 * spec.act_dim, lambda x: x)
        ```
    """

    units: int
    apply: Callable[[Any], Any]


def box_action(spec: Spec) -> OutputTransform:
    """Actions `[batch, act_dim]` in the environment's units: tanh, then each dimension rescaled to its bounds."""

    def apply(x: Any) -> Any:
        rescaled = keras.layers.Rescaling(spec.action_scale.tolist(), spec.center.tolist(), dtype="float32")
        return rescaled(keras.layers.Activation("tanh", dtype="float32")(x))

    return OutputTransform(spec.act_dim, apply)


def probabilities(spec: Spec) -> OutputTransform:
    """The probabilities of the actions of a Discrete space, `[batch, actions]`: softmax."""
    return OutputTransform(spec.actions or 0, lambda x: keras.layers.Softmax(dtype="float32")(x))


def gaussian_output(spec: Spec, sigma: float) -> OutputTransform:
    """The means of a Gaussian, as `box_action` gives them, and its scales, `[batch, 2 · act_dim]`.

    A scale is (softplus(x + c) + MIN_SIGMA) · action scale.

    Args:
        spec: the spaces.
        sigma: the scale for x = 0, as a fraction of the action scale, above `MIN_SIGMA`.
    """
    offset = np.float32(np.log(np.expm1(sigma - MIN_SIGMA)))

    def apply(x: Any) -> Any:
        above: Any = keras.ops.softplus(x[:, spec.act_dim :] + offset)
        scale = keras.layers.Rescaling(spec.action_scale.tolist(), dtype="float32")(above + MIN_SIGMA)
        return keras.layers.Concatenate(dtype="float32")([box_action(spec).apply(x[:, : spec.act_dim]), scale])

    return OutputTransform(2 * spec.act_dim, apply)


def mlp_actor(
    spec: Spec,
    *,
    torso: str = "mlp",
    hidden_units: Sequence[int] = (256, 256),
    activation: str = "relu",
    norm: str | None = None,
    blocks: int = 0,
    encoder: keras.Model | None = None,
    normalizer: Normalizer | None = None,
    l2: float = 0.0,
    seed: int = 0,
    output: OutputTransform | None = None,
) -> keras.Model:
    """Build a policy: encoder, hidden layers, tanh, and rescaling of each dimension to its bounds.

    Args:
        spec: the spaces of the environment.
        torso: kind of hidden layers: "mlp" with `hidden_units`; "control" as in the DeepMind Control Suite report;
            "layer_norm" as in Acme; or "two_branch", where each part of a Dict observation has a first layer of its
            own.
        hidden_units: units of each hidden layer.
        activation: name of the Keras activation of the hidden layers.
        norm: "layer" normalises before each activation (LayerNorm); "batch" normalises the inputs and after each
            activation (batch renormalisation); None does not normalise.
        blocks: number of residual blocks, which replace the hidden layers; 0 for none.
        encoder: a model from raw observations to features `[batch, features]`, which is copied with its weights. The
            default is the built-in encoder.
        normalizer: a layer applied to the features of the built-in encoder, which networks may share.
        l2: each kernel adds l2 · Σ w² to the loss; at least 0.
        seed: seed of the initial weights (Glorot uniform kernels, zero biases).
        output: transforms the last linear layer; None for tanh and rescaling to the action bounds.

    Returns:
        A functional model, observation → action `[batch, act_dim]` in the environment's units, float32 under any Keras
        dtype policy.
    """
    observation = observation_inputs(spec)
    layers = make_torso(torso, hidden_units, activation, norm, blocks)
    x = features(spec, encoder, normalizer)(observation)
    return keras.Model(observation, actor_torso(spec, layers, x, seed=seed, l2=l2, output=output), name="pi")


def actor_torso(spec: Spec, layers: Torso, x: Any, *, seed: int, l2: float, output: OutputTransform | None) -> Any:
    """Apply the hidden layers and the output of `mlp_actor` to features or to the output of recurrent cells."""
    for depth, layer in enumerate(layers.pi):
        x = _layer_or_branches(spec, layers, x, layer, seed, depth, l2)
    kernel = initializer(seed, len(layers.pi), layers.output_scale)
    return actor_output(output or box_action(spec), x, kernel_initializer=kernel, kernel_regularizer=_regularizer(l2))


def actor_output(output: OutputTransform, x: Any, **kernel: Any) -> Any:
    """The output of a policy for `[batch, features]`: a linear layer with a `kernel`, then the output transform."""
    return output.apply(Dense(output.units, **kernel, dtype="float32")(x))


def mlp_critic(
    spec: Spec,
    *,
    torso: str = "mlp",
    hidden_units: Sequence[int] = (256, 256),
    activation: str = "relu",
    norm: str | None = None,
    blocks: int = 0,
    encoder: keras.Model | None = None,
    normalizer: Normalizer | None = None,
    l2: float = 0.0,
    seed: int = 0,
    name: str = "q1",
    head: Callable[..., Head] = Value,
) -> keras.Model:
    """Build an action-value function: encoder, the action rescaled to [-1, 1], hidden layers, and a head.

    Args:
        spec: the spaces of the environment.
        torso: kind of hidden layers; see `mlp_actor`.
        hidden_units: units of each hidden layer.
        activation: name of the Keras activation of the hidden layers.
        norm: normalisation of the hidden layers; see `mlp_actor`.
        blocks: number of residual blocks, which replace the hidden layers; 0 for none.
        encoder: a model from raw observations to features `[batch, features]`, which is copied with its weights. The
            default is the built-in encoder.
        normalizer: a layer applied to the features of the built-in encoder, which networks may share.
        l2: each kernel adds l2 · Σ w² to the loss; at least 0.
        seed: seed of the initial weights (Glorot uniform kernels, zero biases).
        name: name of the model.
        head: builds the last layer: a class of heads or a `HeadOptions`, which is called with `kernel_initializer`,
            `l2` and `dtype`.

    Returns:
        A functional model, `[observation, action]` → the output of the head, which is values `[batch]` by default;
        float32 under any Keras dtype policy.
    """
    observation = observation_inputs(spec)
    action = action_input(spec)
    layers = make_torso(torso, hidden_units, activation, norm, blocks)
    x = features(spec, encoder, normalizer)(observation)
    output = critic_torso(spec, layers, x, action, seed=seed, l2=l2, head=head)
    return keras.Model([observation, action], output, name=name)


def critic_torso(
    spec: Spec, layers: Torso, x: Any, action: Any, *, seed: int, l2: float, head: Callable[..., Head]
) -> Any:
    """Apply the hidden layers and the head of `mlp_critic` to an action and features, or recurrent cells' output."""
    scaled = scaled_action(spec, action)
    action_layer = max(layers.action_layer, int(layers.has_branches))
    for depth, layer in enumerate(layers.q):
        if depth == action_layer:
            x = keras.layers.Concatenate()([x, scaled])
        x = _layer_or_branches(spec, layers, x, layer, seed, depth, l2)
    if action_layer >= len(layers.q):
        x = keras.layers.Concatenate()([x, scaled])
    return head(kernel_initializer=initializer(seed, len(layers.q)), l2=l2, dtype="float32")(x)


def action_input(spec: Spec) -> Any:
    """Return a Keras input for actions in the environment's units, float32 `[batch, act_dim]`, named `a`.

    Args:
        spec: the spaces of the environment.
    """
    return keras.Input((spec.act_dim,), name="a")


def features(spec: Spec, encoder: keras.Model | None, normalizer: Normalizer | None) -> keras.Model:
    """Return the built-in encoder, or a copy of a custom encoder."""
    return built_in_encoder(spec, normalizer) if encoder is None else copy.deepcopy(encoder)


def scaled_action(spec: Spec, action: Any) -> Any:
    """Rescale actions from the environment's units to [-1, 1]."""
    return keras.layers.Rescaling((1 / spec.action_scale).tolist(), (-spec.center / spec.action_scale).tolist())(action)


def hidden_layers(x: Any, layers: Sequence[Layer], seed: int) -> Any:
    """Apply hidden layers to features `[batch, n]`."""
    for depth, layer in enumerate(layers):
        x = _layer(x, layer, seed, depth, 0.0)
    return x


def _layer_or_branches(spec: Spec, torso: Torso, x: Any, layer: Layer, seed: int, depth: int, l2: float) -> Any:
    """Apply a layer; the first one of branches separately to each part of an observation, whose outputs are joined."""
    if depth > 0 or not torso.has_branches:
        return _layer(x, layer, seed, depth, l2)
    branch_seeds = seeds(Purpose.BRANCHES, seed, count=len(spec.leaves))
    parts = [
        _layer(x[:, columns], layer, branch_seed, 0, l2)
        for columns, branch_seed in zip(feature_columns(spec), branch_seeds, strict=True)
    ]
    return keras.layers.Concatenate()(parts)


def _layer(x: Any, layer: Layer, seed: int, depth: int, l2: float) -> keras.KerasTensor:
    match layer:
        case Norm("batch"):
            return BatchRenormalization(dtype="float32")(x)
        case Norm():
            return keras.layers.LayerNormalization()(x)
        case Residual(units, activation):
            within = Hidden(EXPANSION * units, activation), Hidden(units, "linear")
            y: Any = keras.layers.LayerNormalization()(x)
            for part_seed, part in zip(seeds(Purpose.LAYERS, seed, depth, count=2), within, strict=True):
                y = _layer(y, part, part_seed, depth, l2)
            return keras.layers.Add()([x, y])
        case Hidden(units, activation, layer_norm):
            dense = Dense(
                units,
                activation=None if layer_norm else activation,
                kernel_initializer=initializer(seed, depth),
                kernel_regularizer=_regularizer(l2),
            )
            if not layer_norm:
                return dense(x)
            return Activation(activation)(keras.layers.LayerNormalization()(dense(x)))


def _regularizer(l2: float) -> keras.regularizers.Regularizer | None:
    return keras.regularizers.L2(l2) if l2 else None


def initializer(seed: int, depth: int, scale: float = 1.0) -> Any:
    """Return the initializer of a layer's kernel; with scale 1 it is Glorot uniform."""
    (layer_seed,) = seeds(Purpose.LAYERS, seed, depth)
    return keras.initializers.VarianceScaling(scale, "fan_avg", "uniform", seed=layer_seed)
