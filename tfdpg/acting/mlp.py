"""The built-in actor in NumPy: fully connected layers, recurrent cells and an output transform."""

import copy
import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tfdpg.acting.cells import Cell, CellKinds, make_cells, step_cells
from tfdpg.acting.encoder import encode, feature_columns, real_features
from tfdpg.acting.outputs import BoxAction, OutputTransform
from tfdpg.acting.recurrent import RecurrentSpec
from tfdpg.acting.torsos import EXPANSION, Hidden, Layer, Norm, Residual, Torso
from tfdpg.spec import Packed, Spec


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0, out=x)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * x))


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": _relu,
    "tanh": np.tanh,
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "swish": lambda x: x * _sigmoid(x),
    "softplus": lambda x: np.logaddexp(x, np.float32(0)),
    "leaky_relu": lambda x: np.where(x > 0, x, np.float32(0.2) * x),
    "linear": lambda x: x,
}
"""The supported activation functions, by their Keras names."""


NORM_EPSILON = np.float32(1e-3)
"""Keras' default for layer normalisation; batch renormalisation uses the same value."""

LayerFunction = Callable[[np.ndarray], np.ndarray]


class NumpyPolicy:
    """The forward pass of `tfdpg.networks.mlp_actor` for packed observations.

    With cells, the policy is recurrent: the recurrent inputs follow the observations (see `RecurrentSpec`).

    Args:
        spec: the spaces of the environment.
        torso: the hidden layers; their activations must be in `ACTIVATIONS`. The torso of a recurrent policy must not
            have branches.
        normalizer: epsilon and clip of the observation normaliser; None without one.
        output: the output transform; None for `BoxAction`.
        cells: recurrent cells between the features and the torso.
        recurrent_spec: the recurrent inputs; None for a policy that is not recurrent.

    Attributes:
        weights: the weights that `load` received last.
    """

    def __init__(
        self,
        spec: Spec,
        torso: Torso,
        normalizer: tuple[float, float] | None = None,
        output: OutputTransform | None = None,
        cells: CellKinds = (),
        recurrent_spec: RecurrentSpec | None = None,
    ):
        self.output = output or BoxAction(spec)
        self.spec = spec
        self.torso = torso
        self.normalizer = normalizer
        self._features = len(real_features(spec))
        self._branches = feature_columns(spec)
        self.cell_kinds = cells
        self.recurrent_spec = recurrent_spec
        self.cells = list[Cell]()
        self._scaling = ((), ()) if recurrent_spec is None else recurrent_spec.scaling
        self.mean = self.std = np.zeros(self._features, np.float32)
        self.first: list[LayerFunction] = []
        self.layers: list[LayerFunction] = []
        self.weights = np.zeros(0, np.float32)

    def load(self, weights: np.ndarray) -> None:
        """Set all weights, float32 `[n]`: those of the Keras actor, flattened and concatenated in its order."""
        reader = WeightReader(weights)
        self.weights = weights
        width = self._features
        self.mean, self.std = reader.statistics(width, self.normalizer)
        if self.recurrent_spec is not None:
            self.cells = make_cells(self.cell_kinds, width + self.recurrent_spec.previous_width, reader.read)
            width = self.cells[-1].units
        layers = (*self.torso.pi, Hidden(self.output.units, "linear"))
        self.first = []
        self.layers = []
        if self.torso.has_branches:
            self.first, width = reader.branches(self._branches, layers[0])
            layers = layers[1:]
        for layer in layers:
            step, width = reader.layer(width, layer)
            self.layers.append(step)
        reader.finish()

    def without_weights(self) -> "NumpyPolicy":
        """Return a copy without weights, which acts after `load`."""
        actor = copy.copy(self)
        actor.mean = actor.std = np.zeros(self._features, np.float32)
        actor.weights = np.zeros(0, np.float32)
        actor.first = []
        actor.layers = []
        actor.cells = []
        return actor

    def __call__(self, packed: Packed) -> np.ndarray:
        """Return the transformed outputs of the last layer, float32 `[num_envs, n]`; see `OutputTransform`.

        With `BoxAction`, these are actions in the environment's units, `[num_envs, act_dim]`. The outputs of a
        recurrent policy are followed by its new state, `[num_envs, n + state_width]`.
        """
        x = encode(self.spec, packed)
        if self.normalizer is not None:
            clip = np.float32(self.normalizer[1])
            x = np.clip((x - self.mean) / self.std, -clip, clip)
        if self.recurrent_spec is None:
            return self._decoded(x)
        previous, state = np.split(packed[-1], [self.recurrent_spec.previous_width], axis=1)
        factor, offset = self._scaling
        x, state = step_cells(self.cells, np.concatenate([x, previous * factor + offset], axis=1), state)
        return np.concatenate([self._decoded(x), state], axis=1)

    def greedy(self, packed: Packed) -> np.ndarray:
        """Return greedy actions, as an exported policy does; otherwise as `__call__`."""
        outputs = self(packed)
        if self.recurrent_spec is None:
            return self.output.greedy(outputs)
        chosen, state = np.split(outputs, [outputs.shape[1] - self.recurrent_spec.state_width], axis=1)
        return np.concatenate([self.output.greedy(chosen), state], axis=1)

    def _decoded(self, x: np.ndarray) -> np.ndarray:
        """Apply the torso and the output transform to features or to the output of the recurrent cells."""
        if self.first:
            branches = zip(self.first, self._branches, strict=True)
            x = np.concatenate([layer(x[:, columns]) for layer, columns in branches], axis=1)
        for layer in self.layers:
            x = layer(x)
        return self.output(x)


class Dense(NamedTuple):
    """A fully connected layer, with an optional normalisation before the activation."""

    kernel: np.ndarray
    bias: np.ndarray
    norm: LayerFunction | None
    activation: LayerFunction

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Map `[num_envs, n]` to `[num_envs, units]`."""
        x = x @ self.kernel + self.bias
        return self.activation(x if self.norm is None else self.norm(x))


class LayerNorm(NamedTuple):
    """Layer normalisation: mean 0 and variance 1 over the features of each sample, then scale and shift."""

    gamma: np.ndarray
    beta: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Normalise each row of `[num_envs, n]`."""
        x = x - x.mean(axis=1, keepdims=True)
        scale = np.sqrt(np.square(x).mean(axis=1, keepdims=True) + NORM_EPSILON)
        return x / scale * self.gamma + self.beta


class BatchNorm(NamedTuple):
    """Batch normalisation with the running mean and variance, then scale and shift."""

    mean: np.ndarray
    scale: np.ndarray
    beta: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Normalise each column of `[num_envs, n]`."""
        return (x - self.mean) * self.scale + self.beta


class Block(NamedTuple):
    """A residual block: adds the output of its layers to its input."""

    steps: tuple[LayerFunction, ...]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Map `[num_envs, n]` to the same shape."""
        return x + functools.reduce(lambda y, step: step(y), self.steps, x)


class WeightReader:
    """Read the weights of layers from a flat array, in order."""

    def __init__(self, weights: np.ndarray):
        self._weights = weights
        self._start = 0

    def read(self, *shape: int) -> np.ndarray:
        """Read the next weights; returns zeros if too few are left, which `finish` reports."""
        stop = self._start + math.prod(shape)
        part = self._weights[self._start : stop]
        self._start = stop
        return part.reshape(shape) if len(part) == math.prod(shape) else np.zeros(shape, np.float32)

    def statistics(self, width: int, normalizer: tuple[float, float] | None) -> tuple[np.ndarray, np.ndarray]:
        """Read the mean and the standard deviation of a normaliser; returns empty arrays without one."""
        if normalizer is None:
            return np.zeros(0, np.float32), np.zeros(0, np.float32)
        mean = self.read(width)
        variance = self.read(width)
        return mean, np.sqrt(variance) + np.float32(normalizer[0])

    def branches(self, columns: Sequence[slice], layer: Layer) -> tuple[list[LayerFunction], int]:
        """Read one layer for each part of an observation; returns the layers and the sum of their output widths."""
        steps = [self.layer(part.stop - part.start, layer) for part in columns]
        return [step for step, _ in steps], sum(width for _, width in steps)

    def linear(self, width: int, units: int) -> LayerFunction:
        """Read a linear layer with `width` inputs."""
        return self.layer(width, Hidden(units, "linear"))[0]

    def layer(self, width: int, layer: Layer) -> tuple[LayerFunction, int]:
        """Read a layer with `width` inputs; returns the layer and its output width."""
        match layer:
            case Norm("batch"):
                gamma, beta, mean, variance, _ = (*(self.read(width) for _ in range(4)), self.read())
                return BatchNorm(mean, gamma / np.sqrt(variance + NORM_EPSILON), beta), width
            case Norm():
                return LayerNorm(self.read(width), self.read(width)), width
            case Residual(units, activation):
                parts = (Norm("layer"), Hidden(EXPANSION * units, activation), Hidden(units, "linear"))
                steps = []
                for part in parts:
                    step, width = self.layer(width, part)
                    steps.append(step)
                return Block(tuple(steps)), width
            case Hidden(units, activation, layer_norm):
                kernel = self.read(width, units)
                bias = self.read(units)
                norm = LayerNorm(self.read(units), self.read(units)) if layer_norm else None
                return Dense(kernel, bias, norm, ACTIVATIONS[activation]), units

    def finish(self) -> None:
        """Check that all weights were read.

        Raises:
            ValueError: The array has more or fewer weights than the layers.
        """
        if self._start != len(self._weights):
            raise ValueError(f"`weights` must have {self._start} elements. Received: {len(self._weights)}")
