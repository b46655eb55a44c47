"""A shard of the replay buffer in its own process. NumPy only."""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tfdpg.acting import RunningStatistics
from tfdpg.distributed.worker import ChunkSequence, Summary
from tfdpg.replay import MakeMinibatchBuilder, ReplayBuffer, TimeSteps, return_range
from tfdpg.replay.segments import as_one_segment, drop_outgoing_links
from tfdpg.spec import Packed, Spec


class SampledBlock(NamedTuple):
    """A block of minibatches.

    Attributes:
        packed: the minibatches, each array `[count, batch, width]`.
        row_numbers: the numbers of the sampled rows in the order of their storage, for `update_priorities`.
        observation_statistics: the statistics of the observations that this process stored; None if the shard does not
            track them.
    """

    packed: Packed
    row_numbers: np.ndarray
    observation_statistics: dict[str, np.ndarray] | None


class ReplayShard:
    """Stores the chunks of some workers, and samples minibatches from them.

    Args:
        spec: the agent's spaces.
        buffer: the other arguments of `ReplayBuffer`.
        make_minibatch_builder: makes the agent's minibatch builder for a replay buffer.
        tracks_observations: whether to keep statistics of the observations.

    Attributes:
        minibatch_builder: builds the minibatches of the shard.
    """

    def __init__(
        self,
        spec: Spec,
        buffer: tuple[Any, ...],
        make_minibatch_builder: MakeMinibatchBuilder,
        tracks_observations: bool,
    ):
        self._buffer = ReplayBuffer(spec, *buffer)
        self.minibatch_builder = make_minibatch_builder(self._buffer)
        self._observation_statistics = RunningStatistics(spec) if tracks_observations else None
        self._chunk_sequence = ChunkSequence()

    def store(self, env_index: int, summary: Summary, rows: TimeSteps) -> int:
        """Store a chunk of a sub-environment, and return the number of rows in the shard."""
        is_next, _ = self._chunk_sequence.advance(env_index, summary)
        if not is_next:
            self._buffer.end(np.array([env_index]))
        self._buffer.extend(env_index, rows)
        if self._observation_statistics is not None:
            self._observation_statistics.update(rows.observation)
        return self._buffer.size

    def append(self, segment: dict[str, Any]) -> int:
        """Add the rows of an earlier replay buffer, and return the number of rows in the shard."""
        self._buffer.append(segment)
        return self._buffer.size

    def sample(self, update: int, count: int) -> SampledBlock | None:
        """Return the minibatches of `count` updates after the first `update`; None if there is no transition yet."""
        if not len(self._buffer):
            return None
        packed, slots = self.minibatch_builder(update, count)
        newest = self._buffer.added - 1
        row_numbers = newest - (newest - slots) % self._buffer.replay_size
        observation_statistics = None if self._observation_statistics is None else self._observation_statistics.state()
        return SampledBlock(packed, row_numbers, observation_statistics)

    def update_priorities(self, row_numbers: np.ndarray, errors: np.ndarray) -> None:
        """Update the priorities from the TD errors of the first minibatches of a block, `[count, ...]`.

        Errors of rows that were overwritten are ignored.
        """
        numbers = row_numbers[: len(errors)]
        held = numbers >= self._buffer.added - self._buffer.replay_size
        if held.any():
            self.minibatch_builder.update_priorities(
                numbers[held] % self._buffer.replay_size, errors.reshape(*numbers.shape, -1)[held]
            )

    def return_range(self) -> tuple[float, float] | None:
        """Return `tfdpg.replay.return_range` of the shard; None if there is no transition yet."""
        return return_range(self._buffer, self.minibatch_builder.gamma) if len(self._buffer) else None

    def size(self) -> int:
        """Return the number of rows in the shard."""
        return self._buffer.size

    def segment(self) -> dict[str, Any]:
        """Return all rows as one segment."""
        return as_one_segment(self._buffer)


def split_buffer(buffer: ReplayBuffer, parts: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of a replay buffer as `parts` segments, the oldest first.

    A transition from the last row of one part to the first row of the next is lost.
    """
    edges = [buffer.added - buffer.size + buffer.size * part // parts for part in range(parts + 1)]
    for first, stop in itertools.pairwise(edges):
        yield drop_outgoing_links(buffer.segment(first, stop))
