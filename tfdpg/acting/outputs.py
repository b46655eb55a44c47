"""Output transforms of the built-in actors: actions, or parameters of a distribution over actions."""

from typing import Protocol

import numpy as np

from tfdpg.spec import Spec

MIN_SIGMA = 1e-2
"""The smallest standard deviation of a Gaussian policy that learns it, as a fraction of the action scale."""


def most_probable(probs: np.ndarray) -> np.ndarray:
    """Return the index of the most probable action in each row of `[batch, actions]`; -1 if the row is NaN."""
    return np.where(np.isnan(probs[:, 0]), -1, probs.argmax(axis=1))


class OutputTransform(Protocol):
    """Turn the last linear layer of an actor into its output; `tfdpg.networks.mlp_actor` does the same in Keras.

    Attributes:
        units: width of the last linear layer.
    """

    units: int

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Map `[num_envs, units]` to outputs `[num_envs, n]`."""
        ...

    def greedy(self, output: np.ndarray) -> np.ndarray:
        """Choose greedy actions from outputs: `[num_envs, act_dim]`, or int64 `[num_envs]` in a Discrete space."""
        ...


class BoxAction:
    """tanh, rescaled to the action bounds: an action, or the mean of a Gaussian with a fixed standard deviation."""

    def __init__(self, spec: Spec):
        self.units = spec.act_dim
        self.action_scale = spec.action_scale
        self.center = spec.center
        self._low = spec.low
        self._high = spec.high

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return actions `[num_envs, act_dim]` in the environment's units."""
        return np.tanh(x) * self.action_scale + self.center

    def greedy(self, output: np.ndarray) -> np.ndarray:
        """Clip actions to the box, which rounding errors can leave."""
        return np.minimum(np.maximum(output, self._low), self._high)


class Probabilities:
    """Softmax: probabilities of the actions of a Discrete space."""

    def __init__(self, spec: Spec):
        self.units = spec.actions or 0
        self.first = int(spec.low[0])

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return probabilities `[num_envs, actions]`."""
        x = np.exp(x - x.max(axis=1, keepdims=True))
        return x / x.sum(axis=1, keepdims=True)

    def greedy(self, output: np.ndarray) -> np.ndarray:
        """Return the most probable actions, int64 `[num_envs]`."""
        return most_probable(output) + self.first


class GaussianOutput:
    """The mean of a Gaussian, as in `BoxAction`, and its standard deviation, `MIN_SIGMA` plus a softplus.

    Args:
        spec: the spaces of the environment.
        sigma: standard deviation where the linear layer is 0, as a fraction of the action scale; above `MIN_SIGMA`.
    """

    def __init__(self, spec: Spec, sigma: float):
        self.mean = BoxAction(spec)
        self.units = 2 * spec.act_dim
        self.sigma = sigma
        self.offset = np.float32(np.log(np.expm1(sigma - MIN_SIGMA)))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return means and standard deviations in the environment's units, `[num_envs, 2 act_dim]`."""
        loc, x = np.split(x, 2, axis=1)
        sigma = np.logaddexp(x + self.offset, np.float32(0)) + np.float32(MIN_SIGMA)
        return np.concatenate([self.mean(loc), sigma * self.mean.action_scale], axis=1)

    def greedy(self, output: np.ndarray) -> np.ndarray:
        """Return the means, clipped to the box, `[num_envs, act_dim]`."""
        return self.mean.greedy(output[:, : self.units // 2])
