"""The metrics of an epoch, accumulated over its update phases."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfdpg.arguments import natural
from tfdpg.components import Metric
from tfdpg.training.environment.env_runner import Episode

STATE_ARRAYS = ("count", "sum", "square_sum", "min", "max")
"""The statistics of each metric; the last three only for those with a spread."""


class EpochMetrics:
    """The episodes that ended in an epoch, and running statistics of the metrics of its updates.

    Args:
        metrics: the metrics that an update returns.

    Attributes:
        epoch: the number of the current epoch of `fit`; None outside of an epoch.
        first_step: the number of environment steps before this epoch.
        episodes: the episodes that ended in this epoch.
    """

    def __init__(self, metrics: Sequence[Metric]):
        self._names = [metric.name for metric in metrics]
        self._losses = [metric.name for metric in metrics if metric.loss]
        self._is_regular = np.array([[not metric.delayed] for metric in metrics])
        self._spread = [i for i, metric in enumerate(metrics) if metric.spread]
        self.reset()

    def reset(self) -> None:
        """Clear all statistics."""
        self.epoch: int | None = None
        self.first_step = 0
        self.episodes = list[Episode]()
        self._count = np.zeros(len(self._names), np.int64)
        self._sum = np.zeros(len(self._names))
        self._square_sum = np.zeros(len(self._spread))
        self._min = np.full(len(self._spread), np.inf)
        self._max = np.full(len(self._spread), -np.inf)

    def begin(self, epoch: int, step: int) -> None:
        """Begin an epoch after `step` environment steps, unless it is the current one, which then continues."""
        if self.epoch != epoch:
            self.reset()
            self.epoch = epoch
            self.first_step = step

    def state(self) -> dict[str, Any] | None:
        """Return the current epoch as plain JSON values; None outside of an epoch."""
        if self.epoch is None:
            return None
        sums = {name: getattr(self, f"_{name}").tolist() for name in STATE_ARRAYS}
        episodes = [list(episode) for episode in self.episodes]
        return {"epoch": self.epoch, "first_step": self.first_step, "episodes": episodes} | sums

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Restore the result of `state`."""
        self.reset()
        if state is not None:
            self.epoch = natural("epoch", state["epoch"])
            self.first_step = natural("first_step", state["first_step"])
            self.episodes = [Episode(*episode) for episode in state["episodes"]]
            for name in STATE_ARRAYS:
                old = getattr(self, f"_{name}")
                setattr(self, f"_{name}", np.array(state[name], old.dtype).reshape(old.shape))

    def add(self, measured: np.ndarray) -> dict[str, float]:
        """Add the metrics of an update phase, `[updates, metrics, batch]`.

        Elements that are NaN in all metrics (masked steps of a sequence) and unmeasured delayed metrics do not count.

        Returns:
            The means of the phase, and `loss`, the sum of all losses.
        """
        is_counted = self._is_counted(measured)
        repeats = measured.shape[2] // is_counted.shape[2]
        axes = (0, 2)
        count = np.add.reduce(is_counted, axes) * repeats
        total = np.add.reduce(measured, axes, np.float64, where=is_counted)
        self._count += count
        self._sum += total
        spread = measured[:, self._spread]
        is_counted = is_counted[:, self._spread]
        self._square_sum += np.add.reduce(np.square(spread, dtype=np.float64), axes, where=is_counted)
        self._min = np.minimum(self._min, np.minimum.reduce(spread, axes, where=is_counted, initial=np.inf))
        self._max = np.maximum(self._max, np.maximum.reduce(spread, axes, where=is_counted, initial=-np.inf))
        means = zip(self._names, total.tolist(), count.tolist(), strict=True)
        return self._with_loss({name: sum_ / n for name, sum_, n in means if n})

    def _is_counted(self, measured: np.ndarray) -> np.ndarray:
        """Return which elements count, `[updates, metrics, batch]`, or `[updates, metrics, 1]` if no step is masked."""
        is_number = np.equal(measured, measured)  # False for NaN
        is_measured = np.logical_or.reduce(is_number, 2, keepdims=True)
        if np.equal(is_number, is_measured).all():
            return is_measured | self._is_regular
        counted = np.logical_or.reduce(is_number, 1, keepdims=True)
        counted |= ~np.logical_or.reduce(counted, 2, keepdims=True)  # an update that is all NaN diverged, and counts
        return counted & (is_measured | self._is_regular)

    def summary(self) -> dict[str, float]:
        """Return the means of the epoch, `loss`, and the spreads; NaN if nothing was measured."""
        count = np.where(self._count, self._count, np.nan)
        logs = self._with_loss(dict(zip(self._names, (self._sum / count).tolist(), strict=True)))
        for k, i in enumerate(self._spread):
            name = self._names[i]
            measured = self._count[i] > 0
            variance = self._square_sum[k] / count[i] - logs[name] ** 2
            logs[f"{name}_std"] = float(np.sqrt(np.maximum(variance, 0)))
            logs[f"{name}_min"] = float(self._min[k]) if measured else np.nan
            logs[f"{name}_max"] = float(self._max[k]) if measured else np.nan
        return logs

    def _with_loss(self, means: dict[str, float]) -> dict[str, float]:
        return means | {"loss": sum((means.get(name, 0.0) for name in self._losses), 0.0)}
