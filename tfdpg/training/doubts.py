"""Warnings where a training goes on as if nothing were wrong, and cannot come to anything."""

import numpy as np

from tfdpg.arguments import warn
from tfdpg.training.lanes import Lanes
from tfdpg.training.options import FitOptions
from tfdpg.training.protocols import Trains

OBSERVATIONS = 100
"""Whose actions are looked at, evenly spaced over the replay."""
NEAR = 0.01
"""How far from a bound an action lies at it, as a fraction of its half-range; the slope of tanh there is 2 %."""
MOST_AT_BOUNDS = 0.9
SCHEDULE = ("update_after", "update_every", "n_steps", "replay_start")
"""Options that say when there are updates; an agent has some of them."""


class Doubts:
    """What is to be said about a training, each once.

    Args:
        agent: the agent.
    """

    def __init__(self, agent: Trains):
        self._agent, self._lanes = agent, None
        self._first_step, self._first_update = agent.schedule.env_steps, agent.updates
        self._is_short, self._saturated = False, False
        self._returns: list[float] = []

    def plan(self, options: FitOptions, lanes: Lanes) -> None:
        """Warns, before the first step, of a training that is certain to be too short."""
        self._lanes, schedule, num = lanes, self._agent.schedule, lanes.num_lanes
        steps = (options.epochs - options.initial_epoch) * -(-options.steps_per_epoch // num) * num
        last = schedule.env_steps + steps
        no_update = last <= schedule.update_after
        if schedule.update_every != "episode":
            no_update |= last - schedule.last_round < schedule.update_every * (num if schedule.each_lane else 1)
        self._tell_if_short(last, no_update)

    def epoch(self, logs: dict[str, float]) -> None:
        """Warns of a policy whose actions lie at their bounds."""
        if "return" in logs:
            self._returns.append(logs["return"])
        share, learnt = logs.get("actions_at_bounds", 0.0), self._agent.updates > self._first_update
        if share > MOST_AT_BOUNDS and learnt and not self._saturated:
            self._saturated = True
            warn(
                f"{share:.0%} of the components of the policy's actions lie at their bounds (`actions_at_bounds`), "
                "where tanh is flat and next to nothing is learnt. If returns do not rise, take a smaller learning "
                "rate, smaller rewards (`reward_shaper`), `normalize_observations=True`, or rewards that are lower "
                "for large actions."
            )

    def end(self) -> None:
        """Warns of a training that is over, and made no update, or saw no episode end."""
        last = self._agent.schedule.env_steps
        steps = last - self._first_step
        if steps == 0:
            return
        if not self._is_short:
            self._tell_if_short(last, self._agent.updates == self._first_update)
        if np.isnan(self._returns).all():
            longest = "" if self._lanes is None else f"; the longest open one has {counted(self._lanes.longest_open)}"
            warn(
                f"No episode ended in the {counted(steps, 'environment step')} of this training, so it has no "
                f"`return`{longest}. Raise `epochs` or `steps_per_epoch`, or cut episodes with `max_ep_len`."
            )

    def _tell_if_short(self, last: int, no_update: bool) -> None:
        schedule, options = self._agent.schedule, self._agent.options.values()
        found = []
        if last <= schedule.start_steps:
            found.append(f"all of its actions are random (start_steps={schedule.start_steps})")
        if no_update:
            options |= {"n_steps": schedule.update_every} if schedule.each_lane else {}
            numbers = ", ".join(f"{name}={options[name]}" for name in SCHEDULE if name in options)
            found.append(f"it makes no update ({numbers})")
        self._is_short = bool(found)
        if found:
            warn(
                f"This training ends at environment step {last:,}: {' and '.join(found)}. Raise `epochs` or "
                "`steps_per_epoch`, or lower these options."
            )


def actions_at_bounds(agent: Trains) -> dict[str, float]:
    """The log of that name: the share of the components of the greedy policy's actions that lie at their bounds.

    They are those of observations in the replay, NaN where it has none here; a Discrete policy has no such log. To a
    policy with a memory each of them is an episode's first.
    """
    spec, replay = agent.spec, agent.replay
    if spec.actions is not None:
        return {}
    if not replay.size:
        return {"actions_at_bounds": np.nan}
    slots = np.linspace(0, replay.size - 1, OBSERVATIONS).astype(np.int64)
    action = agent.behaviour.by(agent.actor).greedy(replay.observation(slots))[:, : spec.act_dim]
    inside = np.minimum(action - spec.low, spec.high - action)
    return {"actions_at_bounds": float(np.mean(inside <= NEAR * spec.half_range))}


def counted(number: int, unit: str = "step") -> str:
    """1 step, 1,000 steps."""
    return f"{number:,} {unit}{'' if number == 1 else 's'}"
