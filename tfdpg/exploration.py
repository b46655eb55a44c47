"""Exploration noise: what is added to the policy's actions while collecting. NumPy only."""

import numpy as np

from tfdpg.arguments import real
from tfdpg.spec import Spec


class Gaussian:
    """Independent normal noise for each lane and each dimension of the action.

    Args:
        spec: the spaces; the noise is scaled by each action dimension's half-range.
        scale: the standard deviation as a fraction of the half-range, at least 0.
    """

    def __init__(self, spec: Spec, scale: float):
        self.scale = real("scale", scale, low=0.0)
        self._std = (self.scale * spec.half_range).astype(np.float32)

    def sample(self, lanes: int, rng: np.random.Generator) -> np.ndarray:
        """A sample in action units, float32 `[lanes, act_dim]`."""
        return rng.standard_normal((lanes, len(self._std)), np.float32) * self._std


def uniform_actions(spec: Spec, lanes: int, rng: np.random.Generator) -> np.ndarray:
    """Actions drawn uniformly from the action box, float32 `[lanes, act_dim]`."""
    return spec.low + rng.random((lanes, spec.act_dim), np.float32) * (spec.high - spec.low)
