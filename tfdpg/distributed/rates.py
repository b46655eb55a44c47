"""The ratio of updates to environment steps, and how far the learner and the workers may run ahead of each other."""

import math

import numpy as np

from tfdpg.replay import Sampler
from tfdpg.training.environment.schedule import Schedule


class RateLimiter:
    """Keeps the number of updates close to the number that the collected steps have earned.

    The credit is the number of updates that were earned minus the number that were made. The learner makes updates
    while the credit stays at or above -`ahead`. Workers get new requests while the integer part of the credit is at
    most `behind`. Because `behind` is not negative, one of the two can always continue: there is no deadlock.

    Args:
        ahead: updates that may be made before they are earned; at least 0.
        behind: updates that may be owed while workers still collect; at least 0.

    Attributes:
        credit: updates earned minus updates made.
    """

    def __init__(self, ahead: float, behind: float):
        self._ahead = max(0.0, ahead)
        self._behind = max(0.0, behind)
        self._earned = False
        self.credit = 0.0

    def earn(self, updates: float) -> None:
        """Add updates that collected steps have earned."""
        self.credit += updates
        self._earned |= updates > 0

    def spend(self, updates: int) -> None:
        """Subtract updates that were made."""
        self.credit -= updates

    @property
    def due(self) -> int:
        """The updates that may be made now; 0 until the first update is earned."""
        return max(0, math.floor(self.credit + self._ahead)) if self._earned else 0

    @property
    def owed(self) -> int:
        """The updates that were earned and have not been made."""
        return max(0, math.floor(self.credit))

    @property
    def may_collect(self) -> bool:
        """Whether workers may get new requests."""
        return self.owed <= self._behind


def scheduled_updates(schedule: Schedule, sampler: Sampler, ended: np.ndarray) -> int:
    """Count collected steps one by one, and return the updates that the agent's schedule makes due.

    Args:
        schedule: the agent's schedule.
        sampler: the agent's sampler, which may change the number of updates in an update phase.
        ended: whether an episode ended with each step, bool `[steps]`.
    """
    earned = 0
    for end in ended.tolist():
        schedule.count(1, end)
        if schedule.is_due:
            earned += sampler.updates_due(schedule.begin_update_phase())
    return earned


def proportional_updates(schedule: Schedule, updates_per_step: float, ended: np.ndarray) -> float:
    """Count collected steps, and return `updates_per_step` for each step after `update_after`.

    Args:
        schedule: the agent's schedule.
        updates_per_step: the number of updates that a step earns.
        ended: whether an episode ended with each step, bool `[steps]`.
    """
    before = schedule.env_steps
    schedule.count(len(ended), bool(ended.any()))
    schedule.begin_update_phase()
    return updates_per_step * max(0, schedule.env_steps - max(before, schedule.update_after))


def scheduled_rate(schedule: Schedule) -> float:
    """Return the updates per environment step in the agent's schedule; 0 if it depends on the ends of episodes."""
    if schedule.update_every == "episode":
        return 0.0
    return 1.0 if schedule.gradient_steps is None else schedule.gradient_steps / schedule.update_every
