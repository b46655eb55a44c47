"""The layers of networks in NumPy, by the names that Keras has for them.

A call of a compiled TensorFlow function costs more than the arithmetic of acting on one observation, so policies whose
layers are all registered here act in NumPy. `numpy_layer` registers a layer; `tfdpg.formats.c_header` has the registry
of the same layers in C.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfdpg.acting.cells import rnn_cells, step_cells

LayerFunction = Callable[..., np.ndarray]
"""From one or more arrays `[batch, n]` to one."""


class LayerKind(NamedTuple):
    """A layer that NumPy can compute.

    Attributes:
        make: makes the layer's function from its weights and its configuration. It raises `ValueError` for a
            configuration that NumPy does not support.
        config: the names of the entries of Keras' configuration that `make` takes, as keyword arguments.
    """

    make: Callable[..., LayerFunction]
    config: tuple[str, ...]


LAYERS: dict[str, LayerKind] = {}
"""The registered layers, by Keras' registered name; that of an operation, such as `x[:, 1:]`, begins with `ops.`."""


def numpy_layer(name: str, *config: str) -> Callable[[Callable[..., LayerFunction]], Callable[..., LayerFunction]]:
    """Register a layer for NumPy.

    Args:
        name: Keras' registered name of the layer (`keras.saving.get_registered_name`), such as `Dense` or
            `package>MyLayer`.
        config: the names of the entries of the layer's `get_config()` that the decorated function takes.

    Returns:
        A decorator of a function `make(*weights, **config)`, which takes the weights in Keras' order and returns a
        function from one or more float32 arrays `[batch, n]` to one. `make` raises `ValueError` for a configuration
        that it does not support; the policy then acts by a compiled TensorFlow call.

    Example:
        ```python
        @numpy_layer("my_package>Scale", "factor")
        def scale(*, factor):
            return lambda x: x * np.float32(factor)
        ```
    """

    def register(make: Callable[..., LayerFunction]) -> Callable[..., LayerFunction]:
        LAYERS[name] = LayerKind(make, config)
        return make

    return register


def relu(x: np.ndarray) -> np.ndarray:
    """max(x, 0)."""
    return np.maximum(x, 0)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(−x)), by way of tanh."""
    return 0.5 * (1 + np.tanh(0.5 * x))


def softplus(x: np.ndarray) -> np.ndarray:
    """log(1 + exp(x))."""
    return np.logaddexp(x, np.float32(0))


def softmax(x: np.ndarray) -> np.ndarray:
    """Probabilities `[batch, n]` of logits `[batch, n]`."""
    x = np.exp(x - x.max(axis=1, keepdims=True))
    return x / x.sum(axis=1, keepdims=True)


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": relu,
    "tanh": lambda x: np.tanh(x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "swish": lambda x: x * sigmoid(x),
    "softplus": softplus,
    "leaky_relu": lambda x: np.where(x > 0, x, np.float32(0.2) * x),
    "linear": lambda x: x,
}
"""The activations that NumPy can compute, by Keras' names."""


def _activation(name: Any) -> Callable[[np.ndarray], np.ndarray]:
    if name not in ACTIVATIONS:
        raise ValueError(f"There is no activation {name!r} in NumPy")
    return ACTIVATIONS[name]


@numpy_layer("Dense", "activation")
def dense(kernel: np.ndarray, bias: np.ndarray, *, activation: str) -> LayerFunction:
    """f(x W + b)."""
    function = _activation(activation)
    if activation == "linear":
        return lambda x: x @ kernel + bias
    if activation == "relu":  # in place: half of the time of a small layer

        def dense_relu(x: np.ndarray) -> np.ndarray:
            y = x @ kernel + bias
            return np.maximum(y, 0, out=y)

        return dense_relu
    return lambda x: function(x @ kernel + bias)


numpy_layer("tfdpg>Value")(functools.partial(dense, activation="linear"))


@numpy_layer("Activation", "activation")
def activation(*, activation: str) -> LayerFunction:
    """An activation by itself."""
    return _activation(activation)


numpy_layer("ops.Softplus")(functools.partial(activation, activation="softplus"))
numpy_layer("ops.Tanh")(functools.partial(activation, activation="tanh"))


@numpy_layer("Softmax")
def softmax_layer() -> LayerFunction:
    """Probabilities of logits."""
    return softmax


@numpy_layer("LayerNormalization", "epsilon", "axis", "center", "scale")
def layer_normalization(
    gamma: np.ndarray, beta: np.ndarray, *, epsilon: float, axis: Any, center: bool, scale: bool
) -> LayerFunction:
    """Features with mean 0 and variance 1 in each row, times γ, plus β."""
    if axis not in (-1, 1, [-1], [1]) or not (center and scale):
        raise ValueError("NumPy normalises the last axis, with scale and center")
    small = np.float32(epsilon)

    def normalize(x: np.ndarray) -> np.ndarray:
        x = x - x.mean(axis=1, keepdims=True)
        return x / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + small) * gamma + beta

    return normalize


@numpy_layer("tfdpg>BatchRenormalization", "epsilon")
def batch_renormalization(
    gamma: np.ndarray, beta: np.ndarray, mean: np.ndarray, variance: np.ndarray, updates: np.ndarray, *, epsilon: float
) -> LayerFunction:
    """Features with their running mean and variance, times γ, plus β."""
    scale = gamma / np.sqrt(variance + np.float32(epsilon))
    return lambda x: (x - mean) * scale + beta


@numpy_layer("tfdpg>Normalizer", "epsilon", "clip")
def normalizer(mean: np.ndarray, variance: np.ndarray, *, epsilon: float, clip: float) -> LayerFunction:
    """clip((x − mean) / (√variance + epsilon), −clip, clip)."""
    std = np.sqrt(variance) + np.float32(epsilon)
    largest = np.float32(clip)
    return lambda x: np.clip((x - mean) / std, -largest, largest)


@numpy_layer("tfdpg>AvgL1Norm")
def avg_l1_norm() -> LayerFunction:
    """Features, divided by the mean of their absolute values."""
    smallest = np.float32(1e-8)
    return lambda x: x / np.maximum(np.abs(x).mean(axis=1, keepdims=True), smallest)


@numpy_layer("Rescaling", "scale", "offset")
def rescaling(*, scale: Any, offset: Any) -> LayerFunction:
    """Features times `scale`, plus `offset`: numbers, or lists with a number for each feature."""
    factor = np.asarray(scale, np.float32)
    shift = np.asarray(offset, np.float32)
    return lambda x: x * factor + shift


@numpy_layer("Concatenate", "axis")
def concatenate(*, axis: int) -> LayerFunction:
    """The features of all inputs, side by side."""
    if axis not in (-1, 1):
        raise ValueError("NumPy concatenates features")
    return lambda *inputs: np.concatenate(inputs, axis=1)


@numpy_layer("Add")
def add() -> LayerFunction:
    """The sum of all inputs."""
    return lambda *inputs: functools.reduce(operator.add, inputs)


@numpy_layer("Subtract")
def subtract() -> LayerFunction:
    """The difference of two inputs."""
    return lambda x, y: x - y


@numpy_layer("ops.Add", "other")
def add_number(*, other: float) -> LayerFunction:
    """Features plus a number."""
    number = np.float32(other)
    return lambda x: x + number


@numpy_layer("ops.GetItem", "start", "stop")
def columns(*, start: int, stop: int) -> LayerFunction:
    """Some of the features, `x[:, start:stop]`."""
    return lambda x: x[:, start:stop]


@numpy_layer("ops.Clip", "x_min", "x_max")
def clip_operation(*, x_min: float, x_max: float) -> LayerFunction:
    """Features, clipped to [x_min, x_max]."""
    low = np.float32(x_min)
    high = np.float32(x_max)
    return lambda x: np.minimum(np.maximum(x, low), high)


@numpy_layer("tfdpg>RNNStack", "cells")
def rnn_stack(*weights: np.ndarray, cells: Sequence[tuple[str, int]]) -> LayerFunction:
    """Recurrent cells, each fed by the one before, for one step.

    The function takes the inputs `[batch, n]` and the states of all cells, side by side, and returns the new states.
    Each cell's state begins with its output, so the output of the last cell is a part of the result.
    """
    stack = rnn_cells(weights, cells)
    return lambda x, state: step_cells(stack, x, state)[1]


@numpy_layer("tfdpg>Categorical")
def categorical_head(kernel: np.ndarray, bias: np.ndarray, atoms: np.ndarray) -> LayerFunction:
    """The mean of the return, `[batch, 1]`: Σᵢ pᵢ zᵢ."""
    return lambda x: softmax(x @ kernel + bias) @ atoms[:, None]


@numpy_layer("tfdpg>Mixture")
def mixture_head(kernel: np.ndarray, bias: np.ndarray) -> LayerFunction:
    """The mean of the return, `[batch, 1]`: Σᵢ wᵢ μᵢ."""

    def mean(x: np.ndarray) -> np.ndarray:
        logits, means, _ = np.split(x @ kernel + bias, 3, axis=1)
        return np.sum(softmax(logits) * means, axis=1, keepdims=True)

    return mean
