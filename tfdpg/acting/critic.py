"""The built-in critics in NumPy: fully connected layers and a head whose mean is the value of an action."""

from collections.abc import Callable

import numpy as np

from tfdpg.acting.encoder import encode, feature_columns
from tfdpg.acting.mlp import LayerFunction, WeightReader
from tfdpg.acting.torsos import Torso
from tfdpg.spec import Packed, Spec


def _softmax(x: np.ndarray) -> np.ndarray:
    x = np.exp(x - x.max(axis=1, keepdims=True))
    return x / x.sum(axis=1, keepdims=True)


def _mixture(output: np.ndarray, atoms: np.ndarray) -> np.ndarray:
    logits, means, _ = np.split(output, 3, axis=1)
    return np.sum(_softmax(logits) * means, axis=1)


MEANS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "value": lambda output, atoms: output[:, 0],
    "categorical": lambda output, atoms: _softmax(output) @ atoms,
    "mixture": _mixture,
}
"""For each kind of head, a function from its output `[batch, size]` and the atoms `[size]` to values `[batch]`.

Only the categorical head has atoms.
"""


class NumpyCritic:
    """The forward pass of `tfdpg.networks.mlp_critic`: values of packed observations and actions.

    Args:
        spec: the spaces of the environment.
        torso: the hidden layers; their activations must be in `ACTIVATIONS`.
        normalizer: epsilon and clip of the observation normaliser; None without one.
        head: a key of `MEANS`.
        size: number of outputs of the head.

    Attributes:
        weights: the weights that `load` received last.
    """

    def __init__(self, spec: Spec, torso: Torso, normalizer: tuple[float, float] | None, head: str, size: int):
        self.spec = spec
        self.torso = torso
        self.normalizer = normalizer
        self.head = head
        self.size = size
        self.columns = feature_columns(spec)
        self.action_layer = max(torso.action_layer, int(torso.has_branches))
        self.mean = self.std = self.atoms = self.weights = np.zeros(0, np.float32)
        self.first: list[LayerFunction] = []
        self.layers: list[LayerFunction] = []

    def load(self, weights: np.ndarray) -> None:
        """Set all weights, float32 `[n]`: those of the Keras critic, flattened and concatenated in its order."""
        reader = WeightReader(weights)
        self.weights = weights
        width = self.columns[-1].stop
        self.mean, self.std = reader.statistics(width, self.normalizer)
        layers = self.torso.q
        self.layers = []
        if self.torso.has_branches:
            self.first, width = reader.branches(self.columns, layers[0])
            layers = layers[1:]
        for depth, layer in enumerate(layers, int(self.torso.has_branches)):
            step, width = reader.layer(width + self.spec.act_dim * (depth == self.action_layer), layer)
            self.layers.append(step)
        width += self.spec.act_dim * (self.action_layer >= len(self.torso.q))
        self.layers.append(reader.linear(width, self.size))
        self.atoms = reader.read(self.size if self.head == "categorical" else 0)
        reader.finish()

    def __call__(self, packed: Packed, action: np.ndarray) -> np.ndarray:
        """Return values `[batch]` of actions `[batch, act_dim]`, which are in the environment's units."""
        return MEANS[self.head](self.output(packed, action), self.atoms)

    def output(self, packed: Packed, action: np.ndarray) -> np.ndarray:
        """Return the outputs of the head, `[batch, size]`."""
        x = encode(self.spec, packed)
        if self.normalizer is not None:
            clip = np.float32(self.normalizer[1])
            x = np.clip((x - self.mean) / self.std, -clip, clip)
        if self.first:
            parts = zip(self.first, self.columns, strict=True)
            x = np.concatenate([layer(x[:, columns]) for layer, columns in parts], axis=1)
        scaled = (action - self.spec.center) / self.spec.action_scale
        for depth, layer in enumerate(self.layers, int(self.torso.has_branches)):
            x = layer(np.concatenate([x, scaled], axis=1) if depth == min(self.action_layer, len(self.torso.q)) else x)
        return x
