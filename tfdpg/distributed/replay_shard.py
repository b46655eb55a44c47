"""A shard of the replay buffer in its own process, and the workers that store their rows in it. NumPy only."""

import collections
import itertools
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tfdpg.acting import RunningStatistics
from tfdpg.distributed.worker import Chunk, ChunkSequence, RolloutRequest, Summary, Worker
from tfdpg.replay import MakeMinibatchBuilder, ReplayBuffer, return_range
from tfdpg.replay.segments import LINKS, as_one_segment, drop_outgoing_links
from tfdpg.spec import Packed, Spec
from tfdpg.training.environment.finite import check_finite

PENDING_SAMPLES = 4
"""Blocks of minibatches whose TD errors the shard still accepts."""
MAX_UNREPORTED_CHUNKS = 100
"""Chunks of each sub-environment whose rows the shard can still identify. The learner has counted older ones."""


class StoreAck(NamedTuple):
    """Acknowledges a call, and describes the state of the shard.

    Attributes:
        process_id: identifies the process of the shard.
        steps: the number of steps of one sub-environment that this process has stored; 0 in replies to other calls
            than `store`.
        rows: the number of rows in the shard.
    """

    process_id: int
    steps: int
    rows: int


class StoredReply(NamedTuple):
    """The reply of a worker after its shard has stored the rows."""

    summary: Summary
    ack: StoreAck


class SampledBlock(NamedTuple):
    """A block of minibatches.

    Attributes:
        packed: the minibatches, each array `[count, batch, width]`.
        sample_id: identifies the block for `update_priorities`.
        ack: the state of the shard.
        observation_statistics: the statistics of the observations that this process stored; None if the shard does not
            track them.
    """

    packed: Packed
    sample_id: int
    ack: StoreAck
    observation_statistics: dict[str, np.ndarray] | None


class _ChunkRows(NamedTuple):
    """The rows of one chunk: the steps stored of its sub-environment after it, and the numbers of its rows."""

    steps: int
    first: int
    stop: int


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
        self._process_id = secrets.randbits(62)
        self._last_sample_id = 0
        self._sampled_rows: dict[int, np.ndarray] = {}
        self._chunks: dict[int, collections.deque[_ChunkRows]] = {}

    def store(self, env_index: int, chunk: Chunk) -> StoreAck:
        """Store a chunk of a sub-environment. A chunk that is sent again is not stored again."""
        chunks = self._chunks.setdefault(env_index, collections.deque(maxlen=MAX_UNREPORTED_CHUNKS))
        steps = chunks[-1].steps if chunks else 0
        if self._chunk_sequence.is_latest(env_index, chunk):
            return self.status(steps)
        is_next, ended = self._chunk_sequence.advance(env_index, chunk)
        if not is_next:
            self._buffer.end(np.array([env_index]))
        first = self._buffer.added
        self._buffer.extend(env_index, chunk.rows)
        if self._observation_statistics is not None:
            self._observation_statistics.update(chunk.rows.observation)
        chunks.append(_ChunkRows(steps + len(ended), first, self._buffer.added))
        return self.status(steps + len(ended))

    def append(self, segment: dict[str, Any]) -> StoreAck:
        """Add the rows of an earlier replay buffer. They do not count as steps."""
        self._buffer.append(segment)
        return self.status()

    def sample(self, update: int, count: int) -> SampledBlock | None:
        """Return the minibatches of `count` updates after the first `update`; None if there is no transition yet."""
        if not len(self._buffer):
            return None
        packed, slots = self.minibatch_builder(update, count)
        self._last_sample_id += 1
        newest = self._buffer.added - 1
        row_numbers = newest - (newest - slots) % self._buffer.replay_size
        self._sampled_rows[self._last_sample_id] = row_numbers
        self._sampled_rows.pop(self._last_sample_id - PENDING_SAMPLES, None)
        observation_statistics = None if self._observation_statistics is None else self._observation_statistics.state()
        return SampledBlock(packed, self._last_sample_id, self.status(), observation_statistics)

    def update_priorities(self, sample_id: int, errors: np.ndarray) -> None:
        """Update the priorities from the TD errors of the first minibatches of a block, `[count, ...]`.

        Late errors, and those of overwritten rows, are ignored.
        """
        if sample_id not in self._sampled_rows:
            return
        numbers = self._sampled_rows.pop(sample_id)[: len(errors)]
        held = numbers >= self._buffer.added - self._buffer.replay_size
        if held.any():
            self.minibatch_builder.update_priorities(
                numbers[held] % self._buffer.replay_size, errors.reshape(*numbers.shape, -1)[held]
            )

    def return_range(self) -> tuple[float, float] | None:
        """Return `tfdpg.replay.return_range` of the shard; None if there is no transition yet."""
        return return_range(self._buffer, self.minibatch_builder.gamma) if len(self._buffer) else None

    def status(self, steps: int = 0) -> StoreAck:
        """Return the state of the shard."""
        return StoreAck(self._process_id, steps, self._buffer.size)

    def rows(self, process_id: int, counted: Mapping[int, int]) -> tuple[dict[str, Any], StoreAck]:
        """Return the rows of all transitions that the learner has counted, as one segment, and the shard's state.

        Args:
            process_id: the process whose steps the learner has counted. The steps of any other process are not counted.
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
        return remove_rows(segment, dropped), self.status()


class ShardWorker:
    """A rollout worker that stores its chunks in a replay shard.

    Args:
        shard: the name of the shard's actor.
        *arguments: the arguments of `Worker`.
    """

    def __init__(self, shard: str, *arguments: Any):
        self._shard = shard
        self._worker = Worker(*arguments)

    def rollout(self, weights: Any, version: int, request: RolloutRequest) -> StoredReply:
        """Take steps as in `Worker.rollout`; return after the shard has stored the rows.

        Raises:
            ValueError: a reward or an observation is not finite. Nothing is stored.
        """
        import ray

        from tfdpg.distributed.processes import retry_while_lost

        chunk = self._worker.rollout(weights, version, request)
        env_index = self._worker.env_index
        rows = chunk.rows
        where = f"{request.steps} steps of sub-environment {env_index} (worker {env_index}); none of these was stored"
        check_finite(self._worker.spec, rows.observation, rows.reward, where, rows.masked_action, "row")
        shared = ray.put(chunk)
        ack: Any = retry_while_lost(lambda: ray.get(ray.get_actor(self._shard).store.remote(env_index, shared)))
        return StoredReply(chunk.summary, ack)


def split_buffer(buffer: ReplayBuffer, parts: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of a replay buffer as `parts` segments, the oldest first.

    A transition from the last row of one part to the first row of the next is lost.
    """
    edges = [buffer.added - buffer.size + buffer.size * part // parts for part in range(parts + 1)]
    for first, stop in itertools.pairwise(edges):
        yield drop_outgoing_links(buffer.segment(first, stop))


def remove_rows(segment: dict[str, Any], dropped: np.ndarray) -> dict[str, Any]:
    """Return a segment without some of its rows. No other row may lead to them.

    Args:
        segment: rows, as `ReplayBuffer.segment` returns them.
        dropped: which rows to remove, bool `[rows]`.
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
