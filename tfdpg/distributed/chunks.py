"""What a rollout worker is asked for, and what it gives. NumPy only."""

from typing import NamedTuple

import numpy as np

from tfdpg.replay import TimeSteps


class RolloutRequest(NamedTuple):
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
        process_id: the worker process that took them.
        chunk_index: the chunks that this process collected before.
        version: the version of the weights that acted.
        ended: for each step whether an episode ended with it, bool `[steps]`.
        returns: of the episodes that ended.
        lengths: of the episodes that ended.
        terminated: for each episode that ended whether its last state was terminal.
        truncated: for each episode that ended whether it was truncated.
        episodes: the episodes begun on the lane, by all its workers.
    """

    process_id: int
    chunk_index: int
    version: int
    ended: np.ndarray
    returns: list[float]
    lengths: list[int]
    terminated: list[bool]
    truncated: list[bool]
    episodes: int


class Chunk(NamedTuple):
    """What a worker collected: what happened, and the new rows, each with the step that led to it."""

    summary: Summary
    rows: TimeSteps


class ChunkSequence:
    """Knows, for each lane, which chunk is to come next."""

    def __init__(self) -> None:
        self._next: dict[int, tuple[int, int]] = {}

    def is_latest(self, env_index: int, chunk: Chunk) -> bool:
        """Whether this very chunk was the last one of its lane to arrive."""
        return self._next.get(env_index) == (chunk.summary.process_id, chunk.summary.chunk_index + 1)

    def advance(self, env_index: int, chunk: Chunk) -> tuple[bool, np.ndarray]:
        """Takes note of a chunk that arrived.

        Args:
            env_index: its lane.
            chunk: what came.

        Returns:
            Whether it follows the last one of the lane that arrived; and `ended` for those of its steps that can be
            kept: without its predecessor, a chunk's first step has no observation to start from.
        """
        summary = chunk.summary
        is_next = self._next.get(env_index) == (summary.process_id, summary.chunk_index)
        self._next[env_index] = summary.process_id, summary.chunk_index + 1
        keeps_first_step = is_next or bool(chunk.rows.is_first[0])
        return is_next, summary.ended if keeps_first_step else summary.ended[1:]
