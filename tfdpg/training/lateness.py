"""How late the steps of a real-time training run are."""

import csv
import io
from collections import deque
from pathlib import Path

import numpy as np

from tfdpg import files

EDGES_MS = np.concatenate([[0.0], np.geomspace(0.01, 10_000, 121)])
"""The edges of the histograms in milliseconds: 20 bins for each factor of ten."""
LATENESS = "lateness.csv"
"""The name of the file with the histograms of a training run."""
COLUMNS = ("from_ms", "to_ms", "overheads", "delays")
"""The columns of this file: the edges of each bin, and the numbers of steps in it."""


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


def write_histograms(file: Path, overheads: np.ndarray, delays: np.ndarray) -> None:
    """Write the histograms of a `Lateness`; after a power cut the file contains the old ones or the new ones."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    columns = EDGES_MS[:-1], EDGES_MS[1:], overheads, delays
    writer.writerows(zip(*(column.tolist() for column in columns), strict=True))
    files.write_text(file, text.getvalue())


def read_histograms(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the counts that `write_histograms` wrote: the overheads and the delays, of shape `[bins]` each.

    Raises:
        ValueError: the file contains something else. The message names it.
    """
    columns = files.read_numbers(file)
    with files.content_errors(file):
        if list(columns) != list(COLUMNS):
            raise ValueError(f"its columns must be {', '.join(COLUMNS)}. Received: {', '.join(columns) or 'none'}")
        first, last, overheads, delays = (np.array(columns[name]) for name in COLUMNS)
        if not (np.array_equal(first, EDGES_MS[:-1]) and np.array_equal(last, EDGES_MS[1:])):
            raise ValueError(f"its {len(EDGES_MS) - 1} bins must be those of this version of tfdpg")
        if not (np.isfinite(overheads).all() and np.isfinite(delays).all()):
            raise ValueError("a count is missing")
    return overheads.astype(np.int64), delays.astype(np.int64)
