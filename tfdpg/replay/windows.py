"""Windows: a fixed number of successive rows of a sub-environment, which may span several episodes."""

from typing import NamedTuple, cast

import numpy as np

from tfdpg.replay.buffer import NONE, ReplayBuffer, group_widths
from tfdpg.replay.sequences import follow_links
from tfdpg.replay.uniform import Sampler, uniform_rows
from tfdpg.spec import Packed, Spec
from tfdpg.streams import Purpose, stream


class WindowSampler(Sampler):
    """A `Sampler` of windows for ACER: first windows of the newest steps, then windows that start at random rows.

    A window is `steps` + 1 successive rows of a sub-environment, and continues with the next episode after the end of
    an episode. The final observation of a truncated episode is part of a window; that of a terminated episode is not,
    because its value is 0.

    Args:
        buffer: a replay buffer with windows.
        seed: seed of the agent.
        batch_size: windows in a minibatch.
        steps: steps in a window.
        newest: whether an update phase begins with windows of all steps since the last phase, each step in one window.
            The last minibatch of them is padded with windows without a step.
        ratio: mean number of minibatches of random windows in an update phase (Poisson distributed), at least 0.
        start: number of rows in the replay buffer from which random windows are used.
    """

    def __init__(
        self, buffer: ReplayBuffer, seed: int, batch_size: int, *, steps: int, newest: bool, ratio: float, start: int
    ):
        super().__init__(buffer, seed, batch_size)
        self._steps = steps
        self._newest = newest
        self._ratio = ratio
        self._start = start
        self._pending = np.empty((0, batch_size), np.int64)
        self._seen = 0  # the number of rows ever stored when the last update phase began

    def updates_due(self, credit: int) -> int:
        """Return the number of updates of an update phase; 0 if `credit` is 0."""
        if credit == 0:
            return 0
        starts = newest_starts(self.buffer, self._steps, self._seen) if self._newest else np.empty(0, np.int64)
        self._seen = self.buffer.added
        minibatches = -(-len(starts) // self.batch_size)
        windows = np.full((minibatches, self.batch_size), NONE)
        windows.flat[: len(starts)] = starts
        if self._pending.shape[1] != self.batch_size:  # it changes only between two training runs
            self._pending = np.empty((0, self.batch_size), np.int64)
        self._pending = np.concatenate([self._pending, windows])  # the last ones may not be sampled yet
        if self.buffer.size < self._start:
            return minibatches
        random = np.random.default_rng(stream(Purpose.UPDATE_PHASES, self.seed, self.buffer.added))
        return minibatches + int(random.poisson(self._ratio))

    def sample(self, update: int, minibatches: int) -> tuple[np.ndarray, None]:
        """Sample windows.

        Returns:
            Slots, int64 `[minibatches, batch_size, steps + 1]`, -1 in windows without a step; and None, which stands
            for weights of 1.

        Raises:
            ValueError: The replay buffer holds no transition.
        """
        with self.buffer.lock:
            newest = self._pending[:minibatches]
            self._pending = self._pending[minibatches:]
            others = minibatches - len(newest)
            sampled = uniform_rows(self.buffer, self.seed, update + len(newest), others, self.batch_size)
            starts = np.concatenate([newest, sampled]) if len(newest) else sampled
            return window_rows(self.buffer, starts, self._steps), None

    def state(self) -> dict[str, np.ndarray]:
        """Return the number of rows before the last update phase; random samples depend only on the update counter."""
        return {"windows_seen": np.array(self._seen)}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restore the result of `state`, merged with the state of the replay buffer."""
        self._seen = self.buffer.added - int(state["added"] - state["windows_seen"])


def window_rows(buffer: ReplayBuffer, starts: np.ndarray, steps: int) -> np.ndarray:
    """Return the slots of windows, `[..., steps + 1]`; the newest row of a sub-environment is repeated as padding.

    Args:
        buffer: a replay buffer with windows.
        starts: slots of the first rows, `[...]`; -1 for a window without a step.
        steps: steps in a window.
    """
    return follow_links(lambda rows: next_rows(buffer, rows), starts, steps)


def next_rows(buffer: ReplayBuffer, rows: np.ndarray) -> np.ndarray:
    """Return the slots of the next rows of the same sub-environments, -1 if there is none yet."""
    successor = buffer.successor[rows]
    next_episode = cast(np.ndarray, buffer.next_episode)
    follower = np.where(successor == NONE, next_episode[rows], successor)
    after_end = next_episode[successor]
    skips = buffer.terminated[rows] & (successor != NONE) & (after_end != NONE)
    return np.where(skips, after_end, follower)


def newest_starts(buffer: ReplayBuffer, steps: int, seen: int) -> np.ndarray:
    """Return the first rows of windows that contain each new step exactly once.

    A sub-environment with at most `steps` new steps has one window, or two if final observations of truncated episodes
    are between the steps.

    Args:
        buffer: a replay buffer with windows.
        steps: steps in a window.
        seen: number of rows ever stored before; steps that led to later rows are new.

    Returns:
        Slots, `[n]`, in the order of the sub-environments.
    """
    newest_rows = buffer.newest[buffer.newest >= 0]
    recent = np.arange(max(0, seen - 4 * len(newest_rows), buffer.added - buffer.replay_size), buffer.added)
    slots = recent % buffer.replay_size
    successor = buffer.successor[slots]
    follower = next_rows(buffer, slots)
    led_to = recent[-1:] - (recent[-1:] - successor) % buffer.replay_size  # row numbers of the successors
    is_new = (successor != NONE) & (led_to >= seen)
    is_old = (successor != NONE) & (led_to < seen)
    place = (follower - recent[:1]) % buffer.replay_size  # index of the next row in `recent`
    previous = np.arange(len(recent))
    for acted in (False, True):  # a terminating step precedes the next episode; its final observation is skipped
        known = (follower != NONE) & ((successor != NONE) == acted)
        previous[place[known]] = np.flatnonzero(known)
    starts: list[int] = []
    for newest in newest_rows[newest_rows >= recent[:1]] - recent[:1]:
        rows = [int(newest)]
        while previous[rows[-1]] != rows[-1] and not is_old[previous[rows[-1]]]:
            rows.append(int(previous[rows[-1]]))
        first = max((n for n, row in enumerate(rows) if is_new[row]), default=-1)
        rows = rows[first::-1] if first >= 0 else []
        starts += [rows[n] for n in range(0, len(rows), steps) if is_new[rows[n : n + steps]].any()]
    return slots[np.array(starts, np.int64)]


class WindowLayout(NamedTuple):
    """The columns of packed windows: observation, stored step, reward, discount, and 1 if the row has a step."""

    observation: slice
    step: slice
    reward: int
    discount: int
    acted: int
    width: int

    @classmethod
    def of(cls, spec: Spec, step_width: int) -> "WindowLayout":
        """Return the layout for the observations of `spec` and stored steps with `step_width` columns."""
        obs, _ = group_widths(spec)
        after = obs + step_width
        return cls(slice(0, obs), slice(obs, after), after, after + 1, after + 2, after + 3)


def gather_windows(buffer: ReplayBuffer, rows: np.ndarray, gamma: float, weights: np.ndarray | None = None) -> Packed:
    """Pack windows.

    Args:
        buffer: a replay buffer with windows.
        rows: slots of the windows, `[..., steps + 1]`, -1 in windows without a step.
        gamma: discount factor of one step.
        weights: not used; all windows have the same weight.

    Returns:
        Float32 `[..., steps + 1, width]` (see `WindowLayout`; a row without a step has a step of ones and reward 0)
        and, with images, uint8 `[..., steps + 1, image_width]`.
    """
    layout = WindowLayout.of(buffer.spec, buffer.step_width)
    acted = (buffer.successor[rows] != NONE) & (rows != NONE)
    rows = np.where(rows == NONE, (buffer.added - 1) % buffer.replay_size, rows)  # any row with an observation
    acted[..., -1] = False  # the last row has no step in this window
    packed = np.empty((*rows.shape, layout.width), np.float32)
    packed[..., : layout.discount] = buffer.rows.take(rows, axis=0)
    packed[..., layout.step][~acted] = 1.0  # undefined values, which may be NaN
    packed[..., layout.reward][~acted] = 0.0
    packed[..., layout.discount] = np.where(buffer.terminated[rows], 0.0, gamma)
    packed[..., layout.acted] = acted
    return (packed,) if buffer.images is None else (packed, buffer.images.take(rows, axis=0))
