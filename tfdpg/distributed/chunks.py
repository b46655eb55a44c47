"""What a rollout worker is asked for, and what it gives. NumPy only."""

from typing import NamedTuple

import numpy as np

from tfdpg.replay import Rows


class Order(NamedTuple):
    """What a worker is to do.

    Attributes:
        steps: environment steps to take.
        random_steps: how many of them, the first, with uniformly random actions.
        noise_factor: the factor of the exploration noise.
        episodes: the episodes that are known to have begun on the lane; a new worker begins the next one.
    """

    steps: int
    random_steps: int
    noise_factor: float
    episodes: int


class Summary(NamedTuple):
    """What happened in a chunk of steps.

    Attributes:
        incarnation: the worker process that took them.
        sequence: the chunks that this process collected before.
        version: the version of the weights that acted.
        ended: for each step whether an episode ended with it, bool `[steps]`.
        returns: of the episodes that ended.
        lengths: of the episodes that ended.
        episodes: the episodes begun on the lane, by all its workers.
    """

    incarnation: int
    sequence: int
    version: int
    ended: np.ndarray
    returns: list[float]
    lengths: list[int]
    episodes: int


class Chunk(NamedTuple):
    """What a worker collected: what happened, and the new rows, each with the step that led to it."""

    summary: Summary
    rows: Rows


class Links:
    """Knows, for each lane, which chunk is to come next."""

    def __init__(self) -> None:
        self._next: dict[int, tuple[int, int]] = {}

    def has(self, lane: int, chunk: Chunk) -> bool:
        """Whether this very chunk was the last one of its lane to arrive."""
        return self._next.get(lane) == (chunk.summary.incarnation, chunk.summary.sequence + 1)

    def follow(self, lane: int, chunk: Chunk) -> tuple[bool, np.ndarray]:
        """Takes note of a chunk that arrived.

        Args:
            lane: its lane.
            chunk: what came.

        Returns:
            Whether it follows the last one of the lane that arrived; and `ended` for those of its steps that can be
            kept: without its predecessor, a chunk's first step has no observation to start from.
        """
        summary = chunk.summary
        goes_on = self._next.get(lane) == (summary.incarnation, summary.sequence)
        self._next[lane] = summary.incarnation, summary.sequence + 1
        is_whole = goes_on or bool(chunk.rows.first[0])
        return goes_on, summary.ended if is_whole else summary.ended[1:]
