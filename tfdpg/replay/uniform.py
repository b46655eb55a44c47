"""Uniform sampling; a minibatch depends only on the seed, the update counter and the rows held."""

import functools

import numpy as np

from tfdpg.replay.buffer import EMPTY_REPLAY, NONE, ReplayBuffer

AHEAD = 32
"""Random words of small minibatches are generated for so many updates at once: a call takes longer than the words."""
WIDEST = 1024
"""The largest minibatch to which this applies. Of larger ones, the words take longer, and need memory."""
HALF = np.uint64(32)
"""Half the number of bits of a random word."""


class Sampler:
    """Selects rows of a replay buffer for minibatches. By default, it ignores TD errors and has no state.

    Args:
        buffer: the replay buffer.
        seed: seed of the agent.
        batch_size: rows in a minibatch.

    Attributes:
        seed: as given.
        batch_size: as given. It may change between two calls of `sample`.
        uses_td_errors: whether `update_priorities` uses the TD errors of selected rows.
        normalize_weights: whether weights are divided by the largest one of their minibatch.
    """

    uses_td_errors: bool = False
    normalize_weights: bool = False

    def __init__(self, buffer: ReplayBuffer, seed: int, batch_size: int):
        self.buffer = buffer
        self.seed = seed
        self.batch_size = batch_size

    def updates_due(self, credit: int) -> int:
        """Return the number of updates of an update phase, given that of the schedule, which it is by default."""
        return credit

    def sample(self, update: int, minibatches: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Select the slots for the updates `update`, `update` + 1, ..., with weights in the critic's loss (None for 1).

        Raises:
            ValueError: The replay buffer holds no transition.
        """
        raise NotImplementedError

    def update_priorities(self, slots: np.ndarray, errors: np.ndarray) -> None:
        """Receive the TD errors of selected rows, if `uses_td_errors` is set."""

    def state(self) -> dict[str, np.ndarray]:
        """Return the state as arrays; none if samples depend only on the update counter."""
        return {}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restore the result of `state`, merged with the state of the replay buffer, which was restored before."""


class UniformSampler(Sampler):
    """Sample rows uniformly and with replacement (see `uniform_rows`)."""

    def sample(self, update: int, minibatches: int) -> tuple[np.ndarray, None]:
        """Sample minibatches; weights are None, which stands for 1."""
        with self.buffer.lock:
            return uniform_rows(self.buffer, self.seed, update, minibatches, self.batch_size), None


def uniform_rows(buffer: ReplayBuffer, seed: int, update: int, minibatches: int, batch_size: int) -> np.ndarray:
    """Sample rows that have a successor, uniformly and with replacement.

    Minibatch `i` depends on `seed`, `update + i` and the rows held, and not on the number of minibatches sampled in one
    call: each uses its own part of a Philox stream. A row without successor is replaced with the stream of the next
    attempt.

    Args:
        buffer: the replay buffer.
        seed: seed of the agent.
        update: counter of the first update.
        minibatches: number of minibatches.
        batch_size: rows in a minibatch.

    Returns:
        Slots, int64 `[minibatches, batch_size]`.

    Raises:
        ValueError: The replay buffer holds no transition.
    """

    def sampled(attempt: int) -> np.ndarray:
        if buffer.size < 2 or (attempt == 2 and not len(buffer)):
            raise ValueError(EMPTY_REPLAY)
        words = random_words((seed, attempt), update, (minibatches, batch_size))
        return ((words >> HALF) * np.uint64(buffer.size) >> HALF).astype(np.int64)

    if not minibatches:
        return np.empty((0, batch_size), np.int64)
    slots = sampled(0)
    attempt = 0
    while (wanted := buffer.successor[slots] == NONE).any():
        attempt += 1
        slots[wanted] = sampled(attempt)[wanted]
    return slots


def random_words(key: tuple[int, int], update: int, shape: tuple[int, int]) -> np.ndarray:
    """Return random uint64 words of shape `shape`; row `i` is the part of the stream `key` that update + i uses."""
    rows, width = shape
    if rows >= AHEAD or width > WIDEST:
        return _words(key, update, rows, width)
    first, last = (at // AHEAD * AHEAD for at in (update, update + rows - 1))
    parts = [_words_ahead(key, start, width) for start in range(first, last + 1, AHEAD)]
    return (parts[0] if len(parts) == 1 else np.concatenate(parts))[update - first : update - first + rows]


@functools.lru_cache(maxsize=8)
def _words_ahead(key: tuple[int, int], update: int, width: int) -> np.ndarray:
    words = _words(key, update, AHEAD, width)
    words.flags.writeable = False
    return words


def _words(key: tuple[int, int], update: int, rows: int, width: int) -> np.ndarray:
    blocks = -(-width // 4)  # Philox generates four words per block
    stream = np.random.Philox(key=np.array(key, np.uint64), counter=[update * blocks, 0, 0, 0])
    return stream.random_raw(rows * blocks * 4).reshape(rows, -1)[:, :width]
