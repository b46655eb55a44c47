"""How late the steps of a real-time training run are."""

from collections import deque

import numpy as np

EDGES_MS = np.concatenate([[0.0], np.geomspace(0.01, 10_000, 121)])
"""The edges of the histograms in milliseconds: 20 bins for each factor of ten."""


class Lateness:
    """The times at which steps of a machine began and ended.

    The overhead of a step is the time from the return of the step before it to its call. Its delay is how much later it
    returns than one period after the step before it, where the period is the median over an epoch.

    Attributes:
        overheads: the numbers of steps whose overhead is between two of `EDGES_MS`, in the epochs that have ended.
        delays: the same of the delays. Steps that return early have a delay of 0.
    """

    def __init__(self):
        self.overheads = np.zeros(len(EDGES_MS) - 1, np.int64)
        self.delays = np.zeros(len(EDGES_MS) - 1, np.int64)
        self._times: deque[tuple[float, float]] = deque(maxlen=100_000)

    def add(self, called: float, returned: float) -> None:
        """Add a step: the seconds at which it was called, and at which it returned."""
        self._times.append((called, returned))

    def pause(self) -> None:
        """The time between the last step and the next one does not count, because the environment is reset."""
        self._times.append((np.nan, np.nan))

    def end_epoch(self) -> tuple[float, float, int]:
        """Add the steps to the histograms.

        Returns:
            The 99th percentile and the maximum of the overheads in milliseconds, and the number of late steps, whose
            delay is more than a period.
        """
        times = 1000 * np.array([self._times.popleft() for _ in range(len(self._times))]).reshape(-1, 2)
        overheads = times[1:, 0] - times[:-1, 1]
        periods = np.diff(times[:, 1])
        overheads, periods = overheads[np.isfinite(overheads)], periods[np.isfinite(periods)]
        if not len(overheads):
            return np.nan, np.nan, 0
        period = np.median(periods)
        self.overheads += np.histogram(np.minimum(overheads, EDGES_MS[-1]), EDGES_MS)[0]
        self.delays += np.histogram(np.clip(periods - period, 0, EDGES_MS[-1]), EDGES_MS)[0]
        return float(np.percentile(overheads, 99)), float(overheads.max()), int(np.sum(periods > 2 * period))
