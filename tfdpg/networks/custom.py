"""Checks of custom networks, which call them with a batch of zeros."""

import itertools
import tempfile
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdpg.arguments import reject, warn
from tfdpg.compat.keras import accept_unused_keys, producer, quiet_build, unused_keys
from tfdpg.networks.heads import Head, head_of
from tfdpg.networks.tensors import network_inputs
from tfdpg.spec import Spec

_BATCH = 3


def check_critics(spec: Spec, critics: dict[str, keras.Model], head: type[Head] | None = None) -> None:
    """Check that critics have the right outputs, and that no two critics have equal weights.

    Args:
        spec: the spaces of the environment.
        critics: critics by name, each called with `[observation, action]`.
        head: the layer in which each critic must end; None for critics that return values, `[batch]` or `[batch, 1]`.

    Raises:
        ValueError: A critic has another output, or two critics have equal weights.
    """
    for name, q in critics.items():
        if head is None:
            check_width(spec, name, q, takes_action=True, width=None)
            continue
        _output_shape(spec, name, q, takes_action=True)
        if not isinstance(head_of(q), head):
            layer = f"tfdpg.networks.{head.__name__}"
            raise ValueError(f"`{name}` must end in a {layer} layer. Received: {q.layers[-1]}")
    for (first, q1), (second, q2) in itertools.combinations(critics.items(), 2):
        heads = [head_of(q) for q in (q1, q2)]
        if head is not None and len({str(one.settings) for one in heads if one is not None}) > 1:
            raise ValueError(f"`{first}` and `{second}` must end in layers with the same settings.")
        weights1 = q1.get_weights()
        weights2 = q2.get_weights()
        if len(weights1) == len(weights2) and all(map(np.array_equal, weights1, weights2)):
            raise ValueError(
                f"`{first}` and `{second}` must start from different weights, or their minimum has no effect. "
                f"Received: equal weights of shapes {[weight.shape for weight in weights1]}"
            )


def check_width(spec: Spec, name: str, network: keras.Model, takes_action: bool, width: int | None) -> None:
    """Check the output shape of a network.

    Args:
        spec: the spaces of the environment.
        name: name of the network in messages.
        network: the network.
        takes_action: whether it receives `[observation, action]` rather than an observation.
        width: required width of the output, `[batch, width]`; None for values, `[batch]` or `[batch, 1]`.

    Raises:
        ValueError: The network cannot be called, or returns another shape.
    """
    shape = _output_shape(spec, name, network, takes_action)
    if shape not in ({(_BATCH,), (_BATCH, 1)} if width is None else {(_BATCH, width)}):
        wanted = "(batch,) or (batch, 1)" if width is None else f"(batch, {width})"
        raise ValueError(f"`{name}` must return shape {wanted}. Received: {_with_batch(shape)}")


RANGES = {
    "tanh": (-1.0, 1.0),
    "softsign": (-1.0, 1.0),
    "hard_tanh": (-1.0, 1.0),
    "sigmoid": (0.0, 1.0),
    "hard_sigmoid": (0.0, 1.0),
    "softmax": (0.0, 1.0),
    "relu6": (0.0, 6.0),
    "relu": (0.0, np.inf),
    "softplus": (0.0, np.inf),
}
"""The ranges of bounded activation functions, by their Keras names."""


def warn_of_range(spec: Spec, policy: keras.Model) -> None:
    """Warn if the actions of a policy cannot reach the bounds of the action space.

    The range of the actions is known if the policy ends in a bounded activation function, optionally followed by
    `Rescaling` layers.

    Args:
        spec: the spaces of the environment, with a Box of actions.
        policy: maps observations to actions in the environment's units.
    """
    found = output_range(policy)
    if found is None:
        return
    low, high = (np.broadcast_to(end, spec.low.shape) for end in found)
    near = 0.01 * (spec.high - spec.low)
    if np.all(low <= spec.low + near) and np.all(high >= spec.high - near):
        return
    advice = "Let its outputs reach both bounds."
    if np.isfinite(low).all() and np.isfinite(high).all():
        scale = (spec.high - spec.low) / (high - low)
        offset = spec.low - low * scale
        layer = f"keras.layers.Rescaling(scale={_numbers(scale)}, offset={_numbers(offset)})"
        advice = f"End the network in {layer}."
    warn(
        f"`pi` cannot reach the bounds of the action space: its outputs range from {_numbers(low)} to "
        f"{_numbers(high)}, and actions from {_numbers(spec.low)} to {_numbers(spec.high)}. {advice}"
    )


def _numbers(values: np.ndarray) -> str:
    """Format numbers as Python; as a single number if all are equal."""
    numbers = [float(f"{value:.6g}") for value in values]
    return str(numbers[0] if len(set(numbers)) == 1 else numbers)


def output_range(network: keras.Model) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the lowest and the highest output that the last layers of a network allow; None if they are unknown."""
    if not getattr(network, "outputs", None):
        return None
    return _range_of(network.outputs[0])


def _range_of(tensor: Any) -> tuple[np.ndarray, np.ndarray] | None:
    operation, inputs = producer(tensor)
    if isinstance(operation, keras.Model):
        return output_range(operation)
    activation = getattr(operation, "activation", None)
    name = getattr(activation, "__name__", None) or type(operation).__name__.lower()
    if name in RANGES and getattr(operation, "max_value", None) is None:
        low, high = RANGES[name]
        return np.array(low), np.array(high)
    if not isinstance(operation, keras.layers.Rescaling | keras.layers.Reshape | keras.layers.Flatten):
        return None
    found = _range_of(inputs[0])
    if found is None or not isinstance(operation, keras.layers.Rescaling):
        return found
    ends = [np.asarray(end * np.asarray(operation.scale) + np.asarray(operation.offset)) for end in found]
    return np.minimum(*ends), np.maximum(*ends)


def check_separate(networks: dict[str, keras.Model]) -> None:
    """Raise `ValueError` if two of the networks share weights, since each is saved and has targets separately."""
    for (first, network1), (second, network2) in itertools.combinations(networks.items(), 2):
        if {id(v) for v in network1.trainable_variables} & {id(v) for v in network2.trainable_variables}:
            raise ValueError(f"`{first}` and `{second}` must be separate models; the models received share weights.")


def check_loadable(name: str, network: keras.Model) -> None:
    """Raise `ValueError` unless a network can be saved and loaded again, as checkpoints require."""
    if not isinstance(network, keras.Model):
        raise reject(name, "a keras.Model", network)
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The object being serialized includes a `lambda`")  # raised below
        path = f"{directory}/{name}.keras"
        try:
            network.save(path)
            with quiet_build():
                keras.saving.load_model(path, compile=False)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise ValueError(f"`{name}` cannot be saved and loaded again{_why_not_loadable(network, error)}") from error


def _why_not_loadable(network: keras.Model, error: Exception) -> str:
    """Explain why a network cannot be loaded again, and how to change it."""
    for layer in network._flatten_layers(include_self=False):
        is_lambda = isinstance(layer, keras.layers.Lambda)
        if is_lambda or getattr(getattr(layer, "activation", None), "__name__", "") == "<lambda>":
            what = "a Lambda layer" if is_lambda else "a layer with a lambda as its activation"
            return (
                f": {layer.name!r} is {what}, and files of agents never contain Python code. Apply functions of "
                "keras.ops to the tensors of the model instead, as in keras.ops.tanh(x), or write a layer (or a named "
                "function) and decorate it with @keras.saving.register_keras_serializable()."
            )
    return f". Custom layers need @keras.saving.register_keras_serializable(). Keras says: {error}"


def output_on_zeros(spec: Spec, network: keras.Model) -> np.ndarray:
    """Return the output of a network for a batch of zero observations."""
    return np.asarray(network(_zeros(spec)[0]))


def _zeros(spec: Spec) -> tuple[object, tf.Tensor]:
    leaves = {leaf.name: tf.zeros((_BATCH, *leaf.shape), leaf.dtype) for leaf in spec.leaves}
    return network_inputs(spec, leaves), tf.zeros((_BATCH, spec.act_dim))


def _output_shape(spec: Spec, name: str, network: keras.Model, takes_action: bool) -> tuple[int, ...]:
    if not isinstance(network, keras.Model):
        raise reject(name, "a keras.Model", network)
    observation, action = _zeros(spec)
    inputs = [observation, action] if takes_action else observation
    shapes = keras.tree.map_structure(lambda x: _with_batch(x.shape), inputs)
    if unused := unused_keys(network, inputs):
        accept_unused_keys(network)
        if name == "pi":
            warn(f"`pi` does not take all parts of the observation. Without it: {', '.join(unused)}")
    try:
        output = network(inputs)
    except Exception as error:
        raise ValueError(f"`{name}` cannot be called with inputs of shape {shapes}: {error}") from error
    if not tf.is_tensor(output):
        raise ValueError(f"`{name}` must return one tensor. Received: {type(output).__name__}")
    if output.dtype != tf.float32:
        raise ValueError(
            f"`{name}` must return float32; give its last layer dtype='float32'. Received: {output.dtype.name}"
        )
    return tuple(output.shape)


def _with_batch(shape: tuple[int, ...]) -> str:
    return "(" + ", ".join(["batch", *map(str, tuple(shape)[1:])]) + ("," if len(shape) == 1 else "") + ")"
