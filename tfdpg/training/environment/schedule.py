"""The schedule: when actions are uniformly random, when updates are due, and how many."""

from collections.abc import Mapping
from typing import Any, Literal

from tfdpg.arguments import flag, natural

COUNTERS = {
    "env_steps": natural,
    "last_update_phase": natural,
    "episode_ended": flag,
    "defers_updates": flag,
    "deferred": natural,
    "late": natural,
}
"""The counters that are saved, and the check of each."""


class Schedule:
    """The schedule of updates. Environment steps are counted over all sub-environments.

    Args:
        start_steps: the number of steps with uniform random actions.
        update_after: the step before which no updates are made; they are not made up later.
        update_every: the number of steps between two update phases, or "episode" for a phase after each episode.
        gradient_steps: the number of updates in a phase; None makes one for each step since the last phase.
        per_env: whether `update_every` counts the steps of each sub-environment, or those of all together.

    Attributes:
        num_envs: the number of sub-environments that acted last.
        env_steps: the number of steps taken.
        total_steps: the number of steps at the end of `fit`; None outside of `fit`.
        last_update_phase: the step of the last update phase.
        episode_ended: whether an episode ended since the last update phase.
        defers_updates: whether updates that become due are not made, but counted in `deferred`.
        deferred: the updates that were deferred, and are made when `defers_updates` is False again.
        late: the updates that were released while another thread makes updates, and are not made yet.
    """

    def __init__(
        self,
        *,
        start_steps: int,
        update_after: int,
        update_every: int | Literal["episode"],
        gradient_steps: int | None,
        per_env: bool = False,
    ):
        self.start_steps = start_steps
        self.update_after = update_after
        self.update_every: int | Literal["episode"] = update_every
        self.gradient_steps = gradient_steps
        self.per_env = per_env
        self.num_envs = 1
        self.env_steps = 0
        self.total_steps: int | None = None
        self.last_update_phase = 0
        self.episode_ended = False
        self.defers_updates = False
        self.deferred = 0
        self.late = 0

    @property
    def acts_at_random(self) -> bool:
        """Whether the next action is sampled uniformly from the action space."""
        return self.env_steps < self.start_steps

    @property
    def updates_per_phase(self) -> int | None:
        """The number of updates in a phase with one sub-environment; None if it depends on the episodes."""
        if self.gradient_steps is None and self.update_every != "episode":
            return self.update_every
        return self.gradient_steps

    def plan(self, steps: int | None) -> None:
        """Set the number of remaining steps; None if it is unknown."""
        self.total_steps = None if steps is None else self.env_steps + steps

    def state(self) -> dict[str, Any]:
        """Return the counters, as plain JSON values."""
        return {name: getattr(self, name) for name in COUNTERS}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`.

        Raises:
            ValueError: a counter is not a number, or a flag not a bool.
        """
        for name, check in COUNTERS.items():
            setattr(self, name, check(name, state[name]))

    def count(self, steps: int, episode_ended: bool) -> None:
        """Count environment steps, one for each sub-environment that took one."""
        self.env_steps += steps
        self.episode_ended |= episode_ended

    def release(self, updates: int) -> int:
        """The updates to make now: those that are due and those that were deferred, and late ones.

        While updates are deferred, only late ones are made.
        """
        self.deferred += updates
        if not self.defers_updates:
            self.late += self.deferred
            self.deferred = 0
        updates = self.late
        self.late = 0
        return updates

    @property
    def has_released_updates(self) -> bool:
        """Whether updates that were deferred or are late may be made now, without waiting for the next update phase."""
        return self.late > 0 or (self.deferred > 0 and not self.defers_updates)

    @property
    def is_due(self) -> bool:
        """Whether an update phase is due; before `update_after` it has no updates."""
        if self.update_every == "episode":
            return self.episode_ended
        return self.env_steps - self.last_update_phase >= self.update_every * (self.num_envs if self.per_env else 1)

    def begin_update_phase(self) -> int:
        """Return the number of updates that are due, and begin their phase: they are not due again."""
        if not self.is_due:
            return 0
        credit = self.env_steps - max(self.last_update_phase, self.update_after)
        self.last_update_phase = self.env_steps
        self.episode_ended = False
        return max(0, credit) if self.gradient_steps is None else self.gradient_steps * (credit > 0)
