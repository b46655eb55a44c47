"""What is measured in updates, summed up over learning rounds until the epoch ends."""

from collections.abc import Sequence

import numpy as np

SPREAD = ("q1", "q2")
"""Metrics whose standard deviation and extremes are logged beside the mean."""

DELAYED = ("loss_pi",)
"""Metrics that an update may leave unmeasured, as a row of NaN."""


class Statistics:
    """Running statistics of the values that updates measured.

    Args:
        metrics: the names of the metrics.
    """

    def __init__(self, metrics: Sequence[str]):
        self._metrics = tuple(metrics)
        self.reset()

    def reset(self) -> None:
        """Forgets everything; an epoch begins."""
        self._count = dict.fromkeys(self._metrics, 0)
        self._sum = dict.fromkeys(self._metrics, 0.0)
        self._square_sum = dict.fromkeys(self._metrics, 0.0)
        self._min = dict.fromkeys(self._metrics, np.inf)
        self._max = dict.fromkeys(self._metrics, -np.inf)

    def add(self, metrics: dict[str, np.ndarray]) -> dict[str, float]:
        """Takes the values of a round, `[updates, batch]` each.

        Unmeasured rows of delayed metrics do not count.

        Returns:
            The round's means, and `loss`, the sum of all `loss_*`.
        """
        means = {}
        for name, values in metrics.items():
            measured = values[~np.isnan(values).all(axis=1)] if name in DELAYED else values
            if not len(measured):
                continue
            means[name] = float(measured.mean(dtype=np.float64))
            self._count[name] += measured.size
            self._sum[name] += float(measured.sum(dtype=np.float64))
            if name in SPREAD:
                self._square_sum[name] += float(np.square(measured, dtype=np.float64).sum())
                self._min[name] = min(self._min[name], float(measured.min()))
                self._max[name] = max(self._max[name], float(measured.max()))
        return _with_loss(means)

    def summary(self) -> dict[str, float]:
        """The means of the epoch, `loss`, and the spread of the critics' values; NaN where nothing was measured."""
        means = {name: self._sum[name] / (self._count[name] or np.nan) for name in self._metrics}
        logs = _with_loss(means)
        for name in SPREAD:
            if name in self._metrics:
                mean_square = self._square_sum[name] / (self._count[name] or np.nan)
                measured = self._count[name] > 0
                logs[f"{name}_std"] = float(np.sqrt(max(mean_square - means[name] ** 2, 0.0))) if measured else np.nan
                logs[f"{name}_min"] = self._min[name] if measured else np.nan
                logs[f"{name}_max"] = self._max[name] if measured else np.nan
        return logs


def _with_loss(means: dict[str, float]) -> dict[str, float]:
    losses = [value for name, value in means.items() if name.startswith("loss_")]
    return means | {"loss": float(np.sum(losses))}
