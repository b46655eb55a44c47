"""Running mean and variance of observation features, updated during collection."""

import numpy as np

from tfdpg.acting.encoder import encode, real_features
from tfdpg.spec import Packed, Spec


class RunningStatistics:
    """Mean and variance of all features seen so far; images and one-hot features keep mean 0 and variance 1.

    Attributes:
        count: number of observations in the statistics.
        rows_seen: number of rows of the replay buffer in the statistics, counted from the first row ever stored.
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
        """The variance, `[features]`; 1 for images and one-hot features, and before the first observation."""
        return np.where(self._real & (self.count > 0), self._squares / max(self.count, 1), 1.0)

    def update(self, packed: Packed) -> None:
        """Add packed observations `[n, ...]` to the statistics (Chan, Golub and LeVeque 1979)."""
        features = encode(self._spec, packed).astype(np.float64)
        count = len(features)
        mean = np.where(self._real, features.mean(axis=0), 0.0)
        self._merge(count, mean, np.where(self._real, np.square(features - mean).sum(axis=0), 0.0))

    def set_rows_seen(self, rows: int) -> None:
        """Set the number of rows of the replay buffer in the statistics, counted from the first row ever stored."""
        self.rows_seen = rows

    def merge(self, state: dict[str, np.ndarray]) -> None:
        """Add the observations of another `RunningStatistics` of the same spec, given its `state()`."""
        if state["moments_count"]:
            self._merge(int(state["moments_count"]), state["moments_mean"], state["moments_squares"])

    def _merge(self, count: int, mean: np.ndarray, squares: np.ndarray) -> None:
        total = self.count + count
        apart = mean - self.mean
        self._squares = self._squares + squares + np.square(apart) * self.count * count / total
        self.mean = self.mean + apart * count / total
        self.count = total

    def adopt(self, mean: np.ndarray, variance: np.ndarray, count: int) -> None:
        """Replace the statistics by a given mean and variance, `[features]`, weighted as `count` observations."""
        self.count = count
        self.mean = np.where(self._real, mean, 0.0)
        self._squares = np.where(self._real, variance * count, 0.0)

    def state(self) -> dict[str, np.ndarray]:
        """Return the statistics as arrays, for `restore` and `merge`."""
        return {
            "moments_count": np.array(self.count),
            "moments_rows": np.array(self.rows_seen),
            "moments_mean": self.mean,
            "moments_squares": self._squares,
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restore the statistics that `state` returned.

        Raises:
            ValueError: The statistics have another number of features.
        """
        shapes = {state[name].shape for name in ("moments_mean", "moments_squares")}
        if shapes != {self.mean.shape}:
            raise ValueError(f"The stored statistics must be of {len(self.mean)} features. Received shapes: {shapes}")
        self.count = int(state["moments_count"])
        self.rows_seen = int(state["moments_rows"])
        self.mean = state["moments_mean"]
        self._squares = state["moments_squares"]
