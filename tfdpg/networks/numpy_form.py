"""Networks as data for NumPy and C: what `tfdpg.acting.NumpyPolicy` computes, made from Keras models."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tfdpg.acting import ForwardPass, NumpyCritic, NumpyPolicy, RecurrentSpec
from tfdpg.acting.encoder import feature_columns
from tfdpg.acting.layers import LAYERS
from tfdpg.acting.network import FEATURES, OTHER, Node, NumpyNetwork
from tfdpg.compat.keras import graph_nodes
from tfdpg.networks.actor import CompiledActor, flat_weights
from tfdpg.networks.encoder import Normalizer, is_built_in_encoder
from tfdpg.networks.heads import head_of
from tfdpg.networks.preprocessing import Preprocessed
from tfdpg.networks.recurrent import Recurrent
from tfdpg.networks.rnn import RNNStack, cell_name, output_width
from tfdpg.spec import Spec


class _Unsupported(Exception):
    """NumPy cannot compute a model."""


def numpy_policy(spec: Spec, pi: keras.Model, recurrent_spec: RecurrentSpec | None) -> NumpyPolicy | None:
    """Return the forward pass of a policy in NumPy, without weights, or None if NumPy cannot compute the policy.

    Args:
        spec: the spaces of the environment.
        pi: the policy: a Keras model from an observation, or from an observation and recurrent inputs, to outputs.
        recurrent_spec: the recurrent state; None if the policy is not recurrent.

    Returns:
        The forward pass. None if a layer is not registered for NumPy (see `tfdpg.acting.numpy_layer`), has a
        configuration that NumPy does not support, or computes in half precision.
    """
    nodes = _nodes(spec, pi)
    return None if nodes is None else NumpyPolicy(spec, nodes, recurrent_spec)


def preprocessing_forward(spec: Spec, model: keras.Model, device: str | None) -> ForwardPass:
    """Return the forward pass of the user's preprocessing, in NumPy if NumPy can compute it.

    Args:
        spec: the spaces of the environment.
        model: from observations to numbers `[batch, p]`.
        device: where a compiled call runs.
    """
    in_numpy = numpy_policy(spec, model, None)
    if in_numpy is None:
        return CompiledActor(spec, model, device)
    in_numpy.load(flat_weights(model).numpy() if model.weights else np.zeros(0, np.float32))
    return in_numpy


def numpy_critic(spec: Spec, critic: keras.Model) -> NumpyCritic | None:
    """The forward pass of a critic in NumPy, with its weights.

    Args:
        spec: the spaces.
        critic: from `[observation, action]` to a value; it ends in a `tfdpg.networks.Head`.

    Returns:
        None if NumPy cannot compute it; see `numpy_policy`.
    """
    nodes = _nodes(spec, critic)
    if nodes is None or head_of(critic) is None:
        return None
    made = NumpyCritic(spec, nodes)
    made.load(np.concatenate([np.ravel(weight) for weight in critic.get_weights()]))
    return made


def _nodes(spec: Spec, model: keras.Model) -> list[Node] | None:
    """The nodes of a model; None if NumPy cannot compute it."""
    converter = _Converter(spec, model)
    try:
        if isinstance(model, Recurrent):
            converter.recurrent(model)
        elif isinstance(model, Preprocessed):
            converter.preprocessed(model)
        else:
            converter.functional(model, converter.inputs(model))
        weights = np.zeros(sum(math.prod(weight.shape) for weight in model.weights), np.float32)
        NumpyNetwork(spec, converter.nodes).load(weights)  # raises an error for what NumPy does not support
    except (_Unsupported, ValueError, LookupError, TypeError, AttributeError, NotImplementedError):
        return None
    return converter.nodes


class _Converter:
    """Collects the nodes of a model."""

    def __init__(self, spec: Spec, model: keras.Model):
        self._spec = spec
        self._names = sorted(leaf.name for leaf in spec.leaves)  # as Keras flattens a dict
        self.nodes: list[Node] = []
        self._width: int | None = None  # the number of features, if they are computed from the observation
        self._weights: dict[int, tuple[int, tuple[int, ...]]] = {}
        start = 0
        for weight in model.weights:
            shape = tuple(weight.shape)
            self._weights[id(weight)] = start, shape
            start += math.prod(shape)

    def inputs(self, model: keras.Model) -> list[Any]:
        """The values of a model's inputs: the names of parts of an observation, then perhaps the action's number."""
        extra = len(model.inputs) - len(self._names)
        if extra not in (0, 1):
            raise _Unsupported
        return [*self._names, *[OTHER] * extra]

    def functional(self, model: keras.Model, inputs: Sequence[Any]) -> int:
        """Add the nodes of a functional model; returns the number of its output.

        Args:
            model: the model.
            inputs: for each of its inputs the number of a value, or the name of a part of an observation.
        """
        if not isinstance(model, keras.Model) or len(model.outputs) != 1:
            raise _Unsupported
        values: dict[int, Any] = {id(tensor): value for tensor, value in zip(model.inputs, inputs, strict=True)}
        if is_built_in_encoder(model):
            if list(inputs) == self._names:
                return self._encoder(model, FEATURES)
            if self._width is None or len(inputs) != 1:  # something else is computed from the observation before
                raise _Unsupported
            return self._encoder(model, inputs[0])
        for node in graph_nodes(model):
            if not node.is_input:
                values[id(node.outputs[0])] = self._call(node, [values[id(tensor)] for tensor in node.input_tensors])
        return self._number(values[id(model.outputs[0])])

    def recurrent(self, model: Recurrent) -> int:
        """Add the nodes of one step of a recurrent model; its output is followed by the new state."""
        features = self.functional(model.encoder, self._names)
        width = len(model.previous_scaling.scale)
        rnn = model.rnn
        parts = [features]
        if width:
            parts.append(self._layer(model.previous_scaling, [self._columns(OTHER, 0, width)]))
        x = self._add("Concatenate", parts, {"axis": -1}) if len(parts) > 1 else features
        state = self._layer(rnn, [x, self._columns(OTHER, width, width + rnn.state_width)])
        start = rnn.state_width - sum(rnn.widths[-1])
        remembered = self._columns(state, start, start + output_width(rnn.cells[-1]))
        return self._add("Concatenate", [self.functional(model.torso, [remembered]), state], {"axis": -1})

    def preprocessed(self, model: Preprocessed) -> int:
        """Add the nodes of one step of a policy that preprocesses; its outputs are followed by the new state."""
        self._width = model.width
        frame = held = FEATURES
        parts = []
        start = 0
        if model.hold is not None:
            start = model.hold.flagged.shape[0]
            frame = held = self._layer(model.hold, [FEATURES, self._columns(OTHER, 0, start)])
            parts.append(self._columns(held, 0, start))
        if model.preprocess is not None:
            if parts and model.names is not None:
                raise _Unsupported
            frame = self.functional(model.preprocess, parts or self._names)
            if parts:
                frame = self._add("Concatenate", [frame, self._columns(held, start, 2 * start)], {"axis": -1})
        if model.stack is not None:
            stacked = self._layer(model.stack, [frame, self._columns(OTHER, start, model.state_width)])
            frame = self._columns(stacked, 0, model.width)
            parts.append(self._columns(stacked, model.width, model.width + model.state_width - start))
        action = self.functional(model.policy, [frame])
        return self._add("Concatenate", [action, *parts], {"axis": -1}) if parts else action

    def _encoder(self, model: keras.Model, features: int) -> int:
        normalizers = [layer for layer in model.layers if isinstance(layer, Normalizer)]
        return self._layer(normalizers[0], [features]) if normalizers else features

    def _number(self, value: Any) -> int:
        """The number of a value; the features of one part of an observation, if it is a vector of floats."""
        if isinstance(value, int):
            return value
        names = [leaf.name for leaf in self._spec.leaves]
        leaf = self._spec.leaves[names.index(value)]
        if leaf.dtype != "float32" or len(leaf.shape) != 1:
            raise _Unsupported
        if len(names) == 1:
            return FEATURES
        columns = feature_columns(self._spec)[names.index(value)]
        return self._columns(FEATURES, columns.start, columns.stop)

    def _call(self, node: Any, inputs: Sequence[Any]) -> int:
        operation = node.operation
        if isinstance(operation, keras.Model):
            return self.functional(operation, inputs)
        numbers = [self._number(value) for value in inputs]
        if isinstance(operation, keras.layers.Layer):
            return self._layer(operation, numbers)
        name = f"ops.{type(operation).__name__}"
        if name == "ops.GetItem":
            return self._columns(numbers[0], *_column_range(node.arguments.args))
        if name == "ops.Subtract" and len(numbers) == 2:
            return self._add("Subtract", numbers, {})
        if name not in LAYERS:
            raise _Unsupported
        config: dict[str, Any] = operation.get_config()
        if name == "ops.Add":
            if len(numbers) == 2:
                return self._add("Add", numbers, {})
            config |= {"other": float(node.arguments.args[1])}
        return self._add(name, numbers, config)

    def _layer(self, layer: keras.layers.Layer, inputs: Sequence[int]) -> int:
        kind = vars(type(layer)).get("computes_as", type(layer))
        name = keras.saving.get_registered_name(kind)
        is_from_keras = getattr(keras.layers, name, kind) is kind  # not a user's layer of the same name
        if layer.compute_dtype != "float32" or name not in LAYERS or not is_from_keras:
            raise _Unsupported
        config: Mapping[str, Any] = layer.get_config()
        if isinstance(layer, RNNStack):
            config = {"cells": [[cell_name(cell), output_width(cell)] for cell in layer.cells]}
        return self._add(name, inputs, config, [self._weights[id(weight)] for weight in layer.weights])

    def _columns(self, value: int, start: int, stop: int) -> int:
        return self._add("ops.GetItem", [value], {"start": start, "stop": stop})

    def _add(self, name: str, inputs: Sequence[int], config: Mapping[str, Any], weights: Sequence[Any] = ()) -> int:
        if name not in LAYERS:
            raise _Unsupported
        used = json.loads(json.dumps({key: config[key] for key in LAYERS[name].config}))  # Keras has lists of its own
        self.nodes.append(Node(name, tuple(inputs), used, tuple(weights)))
        return len(self.nodes) + 1


def _column_range(arguments: Sequence[Any]) -> tuple[int, int]:
    """The start and the stop of `x[:, start:stop]`, by the arguments of the operation."""
    tensor, key = arguments
    if not (isinstance(key, tuple) and len(key) == 2 and key[0] == slice(None) and isinstance(key[1], slice)):
        raise _Unsupported
    start, stop, step = key[1].indices(tensor.shape[-1])
    if step != 1 or len(tensor.shape) != 2:
        raise _Unsupported
    return start, stop
