"""Running mean and variance of the features of observations, while collecting."""

import numpy as np

from tfdpg.acting.encoder import encode, real_features
from tfdpg.spec import Packed, Spec


class RunningStatistics:
    """Mean and variance of all features seen so far; images and one-hot features are left as they are.

    Args:
        spec: the spaces.

    Attributes:
        count: the observations taken in.
        rows_seen: the rows of the replay that were looked at.
        mean: `[features]`.
    """

    def __init__(self, spec: Spec):
        self._spec = spec
        self._real = real_features(spec)
        self.count = self.rows_seen = 0
        self.mean = np.zeros(len(self._real))
        self._squares = np.zeros(len(self._real))

    @property
    def variance(self) -> np.ndarray:
        """The variance, `[features]`; 1 where it is not kept, and before anything was seen."""
        return np.where(self._real & (self.count > 0), self._squares / max(self.count, 1), 1.0)

    def update(self, packed: Packed) -> None:
        """Takes in packed observations `[n, ...]` (Chan, Golub, LeVeque 1979)."""
        features = encode(self._spec, packed).astype(np.float64)
        count = len(features)
        mean = np.where(self._real, features.mean(axis=0), 0.0)
        self._merge(count, mean, np.where(self._real, np.square(features - mean).sum(axis=0), 0.0))

    def set_rows_seen(self, rows: int) -> None:
        """Takes note of how many rows of the replay have been taken in, from the first one ever."""
        self.rows_seen = rows

    def merge(self, state: dict[str, np.ndarray]) -> None:
        """Takes in what another `RunningStatistics` of the same spec saw; `state` is its own."""
        if state["moments_count"]:
            self._merge(int(state["moments_count"]), state["moments_mean"], state["moments_squares"])

    def _merge(self, count: int, mean: np.ndarray, squares: np.ndarray) -> None:
        total = self.count + count
        apart = mean - self.mean
        self._squares = self._squares + squares + np.square(apart) * self.count * count / total
        self.mean = self.mean + apart * count / total
        self.count = total

    def adopt(self, mean: np.ndarray, variance: np.ndarray, count: int = 1000) -> None:
        """Starts from known statistics `[features]`, as if they were of `count` observations."""
        self.count = count
        self.mean = np.where(self._real, mean, 0.0)
        self._squares = np.where(self._real, variance * count, 0.0)

    def state(self) -> dict[str, np.ndarray]:
        """All that a later `restore` needs, as arrays."""
        return {
            "moments_count": np.array(self.count),
            "moments_rows": np.array(self.rows_seen),
            "moments_mean": self.mean,
            "moments_squares": self._squares,
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Takes what `state` gave.

        Raises:
            ValueError: it is of other features.
        """
        shapes = {state[name].shape for name in ("moments_mean", "moments_squares")}
        if shapes != {self.mean.shape}:
            raise ValueError(f"The stored moments must be of {len(self.mean)} features. Received shapes: {shapes}")
        self.count = int(state["moments_count"])
        self.rows_seen = int(state["moments_rows"])
        self.mean = state["moments_mean"]
        self._squares = state["moments_squares"]
