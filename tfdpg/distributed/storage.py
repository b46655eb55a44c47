"""Where the rows of the workers are stored: in the agent's own replay buffer, or in replay shards."""

import collections
import contextlib
import functools
import os
import shutil
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayError

from tfdpg.acting import RunningStatistics
from tfdpg.agents.agent import Agent
from tfdpg.distributed import worker_pool
from tfdpg.distributed.liveness import LivenessMonitor
from tfdpg.distributed.processes import is_process_lost, start_ray_actor
from tfdpg.distributed.replay_shard import ReplayShard, SampledBlock, split_buffer
from tfdpg.distributed.worker import Summary
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
MAX_UNCONFIRMED_CHUNKS = 2
"""Chunks of a worker that its shard may still have to store when the worker gets its next request."""


class LocalReplay:
    """Stores rows in the agent's own replay buffer."""

    def __init__(self, agent: Agent):
        self._collector = agent.data.collector

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        """Close the open episodes."""
        self._collector.close_episodes()
        self._collector.flush()

    def fetch(self, rows: Any) -> Any:
        """Return the rows of a chunk from their object reference."""
        return ray.get(rows)

    def receive(self, env_index: int, summary: Summary, rows: Any, is_next: bool) -> None:
        """Store a chunk.

        Args:
            env_index: the sub-environment.
            summary: the summary of the chunk.
            rows: what `fetch` returned.
            is_next: whether the chunk follows the one before it.

        Raises:
            ValueError: a reward or an observation is not finite. Nothing is stored.
        """
        self._collector.receive(env_index, rows, is_next)

    def is_behind(self, env_index: int) -> bool:
        """Return whether a worker must wait until its chunks are stored: never."""
        return False

    def ready(self, due: int) -> int:
        """Return `due`: every update can be made at any time."""
        return due


class ShardHandle:
    """A replay shard as a Ray actor. If its process dies, another one takes its place.

    Args:
        number: the shard's number.
        actor: the actor.
        checkpoint_file: its rows in the newest checkpoint that has them; None if there are none.

    Attributes:
        rows: the number of rows, as far as the learner knows.
        unconfirmed: for each call of `store` that has not returned, its sub-environment.
    """

    def __init__(self, number: int, actor: Any, checkpoint_file: Path | None = None):
        self.number = number
        self.actor = actor
        self.checkpoint_file = checkpoint_file
        self.rows = 0
        self.unconfirmed: dict[Any, int] = {}

    def restored_rows(self) -> dict[str, Any] | None:
        """Return the rows in the newest checkpoint; None if there are none."""
        if self.checkpoint_file is None or not self.checkpoint_file.exists():
            return None
        with np.load(self.checkpoint_file) as file:
            return dict(file)

    def file_in(self, checkpoint: Path) -> Path:
        """Return the file for the rows of the shard in a checkpoint."""
        return checkpoint / f"replay-{self.number}.npz"

    def link_checkpoint_file(self, target: Path) -> bool:
        """Link or copy the rows of the newest checkpoint to another one. Return whether there were any."""
        if self.checkpoint_file is None or not self.checkpoint_file.exists():
            return False
        try:
            os.link(self.checkpoint_file, target)
        except OSError:  # the file system has no hard links
            shutil.copyfile(self.checkpoint_file, target)
        return True


class ShardedReplay:
    """Stores rows in replay shards for a training run. The agent's own rows move there, and back at the end.

    The learner passes the object reference of each chunk to a shard before it counts the steps. An actor executes calls
    in order, so the rows that a shard returns later are those of all steps that were counted until then.

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
        arguments = agent.data.spec, buffer, agent.data.make_minibatch_builder, statistics is not None
        self._start = functools.partial(start_ray_actor, ReplayShard, *arguments, max_restarts=0)
        self._liveness = liveness
        self._agent = agent
        self._row_bytes = replay.nbytes / replay.replay_size
        self.shards = [ShardHandle(number, self._start()) for number in range(count)]
        self._initial_statistics = None if statistics is None else statistics.state()
        self._statistics: dict[ShardHandle, dict[str, np.ndarray]] = {}  # the newest ones, also of shards that died
        self._idle = collections.deque(range(count))  # the numbers of shards without a request for a block
        self._requested: dict[Any, ShardHandle] = {}  # the shards of requests for blocks
        self._block: SampledBlock | None = None
        self._block_actor: Any = None
        self._used_in_block = 0
        self._errors: list[np.ndarray] = []

    def __enter__(self) -> Self:
        agent = self._agent
        count = len(self.shards)
        parts = split_buffer(agent.replay, count) if agent.replay.size else [None] * count
        for shard, part in zip(self.shards, parts, strict=True):  # a checkpoint waits only for shards that have started
            reference = shard.actor.size.remote() if part is None else shard.actor.append.remote(part)
            name = f"Replay shard {shard.number}"
            shard.rows = self._liveness.wait_for_reply(reference, name, worker_pool.STARTUP_SECONDS)
        agent.replay.clear()
        agent.data.minibatch_builder.sampler.restore({})
        agent.learner.remote_replay = self
        return self

    def __exit__(self, kind: Any, *exception: object) -> None:
        """Move the rows back to the agent unless there was an error, and end the shards."""
        self._agent.learner.remote_replay = None
        try:
            if kind is None or issubclass(kind, KeyboardInterrupt):
                self._return_rows()
        finally:
            for shard in self.shards:
                ray.kill(shard.actor)

    def _return_rows(self) -> None:
        agent = self._agent
        for shard, rows, error in self._all_rows():
            restored = 0
            if rows is None and (rows := shard.restored_rows()) is not None:
                restored = len(rows["rows"])
            try:
                if rows is not None:
                    agent.replay.append(rows)
            except ValueError as no_memory:
                error, restored = no_memory, 0
            if error is not None:
                warnings.warn(
                    f"The rows of replay shard {shard.number} could not be moved back into the agent's replay buffer: "
                    f"{error} {restored} rows were restored from a checkpoint.",
                    stacklevel=3,
                )
        if agent.data.observation_statistics is not None:
            agent.data.observation_statistics.set_rows_seen(agent.replay.added)

    def _result(self, shard: ShardHandle, reference: Any, timeout: float | None = None) -> Any:
        """Return the result of a call of a shard.

        Raises:
            ActorUnavailableError: the shard does not reply. If it died, another one has taken its place.
            GetTimeoutError: there was no result after `timeout` seconds.
        """
        try:
            return ray.get(reference, timeout=timeout)
        except RayError as error:
            has_died = isinstance(error, ActorDiedError) and not error.actor_init_failed
            if has_died and shard in self.shards:
                self._replace(shard)
            if has_died or is_process_lost(error):  # a chunk may be lost with the node of its worker
                raise ActorUnavailableError(str(error), None) from error
            raise

    def _results(self, calls: dict[Any, ShardHandle], timeout: float, count: int | None = None) -> dict[Any, Any]:
        """Wait for the results of some calls; those of shards that are lost are None.

        Args:
            calls: the shard of each call, by the object reference of its result.
            timeout: seconds to wait.
            count: the number of results to wait for, or None for all.
        """
        results = {}
        for reference in ray.wait(list(calls), num_returns=count or len(calls), timeout=timeout)[0] if calls else ():
            results[reference] = None
            with contextlib.suppress(ActorUnavailableError):
                results[reference] = self._result(calls[reference], reference)
        return results

    def _replace(self, shard: ShardHandle) -> None:
        """Start another shard with the rows of the newest checkpoint. Chunks that were not stored are lost."""
        other = ShardHandle(shard.number, self._start(), shard.checkpoint_file)
        self.shards[shard.number] = other
        if (restored := other.restored_rows()) is not None:
            other.rows = len(restored["rows"])
            other.actor.append.remote(restored)
        warnings.warn(
            f"Replay shard {shard.number} died with {shard.rows} rows; {other.rows} were restored from a checkpoint.",
            stacklevel=2,
        )

    # Storing.

    def fetch(self, rows: Any) -> Any:
        """Return an object reference unchanged: the learner does not need the rows."""
        return rows

    def receive(self, env_index: int, summary: Summary, rows: Any, is_next: bool) -> None:
        """Pass the object reference of a chunk to the shard of its worker, which fetches the rows."""
        shard = self._shard_of(env_index)
        shard.unconfirmed[shard.actor.store.remote(env_index, summary, rows)] = env_index

    def is_behind(self, env_index: int) -> bool:
        """Return whether a worker must wait until its shard has stored its chunks."""
        shard = self._shard_of(env_index)
        self._confirm(shard)
        return list(shard.unconfirmed.values()).count(env_index) >= MAX_UNCONFIRMED_CHUNKS

    def _shard_of(self, env_index: int) -> ShardHandle:
        return self.shards[env_index % len(self.shards)]

    def _confirm(self, shard: ShardHandle, timeout: float = 0.0) -> None:
        """Find out which chunks a shard has stored; wait for all of them for some seconds."""
        for reference, rows in self._results(dict.fromkeys(shard.unconfirmed, shard), timeout).items():
            del shard.unconfirmed[reference]
            shard.rows = shard.rows if rows is None else rows

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
            if not self._requested:
                self._request_block(update)
            for reference, block in self._results(self._requested, SAMPLE_TIMEOUT, count=1).items():
                shard = self._requested.pop(reference)
                self._idle.append(shard.number)
                if block is not None:
                    if block.observation_statistics is not None:
                        self._statistics[shard] = block.observation_statistics
                    self._block_actor = shard.actor
                    self._request_block(update + BLOCK_SIZE)
                    return block
            self._request_block(update)  # from another shard: this one is slow, lost or empty
        time.sleep(RETRY_INTERVAL)
        return None

    def _request_block(self, update: int) -> None:
        """Request a block of minibatches from the next shard that has no such request."""
        if self._idle:
            shard = self.shards[self._idle.popleft()]
            self._requested[shard.actor.sample.remote(update, BLOCK_SIZE)] = shard

    def update_statistics(self) -> None:
        """Merge the observation statistics of the shards, and write them to the networks."""
        statistics: Any = self._agent.data.observation_statistics
        if statistics is None:
            return
        statistics.restore(self._initial_statistics)
        for state in self._statistics.values():
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
            self._block_actor.update_priorities.remote(self._block.row_numbers, np.concatenate(self._errors))
        self._block = None

    def return_range(self) -> tuple[float, float]:
        """Return `tfdpg.replay.return_range` over the shards that reply.

        Raises:
            TimeoutError: no shard replies.
        """
        deadline = time.monotonic() + worker_pool.STARTUP_SECONDS
        while time.monotonic() < deadline:
            calls = {shard.actor.return_range.remote(): shard for shard in self.shards}
            found = [each for each in self._results(calls, SAMPLE_TIMEOUT).values() if each is not None]
            if found:
                lows, highs = zip(*found, strict=True)
                return min(lows), max(highs)
            time.sleep(RETRY_INTERVAL)
        raise TimeoutError("No replay shard replies.")

    # Checkpoints.

    def save(self, directory: Path) -> None:
        """Write the rows of each shard as `replay-<number>.npz`. Only one shard at a time is in memory.

        For a shard that does not reply, the file of the preceding checkpoint is used, so no checkpoint lacks rows that
        an earlier one has.
        """
        for shard, rows, error in self._all_rows():
            path = shard.file_in(directory)
            if rows is not None:
                np.savez(path, **rows)
                continue
            consequence = "has those of the checkpoint before it" if shard.link_checkpoint_file(path) else "lacks them"
            warnings.warn(
                f"Replay shard {shard.number} did not send its rows; the checkpoint {consequence}: {error}",
                stacklevel=2,
            )

    def _all_rows(self) -> Iterator[tuple[ShardHandle, dict[str, Any] | None, Exception | None]]:
        """Yield each shard with its rows, or with None and the error if it does not reply within a short time."""
        calls = {shard.actor.size.remote(): shard for shard in self.shards}
        sizes = self._results(calls, CHECKPOINT_TIMEOUT)
        for reference, shard in calls.items():
            try:
                if sizes.get(reference) is None:
                    raise GetTimeoutError(f"It did not reply within {CHECKPOINT_TIMEOUT:g} seconds.")
                timeout = CHECKPOINT_TIMEOUT + sizes[reference] * self._row_bytes / MIN_TRANSFER_RATE
                self._confirm(shard, timeout)
                rows, error = self._result(shard, shard.actor.segment.remote(), timeout), None
            except (ActorUnavailableError, GetTimeoutError) as lost:
                rows, error = None, lost
            yield shard, rows, error

    def on_saved(self, directory: Path) -> None:
        """Remember the final directory of a checkpoint, from which a shard that dies is restored."""
        for shard in self.shards:
            if (path := shard.file_in(directory)).exists():
                shard.checkpoint_file = path
