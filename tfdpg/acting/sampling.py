"""Actions drawn from a policy's distribution, stored with its parameters: the behaviours of stochastic policies."""

from typing import NoReturn

import numpy as np

from tfdpg.acting.outputs import most_probable
from tfdpg.spec import Spec

WITHOUT_NOISE = (
    "`agent` must be one that explores with noise on its actions, to be trained with `actors`. This one draws its "
    "actions; it takes a vector environment instead."
)


class CategoricalSampling:
    """Discrete actions drawn by their probabilities; a step is [action, probabilities].

    A greedy step is stored with probability 1 for what it does.
    """

    def __init__(self, spec: Spec):
        self._first = float(spec.low[0])
        self._actions = spec.actions or 0
        self.step_width = 1 + self._actions
        self.state = np.zeros((0, 1), np.float32)

    def factor(self, step: int) -> float:
        """1: how much it explores is the policy's."""
        return 1.0

    def explore(self, output: np.ndarray, factor: float, rng: np.random.Generator) -> np.ndarray:
        """A drawn action for each row of probabilities, `[num_envs, 1 + actions]`."""
        cumulative = np.cumsum(output, axis=1)
        drawn = rng.random((len(output), 1), np.float32) * cumulative[:, -1:]
        index = np.minimum((cumulative <= drawn).sum(axis=1, keepdims=True), self._actions - 1)
        index = np.where(np.isnan(output[:, :1]), -1, index)
        return np.concatenate([index + np.float32(self._first), output], axis=1, dtype=np.float32)

    def greedy(self, output: np.ndarray) -> np.ndarray:
        """The most probable actions, `[num_envs, 1 + actions]`."""
        index = most_probable(output)
        certain = np.eye(self._actions, dtype=np.float32)[index]
        certain[index < 0] = np.nan
        return np.concatenate([index[:, None] + np.float32(self._first), certain], axis=1, dtype=np.float32)

    def end(self, ended: np.ndarray) -> None:
        """Forgets nothing: there is no past."""

    def at_scale(self, scale: float | None) -> NoReturn:
        """Refuses: there is no noise that workers could have more or less of."""
        raise ValueError(WITHOUT_NOISE)


class GaussianSampling:
    """Actions drawn from a Gaussian; a step is [action, mean, scale], and a drawn action is not clipped.

    A greedy step, which is no sample, is stored as if the mean had been drawn.

    Args:
        spec: the spaces.
        sigma: the scale of all dimensions, as a fraction of the half-range, where a policy gives the mean alone.
    """

    def __init__(self, spec: Spec, sigma: float):
        self._spec = spec
        self._act_dim = spec.act_dim
        self._scale = np.float32(sigma) * spec.action_scale
        self.step_width = 3 * spec.act_dim
        self.state = np.zeros((0, spec.act_dim), np.float32)

    def factor(self, step: int) -> float:
        """1: how much it explores is the policy's."""
        return 1.0

    def explore(self, output: np.ndarray, factor: float, rng: np.random.Generator) -> np.ndarray:
        """A drawn action for each row of means, or of means and scales, `[num_envs, 3 act_dim]`."""
        loc, scale = self._parameters(output)
        action = loc + scale * rng.standard_normal(loc.shape, np.float32)
        return np.concatenate([action, loc, scale], axis=1)

    def greedy(self, output: np.ndarray) -> np.ndarray:
        """The means, inside the box, as actions, `[num_envs, 3 act_dim]`."""
        loc, scale = self._parameters(output)
        return np.concatenate([np.clip(loc, self._spec.low, self._spec.high), loc, scale], axis=1)

    def end(self, ended: np.ndarray) -> None:
        """Forgets nothing: there is no past."""

    def at_scale(self, scale: float | None) -> NoReturn:
        """Refuses: there is no noise that workers could have more or less of."""
        raise ValueError(WITHOUT_NOISE)

    def _parameters(self, output: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        loc = output[:, : self._act_dim]
        given = output[:, self._act_dim :]
        return loc, given if given.shape[1] else np.broadcast_to(self._scale, loc.shape)
