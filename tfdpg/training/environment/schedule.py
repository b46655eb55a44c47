"""When to act at random, when to learn, and how much."""

from collections.abc import Mapping
from typing import Any, Literal

from tfdpg.arguments import flag, natural, positive_int, reject


class Schedule:
    """The learning schedule, in environment steps over all lanes.

    Args:
        start_steps: uniform random actions until this many steps were taken.
        update_after: steps before this one earn no updates; nothing is caught up.
        update_every: a learning round every this many steps, or "episode": after each episode.
        gradient_steps: updates in a round; None is one for each step taken since the last round.
        per_env: whether `update_every` counts the steps of each lane; otherwise those of all lanes together.

    Attributes:
        num_envs: the lanes that acted last.
        env_steps: the steps taken.
        total_steps: the steps at which `fit` will be done; None outside of it.
        last_update_phase: the step of the last round.
        episode_ended: whether an episode ended since the last update phase.
        defers_updates: whether updates that become due are not made, but counted in `deferred`.
        deferred: the updates that were deferred, and are made when `defers_updates` is False again.
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
        self.start_steps = natural("start_steps", start_steps)
        self.update_after = natural("update_after", update_after)
        if isinstance(update_every, str) and update_every != "episode":
            raise reject("update_every", 'a positive integer or "episode"', update_every)
        self.update_every: int | Literal["episode"] = (
            "episode" if update_every == "episode" else positive_int("update_every", update_every)
        )
        self.gradient_steps = None if gradient_steps is None else positive_int("gradient_steps", gradient_steps)
        self.per_env = per_env
        self.num_envs = 1
        self.env_steps = 0
        self.total_steps: int | None = None
        self.last_update_phase = 0
        self.episode_ended = False
        self.defers_updates = False
        self.deferred = 0

    @property
    def acts_at_random(self) -> bool:
        """Whether the next action is drawn uniformly from the action box."""
        return self.env_steps < self.start_steps

    @property
    def updates_per_phase(self) -> int | None:
        """The number of updates in a round of one lane; None where episodes decide."""
        if self.gradient_steps is None and self.update_every != "episode":
            return self.update_every
        return self.gradient_steps

    def set_num_envs(self, num_envs: int) -> None:
        """Takes note of how many lanes act."""
        self.num_envs = num_envs

    def plan(self, steps: int | None) -> None:
        """Takes note of how many steps are still to come; None is unknown."""
        self.total_steps = None if steps is None else self.env_steps + steps

    def state(self) -> dict[str, Any]:
        """The counters, as plain JSON values."""
        return {
            "env_steps": self.env_steps,
            "last_round": self.last_update_phase,
            "episode_ended": self.episode_ended,
            "defers_updates": self.defers_updates,
            "deferred": self.deferred,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes what `state` gave.

        Raises:
            ValueError: it is something else.
        """
        self.env_steps, self.last_update_phase = (natural(name, state[name]) for name in ("env_steps", "last_round"))
        self.episode_ended = flag("episode_ended", state["episode_ended"])
        self.defers_updates = flag("defers_updates", state["defers_updates"])
        self.deferred = natural("deferred", state["deferred"])

    def count(self, steps: int, episode_ended: bool) -> None:
        """Counts `steps` environment steps, one for each lane that took one."""
        self.env_steps += steps
        self.episode_ended |= episode_ended

    def release(self, updates: int) -> int:
        """The updates to make now: those that are due and those that were deferred; 0 while updates are deferred."""
        self.deferred += updates
        if self.defers_updates:
            return 0
        updates = self.deferred
        self.deferred = 0
        return updates

    @property
    def is_due(self) -> bool:
        """Whether a learning round is due now; before `update_after` it will have no updates."""
        if self.update_every == "episode":
            return self.episode_ended
        return self.env_steps - self.last_update_phase >= self.update_every * (self.num_envs if self.per_env else 1)

    def begin_update_phase(self) -> int:
        """The number of updates due now, 0 if none; a round that is taken is not due again."""
        if not self.is_due:
            return 0
        credit = self.env_steps - max(self.last_update_phase, self.update_after)
        self.last_update_phase = self.env_steps
        self.episode_ended = False
        return max(0, credit) if self.gradient_steps is None else self.gradient_steps * (credit > 0)
