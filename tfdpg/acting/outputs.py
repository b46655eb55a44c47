"""What the last layer of a stock actor gives: actions, or what they are drawn from."""

from typing import Protocol

import numpy as np

from tfdpg.spec import Spec

MIN_SIGMA = 1e-2
"""Of a Gaussian whose scale is learnt, as a fraction of the half-range."""


def most_probable(probs: np.ndarray) -> np.ndarray:
    """The index of the most probable action for each row of `[batch, actions]`; -1 where probabilities are NaN."""
    return np.where(np.isnan(probs[:, 0]), -1, probs.argmax(axis=1))


class OutputTransform(Protocol):
    """From the numbers of the last linear layer to an actor's output; `tfdpg.networks.mlp_actor` has Keras' form.

    Attributes:
        units: the width of that layer.
    """

    units: int

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """From `[num_envs, units]` to `[num_envs, n]`."""
        ...

    def greedy(self, output: np.ndarray) -> np.ndarray:
        """From that to the actions of exports, `[num_envs, act_dim]`, or int64 `[num_envs]` if Discrete."""
        ...


class BoxAction:
    """tanh, stretched to the bounds: an action, or the mean of a Gaussian of fixed scale."""

    def __init__(self, spec: Spec):
        self.units = spec.act_dim
        self.action_scale = spec.action_scale
        self.center = spec.center
        self._low = spec.low
        self._high = spec.high

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Actions `[num_envs, act_dim]`."""
        return np.tanh(x) * self.action_scale + self.center

    def greedy(self, output: np.ndarray) -> np.ndarray:
        """The same, inside the box to the last bit."""
        return np.minimum(np.maximum(output, self._low), self._high)


class Probabilities:
    """Softmax: the probabilities of the actions of a Discrete space."""

    def __init__(self, spec: Spec):
        self.units = spec.actions or 0
        self.first = int(spec.low[0])

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Probabilities `[num_envs, actions]`."""
        x = np.exp(x - x.max(axis=1, keepdims=True))
        return x / x.sum(axis=1, keepdims=True)

    def greedy(self, output: np.ndarray) -> np.ndarray:
        """The most probable actions, int64 `[num_envs]`."""
        return most_probable(output) + self.first


class GaussianOutput:
    """The mean of a Gaussian, as `BoxAction` has it, and its scale, a softplus above `MIN_SIGMA`.

    Args:
        spec: the spaces.
        sigma: the scale that a linear layer's 0 means, as a fraction of the half-range, above `MIN_SIGMA`.
    """

    def __init__(self, spec: Spec, sigma: float):
        self.mean = BoxAction(spec)
        self.units = 2 * spec.act_dim
        self.sigma = sigma
        self.offset = np.float32(np.log(np.expm1(sigma - MIN_SIGMA)))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Means and scales in the environment's units, `[num_envs, 2 act_dim]`."""
        loc, x = np.split(x, 2, axis=1)
        sigma = np.logaddexp(x + self.offset, np.float32(0)) + np.float32(MIN_SIGMA)
        return np.concatenate([self.mean(loc), sigma * self.mean.action_scale], axis=1)

    def greedy(self, output: np.ndarray) -> np.ndarray:
        """The means, inside the box to the last bit, `[num_envs, act_dim]`."""
        return self.mean.greedy(output[:, : self.units // 2])
