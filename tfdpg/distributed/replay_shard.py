"""A part of the replay in a process of its own. NumPy only."""

import collections
import itertools
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tfdpg.acting import RunningStatistics
from tfdpg.distributed.chunks import Chunk, ChunkSequence, Summary
from tfdpg.replay import MakeMinibatchBuilder, ReplayBuffer, return_range
from tfdpg.replay.segments import LINKS, as_one_segment, drop_outgoing_links
from tfdpg.spec import Packed, Spec

PENDING_SAMPLES = 4
"""Draws whose TD errors may still come."""
MAX_UNREPORTED_CHUNKS = 100
"""Chunks of each sub-environment whose rows the shard can still identify. The learner has counted older ones."""


class StoreAck(NamedTuple):
    """What a shard holds.

    Attributes:
        process_id: the shard's process.
        steps: the steps that this process stored of the lane in question, ever.
        rows: the rows it holds.
    """

    process_id: int
    steps: int
    rows: int


class _ChunkRows(NamedTuple):
    """The rows of one chunk: the steps stored of its sub-environment after it, and the numbers of its rows."""

    steps: int
    first: int
    stop: int


class StoredReply(NamedTuple):
    """What a worker reports once its shard has stored its rows."""

    summary: Summary
    ack: StoreAck


class SampledBlock(NamedTuple):
    """Minibatches.

    Attributes:
        packed: the minibatches, each array `[count, batch, width]`.
        sample_id: names the draw, for `update_priorities`.
        ack: what the shard holds; its `steps` mean nothing.
        observation_statistics: the statistics of the observations that this process stored, where they are kept.
    """

    packed: Packed
    sample_id: int
    ack: StoreAck
    observation_statistics: dict[str, np.ndarray] | None


class ReplayShard:
    """Stores the chunks of some lanes, and draws minibatches of them.

    Args:
        spec: the spaces.
        buffer: size, directory and what else its ring takes.
        make_minibatch_builder: makes what draws from it, as the agent would.
        tracks_observations: whether to keep statistics of observations.
    """

    def __init__(
        self,
        spec: Spec,
        buffer: tuple[Any, ...],
        make_minibatch_builder: MakeMinibatchBuilder,
        tracks_observations: bool,
    ):
        self._buffer = ReplayBuffer(spec, *buffer)
        self._minibatch_builder = make_minibatch_builder(self._buffer)
        self._observation_statistics = RunningStatistics(spec) if tracks_observations else None
        self._chunk_sequence = ChunkSequence()
        self._steps = {}
        self._process_id = secrets.randbits(62)
        self._last_sample_id = 0
        self._sampled_rows: dict[int, np.ndarray] = {}
        self._chunks: dict[int, collections.deque[_ChunkRows]] = {}

    def store(self, env_index: int, chunk: Chunk) -> StoreAck:
        """Stores a chunk of a lane; one that comes again because the answer was lost is not stored again."""
        if self._chunk_sequence.is_latest(env_index, chunk):
            return self._ack(self._steps[env_index])
        is_next, ended = self._chunk_sequence.advance(env_index, chunk)
        if not is_next:
            self._buffer.end(np.array([env_index]))
        first = self._buffer.added
        self._buffer.extend(env_index, chunk.rows)
        if self._observation_statistics is not None:
            self._observation_statistics.update(chunk.rows.observation)
        self._steps[env_index] = self._steps.get(env_index, 0) + len(ended)
        chunks = self._chunks.setdefault(env_index, collections.deque(maxlen=MAX_UNREPORTED_CHUNKS))
        chunks.append(_ChunkRows(self._steps[env_index], first, self._buffer.added))
        return self._ack(self._steps[env_index])

    def append(self, segment: dict[str, Any]) -> StoreAck:
        """Adds rows of an earlier replay, which are not counted."""
        self._buffer.append(segment)
        return self._ack(0)

    def sample(self, update: int, count: int) -> SampledBlock | None:
        """The minibatches of the updates after the first `update`; None where there is no transition yet."""
        if not len(self._buffer):
            return None
        packed, slots = self._minibatch_builder(update, count)
        self._last_sample_id += 1
        newest = self._buffer.added - 1
        self._sampled_rows[self._last_sample_id] = (
            newest - (newest - slots) % self._buffer.replay_size
        )  # the numbers of the rows
        self._sampled_rows.pop(self._last_sample_id - PENDING_SAMPLES, None)
        observation_statistics = None if self._observation_statistics is None else self._observation_statistics.state()
        return SampledBlock(packed, self._last_sample_id, self._ack(0), observation_statistics)

    def update_priorities(self, sample_id: int, errors: np.ndarray) -> None:
        """Takes the TD errors of the first minibatches of a draw, `[count, ...]`; late ones are ignored."""
        if sample_id not in self._sampled_rows:
            return
        numbers = self._sampled_rows.pop(sample_id)[: len(errors)]
        held = numbers >= self._buffer.added - self._buffer.replay_size
        if held.any():
            self._minibatch_builder.update_priorities(
                numbers[held] % self._buffer.replay_size, errors.reshape(*numbers.shape, -1)[held]
            )

    def return_range(self) -> tuple[float, float] | None:
        """See `tfdpg.replay.return_range`; None where there is no transition yet."""
        return return_range(self._buffer, self._minibatch_builder.gamma) if len(self._buffer) else None

    def status(self) -> StoreAck:
        """What the shard holds; its `steps` mean nothing."""
        return self._ack(0)

    def rows(self, process_id: int, counted: Mapping[int, int]) -> tuple[dict[str, Any], StoreAck]:
        """Return the rows of all transitions that the learner has counted, as one segment, and what the shard holds.

        Args:
            process_id: the process whose steps were counted; the steps of another one were not.
            counted: for each sub-environment, how many of its steps the learner has counted.
        """
        segment = as_one_segment(self._buffer)
        counted = counted if process_id == self._process_id else {}
        dropped = np.zeros(len(segment["rows"]), bool)
        oldest = self._buffer.added - len(dropped)
        for env_index, chunks in self._chunks.items():
            for chunk in chunks:
                if chunk.steps > counted.get(env_index, 0):
                    dropped[max(0, chunk.first - oldest) : max(0, chunk.stop - oldest)] = True
        return remove_rows(segment, dropped), self._ack(0)

    def _ack(self, steps: int) -> StoreAck:
        return StoreAck(self._process_id, steps, self._buffer.size)


def split_buffer(buffer: ReplayBuffer, parts: int) -> Iterator[dict[str, Any]]:
    """The rows of a ring as so many segments, the oldest first.

    A transition from one to the next is lost.
    """
    edges = [buffer.added - buffer.size + buffer.size * part // parts for part in range(parts + 1)]
    for first, stop in itertools.pairwise(edges):
        yield drop_outgoing_links(buffer.segment(first, stop))


def remove_rows(segment: dict[str, Any], dropped: np.ndarray) -> dict[str, Any]:
    """Return a segment without some of its rows; no other row leads to them.

    Args:
        segment: rows, as `ReplayBuffer.segment` gives them.
        dropped: which rows to leave out, bool `[rows]`.
    """
    if not dropped.any():
        return segment
    remaining = np.flatnonzero(~dropped)
    new_indices = np.cumsum(~dropped) - 1
    result = {name: values[remaining] if np.ndim(values) else values for name, values in segment.items()}
    for name in LINKS:
        if name in result:
            target = np.minimum(remaining + result[name], len(dropped) - 1)
            has_target = (result[name] > 0) & ~dropped[target]
            result[name] = np.where(has_target, new_indices[target] - new_indices[remaining], 0).astype(np.int32)
    return result
