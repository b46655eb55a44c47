"""The stock actor: fully connected layers, tanh, the action box."""

import copy
from collections.abc import Callable

import numpy as np

from tfdpg.acting.encoder import encode, real_features
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
"""The activations, by Keras' names, that can be computed here."""


class MLPActor:
    """The forward pass of `tfdpg.networks.mlp_actor`, from packed observations to actions.

    Args:
        spec: the spaces.
        hidden_units: the units of each hidden layer.
        activation: a name in `ACTIVATIONS`.
        normalizer: epsilon and clip of the features' normaliser, None where there is none.
    """

    def __init__(
        self,
        spec: Spec,
        hidden_units: tuple[int, ...],
        activation: str,
        normalizer: tuple[float, float] | None = None,
    ):
        self.spec, self._normalizer = spec, normalizer
        self._activation = ACTIVATIONS[activation]
        self._center, self._half_range = spec.center, spec.half_range
        self._units = (*hidden_units, spec.act_dim)
        self._features = len(real_features(spec))
        self._mean = self._std = np.zeros(self._features, np.float32)
        self._layers: list[tuple[np.ndarray, np.ndarray]] = []

    def load(self, weights: np.ndarray) -> None:
        """Takes all weights, flattened and concatenated in the order of the Keras actor's, float32 `[n]`."""
        layers, start, width = [], 0, self._features
        if self._normalizer is not None:
            start = 2 * width
            self._mean, variance = weights[:width], weights[width:start]
            self._std = np.sqrt(variance) + np.float32(self._normalizer[0])
        for units in self._units:
            stop = start + width * units
            layers.append((weights[start:stop].reshape(width, units), weights[stop : stop + units]))
            start, width = stop + units, units
        if start != len(weights):
            raise ValueError(f"`weights` must have {start} elements. Received: {len(weights)}")
        self._layers = layers

    def without_weights(self) -> "MLPActor":
        """A copy that has everything but weights, for others to `load`."""
        actor = copy.copy(self)
        actor._mean = actor._std = np.zeros(self._features, np.float32)
        actor._layers = []
        return actor

    def __call__(self, packed: Packed) -> np.ndarray:
        """Actions in the environment's units, float32 `[lanes, act_dim]`."""
        x = encode(self.spec, packed)
        if self._normalizer is not None:
            clip = np.float32(self._normalizer[1])
            x = np.clip((x - self._mean) / self._std, -clip, clip)
        *hidden, (kernel, bias) = self._layers
        for w, b in hidden:
            x = self._activation(x @ w + b)
        return np.tanh(x @ kernel + bias) * self._half_range + self._center
