"""Where the rows of the workers are stored: in the agent's own replay buffer, or in replay shards."""

import contextlib
import os
import shutil
import time
import uuid
import warnings
from pathlib import Path
from typing import Any, Self

import numpy as np
import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError

from tfdpg.acting import RunningStatistics
from tfdpg.agents.agent import Agent
from tfdpg.distributed import worker_pool
from tfdpg.distributed.liveness import LivenessMonitor
from tfdpg.distributed.processes import FIRST_RETRY_DELAY, PROCESS_LOST_ERRORS, retry_while_lost, start_ray_actor
from tfdpg.distributed.replay_shard import (
    ReplayShard,
    SampledBlock,
    ShardWorker,
    StoreAck,
    StoredReply,
    split_buffer,
)
from tfdpg.distributed.worker import Chunk, ChunkSequence, Worker
from tfdpg.spec import Packed
from tfdpg.training.learning.updates import LARGEST_CHUNK as BLOCK_SIZE

RETRY_INTERVAL = 0.05
"""Seconds to wait if no shard can be sampled."""
SAMPLE_TIMEOUT = 1.0
"""Seconds to wait for a block of minibatches before another shard is sampled as well."""
CHECKPOINT_TIMEOUT = 5.0
"""Seconds that a checkpoint waits for shards that do not reply."""
MIN_TRANSFER_RATE = 5e6
"""Bytes per second at which the rows of a shard must arrive. A slower shard counts as lost."""
LOST_OR_TIMEOUT_ERRORS = (*PROCESS_LOST_ERRORS, GetTimeoutError)
"""The errors of calls of a shard that does not reply."""


class LocalReplay:
    """Stores rows in the agent's own replay buffer."""

    def __init__(self, agent: Agent):
        self._collector = agent.data.collector
        self._chunk_sequence = ChunkSequence()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        """Close the open episodes."""
        self._collector.close_episodes()
        self._collector.flush()

    def start_worker(self, env_index: int, *arguments: Any) -> Any:
        """Start a worker as a Ray actor.

        Args:
            env_index: the worker's number.
            *arguments: the other arguments of `Worker`.
        """
        return start_ray_actor(Worker, env_index, *arguments)

    def receive(self, env_index: int, reply: Chunk) -> np.ndarray:
        """Store a chunk, and return `ended` for the steps that were stored, bool `[steps]`.

        Raises:
            ValueError: a reward or an observation is not finite. Nothing is stored.
        """
        is_next, ended = self._chunk_sequence.advance(env_index, reply)
        self._collector.receive(env_index, reply.rows, is_next)
        return ended

    def ready(self, due: int) -> int:
        """Return `due`: every update can be made at any time."""
        return due


class ShardHandle:
    """A replay shard as a Ray actor.

    Args:
        number: the shard's number.
        *arguments: the arguments of `ReplayShard`.
    """

    def __init__(self, number: int, *arguments: Any):
        self.number = number
        self.name = f"tfdpg-shard-{uuid.uuid4()}"  # workers find the actor by name: a handle would have to be kept
        self.actor = start_ray_actor(ReplayShard, *arguments, name=self.name)
        self.process_id = -1
        self.rows = 0
        self.dead_process_ids: set[int] = set()
        self.steps: dict[tuple[int, int], int] = {}  # steps that were counted, by process_id and env_index
        self.checkpoint_file: Path | None = None  # its rows in the newest checkpoint that has them
        self.observation_statistics: dict[int, dict[str, np.ndarray]] = {}  # by process_id
        self.replies = True  # whether it replied when a checkpoint was last written

    def record(self, ack: StoreAck) -> bool:
        """Update the state of the shard. Return whether it restarted; if so, the rows of its checkpoint are sent."""
        if ack.process_id in self.dead_process_ids:  # a late report from a worker
            return False
        has_restarted = self.process_id not in (-1, ack.process_id)
        lost_rows = self.rows
        if has_restarted:
            self.dead_process_ids.add(self.process_id)
        self.process_id = ack.process_id
        self.rows = ack.rows
        if has_restarted:
            restored_rows = 0
            if (segment := self.checkpoint_rows()) is not None:
                self.actor.append.remote(segment)
                restored_rows = len(segment["rows"])
            warnings.warn(
                f"Replay shard {self.number} died with {lost_rows} rows; {restored_rows} were restored from a "
                "checkpoint.",
                stacklevel=2,
            )
        return has_restarted

    def checkpoint_rows(self) -> dict[str, Any] | None:
        """Return the rows of the shard in the newest checkpoint; None if there are none."""
        if self.checkpoint_file is None or not self.checkpoint_file.exists():
            return None
        with np.load(self.checkpoint_file) as file:
            return dict(file)

    def fetch_rows(self, row_bytes: float) -> dict[str, Any]:
        """Return the rows of the transitions that were counted.

        Args:
            row_bytes: the size of a row.

        Raises:
            Exception: one of `LOST_OR_TIMEOUT_ERRORS` if the shard does not reply.
        """
        if not self.replies:
            raise GetTimeoutError(f"It did not reply within {CHECKPOINT_TIMEOUT:g} seconds.")
        timeout = CHECKPOINT_TIMEOUT + self.rows * row_bytes / MIN_TRANSFER_RATE
        rows, ack = ray.get(self._request_rows(), timeout=timeout)
        if self.record(ack):  # it restarted since it last replied, and its earlier rows are on their way to it
            rows, _ = ray.get(self._request_rows(), timeout=timeout)
        return rows

    def _request_rows(self) -> Any:
        counted = {
            env_index: steps for (process_id, env_index), steps in self.steps.items() if process_id == self.process_id
        }
        return self.actor.rows.remote(self.process_id, counted)

    def file_in(self, checkpoint: Path) -> Path:
        """Return the file for the rows of the shard in a checkpoint."""
        return checkpoint / f"replay-{self.number}.npz"

    def link_checkpoint_file(self, target: Path) -> bool:
        """Link or copy the rows of the newest checkpoint to another one. Return whether there were any."""
        if self.checkpoint_file is None:
            return False
        try:
            os.link(self.checkpoint_file, target)
        except FileNotFoundError:
            return False
        except OSError:  # the file system has no hard links
            shutil.copyfile(self.checkpoint_file, target)
        return True


class ShardedReplay:
    """Stores rows in replay shards for a training run. The agent's own rows move there, and back at the end.

    Minibatches arrive in blocks, from one shard after the other. While updates use one block, the next one is on its
    way.

    Args:
        agent: the agent.
        count: the number of shards.
        liveness: warns or raises while a shard cannot start.

    Attributes:
        shards: the shards.
    """

    def __init__(self, agent: Agent, count: int, liveness: LivenessMonitor):
        replay = agent.replay
        statistics: RunningStatistics | None = agent.data.observation_statistics
        buffer = (
            replay.replay_size // count,
            agent.options.replay_dir,
            replay.step_width,
            replay.has_windows,
            replay.has_predecessors,
        )
        self._liveness = liveness
        self._agent = agent
        self._row_bytes = replay.nbytes / replay.replay_size
        self.shards = [
            ShardHandle(number, agent.spec, buffer, agent.data.make_minibatch_builder, statistics is not None)
            for number in range(count)
        ]
        self._drawing = contextlib.ExitStack()
        self._initial_statistics = None if statistics is None else statistics.state()
        self._pending_samples: dict[Any, ShardHandle] = {}
        self._next_shard = 0
        self._block: SampledBlock | None = None
        self._used_in_block = 0
        self._errors: list[np.ndarray] = []

    def __enter__(self) -> Self:
        agent = self._agent
        count = len(self.shards)
        parts = split_buffer(agent.replay, count) if agent.replay.size else [None] * count
        for shard, part in zip(self.shards, parts, strict=True):  # a checkpoint waits only for shards that have started
            reference = shard.actor.status.remote() if part is None else shard.actor.append.remote(part)
            name = f"Replay shard {shard.number}"
            shard.record(self._liveness.wait_for_reply(reference, name, worker_pool.STARTUP_SECONDS))
        agent.replay.clear()
        agent.data.minibatch_builder.sampler.restore({})
        self._drawing.enter_context(agent.learner.draw_from(self))
        return self

    def __exit__(self, kind: Any, *exception: object) -> None:
        """Move the rows back to the agent unless there was an error, and end the shards."""
        self._drawing.close()
        try:
            if kind is None or issubclass(kind, KeyboardInterrupt):
                self._return_rows()
        finally:
            for shard in self.shards:
                ray.kill(shard.actor)

    def _return_rows(self) -> None:
        agent = self._agent
        self._find_unresponsive_shards()
        for shard in self.shards:
            try:
                agent.replay.append(shard.fetch_rows(self._row_bytes))
            except (ValueError, *LOST_OR_TIMEOUT_ERRORS) as error:
                saved = shard.checkpoint_rows() if isinstance(error, LOST_OR_TIMEOUT_ERRORS) else None
                if saved is not None:
                    agent.replay.append(saved)
                warnings.warn(
                    f"The rows of replay shard {shard.number} could not be moved back into the agent's replay buffer: "
                    f"{error} {0 if saved is None else len(saved['rows'])} rows were restored from a checkpoint.",
                    stacklevel=3,
                )
        if agent.data.observation_statistics is not None:
            agent.data.observation_statistics.set_rows_seen(agent.replay.added)

    # Storing.

    def start_worker(self, env_index: int, *arguments: Any) -> Any:
        """Start a worker, which stores its rows in its shard, as a Ray actor."""
        return start_ray_actor(ShardWorker, self._shard_of(env_index).name, env_index, *arguments)

    def receive(self, env_index: int, reply: StoredReply) -> np.ndarray:
        """Return `ended` for each step that the shard has stored and that was not counted yet, bool `[steps]`."""
        shard = self._shard_of(env_index)
        ended = reply.summary.ended
        shard.record(reply.ack)
        counted = reply.ack.process_id, env_index
        new = reply.ack.steps - shard.steps.get(counted, 0)
        shard.steps[counted] = reply.ack.steps
        unreported = np.zeros(max(0, new - len(ended)), bool)  # of a worker that died after it had stored them
        return np.concatenate([unreported, ended[max(0, len(ended) - new) :]])

    def _shard_of(self, env_index: int) -> ShardHandle:
        return self.shards[env_index % len(self.shards)]

    # Sampling.

    def ready(self, due: int) -> int:
        """Return how many of the updates that are due can be made with the minibatches that have arrived."""
        if due and self._block is None:
            self._block = self._next_block()
            self._used_in_block = 0
            self._errors = []
        return 0 if self._block is None else min(due, BLOCK_SIZE - self._used_in_block)

    def _next_block(self) -> SampledBlock | None:
        """Return a block of minibatches from the first shard that replies; None if none does within a short time."""
        update = self._agent.updates
        for _ in self.shards:
            if not self._pending_samples:
                self._request_block(update)
            ready, _ = ray.wait(list(self._pending_samples), num_returns=1, timeout=SAMPLE_TIMEOUT)
            if ready:
                shard = self._pending_samples.pop(ready[0])
                with contextlib.suppress(*PROCESS_LOST_ERRORS):
                    block: SampledBlock | None = ray.get(ready[0])
                    if block is not None:
                        shard.record(block.ack)
                        if block.observation_statistics is not None:
                            shard.observation_statistics[block.ack.process_id] = block.observation_statistics
                        self._block_shard = shard
                        self._request_block(update + BLOCK_SIZE)
                        return block
            self._request_block(update)  # from another shard: this one is slow, lost or empty
        time.sleep(RETRY_INTERVAL)
        return None

    def _request_block(self, update: int) -> None:
        """Request a block of minibatches from the next shard that has no such request."""
        count = len(self.shards)
        for number in range(self._next_shard, self._next_shard + count):
            shard = self.shards[number % count]
            if shard not in self._pending_samples.values():
                self._pending_samples[shard.actor.sample.remote(update, BLOCK_SIZE)] = shard
                self._next_shard = (number + 1) % count
                return

    def update_statistics(self) -> None:
        """Merge the observation statistics of the shards, and write them to the networks."""
        statistics: Any = self._agent.data.observation_statistics
        if statistics is None:
            return
        statistics.restore(self._initial_statistics)
        for shard in self.shards:
            for state in shard.observation_statistics.values():
                statistics.merge(state)
        self._agent.data.write_statistics()

    def sample(self, update: int, count: int) -> Packed:
        """Return the next minibatches of the block.

        Raises:
            ValueError: the block has fewer minibatches; see `ready`.
        """
        if self._block is None or self.ready(count) < count:
            raise ValueError(f"The shards have not sampled {count} minibatches yet.")
        part = slice(self._used_in_block, self._used_in_block + count)
        self._used_in_block += count
        return tuple(values[part] for values in self._block.packed)

    def update_priorities(self, errors: np.ndarray) -> None:
        """Keep TD errors until the block is used up, and then send them to its shard."""
        self._errors.append(errors)
        if self._block is None or self._used_in_block < BLOCK_SIZE:
            return
        if self._agent.data.minibatch_builder.sampler.uses_td_errors:
            self._block_shard.actor.update_priorities.remote(self._block.sample_id, np.concatenate(self._errors))
        self._block = None

    def return_range(self) -> tuple[float, float]:
        """Return `tfdpg.replay.return_range` over the shards that reply."""

        def request_ranges() -> list[tuple[float, float]]:
            pending = [shard.actor.return_range.remote() for shard in self.shards]
            ready, _ = ray.wait(pending, num_returns=len(pending), timeout=SAMPLE_TIMEOUT)
            ranges = []
            for reference in ready:
                with contextlib.suppress(*PROCESS_LOST_ERRORS):
                    ranges.append(ray.get(reference))
            ranges = [each for each in ranges if each is not None]
            if not ranges:
                raise ActorUnavailableError("No replay shard replies.", None)
            return ranges

        lows, highs = zip(*retry_while_lost(request_ranges), strict=True)
        return min(lows), max(highs)

    # Checkpoints.

    def save(self, directory: Path) -> None:
        """Write the rows of each shard as `replay-<number>.npz`. Only one shard at a time is in memory.

        For a shard that does not reply, the file of the preceding checkpoint is used, so no checkpoint lacks rows that
        an earlier one has.
        """
        self._find_unresponsive_shards()
        for shard in self.shards:
            path = shard.file_in(directory)
            try:
                np.savez(path, **shard.fetch_rows(self._row_bytes))
            except LOST_OR_TIMEOUT_ERRORS as error:
                has_rows = shard.link_checkpoint_file(path)
                consequence = "has those of the checkpoint before it" if has_rows else "lacks them"
                warnings.warn(
                    f"Replay shard {shard.number} did not send its rows; the checkpoint {consequence}: {error}",
                    stacklevel=2,
                )

    def _find_unresponsive_shards(self) -> None:
        """Find the shards that do not reply within a short time."""
        deadline = time.monotonic() + CHECKPOINT_TIMEOUT
        pending = {shard.actor.status.remote(): shard for shard in self.shards}
        while pending and (remaining := deadline - time.monotonic()) > 0:
            for reference in ray.wait(list(pending), num_returns=1, timeout=remaining)[0]:
                shard = pending.pop(reference)
                try:
                    shard.record(ray.get(reference))
                except PROCESS_LOST_ERRORS:  # it may be restarting
                    time.sleep(FIRST_RETRY_DELAY)
                    pending[shard.actor.status.remote()] = shard
        for shard in self.shards:
            shard.replies = shard not in pending.values()

    def on_saved(self, directory: Path) -> None:
        """Remember the final directory of a checkpoint, from which a shard that dies is restored."""
        for shard in self.shards:
            if (path := shard.file_in(directory)).exists():
                shard.checkpoint_file = path
