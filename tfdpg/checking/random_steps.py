"""Random steps, and what they show: observations, rewards, ends, speed."""

import copy
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tfdpg.checking.report import Fact, number
from tfdpg.findings import Finding, outside, wrappers_of

SECONDS = 10.0
"""How long to step, at most."""
SLOW = 100.0
"""The steps of a second below which a million of them take hours."""
LARGE, SMALL = 100.0, 1e-3
"""The mean of absolute rewards above which they are large, and the largest one below which they are small."""
SCALE = "Scale them to about 1, by the agent's `reward_shaper`, or ACER's `reward_scale`."


LARGE_FEATURE = 100.0
"""The root mean square from which on a feature of the observations is large."""
MAX_SHOWN = 5
"""How many of these features are named."""


class _Scale:
    """The sums, the lowest and the highest values of an array of features."""

    def __init__(self):
        self._count = 0
        self._sum: Any = 0.0
        self._squares: Any = 0.0
        self.low: Any = np.inf
        self.high: Any = -np.inf

    def add(self, values: np.ndarray) -> None:
        self._count += 1
        self._sum = self._sum + values
        self._squares = self._squares + values**2
        self.low = np.minimum(self.low, values)
        self.high = np.maximum(self.high, values)

    def offset(self) -> np.ndarray:
        return np.asarray(self._sum / self._count)

    def size(self) -> np.ndarray:
        return np.sqrt(np.asarray(self._squares / self._count))

    def deviation(self) -> np.ndarray:
        return np.sqrt(np.maximum(self.size() ** 2 - self.offset() ** 2, 0.0))


class RandomSteps:
    """Takes random steps in an environment.

    Args:
        env: the environment.
        single_env: the same, or its first lane, which is stepped.
    """

    def __init__(self, env: Any, single_env: gym.Env):
        self._env = env
        self._single_env = single_env
        self._found: dict[str, Finding] = {}
        self._ranges: dict[str, tuple[float, float]] = {}
        self._scales: dict[str, _Scale] = {}
        self._rewards: list[float] = []
        self._lengths: list[int] = []
        self._ends = Counter()
        self._seconds: list[float] = []

    def steps(self, steps: int, seed: int) -> Iterator[Fact | Finding]:
        """Takes so many steps, or as many as there is time for; then says what they showed."""
        single_env = self._single_env
        actions = copy.deepcopy(self._single_env.action_space)
        episode_start = 0
        actions.seed(seed)
        self._check_observation(single_env.reset(seed=seed)[0], "after a reset")
        until = time.perf_counter() + SECONDS
        while len(self._rewards) < steps and time.perf_counter() < until:
            action = actions.sample()
            started = time.perf_counter()
            observation, reward, terminated, truncated, info = single_env.step(action)
            self._seconds.append(time.perf_counter() - started)
            self._rewards.append(float(np.asarray(reward).item()))
            self._check_observation(observation, f"at step {len(self._rewards)}")
            if terminated or truncated:
                self._lengths.append(len(self._rewards) - episode_start)
                self._ends["terminated" if terminated else "truncated"] += 1
                self._ends["mistaken"] += bool(terminated and info.get("TimeLimit.truncated"))
                episode_start = len(self._rewards)
                started = time.perf_counter()
                observation, _ = single_env.reset(seed=seed + len(self._lengths))
                self._seconds[-1] += time.perf_counter() - started
                self._check_observation(observation, "after a reset")
        yield from self._found.values()
        for name, (low, high) in self._ranges.items():
            yield Fact("seen", f"{name} from {number(low)} to {number(high)}")
        yield from self._scale_findings()
        yield from self._reward_findings()
        yield from self._episode_findings(steps)
        yield from self._speed_findings(steps)

    def _check_observation(self, observation: Any, when: str, space: Any = None, name: str = "") -> None:
        """Looks at an observation, or at a part of it; of each kind of trouble the first is kept."""
        space = space or self._single_env.observation_space
        if isinstance(space, spaces.Dict):
            if not isinstance(observation, Mapping) or set(observation) != set(space.spaces):
                keys = list(observation) if isinstance(observation, Mapping) else type(observation).__name__
                self._add_finding(
                    "keys", f"An observation has the keys {keys}, its space {list(space.spaces)}.", "Give these."
                )
                return
            for key, part in space.spaces.items():
                self._check_observation(observation[key], when, part, f"{name}.{key}" if name else key)
        elif isinstance(space, spaces.Box):
            self._check_numbers(space, np.asarray(observation), name or "x", when)
        elif not space.contains(observation):
            self._add_finding(
                name,
                f"An observation has {name or 'x'} = {observation!r} {when}, which is not in its space {space}.",
                "Give the space what there is, or give what the space has.",
            )

    def _check_numbers(self, space: spaces.Box, values: np.ndarray, name: str, when: str) -> None:
        if values.shape != space.shape or values.dtype.kind not in "biuf":
            self._add_finding(
                f"{name} shape",
                f"An observation has {name} of type {values.dtype} and shape {values.shape} {when}, "
                f"its space shape {space.shape}.",
                "Give both the same shape, of real numbers.",
            )
            return
        if not np.isfinite(values).all():
            self._add_finding(
                f"{name} finite",
                f"An observation has {name} = {values[~np.isfinite(values)].flat[0]} {when}.",
                "Find what divides by 0 or overflows; `fit` refuses it.",
            )
            return
        if values.size:
            if space.dtype is not None and space.dtype.kind == "f" and values.ndim < 3:
                self._scales.setdefault(name, _Scale()).add(values.astype(np.float64))
            low, high = self._ranges.get(name, (np.inf, -np.inf))
            self._ranges[name] = min(low, float(values.min())), max(high, float(values.max()))
        if found := outside(space, values, name):
            self._add_finding(f"{name} outside", *found)

    def _add_finding(self, kind: str, what: str, remedy: str) -> None:
        self._found.setdefault(kind, Finding(what, remedy))

    def _scale_findings(self) -> Iterator[Finding]:
        """The features that are far from 1, the furthest first."""
        sizes = []
        texts = []
        for name, scale in self._scales.items():
            if f"{name} outside" in self._found:
                continue  # its finding says the same
            size = scale.size()
            offset = scale.offset()
            deviation = scale.deviation()
            for index in np.argwhere(size > LARGE_FEATURE).tolist():
                at = tuple(index)
                title = f"{name}[{', '.join(map(str, index))}]" if index else name
                span = f"{number(scale.low[at])} to {number(scale.high[at])}"
                sizes.append(size[at])
                texts.append(f"{title} (offset {number(offset[at])}, scale {number(deviation[at])}, {span})")
        if texts:
            order = np.argsort(sizes)[::-1]
            others = f" and {len(texts) - MAX_SHOWN} more" if len(texts) > MAX_SHOWN else ""
            yield Finding(
                f"Features of the observations are large: {', '.join(texts[i] for i in order[:MAX_SHOWN])}{others}.",
                "Networks learn best from numbers near 1: pass `normalize_observations=True`, or subtract the offset "
                "and divide by the scale in the environment.",
            )

    def _reward_findings(self) -> Iterator[Fact | Finding]:
        rewards = np.array(self._rewards)
        if not (finite := np.isfinite(rewards)).all():
            step = int(np.flatnonzero(~finite)[0])
            yield Finding(
                f"The reward is {rewards[step]} at step {step + 1}.",
                "Find what divides by 0 or overflows; `fit` refuses it.",
            )
            return
        low, high, mean = (number(value) for value in (rewards.min(), rewards.max(), rewards.mean()))
        yield Fact("rewards", f"{low} to {high}, {mean} on average, of random actions")
        if (largest := np.abs(rewards).max()) == 0:
            yield Finding(
                f"The reward is 0 in all of {len(rewards):,} random steps.",
                "Exploration may never meet another: reward what leads there, by the agent's `reward_shaper` too.",
            )
        elif largest < SMALL:
            yield Finding(f"Rewards are small: none is beyond ±{number(largest)}.", SCALE)
        elif (average := np.abs(rewards).mean()) > LARGE:
            yield Finding(f"Rewards are large: {number(average)} on average, the sign left out.", SCALE)

    def _episode_findings(self, steps: int) -> Iterator[Fact | Finding]:
        lengths = self._lengths
        taken = len(self._rewards)
        ends = self._ends
        if not lengths:
            is_few = taken < steps or self._is_limited
            more = f": too few to see one end{'; take more (--steps)' if taken == steps else ''}"
            yield Fact("episodes", f"none ended in {taken:,} steps{more if is_few else ''}")
            if not is_few:
                yield Finding(
                    f"No episode ended in {taken:,} steps, and no limit of them is known.",
                    "Make it with `max_episode_steps` (gymnasium.wrappers.TimeLimit), or leave it to `fit`, which cuts "
                    "episodes after `max_ep_len` steps.",
                )
            return
        span = f"{min(lengths):,} to {max(lengths):,}" if min(lengths) < max(lengths) else f"{lengths[0]:,}"
        counts = f"{ends['terminated']} terminated, {ends['truncated']} truncated"
        yield Fact("episodes", f"{len(lengths)} of {span} step{'' if span == '1' else 's'}; {counts}")
        same = len(lengths) >= 3 and len(set(lengths)) == 1 and lengths[0] > 1
        if ends["mistaken"] or (same and not ends["truncated"]):
            length = "a limit of their steps" if ends["mistaken"] else f"exactly {lengths[0]:,} steps"
            yield Finding(
                f"Episodes terminate after {length}, as if time were a terminal state.",
                "If it is a limit, give truncated=True in place of terminated=True: values go on beyond it.",
            )

    def _speed_findings(self, steps: int) -> Iterator[Fact | Finding]:
        taken = len(self._seconds)
        num_envs = 1 if self._single_env is self._env else self._env.num_envs
        usual = self._seconds[1:] or self._seconds  # the first may compile, or load
        speed = len(usual) / max(sum(usual), 1e-9)
        of = f" of each of {num_envs} lanes" if self._single_env is not self._env else ""
        stopped_early = f"; cut after {SECONDS:.0f} seconds, at {taken:,} of {steps:,} steps" if taken < steps else ""
        yield Fact("speed", f"{number(speed)} steps/s{of}{stopped_early}")
        if speed * num_envs < SLOW and sum(usual) > SECONDS / 10:
            yield Finding(
                f"It is slow: a million steps take {1e6 / (speed * num_envs) / 3600:,.0f} hours.",
                "Find what `step` waits for (rendering, sleeping, files), or let several step at once: "
                '`--num-envs` with `--vectorization async`, in Python `vectorization_mode="async"`.',
            )

    @property
    def _is_limited(self) -> bool:
        """Whether the environment is known to have a limit of steps."""
        spec = self._env.spec
        return (spec is not None and spec.max_episode_steps is not None) or any(
            isinstance(wrapper, gym.wrappers.TimeLimit) for wrapper in wrappers_of(self._env)
        )
