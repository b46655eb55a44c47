"""What returns are like, from the transitions that are held."""

import numpy as np

from tfdpg.replay.ring import NONE, Ring
from tfdpg.replay.uniform import NOTHING_TO_DRAW, drawable

MOST_ROWS = 100_000
"""The newest rows are enough."""
MARGIN = 0.1
"""What is added on both sides, as a fraction of the range."""


def return_range(ring: Ring, gamma: float) -> tuple[float, float]:
    """The smallest and the largest return to be expected, from the transitions that are held.

    They are the extremes of the discounted returns that followed each row, and of what would follow if its lowest
    or highest rewards (the 1 % and 99 % quantiles) went on for ever; with a tenth of the range on both sides.

    Args:
        ring: the replay.
        gamma: the discount factor, in [0, 1].

    Raises:
        ValueError: it holds no transition.
    """
    if not drawable(ring):
        raise ValueError(NOTHING_TO_DRAW)
    rows = np.arange(max(0, ring.added - MOST_ROWS, ring.added - ring.replay_size), ring.added) % ring.replay_size
    rewards, successors = ring.rows[:, -1], ring.successor
    returns = np.zeros(ring.replay_size)
    acted = rows[successors[rows] != NONE]
    for row in acted[::-1].tolist():  # a successor is always newer
        goes_on = 0.0 if ring.terminated[row] else gamma * returns[successors[row]]
        returns[row] = rewards[row] + goes_on
    extremes = [returns[acted].min(), returns[acted].max()]
    if gamma < 1:
        extremes += (np.quantile(rewards[acted], [0.01, 0.99]) / (1 - gamma)).tolist()
    low, high = min(extremes), max(extremes)
    margin = max(MARGIN * (high - low), 1e-3 * max(abs(low), abs(high))) or 1.0
    return float(low - margin), float(high + margin)
