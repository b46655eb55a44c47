"""What an epoch has come to so far, over its learning rounds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfdpg.arguments import natural
from tfdpg.training.environment.env_runner import Episode

SPREAD_METRICS = ("q1", "q2")
"""Metrics whose standard deviation and extremes are logged beside the mean."""

DELAYED_METRICS = ("loss_pi",)
"""Metrics that an update may leave unmeasured, as a row of NaN."""


STATE_ARRAYS = ("count", "sum", "square_sum", "min", "max")
"""What there is of each metric, or of each whose spread is logged."""


class EpochMetrics:
    """What an epoch has come to so far: the episodes that ended, and running statistics of what updates measured.

    Args:
        metrics: the names of what updates measure.

    Attributes:
        epoch: the number of the epoch that is under way, in an environment; None where none is.
        first_step: the environment steps that were taken before it.
        episodes: those that ended in it.
    """

    def __init__(self, metrics: Sequence[str]):
        self._metrics = tuple(metrics)
        self._delayed = [i for i, name in enumerate(metrics) if name in DELAYED_METRICS]
        self._spread = [i for i, name in enumerate(metrics) if name in SPREAD_METRICS]
        self.reset()

    def reset(self) -> None:
        """Forgets everything."""
        self.epoch: int | None = None
        self.first_step = 0
        self.episodes = list[Episode]()
        self._count = np.zeros(len(self._metrics), np.int64)
        self._sum = np.zeros(len(self._metrics))
        self._square_sum = np.zeros(len(self._spread))
        self._min = np.full(len(self._spread), np.inf)
        self._max = np.full(len(self._spread), -np.inf)

    def begin(self, epoch: int, step: int) -> None:
        """Forgets everything, since an epoch begins after so many environment steps; not if it is under way."""
        if self.epoch != epoch:
            self.reset()
            self.epoch = epoch
            self.first_step = step

    def state(self) -> dict[str, Any] | None:
        """All of an epoch that is under way, as plain JSON values; None where none is."""
        if self.epoch is None:
            return None
        sums = {name: getattr(self, f"_{name}").tolist() for name in STATE_ARRAYS}
        episodes = [list(episode) for episode in self.episodes]
        return {"epoch": self.epoch, "first_step": self.first_step, "episodes": episodes} | sums

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Takes what `state` gave."""
        self.reset()
        if state is not None:
            self.epoch, self.first_step = natural("epoch", state["epoch"]), natural("first_step", state["first_step"])
            self.episodes = [Episode(*episode) for episode in state["episodes"]]
            for name in STATE_ARRAYS:
                old = getattr(self, f"_{name}")
                setattr(self, f"_{name}", np.array(state[name], old.dtype).reshape(old.shape))

    def add(self, measured: np.ndarray) -> dict[str, float]:
        """Takes the values of a round, `[updates, metrics, batch]`.

        Elements without any number, where a sequence has no step, and unmeasured rows of delayed metrics do not count.

        Returns:
            The round's means, and `loss`, the sum of all `loss_*`.
        """
        is_number = np.logical_not(np.isnan(measured))
        counted = np.any(is_number, axis=1, keepdims=True)
        counted |= ~np.any(counted, axis=2, keepdims=True)  # what should be there and is NaN shows as NaN
        is_counted = np.repeat(counted, measured.shape[1], axis=1)
        is_counted[:, self._delayed] &= np.any(is_number[:, self._delayed], axis=2, keepdims=True)
        self._count += (count := is_counted.sum(axis=(0, 2)))
        self._sum += (total := np.where(is_counted, measured, 0).sum(axis=2, dtype=np.float64).sum(axis=0))
        spread = measured[:, self._spread]
        is_counted = is_counted[:, self._spread]
        self._square_sum += np.square(np.where(is_counted, spread, 0), dtype=np.float64).sum(axis=(0, 2))
        self._min = np.minimum(self._min, np.where(is_counted, spread, np.inf).min(axis=(0, 2)))
        self._max = np.maximum(self._max, np.where(is_counted, spread, -np.inf).max(axis=(0, 2)))
        return _with_loss({name: float(total[i] / count[i]) for i, name in enumerate(self._metrics) if count[i]})

    def summary(self) -> dict[str, float]:
        """The means of the epoch, `loss`, and the spread of the critics' values; NaN where nothing was measured."""
        count = np.where(self._count, self._count, np.nan)
        logs = _with_loss(dict(zip(self._metrics, (self._sum / count).tolist(), strict=True)))
        for k, i in enumerate(self._spread):
            name = self._metrics[i]
            measured = self._count[i] > 0
            variance = self._square_sum[k] / count[i] - logs[name] ** 2
            logs[f"{name}_std"] = float(np.sqrt(np.maximum(variance, 0)))
            logs[f"{name}_min"] = float(self._min[k]) if measured else np.nan
            logs[f"{name}_max"] = float(self._max[k]) if measured else np.nan
        return logs


def _with_loss(means: dict[str, float]) -> dict[str, float]:
    losses = [value for name, value in means.items() if name.startswith("loss_")]
    return means | {"loss": float(np.sum(losses))}
