"""The replay buffer: a ring of rows, linked by a `successor` index.

A row is an observation and, after its action was executed, the action, the reward and whether the episode terminated.
The next observation of a row is that of its successor, so no observation is stored twice. The last observation of an
episode is a row without a successor; `next_episode` links it to the first row of the next episode.

Rows are numbered from the first row ever stored; row number r is in slot r % replay_size. For each sub-environment the
buffer keeps only the numbers of a few rows, so sub-environments can be added at any time and run at different speeds.
The oldest row can always be overwritten, because a successor is newer than its row.
"""

import contextlib
import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfdpg.arguments import positive_int, real
from tfdpg.replay import segments
from tfdpg.replay.memory import allocate_array, check_capacity
from tfdpg.replay.names import NamedTransitions
from tfdpg.replay.segments import LINKS, SavedSegments, check_links
from tfdpg.spec import Packed, Spec

NONE = -1
"""Stands for no row: no successor yet, or no open episode."""
EMPTY_REPLAY = "The replay buffer holds no transition yet. Call agent.fit(env), which collects transitions and learns."


class TimeSteps(NamedTuple):
    """Successive rows of one sub-environment, each with the step that led to it.

    Attributes:
        observation: packed, `[n, ...]`.
        action: `[n, act_dim]`; undefined in the first row of an episode, as are `reward` and `terminated`.
        reward: `[n]`.
        terminated: whether that step ended in a terminal state, bool `[n]`.
        is_first: whether the row is the first of an episode, bool `[n]`.
    """

    observation: Packed
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    is_first: np.ndarray

    @property
    def masked_action(self) -> np.ndarray:
        """The actions, with 0 in the first row of an episode, `[n, act_dim]`."""
        return np.where(self.is_first[:, None], np.float32(0), self.action)

    def part(self, rows: slice) -> "TimeSteps":
        """Return some of the rows."""
        return TimeSteps(tuple(part[rows] for part in self.observation), *(values[rows] for values in self[1:]))


def group_widths(spec: Spec) -> tuple[int, int]:
    """Return the number of float32 columns and of uint8 columns of a packed observation."""
    widths = dict(zip(spec.groups, spec.widths, strict=True))
    return widths.get("float32", 0), widths.get("uint8", 0)


class ReplayBuffer:
    """A replay buffer of at most `replay_size` rows.

    Args:
        spec: the spaces of the environment.
        replay_size: maximum number of rows, each with one observation; from 2 to 2^31 - 1.
        directory: directory of memory-mapped files for rows and images, which are deleted with the buffer; None keeps
            them in memory.
        step_width: number of columns stored with a step, the action first, at least `act_dim`; None for the action
            alone.
        has_windows: whether the last row of an episode is linked to the first row of the next one.
        has_predecessors: whether rows are linked to the rows before them. The columns after the action then store the
            recurrent state of the policy, which is 0 at the start of an episode.
        n_step: number of steps whose rewards `sample` sums, at least 1.
        gamma: discount factor of one step in `sample` and `transitions`, in [0, 1].

    Raises:
        ValueError: an argument is out of its range.

    Attributes:
        spec: the spaces of the environment.
        replay_size: maximum number of rows.
    """

    def __init__(
        self,
        spec: Spec,
        replay_size: int,
        directory: str | Path | None = None,
        step_width: int | None = None,
        has_windows: bool = False,
        has_predecessors: bool = False,
        n_step: int = 1,
        gamma: float = 0.99,
    ):
        """See the class.

        The other attributes are for the rest of tfdpg:

        Attributes:
            rows: observation (without images), action and the columns stored with it, and reward of each row, float32
                `[replay_size, obs_width + step_width + 1]`.
            images: the uint8 parts of the observations, `[replay_size, image_width]`; None without images.
            terminated: whether the step of the row ended in a terminal state, bool `[replay_size]`.
            successor: slot of the next row of the episode, int32 `[replay_size]`; -1 if there is none yet.
            next_episode: for the last row of an episode the slot of the first row of the next one, int32
                `[replay_size]`; -1 for other rows. None without `has_windows`.
            predecessor: slot of the previous row of the episode, int32 `[replay_size]`; -1 for the first row. If the
                previous row was overwritten, the slot has another row, whose successor is not this row. None without
                `has_predecessors`.
            added: number of rows ever stored.
            current: for each sub-environment the number of the row that waits for its step; -1 without an open episode.
            newest: for each sub-environment the number of its newest row, or -1.
            episode_start: for each sub-environment the number of the first row of its newest episode, or -1.
            saved_segments: the rows that are already in files of a checkpoint; None if there are none.
            lock: held while rows are added or looked up, if one thread adds them and another one samples. A thread may
                hold it several times.
        """
        self._n_step = positive_int("n_step", n_step)
        self._gamma = real("gamma", gamma, 0, 1)
        self.has_windows = has_windows
        self.has_predecessors = has_predecessors
        self.step_width = spec.act_dim if step_width is None else step_width
        self.spec = spec
        self._directory = None if directory is None else Path(directory)
        self.replay_size = positive_int("replay_size", replay_size)
        if not 2 <= self.replay_size <= np.iinfo(np.int32).max:
            raise ValueError(
                "`replay_size` must be between 2 and 2^31 - 1 rows (a transition takes two). "
                f"Received: replay_size={replay_size}"
            )
        self.obs_width, self.image_width = group_widths(spec)
        self.lock: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        self.clear()

    @property
    def size(self) -> int:
        """The number of rows held, at most `replay_size`."""
        return min(self.added, self.replay_size)

    @property
    def oldest(self) -> int:
        """The number of the oldest row held."""
        return self.added - self.size

    @property
    def state_width(self) -> int:
        """Number of columns of the stored recurrent state."""
        return self.step_width - self.spec.act_dim if self.has_predecessors else 0

    @property
    def nbytes(self) -> int:
        """The size of the full buffer in bytes, in memory and files."""
        links = 1 + self.has_windows + self.has_predecessors
        return (4 * (self.obs_width + self.step_width + 1 + links) + self.image_width + 1) * self.replay_size

    @property
    def links(self) -> dict[str, np.ndarray]:
        """The links to later rows, by their names in segments."""
        arrays = zip(LINKS, (self.successor, self.next_episode), strict=True)
        return {name: links for name, links in arrays if links is not None}

    def __len__(self) -> int:
        """The number of transitions held. It is smaller than `size`, because some rows have no successor."""
        return int(np.count_nonzero(self.successor[: self.size] != NONE))

    def transition_slots(self) -> np.ndarray:
        """Return the slots of the rows that have a successor, in ascending order, `[len(self)]`."""
        return np.flatnonzero(self.successor[: self.size] != NONE)

    def sample(self, n: int, seed: int | np.random.Generator | None = None) -> NamedTransitions:
        """Sample transitions uniformly and with replacement, as named arrays.

        The random numbers are independent of the agent's: training is the same with and without it.

        Args:
            n: the number of transitions, at least 1.
            seed: the seed, or the generator to use; None takes one from the operating system.

        Returns:
            A dict of arrays, copies, with a row for each transition. A transition spans m steps, where m is the agent's
            `n_step` or less at the end of an episode. `Agent.train_on_batch` takes such a dict of `batch_size` rows.

            - `observations`: `[n, ...]`, with the type that the networks get; for a Dict or Tuple space a dict by name.
            - `actions`: `[n, ...]`, in the environment's units and shape; int64 `[n]` for a Discrete space.
            - `rewards`: the sums of gamma^k r_k over the m steps, float32 `[n]`.
            - `discounts`: gamma^m (1 - terminated), float32 `[n]`.
            - `next_observations`: the observations after the m steps, as `observations`.
            - `terminations`: whether the last of the steps ended in a terminal state, bool `[n]`.
            - `truncations`: whether the episode was truncated after the last of the steps, bool `[n]`.
            - `behaviours` (ACER): parameters of the distribution the action was sampled from, float32 `[n, width]`.
            - `states` (stored states): the recurrent state of the policy before the step, float32 `[n, state_width]`.

            The names in the singular are read, too: `batch["reward"]` is `batch["rewards"]`.

        Raises:
            ValueError: `n` is not a positive integer, or the replay buffer holds no transition.

        Example:
            ```python
            batch = agent.replay.sample(256, seed=0)
            batch["rewards"].mean()
            ```
        """
        positive_int("n", n)
        slots = self.transition_slots()
        if not len(slots):
            raise ValueError(EMPTY_REPLAY)
        return self._named(slots[np.random.default_rng(seed).integers(len(slots), size=n)], self._n_step)

    def transitions(self) -> NamedTransitions:
        """Return all stored transitions, as named arrays.

        Each transition is one environment step, independent of the agent's `n_step`. The steps of an episode follow one
        another, and the episode that began first comes first, so that `Agent.fit_offline` takes such a dict.

        Returns:
            A dict of arrays, copies, with a row for each transition; `sample` describes the keys.

        Example:
            ```python
            data = agent.replay.transitions()
            data["rewards"][data["terminations"]]
            ```
        """
        slots = np.arange(self.oldest, self.added) % self.replay_size
        has_successor = self.successor[slots] != NONE
        first = np.arange(len(slots))  # of each row the first one of its episode, as a place in `slots`
        before = np.flatnonzero(has_successor)
        first[before + (self.successor[slots[before]] - slots[before]) % self.replay_size] = before
        while ((further := first[first]) != first).any():  # each round doubles the distance
            first = further
        order = np.argsort(first, kind="stable")
        return self._named(slots[order[has_successor[order]]], 1)

    def _named(self, slots: np.ndarray, n_step: int) -> NamedTransitions:
        from tfdpg.replay.transitions import named_transitions  # which imports this module

        return named_transitions(self, slots, n_step, self._gamma)

    def save(self, directory: str | Path, overwrite: bool = True) -> None:
        """Save the replay buffer alone, as a directory; `Agent.save` saves it together with the agent.

        The directory appears under its name only when it is complete and on the disk, with a checksum of every file.

        Args:
            directory: where to save it. A saved replay buffer that is there is replaced as a whole, or not at all.
            overwrite: False refuses to replace one.

        Raises:
            FileExistsError: `directory` exists and is not to be replaced, or is not a saved replay buffer.
            tfdpg.files.DiskFullError: the disk is full. What was at `directory` is still there.
        """
        segments.save(self, Path(directory), overwrite)

    def load(self, directory: str | Path) -> None:
        """Append the transitions of a replay buffer that `save` wrote, as the newest.

        If there are more rows than `replay_size`, the newest are kept, and a warning says so. Episodes that were open
        when the replay buffer was saved count as truncated.

        Args:
            directory: the saved replay buffer.

        Raises:
            FileNotFoundError: there is no saved replay buffer.
            ValueError: it is for other spaces or another kind of agent.
            tfdpg.files.DamagedError: a file is damaged, missing or from another save; the message names it. Nothing is
                loaded.
            tfdpg.files.UnsafeFileError: the directory contains a symbolic link, or something that is not a regular
                file. Nothing is loaded.
        """
        segments.load(self, Path(directory))

    def resize(self, replay_size: int) -> None:
        """Hold more rows from now on; those held are kept.

        Args:
            replay_size: the new maximum number of rows, at least the present one.

        Raises:
            ValueError: more memory than is available to the process, or more disk space than is free, is needed.
        """
        held = self.segment(self.oldest, self.added) if self.size else None
        state = self.state()
        check_capacity(self.nbytes // self.replay_size * replay_size, self._directory, f"replay_size={replay_size}")
        self.replay_size = replay_size
        self.clear()
        if held is not None:
            self.restore(state, [held])

    def allocate(self) -> None:
        """Allocate the memory or the files; does nothing if they are allocated.

        Raises:
            ValueError: The buffer needs more memory than is available to the process, or more disk space than is free.
            OSError: The directory is not writable.
        """
        if len(self.successor):
            return
        check_capacity(self.nbytes, self._directory, f"replay_size={self.replay_size}")
        self._create_arrays(self.replay_size, self._directory)

    def touch(self, rows: float) -> None:
        """Let the operating system provide the memory of the next rows now: later, this would delay some of them.

        Args:
            rows: the largest number of rows that will be stored; it may be infinite.
        """
        self.allocate()
        unused = slice(self.added, int(min(self.added + rows, self.replay_size)))
        for array in (self.rows, self.images, self.terminated):
            if array is not None:
                array[unused] = 0

    def _create_arrays(self, size: int, directory: Path | None) -> None:
        self.rows = allocate_array((size, self.obs_width + self.step_width + 1), np.float32, directory)
        self.images = allocate_array((size, self.image_width), np.uint8, directory) if self.image_width else None
        self.terminated = np.zeros(size, np.bool_)
        self.successor = np.full(size, NONE, np.int32)
        self.next_episode = np.full(size, NONE, np.int32) if self.has_windows else None
        self.predecessor = np.full(size, NONE, np.int32) if self.has_predecessors else None

    def clear(self) -> None:
        """Remove all rows and free their memory."""
        self.added = 0
        self.saved_segments: SavedSegments | None = None
        self.current = self.newest = self.episode_start = np.empty(0, np.int64)
        self._create_arrays(0, None)

    def like(self, replay_size: int, in_memory: bool = True) -> "ReplayBuffer":
        """Return an empty buffer for the same rows, in memory or where this one is."""
        other = copy.copy(self)
        other._directory = None if in_memory else self._directory
        other.replay_size = replay_size
        other.clear()
        return other

    def begin(self, env_indices: np.ndarray, observation: Packed) -> None:
        """Open an episode in each of the sub-environments with its first observation, packed `[n, ...]`."""
        self.allocate()
        if len(env_indices):
            self._grow(env_indices.max())
        new = self._append(observation)
        self._link_episodes(self.newest[env_indices], new)
        self.current[env_indices] = self.newest[env_indices] = self.episode_start[env_indices] = new

    def add(
        self,
        env_indices: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        next_observation: Packed,
    ) -> None:
        """Store a step in the current row of each sub-environment, and make its next observation the current row.

        Args:
            env_indices: the sub-environments, `[n]`, each with an open episode.
            action: the action and the columns stored with it, `[n, step_width]`.
            reward: `[n]`.
            terminated: `[n]`, bool.
            next_observation: packed, `[n, ...]`; the final observation at the end of an episode.
        """
        new = self._append(next_observation)
        rows = self.current[env_indices]
        steps = rows, new, action, reward, terminated
        is_held = rows >= self.oldest  # the current row of a slow sub-environment may be overwritten
        if not is_held.all():
            steps = tuple(values[is_held] for values in steps)
        self._complete(*steps)
        self.current[env_indices] = self.newest[env_indices] = new

    def extend(self, env_index: int, rows: TimeSteps) -> None:
        """Store successive rows of a sub-environment, with the same result as `begin` and `add` for each row.

        The first row follows the current row of the sub-environment, unless it is the first of an episode. If there is
        no current row, the step that led to the first row is not stored.
        """
        self.allocate()
        self._grow(env_index)
        most = self.replay_size // 2  # so that no row overwrites its predecessor
        for start in range(0, len(rows.is_first), most):
            self._extend(env_index, rows.part(slice(start, start + most)))

    def _extend(self, env_index: int, rows: TimeSteps) -> None:
        current = self.current[env_index]
        numbers = self._append(rows.observation)
        opens = np.flatnonzero(rows.is_first)
        if not rows.is_first[0] and current >= self.oldest:
            self._complete(np.array([current]), numbers[:1], *(values[:1] for values in rows[1:4]))
        self._link_episodes(np.append(self.newest[env_index], numbers[:-1])[opens], numbers[opens])
        self.episode_start[env_index] = np.append(self.episode_start[env_index], numbers[opens])[-1]
        follows = np.flatnonzero(~rows.is_first[1:]) + 1
        self._complete(numbers[follows - 1], numbers[follows], *(values[follows] for values in rows[1:4]))
        self.current[env_index] = self.newest[env_index] = numbers[-1]

    def _link_episodes(self, numbers: np.ndarray, followers: np.ndarray) -> None:
        """Link the last rows of episodes to the first rows of the next ones, by row numbers; -1 for no last row."""
        if self.next_episode is None:
            return
        held = numbers >= self.oldest
        self.next_episode[numbers[held] % self.replay_size] = followers[held] % self.replay_size

    def _complete(self, numbers: np.ndarray, followers: np.ndarray, action: Any, reward: Any, terminated: Any) -> None:
        """Store steps in rows and link the rows to their followers, by row numbers."""
        slots = self._slots(numbers)
        self.rows[slots, self.obs_width : -1] = action
        self.rows[slots, -1] = reward
        self.terminated[slots] = terminated
        self.successor[slots] = followers % self.replay_size
        if self.predecessor is not None:
            self.predecessor[followers % self.replay_size] = numbers % self.replay_size

    def end(self, env_indices: np.ndarray) -> None:
        """Close the episode in each of the sub-environments: its current row is the final observation."""
        self.current[env_indices[env_indices < len(self.current)]] = NONE

    def continues(self, env_indices: np.ndarray, observation: Packed) -> np.ndarray:
        """Return whether sub-environments have an open episode whose current row is this observation, bool `[n]`."""
        if len(env_indices) == 0 or env_indices[-1] >= len(self.current):
            return np.zeros(len(env_indices), bool)
        rows = self.current[env_indices]
        same = rows >= self.oldest
        for held, given in zip(self.observation(rows % self.replay_size), observation, strict=True):
            if held.tobytes() != given.tobytes():  # several times as fast as comparing numbers
                same &= (held == given).all(axis=1)
        return same

    def open_episode(self, env_index: int) -> np.ndarray | None:
        """Return the slots of the open episode of a sub-environment, `[steps + 1]`.

        Returns:
            The slots, from the first row of the episode to its current one; an empty array if no episode is open; None
            if rows of the episode were overwritten.
        """
        if env_index >= len(self.current) or self.current[env_index] == NONE:
            return np.empty(0, np.int64)
        if self.episode_start[env_index] < self.oldest:
            return None
        slots = [int(self.episode_start[env_index] % self.replay_size)]
        last = self.current[env_index] % self.replay_size
        while slots[-1] not in (last, NONE):
            slots.append(int(self.successor[slots[-1]]))
        return np.array(slots) if slots[-1] == last else None

    def observation(self, slots: np.ndarray) -> Packed:
        """Return the packed observations of rows, `[len(slots), ...]`."""
        real = self.rows.take(slots, axis=0)[:, : self.obs_width] if self.obs_width else None
        image = self.images.take(slots, axis=0) if self.images is not None else None
        return tuple(part for part in (real, image) if part is not None)

    def action(self, slots: np.ndarray) -> np.ndarray:
        """Return the actions of rows, `[len(slots), act_dim]`."""
        return self.rows[slots, self.obs_width : self.obs_width + self.spec.act_dim]

    def __repr__(self) -> str:
        held = f"{self.size:,} of {self.replay_size:,} rows"
        states = 4 * self.state_width * self.replay_size
        of_which = f", of which {states / 1e6:,.1f} are states" if states else ""
        return f"<ReplayBuffer: {held}, {self.nbytes / 1e6:,.1f} MB when full{of_which}>"

    def state(self) -> dict[str, Any]:
        """Return the arrays that `restore` needs in addition to the rows."""
        positions = {"heads": self.current, "newest": self.newest, "opened": self.episode_start}
        return {"added": np.int64(self.added), "size": np.int64(self.size), **positions}

    def segment(self, first: int, stop: int) -> dict[str, Any]:
        """Return the rows with numbers `first` to `stop` - 1, which must be held, as arrays for `append`.

        The arrays are views of the buffer where that is possible. A link is stored as the distance to the later row,
        so that it is independent of slots; 0 stands for no link.
        """
        self.allocate()
        slots = np.arange(first, stop) % self.replay_size
        place = self._slot_range(first, stop)
        held = {"first": np.int64(first), "state_width": np.int64(self.state_width)}
        held |= {"rows": self.rows[place], "terminated": self.terminated[place]}
        if self.images is not None:
            held["images"] = self.images[place]
        for name, links in self.links.items():
            after = (links[place] - slots) % self.replay_size
            held[name] = np.where(links[place] == NONE, 0, after).astype(np.int32)
        return held

    def restore(self, state: Mapping[str, Any], segments: Iterable[Mapping[str, Any]]) -> None:
        """Restore the rows and the state of another buffer of the same spec; if there are too many, the newest rows.

        Args:
            state: the result of the other buffer's `state`.
            segments: all rows of the other buffer, as successive segments; rows before the oldest one are ignored.

        Raises:
            ValueError: Rows are missing or have another shape, or links or positions are invalid.
        """
        added = int(state["added"])
        held = int(state["size"])
        # Rows of a buffer that is not full are renumbered from 0, so that the slots that were never used come last.
        shift = added - held if held < self.replay_size else 0
        first = added - held - shift
        self.added = first
        self.saved_segments = None
        for segment in segments:
            overwritten = max(0, self.added + shift - int(segment["first"]))
            self.append({name: values[overwritten:] if np.ndim(values) else values for name, values in segment.items()})
        if self.added - first != held:
            raise ValueError(f"The stored replay buffer must have {held} rows. Received: {self.added - first}")
        self.current, self.newest, self.episode_start = (
            np.where(state[name] >= shift, state[name] - shift, NONE) for name in ("heads", "newest", "opened")
        )
        check_links(self)

    def append(self, segment: Mapping[str, Any]) -> None:
        """Append a segment of another buffer as the newest rows.

        The links of the previously appended segment lead into it, but no sub-environment continues from its rows.
        """
        self.allocate()
        rows = segment["rows"]
        size = self.replay_size
        if rows.shape[1:] != self.rows.shape[1:] or ("images" in segment) != (self.images is not None):
            raise ValueError(
                f"The stored replay buffer must have rows of shape [n, {self.rows.shape[1]}], with images: "
                f"{self.images is not None}. Received: {list(rows.shape)}, with images: {'images' in segment}"
            )
        skipped = max(0, len(rows) - size)
        stop = self.added + len(rows)
        numbers = np.arange(self.added + skipped, stop)
        place = self._slot_range(self.added + skipped, stop)
        self.rows[place] = rows[skipped:]
        self.terminated[place] = segment["terminated"][skipped:]
        if self.images is not None:
            self.images[place] = segment["images"][skipped:]
        for name, links in self.links.items():
            after = segment[name][skipped:] if name in segment else np.zeros(len(numbers), np.int32)
            links[place] = np.where(after == 0, NONE, (numbers + after) % size)
        if self.predecessor is not None:
            slots = numbers % size
            self.predecessor[slots[self.successor[self.predecessor[place]] != slots]] = NONE
            acted = slots[self.successor[place] != NONE]
            self.predecessor[self.successor[acted]] = acted
        self.added = stop

    def _append(self, observation: Packed) -> np.ndarray:
        """Write observations as new rows without links, and return the numbers of the rows."""
        count = len(observation[0])
        if 2 * count > self.replay_size:
            raise ValueError(
                f"`replay_size` must be at least two rows for each of the {count} sub-environments. "
                f"Received: replay_size={self.replay_size}"
            )
        numbers = np.arange(self.added, self.added + count)
        slots = self._slots(numbers)
        if self.obs_width:
            self.rows[slots, : self.obs_width] = observation[0]
        if self.images is not None:
            self.images[slots] = observation[-1]
        for links in (self.successor, self.next_episode, self.predecessor):
            if links is not None:
                links[slots] = NONE
        self.added += count
        return numbers

    def _grow(self, env_index: int) -> None:
        """Extend the positions of sub-environments to include one with this index."""
        if env_index >= len(self.current):
            more = np.full(env_index + 1 - len(self.current), NONE)
            self.current, self.newest, self.episode_start = (
                np.append(known, more) for known in (self.current, self.newest, self.episode_start)
            )

    def _slots(self, numbers: np.ndarray) -> np.ndarray | slice:
        """Return the slots of rows; a slice for one row, which NumPy indexes several times as fast."""
        slots = numbers % self.replay_size
        return slots if len(slots) != 1 else slice(slots[0], slots[0] + 1)

    def _slot_range(self, first: int, stop: int) -> np.ndarray | slice:
        """Return the slots of the rows with numbers `first` to `stop` - 1; a slice if they are contiguous."""
        start = first % self.replay_size
        end = start + stop - first
        return slice(start, end) if end <= self.replay_size else np.arange(first, stop) % self.replay_size
