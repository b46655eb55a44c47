"""Streams of random numbers, with a key for each purpose, so that no two purposes share a stream. NumPy only.

NumPy pads short keys with zeros: `SeedSequence([s, 0])` and `SeedSequence([s, 0, 0, 0])` are the same stream. The
purpose is therefore a spawn key, which is mixed in after the padding.
"""

import enum

import numpy as np


class Purpose(enum.IntEnum):
    """The purpose of a stream. `reset_seed` uses the keys without a purpose."""

    ACTING = 1
    EVALUATION = 2
    WORKERS = 3
    NETWORKS = 4
    LAYERS = 5
    BRANCHES = 6
    DUELING = 7
    UPDATE_PHASES = 8
    RECURRENT = 9


def stream(purpose: Purpose, seed: int, *key: int) -> np.random.SeedSequence:
    """Return the stream for a purpose, a seed and further keys."""
    return np.random.SeedSequence(seed, spawn_key=(purpose, *key))


def seeds(purpose: Purpose, seed: int, *key: int, count: int = 1) -> list[int]:
    """Return seeds below 2^32 from a stream."""
    return stream(purpose, seed, *key).generate_state(count).tolist()
