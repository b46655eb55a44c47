"""What returns are like, from the transitions that are held."""

import numpy as np

from tfdpg.replay.buffer import NONE, ReplayBuffer
from tfdpg.replay.uniform import EMPTY_REPLAY, count_transitions

MAX_ROWS = 100_000
"""The newest rows are enough."""
MARGIN = 0.1
"""What is added on both sides, as a fraction of the range."""


def return_range(buffer: ReplayBuffer, gamma: float) -> tuple[float, float]:
    """The smallest and the largest return to be expected, from the transitions that are held.

    They are the extremes of the discounted returns that followed each row, and of what would follow if its lowest
    or highest rewards (the 1 % and 99 % quantiles) went on for ever; with a tenth of the range on both sides.

    Args:
        buffer: the replay.
        gamma: the discount factor, in [0, 1].

    Raises:
        ValueError: it holds no transition.
    """
    if not count_transitions(buffer):
        raise ValueError(EMPTY_REPLAY)
    rows = (
        np.arange(max(0, buffer.added - MAX_ROWS, buffer.added - buffer.replay_size), buffer.added) % buffer.replay_size
    )
    rewards = buffer.rows[:, -1]
    successors = buffer.successor
    returns = np.zeros(buffer.replay_size)
    acted = rows[successors[rows] != NONE]
    for row in acted[::-1].tolist():  # a successor is always newer
        next_return = 0.0 if buffer.terminated[row] else gamma * returns[successors[row]]
        returns[row] = rewards[row] + next_return
    extremes = [returns[acted].min(), returns[acted].max()]
    if gamma < 1:
        extremes += (np.quantile(rewards[acted], [0.01, 0.99]) / (1 - gamma)).tolist()
    low = min(extremes)
    high = max(extremes)
    margin = max(MARGIN * (high - low), 1e-3 * max(abs(low), abs(high))) or 1.0
    return float(low - margin), float(high + margin)
