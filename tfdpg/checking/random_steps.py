"""Random steps in an environment, and what they show about observations, rewards, episodes, speed and seeds."""

import copy
import dataclasses
import re
import time
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from tfdpg.checking.observations import NOT_FINITE, Observations
from tfdpg.checking.report import Fact, number
from tfdpg.findings import Finding, early_end, step_limit

STEPS = 1000
"""The least number of steps, unless it is given or the time is over."""
MAX_STEPS = 10_000
"""The number of steps in which an episode must end, if the environment has no known step limit."""
SECONDS = 10.0
"""The maximum duration of the random steps."""
FIRST_END_SECONDS = 60.0
"""Their maximum duration until an episode ends, if the environment has a known step limit."""
SLOW = 100.0
"""Environments with fewer steps per second are slow: a million steps take hours."""
LARGE = 100.0
"""Rewards are large if the mean of their magnitudes is above this."""
SMALL = 1e-3
"""Rewards are small if all magnitudes are below this."""
SCALE = "Scale them to about 1 with the agent's `reward_shaper`, or with ACER's `reward_scale`."
MISSING_REWARD = (
    "If the reward uses a reading that is missing at times, use the last reading. Otherwise, find what divides by 0. "
    "`fit` rejects NaN."
)
COMPUTATION = re.compile("divide by zero|overflow|invalid value encountered in (?!cast)")
"""The warnings of NumPy about numbers that are not finite where their operands were."""
SEED_STEPS = 20
"""The maximum length of the episodes that are compared to check seeds."""


@dataclasses.dataclass
class _Seen:
    """What random steps showed, apart from the observations."""

    rewards: list[float] = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)
    lengths: list[int] = dataclasses.field(default_factory=list)
    terminated: list[bool] = dataclasses.field(default_factory=list)
    has_mistaken_limit: bool = False
    numpy_warning: str = ""
    error: BaseException | None = None


def take_random_steps(
    env: Any, single_env: gym.Env, observations: Observations, steps: int | None, seed: int
) -> Iterator[Fact | Finding]:
    """Take random steps in an environment, and report what they show, even if the environment raises an error.

    Args:
        env: the environment.
        single_env: the environment that is stepped: the same, or its first sub-environment.
        observations: checks the observations.
        steps: the number of steps; None takes as many as `check` says.
        seed: seeds the resets and the actions.
    """
    limit = step_limit(env)
    least = steps or max(STEPS, limit or 0)
    most = steps or max(least, 0 if limit else MAX_STEPS)
    seen = _Seen()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", RuntimeWarning)  # NumPy's, once for each line of code
        try:
            _step(single_env, observations, seen, seed, (least, most), FIRST_END_SECONDS if limit else SECONDS)
        except (Exception, SystemExit) as error:
            seen.error = error
    for warning in caught:
        if COMPUTATION.search(str(warning.message)):
            seen.numpy_warning = f"{warning.message} ({warning.filename}:{warning.lineno})"
    yield from observations.report(seen.numpy_warning)
    if seen.rewards:
        yield from _report_rewards(np.array(seen.rewards), seen.numpy_warning)
        if seen.lengths:
            yield from _report_episodes(seen.lengths, sum(seen.terminated), seen.has_mistaken_limit)
            episodes = np.split(np.array(seen.rewards), np.cumsum(seen.lengths))[: len(seen.lengths)]
            if found := early_end(episodes, seen.terminated, limit):
                yield found
        elif seen.error is None:
            yield from _report_no_end(len(seen.rewards), least, limit)
        num_envs = None if single_env is env else env.num_envs
        yield from _report_speed(seen.seconds, len(seen.rewards) if seen.error else least, num_envs)
    if seen.error is not None:
        raise seen.error


def _step(
    env: gym.Env, observations: Observations, seen: _Seen, seed: int, steps: tuple[int, int], seconds: float
) -> None:
    """Take random steps, and record what they show.

    Args:
        env: the environment.
        observations: checks the observations.
        seen: receives the rest.
        seed: seeds the resets and the actions.
        steps: the number of steps, and the number if no episode has ended then.
        seconds: the maximum duration in seconds, if no episode has ended then; otherwise it is `SECONDS`.
    """
    least, most = steps
    actions = copy.deepcopy(env.action_space)
    actions.seed(seed)
    episode_start = 0
    observations.add(env.reset(seed=seed)[0])
    began = time.perf_counter()
    while len(seen.rewards) < (least if seen.lengths else most):
        if time.perf_counter() - began >= (SECONDS if seen.lengths else seconds):
            break
        action = actions.sample()
        started = time.perf_counter()
        observation, reward, terminated, truncated, info = env.step(action)
        seen.seconds.append(time.perf_counter() - started)
        seen.rewards.append(float(np.asarray(reward).item()))
        observations.add(observation, len(seen.rewards))
        if terminated or truncated:
            seen.lengths.append(len(seen.rewards) - episode_start)
            seen.terminated.append(bool(terminated))
            seen.has_mistaken_limit |= bool(terminated and info.get("TimeLimit.truncated"))
            episode_start = len(seen.rewards)
            started = time.perf_counter()
            observation, _ = env.reset(seed=seed + len(seen.lengths))
            seen.seconds[-1] += time.perf_counter() - started
            observations.add(observation)


def seeds(env: gym.Env, observations: Observations, seed: int) -> Iterator[Fact | Finding]:
    """Report whether a seed reproduces its episode, and whether another seed gives another episode."""
    first_episode, same_seed_episode, other_seed_episode = (
        _episode(env, observations, reset_seed, seed) for reset_seed in (seed, seed, seed + 1)
    )
    same = _is_same(first_episode, same_seed_episode)
    differs = not _is_same(first_episode, other_seed_episode)
    yield Fact(
        "seeds",
        f"one seed gives {'one episode' if same else 'several episodes'}, "
        f"another {'gives another' if differs else 'the same'}",
    )
    if not same:
        yield Finding(
            "Two resets with one seed, and the same actions, give two episodes.",
            "Draw random numbers only from `self.np_random`, which `super().reset(seed=seed)` seeds.",
        )
    if not differs:
        yield Finding(
            "Two resets with two seeds, and the same actions, give one episode.",
            "Begin `reset` with `super().reset(seed=seed)`, and draw the initial state from `self.np_random`.",
        )


def _episode(env: gym.Env, observations: Observations, seed: int, actions_seed: int) -> np.ndarray:
    """Return the numbers of the first `SEED_STEPS` steps of an episode: observations and rewards."""
    actions = copy.deepcopy(env.action_space)
    actions.seed(actions_seed)
    observation, _ = env.reset(seed=seed)
    numbers = [part.flatten() for part in observations.pack(observation, "a reset")]
    for _ in range(SEED_STEPS):
        observation, reward, terminated, truncated, _ = env.step(actions.sample())
        numbers += [part.flatten() for part in (*observations.pack(observation, "a step"), np.asarray(reward))]
        if terminated or truncated:
            break
    return np.concatenate(numbers).astype(np.float64)


def _is_same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.allclose(a, b, rtol=1e-5, atol=1e-5, equal_nan=True)


def _report_rewards(rewards: np.ndarray, numpy_warning: str) -> Iterator[Fact | Finding]:
    if not (finite := np.isfinite(rewards)).all():
        step = int(np.flatnonzero(~finite)[0])
        times = f"{(~finite).sum():,} of {len(rewards):,} steps"
        is_missing = not numpy_warning and finite.any() and not np.isinf(rewards).any()
        remedy = MISSING_REWARD if is_missing else NOT_FINITE
        warns = f"NumPy warns: {numpy_warning}. " if numpy_warning else ""
        yield Finding(f"The reward is {rewards[step]} at step {step + 1:,} ({times}).", f"{warns}{remedy}")
    rewards = rewards[finite]
    if not len(rewards):
        return
    low, high, mean = (number(value) for value in (rewards.min(), rewards.max(), rewards.mean()))
    yield Fact("rewards", f"{low} to {high}, {mean} on average, with random actions")
    sizes = np.abs(rewards)
    if sizes.max() == 0:
        yield Finding(
            f"The reward is 0 in all of {len(rewards):,} random steps.",
            "Exploration may never find another one. Reward progress towards the goal in the environment, or with the "
            "agent's `reward_shaper`.",
        )
    elif sizes.max() < SMALL:
        yield Finding(f"Rewards are small: none is beyond ±{number(sizes.max())}.", SCALE)
    elif sizes.mean() > LARGE:
        yield Finding(f"Rewards are large: their magnitude is {number(sizes.mean())} on average.", SCALE)


def _report_no_end(taken: int, steps: int, limit: int | None) -> Iterator[Fact | Finding]:
    is_few = taken < steps or limit is not None
    more = f": too few to see one end{'; take more (--steps)' if taken == steps else ''}"
    yield Fact("episodes", f"none ended in {taken:,} steps{more if is_few else ''}")
    if not is_few:
        yield Finding(
            f"No episode ended in {taken:,} steps, and the environment has no known step limit.",
            "Make it with `max_episode_steps` (gymnasium.wrappers.TimeLimit), or pass `max_ep_len` to `fit`, which "
            "truncates episodes after that many steps.",
        )


def _report_episodes(lengths: list[int], terminations: int, has_mistaken_limit: bool) -> Iterator[Fact | Finding]:
    """Report the episodes that ended.

    Args:
        lengths: their lengths.
        terminations: how many of them terminated.
        has_mistaken_limit: whether one terminated although its `info` says that a time limit ended it.
    """
    shortest = min(lengths)
    longest = max(lengths)
    span = f"{shortest:,} to {longest:,}" if shortest < longest else f"{longest:,}"
    counts = f"{terminations} terminated, {len(lengths) - terminations} truncated"
    yield Fact("episodes", f"{len(lengths)} of {span} step{'' if longest == 1 else 's'}; {counts}")
    is_constant = len(lengths) >= 3 and shortest == longest > 1
    if has_mistaken_limit or (is_constant and terminations == len(lengths)):
        length = "a step limit" if has_mistaken_limit else f"exactly {longest:,} steps"
        yield Finding(
            f"Episodes terminate after {length}, as if time were a terminal state.",
            "If it is a limit, return truncated=True in place of terminated=True, because more rewards would follow "
            "the last state.",
        )


def _report_speed(seconds: list[float], steps: int, num_envs: int | None) -> Iterator[Fact | Finding]:
    usual = seconds[1:] or seconds  # the first step may compile or load something
    speed = len(usual) / max(sum(usual), 1e-9)
    of = f" of each of {num_envs} sub-environments" if num_envs else ""
    stopped = f"; stopped after {sum(seconds):.0f} seconds, at {len(seconds):,} of {steps:,} steps"
    yield Fact("speed", f"{number(speed)} steps/s{of}{stopped if len(seconds) < steps else ''}")
    total = speed * (num_envs or 1)
    if total < SLOW and sum(usual) > SECONDS / 10:
        yield Finding(
            f"It is slow: a million steps take {1e6 / total / 3600:,.0f} hours.",
            "Find out what `step` waits for (rendering, sleeping, files), or step several environments in parallel: "
            '`--num-envs` with `--vectorization async`, in Python `vectorization_mode="async"`.',
        )
