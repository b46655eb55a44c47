"""Uniform draws of rows, each minibatch a pure function of (seed, update counter, ring)."""

import numpy as np

from tfdpg.replay.ring import NONE, Ring


def uniform_rows(ring: Ring, seed: int, update: int, minibatches: int, batch_size: int) -> np.ndarray:
    """Draws rows that have a successor, uniformly and with replacement.

    Minibatch `i` depends on (`seed`, `update + i`) and on what the ring holds, not on how many are drawn
    at once: each owns a stretch of one Philox stream. A row without successor is drawn again from the
    stream of the next attempt.

    Args:
        ring: where to draw from.
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
        if ring.size < 2 or (attempt == 2 and not (ring.successor[: ring.size] != NONE).any()):
            raise ValueError("The replay holds no transition yet, so nothing can be drawn from it.")
        drawn = _uniform_integers(ring.size, (seed, attempt), update, slots.shape)
        slots[wanted] = drawn[wanted]
        wanted = ring.successor[slots] == NONE
        attempt += 1
    return slots


def _uniform_integers(high: int, key: tuple[int, int], update: int, shape: tuple[int, int]) -> np.ndarray:
    """Integers in [0, high), `shape`; row `i` is the stretch of the stream `key` that update + i owns."""
    blocks = -(-shape[1] // 4)  # Philox gives four words a block
    stream = np.random.Philox(key=np.array(key, np.uint64), counter=[update * blocks, 0, 0, 0])
    words = stream.random_raw(shape[0] * blocks * 4).reshape(shape[0], -1)[:, : shape[1]]
    return ((words >> np.uint64(32)) * np.uint64(high) >> np.uint64(32)).astype(np.int64)
