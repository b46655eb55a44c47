"""How far the learner and the workers may run ahead of each other. Pure Python."""

import math

import numpy as np

from tfdpg.replay import Sampler
from tfdpg.training.environment.schedule import Schedule


class RateLimiter:
    """Keeps the updates that were made near those that the arrived steps have earned.

    The credit is earned minus made. The learner makes updates while that leaves the credit at -`ahead` at least;
    workers get new orders while its whole part is at most `behind`. Since `behind` is not negative, one of the two
    can always go on: there is no deadlock.

    Args:
        ahead: updates that may be made before they are earned, at least 0.
        behind: updates that may be owed while workers still collect, at least 0.

    Attributes:
        credit: earned minus made.
    """

    def __init__(self, ahead: float, behind: float):
        self._ahead = max(0.0, ahead)
        self._behind = max(0.0, behind)
        self._earned = False
        self.credit = 0.0

    def earn(self, updates: float) -> None:
        """Arrived steps have earned so many updates."""
        self.credit += updates
        self._earned |= updates > 0

    def spend(self, updates: int) -> None:
        """So many were made."""
        self.credit -= updates

    @property
    def due(self) -> int:
        """The updates that may be made now; none before the first was earned."""
        return max(0, math.floor(self.credit + self._ahead)) if self._earned else 0

    @property
    def owed(self) -> int:
        """The updates that were earned and not made."""
        return max(0, math.floor(self.credit))

    @property
    def may_collect(self) -> bool:
        """Whether workers may get new orders."""
        return self.owed <= self._behind


def scheduled_updates(schedule: Schedule, sampler: Sampler, ended: np.ndarray) -> int:
    """Counts arrived steps, and returns the updates that the agent's schedule gives for them.

    They are counted round by round, so that a chunk earns what its steps would have earned one at a time.

    Args:
        schedule: the agent's.
        sampler: the agent's, which may have an own idea of a round.
        ended: for each step whether an episode ended with it, bool `[steps]`.
    """
    earned, start = 0, 0
    while start < len(ended):
        if schedule.update_every == "episode":
            ends = np.flatnonzero(ended[start:])
            count = int(ends[0]) + 1 if len(ends) else len(ended) - start
        else:
            count = max(1, schedule.update_every - (schedule.env_steps - schedule.last_update_phase))
        count = min(count, len(ended) - start)
        schedule.count(count, bool(ended[start : start + count].any()))
        earned += sampler.updates_due(schedule.begin_update_phase())
        start += count
    return earned


def proportional_updates(schedule: Schedule, updates_per_step: float, ended: np.ndarray) -> float:
    """Counts arrived steps, and returns `updates_per_step` for each that is past `update_after`."""
    before = schedule.env_steps
    schedule.count(len(ended), bool(ended.any()))
    schedule.begin_update_phase()
    return updates_per_step * (schedule.env_steps - max(before, min(schedule.update_after, schedule.env_steps)))


def scheduled_rate(schedule: Schedule) -> float:
    """The updates for a step by the agent's schedule; 0 where episodes decide."""
    if schedule.update_every == "episode":
        return 0.0
    return 1.0 if schedule.gradient_steps is None else schedule.gradient_steps / schedule.update_every
