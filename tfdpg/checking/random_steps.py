"""Random steps in an environment, and what they show about observations, rewards, episodes, speed and seeds."""

import contextlib
import copy
import time
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tfdpg.acting.encoder import feature_columns
from tfdpg.acting.running_statistics import RunningStatistics
from tfdpg.checking.report import Fact, number
from tfdpg.checking.spaces import SOME_ACTIONS
from tfdpg.findings import Finding, outside, wrappers_of
from tfdpg.spec import Packed, Spec
from tfdpg.training.environment.finite import NO_REWARD, check_finite, entry_name
from tfdpg.training.environment.step_parsing import API, batched

SECONDS = 10.0
"""The maximum duration of the random steps."""
SLOW = 100.0
"""Environments with fewer steps per second are slow: a million steps take hours."""
LARGE = 100.0
"""Rewards are large if the mean of their magnitudes is above this."""
SMALL = 1e-3
"""Rewards are small if all magnitudes are below this."""
SCALE = "Scale them to about 1 with the agent's `reward_shaper`, or with ACER's `reward_scale`."
NOT_FINITE = "Find what divides by 0 or overflows; `fit` rejects such numbers."
LARGE_FEATURE = 100.0
"""A feature of the observations is large if its root mean square is above this."""
MAX_SHOWN = 5
"""The maximum number of large features in a finding."""
SEED_STEPS = 20
"""The maximum length of the episodes that are compared to check seeds."""


class Observations:
    """Checks observations and keeps their statistics.

    Args:
        space: the observation space. If agents do not support it, observations are not checked.
    """

    def __init__(self, space: spaces.Space):
        self._spec = None
        with contextlib.suppress(ValueError):  # `space_facts` reports it
            self._spec = Spec(space, SOME_ACTIONS)
        self._found: dict[str, Finding] = {}
        self._statistics = None if self._spec is None else RunningStatistics(self._spec)
        self._low: list[Any] = [np.inf, np.inf]  # of each packed matrix
        self._high: list[Any] = [-np.inf, -np.inf]

    def pack(self, observation: Any, when: str) -> Packed:
        """Pack an observation, or add a finding and return an empty tuple.

        Args:
            observation: the observation.
            when: the step or reset that returned it, for the finding: "step 3".
        """
        if self._spec is None:
            return ()
        try:
            packed = self._spec.pack(batched(self._spec, observation))
        except ValueError as error:
            what = " ".join(str(error).removesuffix(API).split()).rstrip(".")
            remedy = f"Correct the space, or the observation that is returned at {when}."
            self._found.setdefault("form", Finding(f"{what}.", remedy))
            return ()
        try:
            check_finite(self._spec, packed, NO_REWARD, when)
        except ValueError as error:
            self._found.setdefault("finite", Finding(f"{error}.", NOT_FINITE))
            return ()
        return packed

    def add(self, observation: Any, when: str) -> None:
        """Check an observation, and add it to the statistics if it is valid."""
        packed = self.pack(observation, when)
        for i, matrix in enumerate(packed):
            self._low[i] = np.minimum(self._low[i], matrix)
            self._high[i] = np.maximum(self._high[i], matrix)
        if packed and self._statistics is not None:
            self._statistics.update(packed)

    def report(self) -> Iterator[Fact | Finding]:
        """Yield the findings and the ranges of the observations."""
        yield from self._found.values()
        if self._spec is None or self._statistics is None or not self._statistics.count:
            return
        low, high = map(self._spec.unpack, (tuple(self._low), tuple(self._high)))
        large = []
        for leaf, columns in zip(self._spec.leaves, feature_columns(self._spec), strict=True):
            name = leaf.name
            if not isinstance(leaf.space, spaces.Box) or not low[name].size:
                continue
            yield Fact("seen", f"{name} from {number(low[name].min())} to {number(high[name].max())}")
            if found := outside(leaf.space, np.concatenate([low[name], high[name]]), name):
                yield found
            elif len(leaf.shape) < 3:
                mean = self._statistics.mean[columns]
                deviation = np.sqrt(self._statistics.variance[columns])
                size = np.hypot(mean, deviation)
                for i in np.flatnonzero(size > LARGE_FEATURE).tolist():
                    column = leaf.columns.start + i
                    span = f"{number(self._low[0][0, column])} to {number(self._high[0][0, column])}"
                    scale = f"offset {number(mean[i])}, scale {number(deviation[i])}, {span}"
                    large.append((size[i], f"{entry_name(self._spec, column)} ({scale})"))
        if large:
            texts = [text for _, text in sorted(large, key=lambda entry: -entry[0])]
            others = f" and {len(texts) - MAX_SHOWN} more" if len(texts) > MAX_SHOWN else ""
            yield Finding(
                f"Features of the observations are large: {', '.join(texts[:MAX_SHOWN])}{others}.",
                "Networks learn best from numbers near 1: pass `normalize_observations=True`, or subtract the offset "
                "and divide by the scale in the environment.",
            )


def take_random_steps(
    env: Any, single_env: gym.Env, observations: Observations, steps: int, seed: int
) -> Iterator[Fact | Finding]:
    """Take random steps in an environment for at most `SECONDS`, and report what they show.

    Args:
        env: the environment.
        single_env: the environment that is stepped: the same, or its first sub-environment.
        observations: checks the observations.
        steps: the number of steps.
        seed: seeds the resets and the actions.
    """
    actions = copy.deepcopy(single_env.action_space)
    actions.seed(seed)
    rewards: list[float] = []
    seconds: list[float] = []
    lengths: list[int] = []
    terminations = 0
    has_mistaken_limit = False
    episode_start = 0
    observations.add(single_env.reset(seed=seed)[0], "a reset")
    until = time.perf_counter() + SECONDS
    while len(rewards) < steps and time.perf_counter() < until:
        action = actions.sample()
        started = time.perf_counter()
        observation, reward, terminated, truncated, info = single_env.step(action)
        seconds.append(time.perf_counter() - started)
        rewards.append(float(np.asarray(reward).item()))
        observations.add(observation, f"step {len(rewards)}")
        if terminated or truncated:
            lengths.append(len(rewards) - episode_start)
            terminations += bool(terminated)
            has_mistaken_limit |= bool(terminated and info.get("TimeLimit.truncated"))
            episode_start = len(rewards)
            started = time.perf_counter()
            observation, _ = single_env.reset(seed=seed + len(lengths))
            seconds[-1] += time.perf_counter() - started
            observations.add(observation, "a reset")
    yield from observations.report()
    yield from _report_rewards(np.array(rewards))
    if lengths:
        yield from _report_episodes(lengths, terminations, has_mistaken_limit)
    else:
        yield from _report_no_end(env, len(rewards), steps)
    yield from _report_speed(seconds, steps, None if single_env is env else env.num_envs)


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


def _report_rewards(rewards: np.ndarray) -> Iterator[Fact | Finding]:
    if not (finite := np.isfinite(rewards)).all():
        step = int(np.flatnonzero(~finite)[0])
        yield Finding(f"The reward is {rewards[step]} at step {step + 1}.", NOT_FINITE)
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


def _report_no_end(env: Any, taken: int, steps: int) -> Iterator[Fact | Finding]:
    has_limit = (env.spec is not None and env.spec.max_episode_steps is not None) or any(
        isinstance(wrapper, gym.wrappers.TimeLimit) for wrapper in wrappers_of(env)
    )
    is_few = taken < steps or has_limit
    more = f": too few to see one end{'; take more (--steps)' if taken == steps else ''}"
    yield Fact("episodes", f"none ended in {taken:,} steps{more if is_few else ''}")
    if not is_few:
        yield Finding(
            f"No episode ended in {taken:,} steps, and the environment has no known step limit.",
            "Make it with `max_episode_steps` (gymnasium.wrappers.TimeLimit), or rely on `fit`, which truncates "
            "episodes after `max_ep_len` steps.",
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
    stopped = f"; stopped after {SECONDS:.0f} seconds, at {len(seconds):,} of {steps:,} steps"
    yield Fact("speed", f"{number(speed)} steps/s{of}{stopped if len(seconds) < steps else ''}")
    total = speed * (num_envs or 1)
    if total < SLOW and sum(usual) > SECONDS / 10:
        yield Finding(
            f"It is slow: a million steps take {1e6 / total / 3600:,.0f} hours.",
            "Find out what `step` waits for (rendering, sleeping, files), or step several environments in parallel: "
            '`--num-envs` with `--vectorization async`, in Python `vectorization_mode="async"`.',
        )
