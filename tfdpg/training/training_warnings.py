"""Warnings where a training goes on as if nothing were wrong, and cannot come to anything."""

from typing import Any

import numpy as np

from tfdpg.arguments import warn
from tfdpg.options import options_of
from tfdpg.training.environment.env_runner import EnvRunner
from tfdpg.training.options import FitOptions

OBSERVATIONS = 100
"""Whose actions are looked at, evenly spaced over the replay."""
BOUND_TOLERANCE = 0.01
"""How far from a bound an action lies at it, as a fraction of its half-range; the slope of tanh there is 2 %."""
MOST_AT_BOUNDS = 0.9
DEFAULT_LIMIT = next(option.default for option in options_of(FitOptions) if option.name == "max_ep_len")
LARGE_FEATURE = 10.0
"""The root mean square from which on a feature of the observations counts as badly scaled."""
SCHEDULE = ("update_after", "update_every", "n_steps", "replay_start")
"""Options that say when there are updates; an agent has some of them."""


class TrainingWarnings:
    """What is to be said about a training, each once.

    Args:
        agent: the agent.
    """

    def __init__(self, agent: Any):
        self._agent = agent
        self._runner = None
        self._first_step = agent.schedule.env_steps
        self._first_update = agent.updates
        self._has_warned_of_length = False
        self._has_warned_of_bounds = False
        self._has_warned_of_max_ep_len = False
        self._returns: list[float] = []
        self._first_best = np.nan

    def plan(self, options: FitOptions, runner: EnvRunner) -> None:
        """Warns, before the first step, of a training that is certain to be too short."""
        self._runner = runner
        self._max_ep_len = options.max_ep_len
        schedule = self._agent.schedule
        num = runner.num_envs
        steps = (options.epochs - options.initial_epoch) * -(-options.steps_per_epoch // num) * num
        last = schedule.env_steps + steps
        no_update = last <= schedule.update_after
        if schedule.update_every != "episode":
            no_update |= last - schedule.last_update_phase < schedule.update_every * (num if schedule.per_env else 1)
        self._warn_if_too_short(last, no_update)

    def epoch(self, logs: dict[str, float]) -> None:
        """Warn of a policy whose actions lie at their bounds, and of episodes that only `max_ep_len` ends."""
        if "return" in logs:
            self._returns.append(logs["return"])
        improved = self._has_improved(logs)
        share = logs.get("actions_at_bounds", 0.0)
        has_learned = self._agent.updates > self._first_update
        if share > MOST_AT_BOUNDS and has_learned and not self._has_warned_of_bounds and not improved:
            self._has_warned_of_bounds = True
            warn(
                f"{share:.0%} of the components of the policy's actions lie at their bounds (`actions_at_bounds`), "
                f"where tanh is flat and next to nothing is learnt. If returns do not rise, {self._remedies()}."
            )
        if self._runner is not None and self._runner.has_hit_max_ep_len and not self._has_warned_of_max_ep_len:
            self._has_warned_of_max_ep_len = True
            if self._max_ep_len == DEFAULT_LIMIT:
                warn(
                    f"An episode was truncated after {DEFAULT_LIMIT:,} steps, the default of `max_ep_len`, since the "
                    "environment had not ended it. If its episodes should be longer or shorter, pass `max_ep_len`, or "
                    "wrap the environment in gymnasium.wrappers.TimeLimit and pass `max_ep_len=None`."
                )

    def _has_improved(self, logs: dict[str, float]) -> bool:
        """Whether an epoch's mean return, or that of its evaluation, is above every return of the first epoch."""
        returns = [logs[name] for name in ("return", "val_return") if not np.isnan(logs.get(name, np.nan))]
        if np.isnan(self._first_best):
            self._first_best = logs.get("return_max", np.nan)
            return len(returns) == 2 and returns[1] > returns[0]  # the policy is better than the epoch was on average
        return any(value > self._first_best for value in returns)

    def _remedies(self) -> str:
        """What may help a policy whose actions lie at their bounds, the likeliest first."""
        remedies = (
            "take a smaller learning rate, smaller rewards (`reward_shaper`), or rewards that are lower for large "
        )
        remedies += "actions"
        if self._agent.observation_statistics is not None:
            return remedies
        normalize = "pass `normalize_observations=True`"
        if (found := badly_scaled(self._agent)) is not None:
            name, mean, deviation = found
            size = f"has the mean {mean:,.4g} and the standard deviation {deviation:,.4g}"
            return f"first {normalize}, since the observation feature `{name}` {size}; then {remedies}"
        return f"{normalize}, {remedies}"

    def end(self) -> None:
        """Warns of a training that is over, and made no update, or saw no episode end."""
        last = self._agent.schedule.env_steps
        steps = last - self._first_step
        if steps == 0:
            return
        if not self._has_warned_of_length:
            self._warn_if_too_short(last, self._agent.updates == self._first_update)
        if np.isnan(self._returns).all():
            longest = (
                ""
                if self._runner is None
                else f"; the longest open one has {pluralize(self._runner.longest_open_episode)}"
            )
            warn(
                f"No episode ended in the {pluralize(steps, 'environment step')} of this training, so it has no "
                f"`return`{longest}. Raise `epochs` or `steps_per_epoch`, or cut episodes with `max_ep_len`."
            )

    def _warn_if_too_short(self, last: int, no_update: bool) -> None:
        schedule = self._agent.schedule
        options = self._agent.options.values()
        found = []
        if last <= schedule.start_steps:
            found.append(f"all of its actions are random (start_steps={schedule.start_steps})")
        if no_update:
            options |= {"n_steps": schedule.update_every} if schedule.per_env else {}
            numbers = ", ".join(f"{name}={options[name]}" for name in SCHEDULE if name in options)
            found.append(f"it makes no update ({numbers})")
        self._has_warned_of_length = bool(found)
        if found:
            warn(
                f"This training ends at environment step {last:,}: {' and '.join(found)}. Raise `epochs` or "
                "`steps_per_epoch`, or lower these options."
            )


def actions_at_bounds(agent: Any) -> dict[str, float]:
    """The log of that name: the share of the components of the greedy policy's actions that lie at their bounds.

    They are those of observations in the replay, NaN where it has none here; a Discrete policy has no such log. To a
    policy with a memory each of them is an episode's first.
    """
    spec = agent.spec
    replay = agent.replay
    if spec.actions is not None:
        return {}
    if not replay.size:
        return {"actions_at_bounds": np.nan}
    slots = np.linspace(0, replay.size - 1, OBSERVATIONS).astype(np.int64)
    action = agent.behaviour.with_network(agent.actor).greedy(replay.observation(slots))[:, : spec.act_dim]
    inside = np.minimum(action - spec.low, spec.high - action)
    return {"actions_at_bounds": float(np.mean(inside <= BOUND_TOLERANCE * spec.action_scale))}


def badly_scaled(agent: Any) -> tuple[str, float, float] | None:
    """The feature of the observations in the replay buffer that is the furthest from 1.

    Returns:
        Its name, such as `x[3]`, its mean and its standard deviation; None if no feature has a root mean square above
        `LARGE_FEATURE`, or the replay buffer is empty.
    """
    spec = agent.spec
    replay = agent.replay
    if not replay.size:
        return None
    slots = np.linspace(0, replay.size - 1, OBSERVATIONS).astype(np.int64)
    worst = LARGE_FEATURE
    found = None
    for name, values in spec.unpack(replay.observation(slots)).items():
        if values.dtype.kind != "f":
            continue
        rows = values.reshape(len(values), -1).astype(np.float64)
        sizes = np.sqrt(np.mean(rows**2, axis=0))
        if sizes.size and sizes.max() > worst:
            worst = sizes.max()
            column = int(sizes.argmax())
            index = f"[{', '.join(map(str, np.unravel_index(column, values.shape[1:])))}]" if values.ndim > 1 else ""
            found = f"{name}{index}", float(rows[:, column].mean()), float(rows[:, column].std())
    return found


def pluralize(number: int, unit: str = "step") -> str:
    """1 step, 1,000 steps."""
    return f"{number:,} {unit}{'' if number == 1 else 's'}"
