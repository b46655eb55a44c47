"""Streams of random numbers: a key for each purpose, so that no two of them are the same. NumPy only.

NumPy fills short keys up with zeros: those of `SeedSequence([s, 0])` and `SeedSequence([s, 0, 0, 0])` are one stream. A
purpose is a spawn key, which is mixed in after the zeros.
"""

import enum

import numpy as np


class Purpose(enum.IntEnum):
    """What a stream is for; `reset_seed` has the keys without a purpose."""

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
    """The stream for a purpose, a seed and whatever else it depends on."""
    return np.random.SeedSequence(seed, spawn_key=(purpose, *key))


def seeds(purpose: Purpose, seed: int, *key: int, count: int = 1) -> list[int]:
    """Seeds below 2^32 from a stream."""
    return stream(purpose, seed, *key).generate_state(count).tolist()
