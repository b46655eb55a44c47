"""Uniform draws of rows, each minibatch a pure function of (seed, update counter, ring)."""

import numpy as np

from tfdpg.replay.buffer import NONE, ReplayBuffer

EMPTY_REPLAY = "The replay holds no transition yet, to learn from; agent.fit(env) collects and learns."


class UniformSampler:
    """Draws rows uniformly and with replacement (see `uniform_rows`).

    Args:
        buffer: where to draw from.
        seed: the seed of the agent.
        batch_size: rows in a minibatch.
    """

    uses_td_errors: bool = False

    def __init__(self, buffer: ReplayBuffer, seed: int, batch_size: int):
        self.buffer = buffer
        self._seed = seed
        self._batch_size = batch_size

    def updates_due(self, credit: int) -> int:
        """The updates of a learning round: what the schedule says."""
        return credit

    def sample(self, update: int, minibatches: int) -> tuple[np.ndarray, None]:
        """Draws the minibatches of updates `update`, `update` + 1, ...; the weights are all 1, which None says.

        Raises:
            ValueError: no row of the ring has a successor.
        """
        return uniform_rows(self.buffer, self._seed, update, minibatches, self._batch_size), None

    def update_priorities(self, slots: np.ndarray, errors: np.ndarray) -> None:
        """Takes TD errors, which change nothing."""

    def state(self) -> dict[str, np.ndarray]:
        """Nothing: a draw depends on the update counter alone."""
        return {}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Takes what `state` gave."""


def uniform_rows(buffer: ReplayBuffer, seed: int, update: int, minibatches: int, batch_size: int) -> np.ndarray:
    """Draws rows that have a successor, uniformly and with replacement.

    Minibatch `i` depends on (`seed`, `update + i`) and on what the ring holds, not on how many are drawn
    at once: each owns a stretch of one Philox stream. A row without successor is drawn again from the
    stream of the next attempt.

    Args:
        buffer: where to draw from.
        seed: the seed of the agent.
        update: the counter of the first update.
        minibatches: how many to draw.
        batch_size: rows in each.

    Returns:
        Slots in the ring, int64 `[minibatches, batch_size]`.

    Raises:
        ValueError: no row of the ring has a successor.
    """
    slots = np.empty((minibatches, batch_size), np.int64)
    wanted = np.ones(slots.shape, bool)
    attempt = 0
    while wanted.any():
        if buffer.size < 2 or (attempt == 2 and not count_transitions(buffer)):
            raise ValueError(EMPTY_REPLAY)
        words = random_words((seed, attempt), update, slots.shape)
        sampled = ((words >> np.uint64(32)) * np.uint64(buffer.size) >> np.uint64(32)).astype(np.int64)
        slots[wanted] = sampled[wanted]
        wanted = buffer.successor[slots] == NONE
        attempt += 1
    return slots


def count_transitions(buffer: ReplayBuffer) -> int:
    """The number of rows that have a successor."""
    return int(np.count_nonzero(buffer.successor[: buffer.size] != NONE)) if buffer.size else 0


def random_words(key: tuple[int, int], update: int, shape: tuple[int, int]) -> np.ndarray:
    """Random uint64 words, `shape`; row `i` is the stretch of the stream `key` that update + i owns."""
    blocks = -(-shape[1] // 4)  # Philox gives four words a block
    stream = np.random.Philox(key=np.array(key, np.uint64), counter=[update * blocks, 0, 0, 0])
    return stream.random_raw(shape[0] * blocks * 4).reshape(shape[0], -1)[:, : shape[1]]
