"""Windows: successive steps of a lane, as many in each, over the ends of episodes."""

from typing import NamedTuple, cast

import numpy as np

from tfdpg.replay.buffer import NONE, ReplayBuffer
from tfdpg.replay.sequences import follow_links
from tfdpg.replay.uniform import uniform_rows
from tfdpg.spec import Packed, Spec
from tfdpg.streams import Purpose, stream


class WindowSampler:
    """A round of windows: those of the newest steps, then ones that begin anywhere; a `Sampler`.

    A window is `steps` + 1 rows of a lane as they came, those of the next episode after an episode's end. The last
    observation of an episode that was cut is among them; that of one which terminated is not, having no value.

    Args:
        buffer: where to draw from; it has windows.
        seed: the seed of the agent.
        batch_size: windows in a minibatch.
        steps: steps in a window.
        newest: whether a round begins with windows of the steps since the last round, each of which is in one of them;
            they take as few minibatches as hold them, the last one filled up with windows without a step.
        ratio: the mean number of minibatches of a round (Poisson) whose windows begin anywhere, at least 0.
        start: the rows held before there are any of these.
    """

    uses_td_errors: bool = False

    def __init__(
        self, buffer: ReplayBuffer, seed: int, batch_size: int, *, steps: int, newest: bool, ratio: float, start: int
    ):
        self.buffer = buffer
        self._seed = seed
        self._batch_size = batch_size
        self._steps = steps
        self._newest = newest
        self._ratio = ratio
        self._start = start
        self._pending = np.empty((0, batch_size), np.int64)
        self._seen = 0  # the rows that were ever added when the last round began

    def updates_due(self, credit: int) -> int:
        """The updates of the round that `credit` steps have filled."""
        if credit == 0:
            return 0
        starts = newest_starts(self.buffer, self._steps, self._seen) if self._newest else np.empty(0, np.int64)
        self._seen = self.buffer.added
        minibatches = -(-len(starts) // self._batch_size)
        self._pending = np.full((minibatches, self._batch_size), NONE)
        self._pending.flat[: len(starts)] = starts
        if self.buffer.size < self._start:
            return minibatches
        random = np.random.default_rng(stream(Purpose.UPDATE_PHASES, self._seed, self.buffer.added))
        return minibatches + int(random.poisson(self._ratio))

    def sample(self, update: int, minibatches: int) -> tuple[np.ndarray, None]:
        """Rows `[minibatches, batch_size, steps + 1]`, -1 in windows without a step; the weights are all 1.

        Raises:
            ValueError: no row of the ring has a successor.
        """
        newest = self._pending[:minibatches]
        self._pending = self._pending[minibatches:]
        others = minibatches - len(newest)
        sampled = uniform_rows(self.buffer, self._seed, update + len(newest), others, self._batch_size)
        return window_rows(self.buffer, np.concatenate([newest, sampled]), self._steps), None

    def update_priorities(self, slots: np.ndarray, errors: np.ndarray) -> None:
        """Takes TD errors, which change nothing."""

    def state(self) -> dict[str, np.ndarray]:
        """Which rows the last round has seen; a draw depends on the update counter alone."""
        return {"windows_seen": np.array(self._seen)}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Takes what `state` gave, beside the ring's own."""
        self._seen = self.buffer.added - int(state["added"] - state["windows_seen"])


def window_rows(buffer: ReplayBuffer, starts: np.ndarray, steps: int) -> np.ndarray:
    """The rows of windows, `[..., steps + 1]`; a lane's newest row is repeated up to the end.

    Args:
        buffer: the replay.
        starts: their first rows, `[...]`; -1 is a window without any.
        steps: steps in a window.
    """
    return follow_links(lambda rows: next_rows(buffer, rows), starts, steps)


def next_rows(buffer: ReplayBuffer, rows: np.ndarray) -> np.ndarray:
    """The rows that lanes had after these, -1 where none did yet."""
    successor = buffer.successor[rows]
    next_episode = cast(np.ndarray, buffer.next_episode)
    follower = np.where(successor == NONE, next_episode[rows], successor)
    after_end = next_episode[successor]
    skips = buffer.terminated[rows] & (successor != NONE) & (after_end != NONE)
    return np.where(skips, after_end, follower)


def newest_starts(buffer: ReplayBuffer, steps: int, seen: int) -> np.ndarray:
    """Where windows begin that together have every step which followed the first `seen` rows ever, each once.

    A lane has one, and another where the last observations of cut episodes take places in it.

    Args:
        buffer: the replay.
        steps: steps in a window.
        seen: the rows that were there before; the steps that led to later ones are new.

    Returns:
        Slots, `[n]`, lane by lane.
    """
    newest_rows = buffer.newest[buffer.newest >= 0]
    recent = np.arange(max(0, seen - 4 * len(newest_rows), buffer.added - buffer.replay_size), buffer.added)
    slots = recent % buffer.replay_size
    successor = buffer.successor[slots]
    follower = next_rows(buffer, slots)
    led_to = recent[-1:] - (recent[-1:] - successor) % buffer.replay_size  # the number of the successor
    is_new, is_old = ((successor != NONE) & known for known in (led_to >= seen, led_to < seen))
    place = (follower - recent[:1]) % buffer.replay_size  # of a slot among the recent ones
    previous = np.arange(len(recent))
    for acted in (False, True):  # a step that terminated goes before the observation that it led to
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
    """The columns of packed windows: observation, what was stored with the step, reward, discount, whether it acted."""

    observation: slice
    step: slice
    reward: int
    discount: int
    acted: int
    width: int

    @classmethod
    def of(cls, spec: Spec, step_width: int) -> "WindowLayout":
        """The layout for the observations of `spec`, and steps of so many numbers."""
        obs = dict(zip(spec.groups, spec.widths, strict=True)).get("float32", 0)
        after = obs + step_width
        return cls(slice(0, obs), slice(obs, after), after, after + 1, after + 2, after + 3)


def gather_windows(buffer: ReplayBuffer, rows: np.ndarray, gamma: float, weights: np.ndarray | None = None) -> Packed:
    """Packed windows.

    Args:
        buffer: the replay.
        rows: their rows, `[..., steps + 1]`, -1 in windows without a step.
        gamma: the discount factor.
        weights: None: all count alike.

    Returns:
        `[..., steps + 1, width]` float32 (see `WindowLayout`; where a row did not act, its step is all ones and its
        reward 0) and, if there are images, `[..., steps + 1, image_width]` uint8.
    """
    layout = WindowLayout.of(buffer.spec, buffer.step_width)
    acted = (buffer.successor[rows] != NONE) & (rows != NONE)
    rows = np.where(rows == NONE, (buffer.added - 1) % buffer.replay_size, rows)  # a row that holds an observation
    acted[..., -1] = False  # nothing follows it here
    packed = np.empty((*rows.shape, layout.width), np.float32)
    packed[..., : layout.discount] = buffer.rows.take(rows, axis=0)
    packed[..., layout.step][~acted] = 1.0  # what is stored there is of no meaning, and need not be a number
    packed[..., layout.reward][~acted] = 0.0
    packed[..., layout.discount] = np.where(buffer.terminated[rows], 0.0, gamma)
    packed[..., layout.acted] = acted
    return (packed,) if buffer.images is None else (packed, buffer.images.take(rows, axis=0))
