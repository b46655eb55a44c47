"""One global ring of rows, linked by a `successor` index.

A row is an observation and, once it has acted, its action, reward and end. The next observation of a row is
its successor's: nothing is stored twice. The observation that ends an episode is a row of its own, without
successor; it says with which row its lane went on. A lane (one environment) is nothing but its current row, so
lanes may come, go and run at unequal speed. Overwriting the oldest row is safe, since a successor is always newer than
its row.
"""

from pathlib import Path
from typing import Any

import numpy as np

from tfdpg.arguments import positive_int
from tfdpg.replay.memory import check_room, take
from tfdpg.replay.rows import Rows
from tfdpg.spec import Packed, Spec

NONE = -1
"""No successor yet; a lane without an open episode."""


class Ring:
    """A replay of at most `replay_size` rows.

    Args:
        spec: the spaces; they fix the width of a row.
        replay_size: the number of rows, an observation each.
        directory: where to put rows and images in memory-mapped files, which vanish with the ring; None keeps
            them in memory.
        step_width: the numbers that are stored with a step, the action first; None is the action alone.
        has_windows: whether the last rows of episodes say with which rows their lanes went on.
        walks_back: whether rows know which row came before them; what is stored behind the action is then the state
            that the policy was in, which is 0 at an episode's start.

    Attributes:
        rows: for each row the real part of the observation, the action (and what belongs to it) and the reward,
            float32 `[replay_size, width + step_width + 1]`.
        images: the uint8 parts of the observations, `[replay_size, image_width]`, or None.
        terminated: whether the row's transition ended in a terminal state, bool `[replay_size]`.
        successor: the row that followed, int32 `[replay_size]`; -1 where none did yet.
        onward: the first row of the lane's next episode, where an episode ended, int32 `[replay_size]`; else -1. None
            without `has_windows`.
        predecessor: the row before in the episode, int32 `[replay_size]`; -1 where there was none. One that has been
            overwritten is another's by now: it counts only if it is its successor. None without `walks_back`.
        added: the number of rows ever added.
        current: for each lane the number (counted from the first row ever) of the row that has not acted yet, or -1.
        newest: for each lane the number of its newest row, or -1.
    """

    def __init__(
        self,
        spec: Spec,
        replay_size: int,
        directory: str | Path | None = None,
        step_width: int | None = None,
        has_windows: bool = False,
        walks_back: bool = False,
    ):
        self.has_windows, self.walks_back = has_windows, walks_back
        self.step_width = spec.act_dim if step_width is None else step_width
        self.spec, self._directory = spec, None if directory is None else Path(directory)
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
        self.current = self.newest = np.empty(0, np.int64)
        self._allocated = False

    @property
    def size(self) -> int:
        """The number of rows held, at most `replay_size`."""
        return min(self.added, self.replay_size)

    @property
    def state_width(self) -> int:
        """The numbers of a policy's state that are stored behind the action."""
        return self.step_width - self.spec.act_dim if self.walks_back else 0

    @property
    def nbytes(self) -> int:
        """The bytes that a full ring takes, in memory and files."""
        links = 1 + self.has_windows + self.walks_back
        return (4 * (self.obs_width + self.step_width + 1 + links) + self.image_width + 1) * self.replay_size

    def allocate(self) -> None:
        """Takes the memory, or the files; does nothing the second time.

        Raises:
            ValueError: the ring needs more memory than the process may still take, or more than its disk has free.
            OSError: the directory cannot be written to.
        """
        if self._allocated:
            return
        check_room(self.nbytes, self._directory, f"replay_size={self.replay_size}")
        size = self.replay_size
        self.rows = take((size, self.obs_width + self.step_width + 1), np.float32, self._directory)
        self.images = take((size, self.image_width), np.uint8, self._directory) if self.image_width else None
        self.terminated = np.zeros(size, np.bool_)
        self.successor = np.full(size, NONE, np.int32)
        self.onward = np.full(size, NONE, np.int32) if self.has_windows else None
        self.predecessor = np.full(size, NONE, np.int32) if self.walks_back else None
        self._allocated = True

    def begin(self, lanes: np.ndarray, observation: Packed) -> None:
        """Opens an episode on each of `lanes` with its first observation, packed `[len(lanes), ...]`."""
        self.allocate()
        if len(lanes):
            self._make_room(lanes.max())
        new = self._append(observation)
        self._go_on(self.newest[lanes], new)
        self.current[lanes] = self.newest[lanes] = new

    def add(
        self,
        lanes: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        next_observation: Packed,
    ) -> None:
        """Completes the current row of each lane, and makes its next observation the current one.

        Args:
            lanes: the lanes that took a step, `[n]`, each with an open episode.
            action: `[n, step_width]`.
            reward: `[n]`.
            terminated: `[n]`, bool.
            next_observation: packed, `[n, ...]`; an episode's final observation at its end.
        """
        new = self._append(next_observation)
        rows = self.current[lanes]
        kept = rows >= self.added - self.replay_size  # a lane may be so slow that its row was overwritten
        if not kept.all():
            rows, action, reward, terminated, followers = (
                values[kept] for values in (rows, action, reward, terminated, new)
            )
        else:
            followers = new
        self._complete(rows, followers, action, reward, terminated)
        self.current[lanes] = self.newest[lanes] = new

    def extend(self, lane: int, rows: Rows) -> None:
        """Adds successive rows of a lane, as `begin` and `add` would one by one.

        The first of them follows the lane's current row, unless it opens an episode; where the lane has none, the step
        that led to it is not kept.
        """
        self.allocate()
        self._make_room(lane)
        most = self.replay_size // 2  # so that no row overwrites its predecessor
        for start in range(0, len(rows.first), most):
            self._extend(lane, rows.part(slice(start, start + most)))

    def _extend(self, lane: int, rows: Rows) -> None:
        current = self.current[lane]
        numbers, opens = self._append(rows.observation), np.flatnonzero(rows.first)
        if not rows.first[0] and current != NONE and current >= self.added - self.replay_size:
            self._complete(np.array([current]), numbers[:1], *(values[:1] for values in rows[1:4]))
        self._go_on(np.append(self.newest[lane], numbers[:-1])[opens], numbers[opens])
        follows = np.flatnonzero(~rows.first[1:]) + 1
        self._complete(numbers[follows - 1], numbers[follows], *(values[follows] for values in rows[1:4]))
        self.current[lane] = self.newest[lane] = numbers[-1]

    def _go_on(self, numbers: np.ndarray, followers: np.ndarray) -> None:
        """Says of the last rows of episodes, by their numbers (-1 is none), with which rows their lanes went on."""
        if self.onward is None:
            return
        held = numbers >= max(0, self.added - self.replay_size)
        self.onward[numbers[held] % self.replay_size] = followers[held] % self.replay_size

    def _complete(self, numbers: np.ndarray, followers: np.ndarray, action: Any, reward: Any, terminated: Any) -> None:
        """Gives rows the rows that followed, by their numbers, and the steps that led there."""
        slots = self._slots(numbers)
        self.rows[slots, self.obs_width : -1] = action
        self.rows[slots, -1] = reward
        self.terminated[slots] = terminated
        self.successor[slots] = followers % self.replay_size
        if self.predecessor is not None:
            self.predecessor[followers % self.replay_size] = numbers % self.replay_size

    def end(self, lanes: np.ndarray) -> None:
        """Closes the episode on each of `lanes`: its current row is the final observation."""
        self.current[lanes[lanes < len(self.current)]] = NONE

    def continues(self, lanes: np.ndarray, observation: Packed) -> np.ndarray:
        """Whether each of `lanes` has an open episode whose current row is this observation, bool `[len(lanes)]`."""
        if len(lanes) == 0 or lanes[-1] >= len(self.current):
            return np.zeros(len(lanes), bool)
        rows = self.current[lanes]
        same = rows >= max(0, self.added - self.replay_size)
        for held, given in zip(self.observation(rows % self.replay_size), observation, strict=True):
            if held.tobytes() != given.tobytes():  # several times as fast as comparing numbers
                same &= (held == given).all(axis=1)
        return same

    def observation(self, slots: np.ndarray) -> Packed:
        """The packed observations of rows, `[len(slots), ...]`."""
        real = self.rows.take(slots, axis=0)[:, : self.obs_width] if self.obs_width else None
        image = self.images.take(slots, axis=0) if self.images is not None else None
        return tuple(part for part in (real, image) if part is not None)

    def clear(self) -> None:
        """Forgets all rows and gives back their memory."""
        if self._allocated:
            del self.rows, self.images, self.terminated, self.successor, self.onward, self.predecessor
        self.added, self._allocated = 0, False
        self.current = self.newest = np.empty(0, np.int64)

    def __repr__(self) -> str:
        held = f"{self.size:,} of {self.replay_size:,} rows"
        states = 4 * self.state_width * self.replay_size
        of_which = f", of which {states / 1e6:,.1f} are states" if states else ""
        return f"<Ring: {held}, {self.nbytes / 1e6:,.1f} MB when full{of_which}>"

    def state(self) -> dict[str, Any]:
        """All that a later `restore` needs, as arrays; only rows that are held."""
        self.allocate()
        held = slice(0, self.size)
        state = {"added": np.int64(self.added), "heads": self.current, "newest": self.newest, "rows": self.rows[held]}
        state["state_width"] = np.int64(self.state_width)
        names = ("terminated", "successor", "onward", "images")
        return state | {name: getattr(self, name)[held] for name in names if getattr(self, name) is not None}

    def restore(self, state: dict[str, Any]) -> None:
        """Becomes what a ring of the same spec and of any size was when it gave `state`; too many rows: the newest."""
        held, added = len(state["rows"]), int(state["added"])
        self.added = added - min(held, self.replay_size)
        forgotten = self.added if held < self.replay_size else 0  # slots that no row was ever put into come last
        self.added -= forgotten
        self.append(state)
        self.current, self.newest = (
            np.where(rows >= forgotten, rows - forgotten, NONE)
            for rows in (state["heads"], state.get("newest", state["heads"]))
        )

    def append(self, state: dict[str, Any]) -> None:
        """Adds the rows of another ring's `state` as the newest; none of its episodes goes on."""
        self.allocate()
        held, size = len(state["rows"]), self.replay_size
        if state["rows"].shape[1:] != self.rows.shape[1:] or ("images" in state) != (self.images is not None):
            raise ValueError(
                f"The stored replay has rows of shape {state['rows'].shape}; this one takes {self.rows.shape}"
            )
        if held == 0:
            return
        kept = min(held, size)
        by_age = np.arange(int(state["added"]) - held, int(state["added"])) % held
        age = np.empty(held, np.int64)
        age[by_age] = np.arange(held)
        by_age = by_age[held - kept :]
        first = self.added - (held - kept)  # the number that the oldest row, kept or not, would have
        slots = np.arange(self.added, self.added + kept) % size
        self.rows[slots], self.terminated[slots] = state["rows"][by_age], state["terminated"][by_age]
        for links, stored in ((self.successor, state["successor"]), (self.onward, state.get("onward"))):
            if links is not None:
                follower = np.full(kept, NONE) if stored is None else stored[by_age]
                links[slots] = np.where(follower == NONE, NONE, (first + age[follower]) % size)
        if self.predecessor is not None:
            self.predecessor[slots] = NONE
            acted = slots[self.successor[slots] != NONE]
            self.predecessor[self.successor[acted]] = acted
        if self.images is not None:
            self.images[slots] = state["images"][by_age]
        self.added += kept

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
        for links in (self.successor, self.onward, self.predecessor):
            if links is not None:
                links[slots] = NONE
        self.added += count
        return numbers

    def _make_room(self, lane: int) -> None:
        """Makes `current` and `newest` long enough for a lane."""
        if lane >= len(self.current):
            more = np.full(lane + 1 - len(self.current), NONE)
            self.current, self.newest = np.append(self.current, more), np.append(self.newest, more)

    def _slots(self, numbers: np.ndarray) -> np.ndarray | slice:
        """Where rows lie; a slice for one row, which NumPy indexes several times as fast."""
        slots = numbers % self.replay_size
        return slots if len(slots) != 1 else slice(slots[0], slots[0] + 1)
