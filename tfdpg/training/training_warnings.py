"""Warnings about training runs that continue without an error but cannot learn."""

import numpy as np

from tfdpg.arguments import warn
from tfdpg.training.environment.env_runner import LONG_EPISODE, EnvRunner
from tfdpg.training.network_inputs import NORMALIZER, input_scale
from tfdpg.training.options import FitOptions, TrainingOptions
from tfdpg.training.trained_agent import TrainedAgent

OBSERVATIONS = 100
"""The number of observations, evenly spaced over the replay buffer, that are examined."""
BOUND_TOLERANCE = 0.01
"""An action lies at a bound if it is closer than this fraction of the action scale; the slope of tanh there is 2 %."""
MOST_AT_BOUNDS = 0.9
"""The share of action components at their bounds that causes a warning."""
LARGE_FEATURE = 10.0
"""A feature of the observations is badly scaled if its root mean square is above this."""
SCHEDULE = ("update_after", "update_every", "n_steps", "replay_start")
"""Options that determine when updates are made. Each agent has some of them."""


class TrainingWarnings:
    """Issues each warning about a training run at most once."""

    def __init__(self, agent: TrainedAgent, options: TrainingOptions):
        self._agent = agent
        self._length = "`epochs` or `steps_per_epoch`" if options.minutes is None else "`minutes`"
        self._runner: EnvRunner | None = None
        self._first_step = agent.data.schedule.env_steps
        self._first_update = agent.updates
        self._given: set[str] = set()
        self._returns: list[float] = []
        self._first_best = np.nan

    def plan(self, options: FitOptions, runner: EnvRunner) -> None:
        """Warn, before the first step, if the training run is certain to be too short."""
        self._runner = runner
        if options.epoch_limit is None:
            return
        schedule = self._agent.data.schedule
        num_envs = runner.num_envs
        epochs = options.epoch_limit - options.initial_epoch
        last = schedule.env_steps + epochs * -(-options.steps_per_epoch // num_envs) * num_envs
        no_update = last <= schedule.update_after
        if schedule.update_every != "episode":
            interval = schedule.update_every * (num_envs if schedule.per_env else 1)
            no_update |= last - schedule.last_update_phase < interval
        self._warn_if_too_short(last, no_update)

    def epoch(self, logs: dict[str, float]) -> None:
        """Warn if the policy's actions lie at their bounds, or if the episodes of rollout workers do not end."""
        if "return" in logs:
            self._returns.append(logs["return"])
        improved = self._has_improved(logs)
        share = logs.get("actions_at_bounds", 0.0)
        if share > MOST_AT_BOUNDS and self._agent.updates > self._first_update and not improved:
            self._warn_once(
                "bounds",
                f"{share:.0%} of the components of the policy's actions lie at their bounds (`actions_at_bounds`), "
                f"where tanh is flat and almost nothing is learnt. If returns do not rise, {self._remedies()}.",
            )
        if self._runner is None and self._steps >= LONG_EPISODE and self._returns and np.isnan(self._returns).all():
            self._warn_of_no_end()

    def _warn_once(self, topic: str, text: str) -> None:
        if topic not in self._given:
            self._given.add(topic)
            warn(text)

    def _has_improved(self, logs: dict[str, float]) -> bool:
        """Return whether the mean return of an epoch or of its evaluation is above all returns of the first epoch."""
        returns = [logs[name] for name in ("return", "val_return") if not np.isnan(logs.get(name, np.nan))]
        if np.isnan(self._first_best):
            self._first_best = logs.get("return_max", np.nan)
            return len(returns) == 2 and returns[1] > returns[0]  # the policy improved during the epoch
        return any(value > self._first_best for value in returns)

    def _remedies(self) -> str:
        """Return what may help if actions lie at their bounds, the most likely remedy first."""
        agent = self._agent
        rewards = (
            "smaller rewards (`reward_shaper`)" if agent.options.values().get("her") is None else "smaller rewards"
        )
        remedies = f"use a smaller learning rate, {rewards}, or lower rewards for large actions"
        found = badly_scaled(agent)
        if agent.data.observation_statistics is not None or "float32" not in agent.spec.groups:
            return remedies
        if not agent.parts.given:
            normalize = "pass `normalize_observations=True`"
        elif found is None or (input_scale(agent) or np.inf) <= LARGE_FEATURE:
            return remedies
        else:
            normalize = f"apply {NORMALIZER}"
        if found is not None:
            name, mean, deviation = found
            size = f"has the mean {mean:,.4g} and the standard deviation {deviation:,.4g}"
            return f"first {normalize}, since the observation feature `{name}` {size}; then {remedies}"
        return f"{normalize}, {remedies}"

    def end(self) -> None:
        """Warn after a training run in which no update was made or no episode ended."""
        if self._steps == 0:
            return
        self._warn_if_too_short(self._agent.data.schedule.env_steps, self._agent.updates == self._first_update)
        if np.isnan(self._returns).all() and not (self._runner is not None and self._runner.is_endless):
            self._warn_of_no_end()

    @property
    def _steps(self) -> int:
        """The number of environment steps of this training run so far."""
        return self._agent.data.schedule.env_steps - self._first_step

    def _warn_of_no_end(self) -> None:
        longest = ""
        if self._runner is not None:
            longest = f"; the longest open one has {pluralize(self._runner.longest_open_episode)}"
        self._warn_once(
            "no end",
            f"No episode ended in the {pluralize(self._steps, 'environment step')} of this training run, so it has no "
            f"`return`{longest}. Raise {self._length}, or truncate episodes with `max_ep_len`.",
        )

    def _warn_if_too_short(self, last: int, no_update: bool) -> None:
        """Warn if a training run that ends at an environment step has only random actions or no update."""
        schedule = self._agent.data.schedule
        options = self._agent.options.values()
        found = []
        if last <= schedule.start_steps:
            found.append(f"all of its actions are random (start_steps={schedule.start_steps})")
        if no_update:
            options |= {"n_steps": schedule.update_every} if schedule.per_env else {}
            numbers = ", ".join(f"{name}={options[name]}" for name in SCHEDULE if name in options)
            found.append(f"it makes no update ({numbers})")
        if found:
            self._warn_once(
                "length",
                f"This training ends at environment step {last:,}: {' and '.join(found)}. Raise "
                f"{self._length}, or lower these options.",
            )


def actions_at_bounds(agent: TrainedAgent) -> dict[str, float]:
    """Compute the log `actions_at_bounds`: the share of the components of greedy actions that lie at their bounds.

    The actions are those for observations in the replay buffer. A recurrent policy acts on each of them as on the
    first observation of an episode.

    Returns:
        The log, which is NaN if the replay buffer is empty or in other processes; empty for actions that
        are integers, which often lie at their bounds.
    """
    spec = agent.spec
    replay = agent.replay
    if spec.actions is not None or spec.integer_type is not None:
        return {}
    if not replay.size:
        return {"actions_at_bounds": np.nan}
    slots = np.linspace(0, replay.size - 1, OBSERVATIONS).astype(np.int64)
    with agent.data.lock:
        observation = replay.observation(slots)
    action = agent.data.behaviour.with_network(agent.data.actor).greedy(observation)[:, : spec.act_dim]
    inside = np.minimum(action - spec.low, spec.high - action)
    return {"actions_at_bounds": float(np.mean(inside <= BOUND_TOLERANCE * spec.action_scale))}


def badly_scaled(agent: TrainedAgent) -> tuple[str, float, float] | None:
    """Find the feature of the observations in the replay buffer that has the largest root mean square.

    Returns:
        Its name, such as `x[3]`, its mean and its standard deviation; None if no feature is above `LARGE_FEATURE`, or
        the replay buffer is empty.
    """
    spec = agent.data.spec
    replay = agent.replay
    if not replay.size or "float32" not in spec.groups:
        return None
    slots = np.linspace(0, replay.size - 1, OBSERVATIONS).astype(np.int64)
    values = replay.observation(slots)[0].astype(np.float64)
    for leaf in spec.leaves:
        if leaf.dtype == "int32":  # networks see a one-hot encoding
            values[:, leaf.columns] = 0
    sizes = np.sqrt(np.mean(values**2, axis=0))
    if not (sizes > LARGE_FEATURE).any():
        return None
    column = int(sizes.argmax())
    return spec.entry_name(column), float(values[:, column].mean()), float(values[:, column].std())


def pluralize(number: int, unit: str = "step") -> str:
    """Format a count with its unit: 1 step, 1,000 steps."""
    return f"{number:,} {unit}{'' if number == 1 else 's'}"
