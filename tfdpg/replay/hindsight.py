"""Hindsight experience replay: goals of sampled transitions are replaced by goals that were achieved later.

Source: Andrychowicz et al. 2017, "Hindsight Experience Replay".
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from tfdpg.arguments import shown
from tfdpg.replay.buffer import NONE, ReplayBuffer
from tfdpg.replay.sequences import previous_rows
from tfdpg.replay.uniform import random_words

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
GOAL_STREAMS = 1 << 32
"""The first key of the random streams of goals; those of sampled rows have smaller keys."""
COMPARED_ROWS = 16
"""Number of rows for which a result for arrays is compared with the results for single rows."""
CHECKED_GOALS = 200
"""Number of sampled rows of which at least one should have another outcome with a new goal."""


class GoalFunctions:
    """The functions of an environment that compute rewards and ends of episodes from goals, applied to arrays.

    A function is called with arrays of all rows if its result then has one value for each row, and is equal to the
    results for single rows where these are compared. Otherwise, it is called for each row.

    Args:
        env: an environment or a vector environment. It has `compute_reward(achieved_goal, desired_goal, info)`, and
            optionally `compute_terminated` and `compute_truncated` with the same arguments; `info` is an empty dict.

    Raises:
        ValueError: the environment has no `compute_reward`.
    """

    def __init__(self, env: Any):
        single = _single_environment(env)
        names = "compute_reward", "compute_terminated", "compute_truncated"
        found = {name: single.get_wrapper_attr(name) for name in names if single.has_wrapper_attr(name)}
        self._functions = {name: function for name, function in found.items() if function is not None}
        if "compute_reward" not in self._functions:
            raise ValueError(
                "`her` needs an environment with compute_reward(achieved_goal, desired_goal, info), as those of "
                f"gymnasium-robotics have. Received: {env}"
            )
        observation_space: Any = single.observation_space
        space = observation_space[ACHIEVED]
        self._shape = tuple(space.shape or ())
        self._dtype = space.dtype
        self._accepts_arrays: dict[str, bool] = {}

    def reward(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        """Return the rewards for goals `[n, width]`, float32 `[n]`.

        Raises:
            ValueError: a reward is not finite.
        """
        rewards = self._apply("compute_reward", achieved, desired).astype(np.float32)
        if not np.isfinite(rewards).all():
            wrong = np.flatnonzero(~np.isfinite(rewards))[0]
            raise ValueError(
                f"`compute_reward` of the environment must return finite numbers. Received: {rewards[wrong]:g} for the "
                f"achieved goal {shown(achieved[wrong].tolist())} and the desired goal {shown(desired[wrong].tolist())}"
            )
        return rewards

    def ends(self, name: str, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray | None:
        """Return whether the goals end the episode, bool `[n]`; None if the environment does not say.

        Args:
            name: the function that says so, "compute_terminated" or "compute_truncated".
            achieved: the achieved goals, `[n, width]`.
            desired: the desired goals, `[n, width]`.
        """
        return self._apply(name, achieved, desired).astype(bool) if name in self._functions else None

    def _apply(self, name: str, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        goals = [part.reshape(len(part), *self._shape).astype(self._dtype) for part in (achieved, desired)]
        is_array_tried = self._accepts_arrays.get(name, True) and len(achieved) > 1
        result = self._for_arrays(name, *goals) if is_array_tried else None
        return self._for_rows(name, *goals) if result is None else result

    def _for_arrays(self, name: str, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray | None:
        """Return the result for arrays; None if the function does not accept them."""
        try:
            result = np.asarray(self._functions[name](achieved, desired, {}))
        except Exception:  # the call for single rows raises the error of a function that does not work at all
            result = np.empty(0)
        is_right = result.shape == (len(achieved),)
        if is_right and name not in self._accepts_arrays:
            rows = self._for_rows(name, achieved[:COMPARED_ROWS], desired[:COMPARED_ROWS])
            is_right = np.allclose(result[:COMPARED_ROWS].astype(np.float64), rows, 1e-5, 1e-6)
        self._accepts_arrays[name] = is_right
        return result if is_right else None

    def _for_rows(self, name: str, *goals: np.ndarray) -> np.ndarray:
        values = [np.asarray(self._functions[name](*row, {})) for row in zip(*goals, strict=True)]
        if any(value.size != 1 or value.dtype.kind not in "biuf" for value in values):
            raise ValueError(
                f"`{name}` of the environment must return a number for one goal. Received: {shown(values[0])}"
            )
        return np.array([value.item() for value in values], np.float64)


def _single_environment(env: Any) -> gym.Env:
    """Return an environment, or the first sub-environment of a vector environment.

    The sub-environments of an `AsyncVectorEnv` are in other processes, so another one is made.
    """
    if not isinstance(env, gym.vector.VectorEnv):
        return env
    base: Any = env.unwrapped
    if isinstance(base, gym.vector.SyncVectorEnv):
        return base.envs[0]
    if isinstance(base, gym.vector.AsyncVectorEnv):
        return base.env_fns[0]()
    raise ValueError(
        "`her` needs the compute_reward of a single environment, which only SyncVectorEnv and AsyncVectorEnv have. "
        "With other vector environments, use a custom training loop: make the agent with a single environment, or "
        f"call agent.relabel_with(env) with one. Received: {env}"
    )


class Relabelled:
    """Sampled rows with new goals, and the outcomes of steps under these goals.

    Args:
        buffer: the replay buffer.
        index: which of the sampled rows have a new goal, `[k]`.
        goal: the new goals, float32 `[k, width]`.
        functions: those of the environment.
    """

    def __init__(self, buffer: ReplayBuffer, index: np.ndarray, goal: np.ndarray, functions: GoalFunctions):
        self._buffer = buffer
        self._index = index
        self._goal = goal
        self._functions = functions
        self._achieved, self._desired = goal_columns(buffer)

    def outcome(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the reward, whether the step terminated the episode, and whether it ended it, for rows `[n]`.

        Where the environment does not define `compute_terminated`, the stored value is kept.
        """
        buffer = self._buffer
        reward = buffer.rows[slots, -1]
        terminated = buffer.terminated[slots]
        ended = terminated.copy()
        index = self._index
        achieved = buffer.rows[buffer.successor[slots[index]], self._achieved]
        reward[index] = self._functions.reward(achieved, self._goal)
        if (given := self._functions.ends("compute_terminated", achieved, self._goal)) is not None:
            terminated[index] = ended[index] = given
        if (truncated := self._functions.ends("compute_truncated", achieved, self._goal)) is not None:
            ended[index] |= truncated
        return reward, terminated, ended

    def write_goals(self, observations: np.ndarray) -> None:
        """Replace the desired goals in packed observations `[n, obs_width]`."""
        observations[self._index, self._desired] = self._goal


class Hindsight:
    """Chooses new goals for sampled rows: the step between sampling and packing.

    Args:
        buffer: the replay buffer, with predecessors.
        strategy: where a new goal comes from: "future", a later observation of the same episode; "final", its newest
            observation; "episode", any of its observations after the first.
        ratio: the probability that a row gets a new goal, in [0, 1].
        seed: the seed of the agent.

    Attributes:
        functions: those of the environment; None until `Agent.relabel_with` sets them.
    """

    def __init__(self, buffer: ReplayBuffer, strategy: str, ratio: float, seed: int):
        self._buffer = buffer
        self._strategy = strategy
        self._ratio = ratio
        self.seed = seed
        self._episodes = EpisodeIndex(buffer)
        self.functions: GoalFunctions | None = None
        self._has_checked_rewards = False
        self._unchecked_goals = CHECKED_GOALS

    def __call__(self, update: int, slots: np.ndarray) -> Relabelled:
        """Choose goals for the minibatches `[count, batch]` of the updates after the first `update`.

        The goals of a minibatch depend on the seed, the number of its update and the rows held.
        """
        if not self._has_checked_rewards and self.functions is not None:
            self._has_checked_rewards = True
            self._check_rewards(slots.ravel()[:COMPARED_ROWS])
        if self._unchecked_goals and self.functions is not None:
            self._check_goals(slots.ravel()[: self._unchecked_goals])
        words = random_words((self.seed, GOAL_STREAMS), update, slots.shape)
        is_relabelled = (words >> np.uint64(11)) * 2.0**-53 < self._ratio
        return self.relabel(slots, is_relabelled, self.sample_goals(update, slots, is_relabelled))

    def relabel(
        self, slots: np.ndarray, is_relabelled: np.ndarray, goal_slots: np.ndarray, keep_goals: bool = False
    ) -> Relabelled:
        """Return rows with the goals that were achieved in given rows.

        Args:
            slots: the sampled rows, `[...]`.
            is_relabelled: which of them get a new goal, bool `[...]`.
            goal_slots: the rows whose achieved goals these are, `[...]`; others are ignored.
            keep_goals: take the desired goals of these rows in place of the achieved ones.

        Raises:
            ValueError: there is no environment yet that computes rewards.
        """
        if self.functions is None:
            raise ValueError(
                f"`her={self._strategy!r}` needs the environment, which computes the rewards of new goals. Make the "
                "agent with the environment, or call agent.relabel_with(env); agent.fit(env) does this."
            )
        index = np.flatnonzero(is_relabelled)
        achieved, desired = goal_columns(self._buffer)
        goals = self._buffer.rows[goal_slots.ravel()[index], desired if keep_goals else achieved]
        return Relabelled(self._buffer, index, goals, self.functions)

    def _check_rewards(self, slots: np.ndarray) -> None:
        """Warn if the environment computes other rewards for the goals of stored steps than those that it gave."""
        stored = self._buffer.rows[slots, -1]
        computed = self.relabel(slots, np.ones(len(slots), bool), slots, keep_goals=True).outcome(slots)[0]
        differs = ~np.isclose(computed, stored, 1e-4, 1e-5)
        if differs.mean() > 0.1:
            example = np.flatnonzero(differs)[0]
            warnings.warn(
                "`compute_reward` of the environment does not compute the rewards that its `step` returns, so that "
                "transitions with and without a new goal have different rewards. A wrapper may change rewards or "
                f"goals. Received: {computed[example]:g} from `compute_reward`, {stored[example]:g} from `step`",
                stacklevel=2,
            )

    def _check_goals(self, slots: np.ndarray) -> None:
        """Warn if, in the first sampled rows, the goal that a step achieved never gives it another outcome."""
        every = np.ones(len(slots), bool)
        own = self.relabel(slots, every, slots, keep_goals=True).outcome(slots)
        achieved = self.relabel(slots, every, self._buffer.successor[slots]).outcome(slots)
        is_equal = all(map(np.array_equal, own, achieved))
        self._unchecked_goals = self._unchecked_goals - len(slots) if is_equal else 0
        if is_equal and not self._unchecked_goals:
            warnings.warn(
                f"The goal that a step achieved and its desired goal had the same outcome in all of {CHECKED_GOALS} "
                "sampled steps. `compute_reward` of the environment may ignore its argument `desired_goal` and use a "
                "goal that the environment keeps. New goals then teach nothing.",
                stacklevel=2,
            )

    def sample_goals(self, update: int, slots: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """Sample the rows whose achieved goals become the desired ones, `[count, batch]`; others are undefined.

        A row is drawn from all rows that were stored in the course of the episode, and drawn again if it belongs to
        another sub-environment.
        """
        size = self._buffer.replay_size
        numbers = self._episodes.numbers(slots)
        first, last = self._episodes.bounds(slots)
        if self._strategy == "final":
            return last % size
        after = numbers if self._strategy == "future" else first
        goals = np.zeros(slots.shape, np.int64)
        wanted = wanted.copy()
        attempt = 1
        while wanted.any():
            words = random_words((self.seed, GOAL_STREAMS + attempt), update, slots.shape)[wanted]
            low = after[wanted]
            count = (last[wanted] - low).astype(np.uint64)
            drawn = low + 1 + ((words >> np.uint64(32)) * count >> np.uint64(32)).astype(np.int64)
            goals[wanted] = drawn % size
            wanted[wanted] = ~self._episodes.contains(slots[wanted], drawn)
            attempt += 1
        return goals


class EpisodeIndex:
    """The first and the last row of the episode of each row, by row numbers.

    It follows the replay buffer, and processes only the rows that were stored since it was last used.
    """

    def __init__(self, buffer: ReplayBuffer):
        self._buffer = buffer
        self._synced = 0
        self._successor: np.ndarray | None = None  # the buffer's array when rows were last processed
        self._first = np.zeros(0, np.int64)  # for each slot the number of the first row of its episode
        self._last = np.zeros(0, np.int64)  # for the slot of a first row the number of the last row of its episode

    def numbers(self, slots: np.ndarray) -> np.ndarray:
        """Return the numbers of the rows in slots."""
        newest = self._buffer.added - 1
        return newest - (newest - slots) % self._buffer.replay_size

    def contains(self, slots: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Return whether rows, given by their numbers, belong to the episodes of the rows in slots."""
        return self._first[numbers % self._buffer.replay_size] == self._first[slots]

    def bounds(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of the first and of the last row held of the episodes of rows."""
        self._sync()
        buffer = self._buffer
        first = self._first[slots]
        last = self._last[first % buffer.replay_size]
        is_cut = first < buffer.oldest
        if is_cut.any():  # the first row was overwritten, so its slot belongs to another episode
            cut = slots[is_cut]
            first[is_cut] = self.numbers(_follow(lambda rows: previous_rows(buffer, rows), cut))
            last[is_cut] = self.numbers(_follow(lambda rows: buffer.successor[rows], cut))
        return first, last

    def _sync(self) -> None:
        buffer = self._buffer
        size = buffer.replay_size
        if self._successor is not buffer.successor or self._synced > buffer.added:  # it was cleared or restored
            self._successor = buffer.successor
            self._first = np.zeros(len(buffer.successor), np.int64)
            self._last = np.zeros(len(buffer.successor), np.int64)
            self._synced = 0
        start = max(self._synced, buffer.oldest)
        numbers = np.arange(start, buffer.added)
        slots = numbers % size
        before = previous_rows(buffer, slots)
        has_predecessor = before != NONE
        root = np.where(has_predecessor, numbers - (slots - before) % size, numbers)
        while True:  # each round doubles the distance to the row that `root` names
            is_new = root >= start
            further = np.where(is_new, root[np.where(is_new, root - start, 0)], root)
            if (further == root).all():
                break
            root = further
        first = np.where(root >= start, root, self._first[root % size])
        self._first[slots] = first
        is_held = first >= buffer.oldest  # otherwise another episode may begin in the slot of the first row
        self._last[first[is_held] % size] = numbers[is_held]  # the last row of an episode is assigned last
        self._synced = buffer.added


def _follow(link: Callable[[np.ndarray], np.ndarray], slots: np.ndarray) -> np.ndarray:
    """Follow links from rows to the last ones."""
    while (is_linked := (after := link(slots)) != NONE).any():
        slots = np.where(is_linked, after, slots)
    return slots


def goal_columns(buffer: ReplayBuffer) -> tuple[slice, slice]:
    """Return the columns of the achieved and of the desired goal in packed observations."""
    columns: Mapping[str, slice] = {leaf.name: leaf.columns for leaf in buffer.spec.leaves}
    return columns[ACHIEVED], columns[DESIRED]
