"""Exploration of stochastic policies: sample actions, and store them with the parameters of their distribution."""

from typing import NoReturn

import numpy as np

from tfdpg.acting.behaviour import Exploration
from tfdpg.acting.network import most_probable
from tfdpg.spec import Spec

WITHOUT_NOISE = (
    "`agent` must be one that explores with noise on its actions if `actors` is set. Received an agent that samples "
    "its actions from a stochastic policy; train it with a vector environment instead."
)


class _Sampling(Exploration):
    def at_scale(self, scale: float | None) -> NoReturn:
        """Raise `ValueError`: there is no noise to scale."""
        raise ValueError(WITHOUT_NOISE)


class CategoricalSampling(_Sampling):
    """Sample discrete actions; a stored step is [action, probabilities].

    A greedy step is stored with probability 1 for its action.
    """

    def __init__(self, spec: Spec):
        self._first = float(spec.low[0])
        self._actions = spec.actions or 0
        self.step_width = 1 + self._actions

    def explore(self, output: np.ndarray, factor: float, rng: np.random.Generator) -> np.ndarray:
        """Sample an action for each row of probabilities; returns `[num_envs, 1 + actions]`."""
        cumulative = np.cumsum(output, axis=1)
        drawn = rng.random((len(output), 1), np.float32) * cumulative[:, -1:]
        index = np.minimum((cumulative <= drawn).sum(axis=1, keepdims=True), self._actions - 1)
        index = np.where(np.isnan(output[:, :1]), -1, index)
        return np.concatenate([index + np.float32(self._first), output], axis=1, dtype=np.float32)

    def greedy(self, output: np.ndarray) -> np.ndarray:
        """Choose the most probable actions; returns `[num_envs, 1 + actions]`."""
        index = most_probable(output)
        certain = np.eye(self._actions, dtype=np.float32)[index]
        certain[index < 0] = np.nan
        return np.concatenate([index[:, None] + np.float32(self._first), certain], axis=1, dtype=np.float32)


class GaussianSampling(_Sampling):
    """Sample actions from a Gaussian, without clipping; a stored step is [action, mean, standard deviation].

    A greedy step is stored as if the mean had been sampled.

    Args:
        spec: the spaces of the environment.
        sigma: standard deviation of all dimensions, as a fraction of the action scale, for a policy that outputs only
            the mean.
    """

    def __init__(self, spec: Spec, sigma: float):
        self._spec = spec
        self._act_dim = spec.act_dim
        self._scale = np.float32(sigma) * spec.action_scale
        self.step_width = 3 * spec.act_dim

    def explore(self, output: np.ndarray, factor: float, rng: np.random.Generator) -> np.ndarray:
        """Sample an action for each row of means, or of means and deviations; returns `[num_envs, 3 act_dim]`."""
        loc, scale = self._parameters(output)
        action = loc + scale * rng.standard_normal(loc.shape, np.float32)
        return np.concatenate([action, loc, scale], axis=1)

    def greedy(self, output: np.ndarray) -> np.ndarray:
        """Choose the means, clipped to the box; returns `[num_envs, 3 act_dim]`."""
        loc, scale = self._parameters(output)
        return np.concatenate([np.clip(loc, self._spec.low, self._spec.high), loc, scale], axis=1)

    def _parameters(self, output: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        loc = output[:, : self._act_dim]
        given = output[:, self._act_dim :]
        return loc, given if given.shape[1] else np.broadcast_to(self._scale, loc.shape)
