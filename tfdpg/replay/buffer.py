"""One global ring of rows, linked by a `successor` index.

A row is an observation and, once it has acted, its action, reward and end. The next observation of a row is
its successor's: nothing is stored twice. The observation that ends an episode is a row of its own, without
successor; it says with which row its lane went on. A lane (one environment) is nothing but its current row, so
lanes may come, go and run at unequal speed. Overwriting the oldest row is safe, since a successor is always newer than
its row.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfdpg.arguments import positive_int, real
from tfdpg.replay import segments
from tfdpg.replay.memory import allocate_array, check_capacity
from tfdpg.replay.segments import LINKS, SavedSegments, check_links
from tfdpg.replay.time_steps import TimeSteps
from tfdpg.spec import Packed, Spec

NONE = -1
"""No successor yet; a lane without an open episode."""


class ReplayBuffer:
    """A replay of at most `replay_size` rows.

    Args:
        spec: the spaces; they fix the width of a row.
        replay_size: the number of rows, an observation each.
        directory: where to put rows and images in memory-mapped files, which vanish with the ring; None keeps
            them in memory.
        step_width: the numbers that are stored with a step, the action first; None is the action alone.
        has_windows: whether the last rows of episodes say with which rows their lanes went on.
        has_predecessors: whether rows know which row came before them; behind the action, they then store the state
            that the policy was in, which is 0 at an episode's start.
        n_step: the number of steps whose rewards `sample` sums.
        gamma: the discount factor of one step in `sample`, in [0, 1].

    Attributes:
        rows: for each row the real part of the observation, the action (and what belongs to it) and the reward,
            float32 `[replay_size, width + step_width + 1]`.
        images: the uint8 parts of the observations, `[replay_size, image_width]`, or None.
        terminated: whether the row's transition ended in a terminal state, bool `[replay_size]`.
        successor: the row that followed, int32 `[replay_size]`; -1 where none did yet.
        next_episode: the first row of the next episode, where an episode ended, int32 `[replay_size]`; else -1. None
            without `has_windows`.
        predecessor: the row before in the episode, int32 `[replay_size]`; -1 where there was none. One that has been
            overwritten is another's by now: it counts only if it is its successor. None without `has_predecessors`.
        added: the number of rows ever added.
        current: for each lane the number (counted from the first row ever) of the row that has not acted yet, or -1.
        newest: for each lane the number of its newest row, or -1.
        episode_start: for each lane the number of the row that its newest episode began with, or -1.
        saved_segments: which of the rows are in files; None where none are.
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
        self._n_step = positive_int("n_step", n_step)
        self._gamma = real("gamma", gamma, 0, 1)
        self.has_windows = has_windows
        self.has_predecessors = has_predecessors
        self.step_width = spec.act_dim if step_width is None else step_width
        self.spec = spec
        self._directory = None if directory is None else Path(directory)
        self.replay_size = positive_int("replay_size", replay_size)
        if self.replay_size < 2 or self.replay_size > np.iinfo(np.int32).max:
            raise ValueError(
                f"`replay_size` must be between 2 and 2^31 - 1 rows (a transition takes two). "
                f"Received: replay_size={replay_size}"
            )
        widths = dict(zip(spec.groups, spec.widths, strict=True))
        self.obs_width = widths.get("float32", 0)
        self.image_width = widths.get("uint8", 0)
        self.added = 0
        self.current = self.newest = self.episode_start = np.empty(0, np.int64)
        self.saved_segments: SavedSegments | None = None
        self._allocated = False

    @property
    def size(self) -> int:
        """The number of rows held, at most `replay_size`."""
        return min(self.added, self.replay_size)

    @property
    def state_width(self) -> int:
        """The numbers of a policy's state that are stored behind the action."""
        return self.step_width - self.spec.act_dim if self.has_predecessors else 0

    @property
    def nbytes(self) -> int:
        """The bytes that a full ring takes, in memory and files."""
        links = 1 + self.has_windows + self.has_predecessors
        return (4 * (self.obs_width + self.step_width + 1 + links) + self.image_width + 1) * self.replay_size

    def __len__(self) -> int:
        """The number of transitions held, which `sample` chooses from; fewer than rows, which also end episodes."""
        return int(np.count_nonzero(self.successor[: self.size] != NONE)) if self.size else 0

    def sample(self, n: int, seed: int | np.random.Generator | None = None) -> dict[str, Any]:
        """Sample transitions uniformly and with replacement, as named arrays.

        The random numbers are independent of the agent's: training is the same with and without it.

        Args:
            n: the number of transitions, at least 1.
            seed: the seed, or the generator to use; None takes one from the operating system.

        Returns:
            A dict of arrays, copies, with a row for each transition. A transition spans m steps, where m is the agent's
            `n_step` or less at the end of an episode.

            - `observation`: `[n, ...]`, with the type that the networks get; for a Dict space a dict by key.
            - `action`: `[n, ...]`, in the environment's units and shape; int64 `[n]` for a Discrete space.
            - `reward`: the sum of gamma^k r_k over the m steps, float32 `[n]`.
            - `discount`: gamma^m (1 - terminated), float32 `[n]`.
            - `next_observation`: the observation after the m steps, as `observation`.
            - `terminated`: whether the last of the steps ended in a terminal state, bool `[n]`.
            - `truncated`: whether the episode was truncated after the last of the steps, bool `[n]`.
            - `behaviour` (ACER): what the policy's distribution was, float32 `[n, width]`.
            - `recurrent_state` (stored states): the policy's state before the step, float32 `[n, state_width]`.

        Raises:
            ValueError: `n` is not a positive integer, or the replay buffer holds no transition.

        Example:
            ```python
            batch = agent.replay.sample(256, seed=0)
            batch["reward"].mean()
            ```
        """
        from tfdpg.replay.transitions import named_transitions
        from tfdpg.replay.uniform import EMPTY_REPLAY

        positive_int("n", n)
        slots = np.flatnonzero(self.successor[: self.size] != NONE) if self.size else np.empty(0, np.int64)
        if not len(slots):
            raise ValueError(EMPTY_REPLAY)
        chosen = slots[np.random.default_rng(seed).integers(len(slots), size=n)]
        return named_transitions(self, chosen, self._n_step, self._gamma)

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

        If there are more rows than `replay_size`, the newest are kept. Episodes that were open when the replay buffer
        was saved count as truncated.

        Args:
            directory: the saved replay buffer.

        Raises:
            FileNotFoundError: there is no saved replay buffer.
            ValueError: it is for other spaces or another kind of agent.
            tfdpg.files.DamagedError: a file is damaged, missing or from another save; the message names it. Nothing is
                loaded.
        """
        segments.load(self, Path(directory))

    def allocate(self) -> None:
        """Takes the memory, or the files; does nothing the second time.

        Raises:
            ValueError: the ring needs more memory than the process may still take, or more than its disk has free.
            OSError: the directory cannot be written to.
        """
        if self._allocated:
            return
        check_capacity(self.nbytes, self._directory, f"replay_size={self.replay_size}")
        size = self.replay_size
        self.rows = allocate_array((size, self.obs_width + self.step_width + 1), np.float32, self._directory)
        self.images = allocate_array((size, self.image_width), np.uint8, self._directory) if self.image_width else None
        self.terminated = np.zeros(size, np.bool_)
        self.successor = np.full(size, NONE, np.int32)
        self.next_episode = np.full(size, NONE, np.int32) if self.has_windows else None
        self.predecessor = np.full(size, NONE, np.int32) if self.has_predecessors else None
        self._allocated = True

    def begin(self, env_indices: np.ndarray, observation: Packed) -> None:
        """Opens an episode on each of `env_indices` with its first observation, packed `[n, ...]`."""
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
        """Completes the current row of each lane, and makes its next observation the current one.

        Args:
            env_indices: the lanes that took a step, `[n]`, each with an open episode.
            action: `[n, step_width]`.
            reward: `[n]`.
            terminated: `[n]`, bool.
            next_observation: packed, `[n, ...]`; an episode's final observation at its end.
        """
        new = self._append(next_observation)
        rows = self.current[env_indices]
        is_held = rows >= self.added - self.replay_size  # a lane may be so slow that its row was overwritten
        if not is_held.all():
            rows, action, reward, terminated, followers = (
                values[is_held] for values in (rows, action, reward, terminated, new)
            )
        else:
            followers = new
        self._complete(rows, followers, action, reward, terminated)
        self.current[env_indices] = self.newest[env_indices] = new

    def extend(self, env_index: int, rows: TimeSteps) -> None:
        """Adds successive rows of a lane, as `begin` and `add` would one by one.

        The first of them follows the lane's current row, unless it opens an episode; where the lane has none, the step
        that led to it is not kept.
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
        if not rows.is_first[0] and current != NONE and current >= self.added - self.replay_size:
            self._complete(np.array([current]), numbers[:1], *(values[:1] for values in rows[1:4]))
        self._link_episodes(np.append(self.newest[env_index], numbers[:-1])[opens], numbers[opens])
        self.episode_start[env_index] = np.append(self.episode_start[env_index], numbers[opens])[-1]
        follows = np.flatnonzero(~rows.is_first[1:]) + 1
        self._complete(numbers[follows - 1], numbers[follows], *(values[follows] for values in rows[1:4]))
        self.current[env_index] = self.newest[env_index] = numbers[-1]

    def _link_episodes(self, numbers: np.ndarray, followers: np.ndarray) -> None:
        """Says of the last rows of episodes, by their numbers (-1 is none), with which rows their lanes went on."""
        if self.next_episode is None:
            return
        held = numbers >= max(0, self.added - self.replay_size)
        self.next_episode[numbers[held] % self.replay_size] = followers[held] % self.replay_size

    def _complete(self, numbers: np.ndarray, followers: np.ndarray, action: Any, reward: Any, terminated: Any) -> None:
        """Gives rows the rows that followed, by their numbers, and the steps that led there."""
        slots = self._slots(numbers)
        self.rows[slots, self.obs_width : -1] = action
        self.rows[slots, -1] = reward
        self.terminated[slots] = terminated
        self.successor[slots] = followers % self.replay_size
        if self.predecessor is not None:
            self.predecessor[followers % self.replay_size] = numbers % self.replay_size

    def end(self, env_indices: np.ndarray) -> None:
        """Closes the episode on each of `env_indices`: its current row is the final observation."""
        self.current[env_indices[env_indices < len(self.current)]] = NONE

    def continues(self, env_indices: np.ndarray, observation: Packed) -> np.ndarray:
        """Whether each of `env_indices` has an open episode whose current row is this observation, bool `[n]`."""
        if len(env_indices) == 0 or env_indices[-1] >= len(self.current):
            return np.zeros(len(env_indices), bool)
        rows = self.current[env_indices]
        same = rows >= max(0, self.added - self.replay_size)
        for held, given in zip(self.observation(rows % self.replay_size), observation, strict=True):
            if held.tobytes() != given.tobytes():  # several times as fast as comparing numbers
                same &= (held == given).all(axis=1)
        return same

    def open_episode(self, env_index: int) -> np.ndarray | None:
        """The slots of a lane's open episode, from its first row to its current one, `[steps + 1]`.

        None at all where there is none, or not all of them are held any more: `[0]` and None.
        """
        if env_index >= len(self.current) or self.current[env_index] == NONE:
            return np.empty(0, np.int64)
        if self.episode_start[env_index] < max(0, self.added - self.replay_size):
            return None
        slots = [int(self.episode_start[env_index] % self.replay_size)]
        last = self.current[env_index] % self.replay_size
        while slots[-1] not in (last, NONE):
            slots.append(int(self.successor[slots[-1]]))
        return np.array(slots) if slots[-1] == last else None

    def observation(self, slots: np.ndarray) -> Packed:
        """The packed observations of rows, `[len(slots), ...]`."""
        real = self.rows.take(slots, axis=0)[:, : self.obs_width] if self.obs_width else None
        image = self.images.take(slots, axis=0) if self.images is not None else None
        return tuple(part for part in (real, image) if part is not None)

    def action(self, slots: np.ndarray) -> np.ndarray:
        """The actions of rows, `[len(slots), act_dim]`."""
        return self.rows[slots, self.obs_width : self.obs_width + self.spec.act_dim]

    def clear(self) -> None:
        """Forgets all rows and gives back their memory."""
        if self._allocated:
            del self.rows, self.images, self.terminated, self.successor, self.next_episode, self.predecessor
        self.added = 0
        self._allocated = False
        self.saved_segments = None
        self.current = self.newest = self.episode_start = np.empty(0, np.int64)

    def __repr__(self) -> str:
        held = f"{self.size:,} of {self.replay_size:,} rows"
        states = 4 * self.state_width * self.replay_size
        of_which = f", of which {states / 1e6:,.1f} are states" if states else ""
        return f"<ReplayBuffer: {held}, {self.nbytes / 1e6:,.1f} MB when full{of_which}>"

    def state(self) -> dict[str, Any]:
        """What a later `restore` needs beside the rows, as arrays."""
        positions = {"heads": self.current, "newest": self.newest, "opened": self.episode_start}
        return {"added": np.int64(self.added), "size": np.int64(self.size), **positions}

    def segment(self, first: int, stop: int) -> dict[str, Any]:
        """The rows numbered `first` to `stop` - 1, which are held, as arrays that do not depend on where rows lie.

        They are views of the ring where that is possible. Links are how many rows later the other came; 0 is none.
        """
        self.allocate()
        slots = np.arange(first, stop) % self.replay_size
        place = self._slot_range(first, stop)
        held = {"first": np.int64(first), "state_width": np.int64(self.state_width)}
        held |= {"rows": self.rows[place], "terminated": self.terminated[place]}
        if self.images is not None:
            held["images"] = self.images[place]
        for name, links in zip(LINKS, (self.successor, self.next_episode), strict=True):
            if links is not None:
                after = (links[place] - slots) % self.replay_size
                held[name] = np.where(links[place] == NONE, 0, after).astype(np.int32)
        return held

    def restore(self, state: Mapping[str, Any], segments: Iterable[Mapping[str, Any]]) -> None:
        """Becomes what a ring of the same spec and of any size was when it gave `state`; too many rows: the newest.

        Args:
            state: what `state` gave.
            segments: all of its rows, in segments one after the other; older rows before them are left out.

        Raises:
            ValueError: rows are missing, of another shape, or lead to older ones; or lanes are at none of them.
        """
        added = int(state["added"])
        held = int(state["size"])
        forgotten = added - held if held < self.replay_size else 0  # slots that no row was ever put into come last
        first = added - held - forgotten
        self.added = first
        self.saved_segments = None
        for segment in segments:
            overwritten = max(0, self.added + forgotten - int(segment["first"]))
            self.append({name: values[overwritten:] if np.ndim(values) else values for name, values in segment.items()})
        if self.added - first != held:
            raise ValueError(f"The stored replay must have {held} rows. Received: {self.added - first}")
        heads = state["heads"]
        known = heads, state.get("newest", heads), state.get("opened", np.full_like(heads, NONE))
        self.current, self.newest, self.episode_start = (
            np.where(rows >= forgotten, rows - forgotten, NONE) for rows in known
        )
        check_links(self)

    def append(self, segment: Mapping[str, Any]) -> None:
        """Adds a segment of another ring as the newest rows; rows of the segment before lead to it, lanes do not."""
        self.allocate()
        rows = segment["rows"]
        size = self.replay_size
        if rows.shape[1:] != self.rows.shape[1:] or ("images" in segment) != (self.images is not None):
            raise ValueError(f"The stored replay has rows of shape {rows.shape}; this one takes {self.rows.shape}")
        skipped = max(0, len(rows) - size)
        stop = self.added + len(rows)
        numbers = np.arange(self.added + skipped, stop)
        place = self._slot_range(self.added + skipped, stop)
        self.rows[place] = rows[skipped:]
        self.terminated[place] = segment["terminated"][skipped:]
        if self.images is not None:
            self.images[place] = segment["images"][skipped:]
        for name, links in zip(LINKS, (self.successor, self.next_episode), strict=True):
            if links is not None:
                after = segment[name][skipped:] if name in segment else np.zeros(len(numbers), np.int32)
                links[place] = np.where(after == 0, NONE, (numbers + after) % size)
        if self.predecessor is not None:
            slots = numbers % size
            self.predecessor[slots[self.successor[self.predecessor[place]] != slots]] = NONE
            acted = slots[self.successor[place] != NONE]
            self.predecessor[self.successor[acted]] = acted
        self.added = stop

    def _append(self, observation: Packed) -> np.ndarray:
        """Writes observations as new rows without successor, and returns their numbers."""
        count = len(observation[0])
        if 2 * count > self.replay_size:
            raise ValueError(
                f"`replay_size` must be at least two rows for each of the {count} lanes. "
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
        """Makes what is known of each lane long enough for one."""
        if env_index >= len(self.current):
            more = np.full(env_index + 1 - len(self.current), NONE)
            self.current, self.newest, self.episode_start = (
                np.append(known, more) for known in (self.current, self.newest, self.episode_start)
            )

    def _slots(self, numbers: np.ndarray) -> np.ndarray | slice:
        """Where rows lie; a slice for one row, which NumPy indexes several times as fast."""
        slots = numbers % self.replay_size
        return slots if len(slots) != 1 else slice(slots[0], slots[0] + 1)

    def _slot_range(self, first: int, stop: int) -> np.ndarray | slice:
        """Where the rows numbered `first` to `stop` - 1 lie; a slice where they do one after the other."""
        start = first % self.replay_size
        end = first % self.replay_size + stop - first
        return slice(start, end) if end <= self.replay_size else np.arange(first, stop) % self.replay_size
