"""Networks as data, and their forward pass in NumPy."""

import copy
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfdpg.acting.encoder import encode
from tfdpg.acting.layers import LAYERS, LayerFunction
from tfdpg.acting.recurrent import ForwardPass, RecurrentSpec
from tfdpg.spec import Packed, Spec

FEATURES = 0
"""The value that holds the features of observations; see `tfdpg.acting.encode`."""
OTHER = 1
"""The value that holds the other input of a network: actions, or the recurrent inputs."""


class Node(NamedTuple):
    """One layer of a network. A network's values are its two inputs, and then the output of each node.

    Attributes:
        layer: the layer's name in `tfdpg.acting.layers.LAYERS`.
        inputs: the numbers of the values that it takes.
        config: the layer's configuration, of JSON values.
        weights: for each of its weights the position in the flat weights of the network, and the shape.
    """

    layer: str
    inputs: tuple[int, ...]
    config: Mapping[str, Any]
    weights: tuple[tuple[int, tuple[int, ...]], ...]

    def parts(self, weights: np.ndarray) -> list[np.ndarray]:
        """The layer's own weights, of the network's flat weights."""
        return [weights[start : start + math.prod(shape)].reshape(shape) for start, shape in self.weights]


class NumpyNetwork:
    """The forward pass of a network in NumPy.

    Args:
        spec: the spaces.
        nodes: the layers, each behind those whose outputs it takes. The output of the last one is the network's.

    Attributes:
        weights: the flat weights that were loaded last, float32 `[n]`.

    Raises:
        ValueError, LookupError: a node takes later values, or its layer is not registered.
    """

    def __init__(self, spec: Spec, nodes: Sequence[Node]):
        self.spec = spec
        self.nodes = tuple(nodes)
        ends = [start + math.prod(shape) for node in nodes for start, shape in node.weights]
        self.size = max(ends, default=0)
        for number, node in enumerate(self.nodes, 2):
            if not all(0 <= value < number for value in node.inputs):
                raise ValueError(f"Node {number} must take earlier values. Received: {node.inputs}")
        self._make = {node.layer: LAYERS[node.layer].make for node in nodes}  # for processes without the registration
        self.weights = np.zeros(0, np.float32)
        self._steps: list[tuple[LayerFunction, tuple[int, ...]]] = []

    def load(self, weights: np.ndarray) -> None:
        """Use these weights: all of the network's, flattened and concatenated in Keras' order, float32 `[n]`.

        Raises:
            ValueError, TypeError: their number is wrong, or NumPy does not support a layer's configuration.
        """
        if len(weights) != self.size:
            raise ValueError(f"`weights` must have {self.size} elements. Received: {len(weights)}")
        self.weights = weights
        self._steps = [
            (self._make[node.layer](*node.parts(weights), **node.config), node.inputs) for node in self.nodes
        ]

    def without_weights(self) -> "NumpyNetwork":
        """A copy without weights, which can be sent to another process."""
        other = copy.copy(self)
        other.weights = np.zeros(0, np.float32)
        other._steps = []
        return other

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_steps": []}  # functions of the layers, which cannot be pickled

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        if len(self.weights) == self.size:
            self.load(self.weights)

    def compute(self, packed: Packed, other: np.ndarray | None = None) -> np.ndarray:
        """The network's output `[batch, n]`.

        Args:
            packed: the observations, as `Spec.pack` returns them.
            other: the other input, `[batch, n]`, of a network that has one.
        """
        values: list[Any] = [encode(self.spec, packed), other]
        for function, inputs in self._steps:
            values.append(function(*[values[number] for number in inputs]))
        return values[-1]


class NumpyPolicy(NumpyNetwork):
    """The forward pass of a policy in NumPy, from packed observations to its outputs.

    The inputs of a recurrent policy are the packed observations followed by the recurrent inputs, and its outputs are
    followed by the new state (see `RecurrentSpec`).

    Args:
        spec: the spaces.
        nodes: the layers.
        recurrent_spec: the recurrent state; None if the policy is not recurrent.
    """

    def __init__(self, spec: Spec, nodes: Sequence[Node], recurrent_spec: RecurrentSpec | None = None):
        super().__init__(spec, nodes)
        self.recurrent_spec = recurrent_spec

    def __call__(self, packed: Packed) -> np.ndarray:
        """The outputs, float32 `[num_envs, n]`."""
        return self.compute(packed, packed[-1])


class NumpyCritic(NumpyNetwork):
    """The forward pass of a critic in NumPy, from packed observations and actions to values."""

    def __call__(self, packed: Packed, action: np.ndarray) -> np.ndarray:
        """Values `[batch]` of actions in the environment's units, `[batch, act_dim]`."""
        return self.compute(packed, action)[:, 0]

    def summand(self, value: float) -> float:
        """The largest number that is added up to a value, by which its rounding error is measured.

        Args:
            value: the largest value.
        """
        last = self.nodes[-1]
        return max([value, *np.abs(last.parts(self.weights)[-1])]) if last.layer == "tfdpg>Categorical" else value


def greedy_forward(spec: Spec, recurrent_spec: RecurrentSpec | None, network: ForwardPass) -> ForwardPass:
    """Return a function from packed observations to the actions of an evaluation policy; see `greedy_actions`."""
    return functools.partial(_greedy, spec, recurrent_spec, network)  # unlike a closure, it can be pickled


def _greedy(spec: Spec, recurrent_spec: RecurrentSpec | None, network: ForwardPass, packed: Packed) -> np.ndarray:
    return greedy_actions(spec, network(packed), recurrent_spec)


def greedy_actions(spec: Spec, outputs: np.ndarray, recurrent_spec: RecurrentSpec | None = None) -> np.ndarray:
    """The actions that an evaluation policy chooses.

    Args:
        spec: the spaces.
        outputs: of the policy, `[batch, act_dim]` for a Box, `[batch, actions]` for a Discrete space, with the new
            state behind them if the policy is recurrent.
        recurrent_spec: the recurrent state; None if the policy is not recurrent.

    Returns:
        For a Box the outputs, clipped to it, `[batch, act_dim]`, with the new state behind them; those of a Box of
        integers are rounded. For a Discrete space the actions with the largest outputs, int64 `[batch]`; if there is a
        state, float32 `[batch, 1]` with the state behind them.
    """
    if spec.actions is not None:
        best = most_probable(outputs[:, : spec.actions]) + int(spec.low[0])
        if recurrent_spec is None:
            return best
        return np.concatenate([best[:, None], outputs[:, spec.actions :]], axis=1, dtype=np.float32)
    actions = spec.rounded(np.minimum(np.maximum(outputs[:, : spec.act_dim], spec.low), spec.high))
    return actions if recurrent_spec is None else np.concatenate([actions, outputs[:, spec.act_dim :]], axis=1)


def most_probable(probs: np.ndarray) -> np.ndarray:
    """The index of the most probable action for each row of `[batch, actions]`; -1 where probabilities are NaN."""
    return np.where(np.isnan(probs[:, 0]), -1, probs.argmax(axis=1))
