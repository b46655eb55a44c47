"""The support of categorical critics: from the returns that were seen, and watched while training."""

import warnings
from collections.abc import Mapping

import numpy as np

from tfdpg.replay import Ring

MOST_ROWS = 100_000
"""The newest rows are enough to know what returns are like."""
MARGIN = 0.1
"""What is added on both sides, as a fraction of the range."""
MOST_EDGE_MASS = 0.05
FIRST_UPDATES = 200
"""Until then much of the target is the uniform distribution that critics begin with, shifted by the rewards."""


def return_range(ring: Ring, gamma: float) -> tuple[float, float]:
    """The smallest and the largest return to be expected, from the transitions that are held.

    They are the extremes of the discounted returns that followed each row, and of what would follow if its lowest
    or highest rewards (the 1 % and 99 % quantiles) went on for ever; with a tenth of the range on both sides.

    Args:
        ring: the replay, with one transition or more.
        gamma: the discount factor, in [0, 1].
    """
    rows = np.arange(max(0, ring.added - MOST_ROWS, ring.added - ring.replay_size), ring.added) % ring.replay_size
    rewards, successors = ring.rows[:, -1], ring.successor
    returns = np.zeros(ring.replay_size)
    acted = rows[successors[rows] >= 0]
    for row in acted[::-1].tolist():  # a successor is always newer
        goes_on = 0.0 if ring.terminated[row] else gamma * returns[successors[row]]
        returns[row] = rewards[row] + goes_on
    extremes = [returns[acted].min(), returns[acted].max()]
    if gamma < 1:
        extremes += (np.quantile(rewards[acted], [0.01, 0.99]) / (1 - gamma)).tolist()
    low, high = min(extremes), max(extremes)
    margin = MARGIN * (high - low) or 1.0
    return float(low - margin), float(high + margin)


class EdgeWatch:
    """Warns when much of the projected targets' probability lies on the edges of a support that is too small."""

    def __init__(self) -> None:
        self._warned_for: tuple[float, float] | None = None

    def __call__(self, updates: int, logs: Mapping[str, float]) -> None:
        """Looks at what a learning round measured, after so many updates; warns once for each support."""
        if updates < FIRST_UPDATES or logs["edge_mass"] <= MOST_EDGE_MASS:
            return
        support = logs["v_min"], logs["v_max"]
        if support != self._warned_for:
            self._warned_for = support
            warnings.warn(
                f"{logs['edge_mass']:.1%} of the projected targets' probability lies on the edge atoms of the support "
                f"[{support[0]:g}, {support[1]:g}] (q1 is {logs['q1']:g} on average), so returns beyond it cannot be "
                "told apart. Set a wider `v_min` and `v_max`.",
                stacklevel=2,
            )
