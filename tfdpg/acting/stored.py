"""The file `policy.npz`: the weights of a policy and its critics, and their layers as JSON.

Older exports have files of format 1, which describe the layers of built-in networks in another way; the second half of
this module converts these descriptions.
"""

import contextlib
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from tfdpg.acting.encoder import feature_columns, real_features
from tfdpg.acting.network import FEATURES, OTHER, Node, NumpyCritic, NumpyPolicy
from tfdpg.acting.recurrent import RecurrentSpec
from tfdpg.acting.torsos import EXPANSION
from tfdpg.spec import Spec

DAMAGE = AttributeError, EOFError, MemoryError, OverflowError, RecursionError
"""Errors that a damaged file may raise, besides those of `load_numpy_policy`."""
POLICY_FORMAT = 2
"""The format of new files. Files of format 1 have no entry `format` in their description."""


def save_numpy_policy(
    path: Path, policy: NumpyPolicy, critics: Mapping[str, NumpyCritic] = MappingProxyType({})
) -> None:
    """Write a policy and its critics, with their weights.

    The array `weights`, float32 `[n]`, holds the policy's weights in Keras' order. The string `description` is JSON.
    Its entry `policy` lists the layers, each with its name, its inputs, its configuration and the position and shape
    of its weights (see `tfdpg.acting.network.Node`). The weights of each critic are in an array of its name, and its
    layers are listed under `critics`.
    """
    description = {
        "format": POLICY_FORMAT,
        "policy": [node._asdict() for node in policy.nodes],
        "critics": {name: [node._asdict() for node in critic.nodes] for name, critic in critics.items()},
    }
    values: Any = {name: critic.weights for name, critic in critics.items()}
    np.savez(path, weights=policy.weights, description=np.array(json.dumps(description)), **values)


def load_numpy_policy(path: Path, spec: Spec, recurrent_spec: RecurrentSpec | None) -> NumpyPolicy:
    """Load the policy that `save_numpy_policy` wrote.

    Args:
        path: the file.
        spec: the spaces.
        recurrent_spec: the recurrent state; None if the policy is not recurrent.

    Raises:
        OSError, ValueError, LookupError, TypeError: the file does not hold a policy.
    """
    with _reading(path):
        arrays, description = _read(path)
        has_format = "format" in description
        nodes = description["policy"] if has_format else _nodes_of_format_1(spec, description, recurrent_spec)
        policy = NumpyPolicy(spec, [_node(each) for each in nodes], recurrent_spec)
        policy.load(arrays["weights"])
        return policy


def load_critics(path: Path, spec: Spec) -> dict[str, NumpyCritic]:
    """Load the critics that `save_numpy_policy` wrote, by name; see `load_numpy_policy`."""
    critics = {}
    with _reading(path):
        arrays, description = _read(path)
        for name, stored in description["critics"].items():
            nodes = stored if "format" in description else _critic_nodes_of_format_1(spec, description, stored)
            critics[name] = NumpyCritic(spec, [_node(each) for each in nodes])
            critics[name].load(arrays[name])
    return critics


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise `ValueError` for what a damaged file raises inside the context."""
    try:
        yield
    except (*DAMAGE, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    description = {"critics": {}} | json.loads(str(arrays.pop("description")))
    if (found := description.get("format", POLICY_FORMAT)) != POLICY_FORMAT:
        raise ValueError(f"{path} has format {found!r}; this version of tfdpg reads formats 1 and {POLICY_FORMAT}")
    for name, values in arrays.items():
        if values.dtype != np.float32 or values.ndim != 1:
            raise ValueError(f"`{name}` of {path} must be float32 [n]. Received: {values.dtype} {list(values.shape)}")
    return arrays, description


def _node(stored: Mapping[str, Any]) -> Node:
    weights = tuple((int(start), tuple(int(size) for size in shape)) for start, shape in stored["weights"])
    return Node(str(stored["layer"]), tuple(int(number) for number in stored["inputs"]), stored["config"], weights)


class _NodeListBuilder:
    """Builds the nodes of a network of format 1, whose weights follow each other in the flat array."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self._start = 0

    def add(self, layer: str, inputs: Sequence[int], *shapes: tuple[int, ...], **config: Any) -> int:
        """Add a node; returns the number of its output."""
        weights = []
        for shape in shapes:
            weights.append((self._start, shape))
            self._start += int(np.prod(shape))
        self.nodes.append({"layer": layer, "inputs": inputs, "config": config, "weights": weights})
        return len(self.nodes) + 1

    def add_features(self, description: Mapping[str, Any], spec: Spec) -> tuple[int, int]:
        """Add a normaliser if the description has one; return the number and the width of the features."""
        width = len(real_features(spec))
        if not description["normalizer"]:
            return FEATURES, width
        epsilon, clip = description["normalizer"]
        return self.add("tfdpg>Normalizer", [FEATURES], (width,), (width,), epsilon=epsilon, clip=clip), width

    def add_branches(self, x: int, spec: Spec, layer: Mapping[str, Any]) -> tuple[int, int]:
        """Add a layer for each part of an observation; return the number and the width of their outputs."""
        parts = []
        for columns in feature_columns(spec):
            part = self.add("ops.GetItem", [x], start=columns.start, stop=columns.stop)
            parts.append(self.add_layer(part, columns.stop - columns.start, layer))
        return self.add("Concatenate", [number for number, _ in parts], axis=-1), sum(width for _, width in parts)

    def add_layer(self, x: int, width: int, layer: Mapping[str, Any]) -> tuple[int, int]:
        """Add one entry of `layers`; return the number and the width of its output."""
        if layer["layer"] == "norm":
            if layer["kind"] == "batch":
                shapes = [(width,)] * 4 + [()]
                return self.add("tfdpg>BatchRenormalization", [x], *shapes, epsilon=1e-3), width
            return self.add_layer_norm(x, width), width
        units = layer["units"]
        if layer["layer"] == "residual":
            y = self.add_layer_norm(x, width)
            y = self.add_dense(y, width, EXPANSION * units, layer["activation"])
            y = self.add_dense(y, EXPANSION * units, units, "linear")
            return self.add("Add", [x, y]), units
        if not layer["layer_norm"]:
            return self.add_dense(x, width, units, layer["activation"]), units
        y = self.add_layer_norm(self.add_dense(x, width, units, "linear"), units)
        return self.add("Activation", [y], activation=layer["activation"]), units

    def add_dense(self, x: int, width: int, units: int, activation: str) -> int:
        """Add a fully connected layer."""
        return self.add("Dense", [x], (width, units), (units,), activation=activation)

    def add_layer_norm(self, x: int, width: int) -> int:
        """Add a layer normalisation."""
        shapes = (width,), (width,)
        return self.add("LayerNormalization", [x], *shapes, epsilon=1e-3, axis=-1, center=True, scale=True)


def _nodes_of_format_1(
    spec: Spec, description: Mapping[str, Any], recurrent_spec: RecurrentSpec | None
) -> list[dict[str, Any]]:
    """Convert the description of a policy of format 1 to nodes."""
    made = _NodeListBuilder()
    x, width = made.add_features(description, spec)
    state = OTHER
    if recurrent_spec is not None:
        scale, offset = recurrent_spec.scaling
        if len(scale):
            previous = made.add("ops.GetItem", [OTHER], start=0, stop=len(scale))
            previous = made.add("Rescaling", [previous], scale=scale.tolist(), offset=offset.tolist())
            x = made.add("Concatenate", [x, previous], axis=-1)
        state = made.add("ops.GetItem", [OTHER], start=len(scale), stop=recurrent_spec.width)
        cells = description["cells"]
        shapes: list[tuple[int, ...]] = []
        width += len(scale)
        for kind, units in cells:
            gates = {"lstm": 4, "gru": 3, "rnn": 1}[kind] * units
            bias = (2, gates) if kind == "gru" else (gates,)  # a GRU has separate biases for inputs and state
            shapes += [(width, gates), (units, gates), bias]
            width = units
        state = made.add("tfdpg>RNNStack", [x, state], *shapes, cells=cells)
        start = recurrent_spec.state_width - (2 if cells[-1][0] == "lstm" else 1) * width  # the last cell's output
        x = made.add("ops.GetItem", [state], start=start, stop=start + width)
    layers = list(description["layers"])
    if description["has_branches"]:
        x, width = made.add_branches(x, spec, layers.pop(0))
    for layer in layers:
        x, width = made.add_layer(x, width, layer)
    output = description["output"]
    units = {"action": spec.act_dim, "probabilities": spec.actions, "loc_scale": 2 * spec.act_dim}[output["kind"]]
    x = made.add_dense(x, width, units, "linear")
    if output["kind"] == "probabilities":
        x = made.add("Softmax", [x])
    else:  # the exported action of a Gaussian is its mean
        if output["kind"] == "loc_scale":
            x = made.add("ops.GetItem", [x], start=0, stop=spec.act_dim)
        x = made.add("Activation", [x], activation="tanh")
        x = made.add("Rescaling", [x], scale=spec.action_scale.tolist(), offset=spec.center.tolist())
    if recurrent_spec is not None:
        made.add("Concatenate", [x, state], axis=-1)
    return made.nodes


def _critic_nodes_of_format_1(
    spec: Spec, description: Mapping[str, Any], critic: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Convert the description of a critic of format 1 to nodes."""
    made = _NodeListBuilder()
    x, width = made.add_features(description, spec)
    scale = (1 / spec.action_scale).tolist()
    action = made.add("Rescaling", [OTHER], scale=scale, offset=(-spec.center / spec.action_scale).tolist())
    layers = list(critic["layers"])
    action_layer = max(critic["action_layer"], int(description["has_branches"]))
    if description["has_branches"]:
        x, width = made.add_branches(x, spec, layers.pop(0))
    for depth, layer in enumerate(layers, int(description["has_branches"])):
        if depth == action_layer:
            x = made.add("Concatenate", [x, action], axis=-1)
            width += spec.act_dim
        x, width = made.add_layer(x, width, layer)
    if action_layer >= len(critic["layers"]):
        x = made.add("Concatenate", [x, action], axis=-1)
        width += spec.act_dim
    size = critic["size"]
    head = {"value": "tfdpg>Value", "categorical": "tfdpg>Categorical", "mixture": "tfdpg>Mixture"}[critic["head"]]
    atoms = [(size,)] if critic["head"] == "categorical" else []
    made.add(head, [x], (width, size), (size,), *atoms)
    return made.nodes
