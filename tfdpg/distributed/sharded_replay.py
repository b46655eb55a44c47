"""The replay in shards, as the learner sees it: where workers store, and where updates draw."""

import contextlib
import os
import shutil
import time
import uuid
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError

from tfdpg.acting import RunningStatistics
from tfdpg.agents.agent import Agent
from tfdpg.distributed import worker_pool
from tfdpg.distributed.liveness import LivenessMonitor
from tfdpg.distributed.processes import FIRST_RETRY_DELAY, PROCESS_LOST_ERRORS, retry_while_lost, start_ray_actor
from tfdpg.distributed.replay_shard import ReplayShard, SampledBlock, StoreAck, StoredReply, split_buffer
from tfdpg.distributed.shard_worker import ShardWorker
from tfdpg.spec import Packed
from tfdpg.training.learning.learner import write_statistics
from tfdpg.training.learning.updates import LARGEST_CHUNK as BLOCK_SIZE

RETRY_INTERVAL = 0.05
"""Seconds to wait where no shard can be drawn from."""
SAMPLE_TIMEOUT = 1.0
"""Seconds to wait for minibatches before they are asked of another shard as well."""
CHECKPOINT_TIMEOUT = 5.0
"""Seconds that a checkpoint waits for shards that do not answer."""
MIN_TRANSFER_RATE = 5e6
"""Bytes a second at which the rows of a shard that answers arrive at least; a slower one counts as lost."""
LOST_OR_TIMEOUT_ERRORS = (*PROCESS_LOST_ERRORS, GetTimeoutError)
"""What is raised where a shard does not answer."""


class ShardHandle:
    """A shard, and what the learner knows of it."""

    def __init__(self, *arguments: Any):
        self.name = f"tfdpg-shard-{uuid.uuid4()}"  # a handle among a worker's arguments would be an object to keep
        self.actor = start_ray_actor(ReplayShard, *arguments, name=self.name)
        self.process_id = -1
        self.rows = 0
        self.dead_process_ids: set[int] = set()  # process IDs that died
        self.steps: dict[tuple[int, int], int] = {}  # counted, by process ID and env_index
        self.checkpoint_file: Path | None = None  # its rows in the newest checkpoint that has them
        self.observation_statistics: dict[int, dict[str, np.ndarray]] = {}


class ShardedReplay:
    """The shards of a training; it takes the agent's rows, and gives them back.

    Minibatches come in blocks, from one shard after the other; while updates take one, the next is on its way.

    Args:
        agent: the agent.
        count: how many shards.
        liveness: what happens while a shard cannot start.
    """

    def __init__(self, agent: Agent, count: int, liveness: LivenessMonitor):
        replay = agent.replay
        buffer = (
            replay.replay_size // count,
            agent.options.replay_dir,
            replay.step_width,
            replay.has_windows,
            replay.has_predecessors,
        )
        builder_arguments = agent.make_minibatch_builder, agent.observation_statistics is not None
        self._liveness = liveness
        self._agent = agent
        self._uses_td_errors = agent.minibatch_builder.sampler.uses_td_errors
        self._shards = [ShardHandle(agent.spec, buffer, *builder_arguments) for _ in range(count)]
        self._stack = contextlib.ExitStack()
        self._initial_statistics = (
            None if agent.observation_statistics is None else agent.observation_statistics.state()
        )
        self._pending_samples: dict[Any, int] = {}
        self._block: SampledBlock | None = None
        self._used_in_block = 0
        self._next_shard = 0
        self._errors = []

    def __enter__(self) -> "ShardedReplay":
        agent = self._agent
        if agent.replay.size:
            for number, part in enumerate(split_buffer(agent.replay, len(self._shards))):
                shard = self._shards[number]
                reference = shard.actor.append.remote(part)
                self._record_ack(
                    shard,
                    self._liveness.wait_for_reply(reference, f"Replay shard {number}", worker_pool.STARTUP_SECONDS),
                )
        agent.replay.clear()
        agent.minibatch_builder.sampler.restore({})
        self._stack.enter_context(agent.learner.draw_from(self))
        return self

    def __exit__(self, kind: Any, *exception: object) -> None:
        """Takes the rows back, where there is room and nothing went wrong, and ends the shards."""
        self._stack.close()
        try:
            if kind is None or issubclass(kind, KeyboardInterrupt):
                self._return_rows()
        finally:
            for shard in self._shards:
                ray.kill(shard.actor)

    def _return_rows(self) -> None:
        agent = self._agent
        unresponsive = self._unresponsive_shards()
        for number, shard in enumerate(self._shards):
            try:
                agent.replay.append(self._fetch_rows(shard, unresponsive))
            except (ValueError, *LOST_OR_TIMEOUT_ERRORS) as error:
                saved = _read_rows(shard.checkpoint_file) if isinstance(error, LOST_OR_TIMEOUT_ERRORS) else None
                if saved is not None:
                    agent.replay.append(saved)
                warnings.warn(
                    f"The rows of replay shard {number} did not come back into the agent's replay buffer: {error} "
                    f"{0 if saved is None else len(saved['rows'])} rows came back from a checkpoint.",
                    stacklevel=3,
                )
        if agent.observation_statistics is not None:
            agent.observation_statistics.set_rows_seen(agent.replay.added)

    # Where workers store.

    def start_worker(self, env_index: int, *arguments: Any) -> Any:
        """Starts the worker of a lane, as a Ray actor."""
        return start_ray_actor(ShardWorker, self._shard_of(env_index).name, env_index, *arguments)

    def receive(self, env_index: int, reply: StoredReply) -> np.ndarray:
        """`ended` for each step of a lane that its shard has stored and that was not counted yet."""
        shard = self._shard_of(env_index)
        ended = reply.summary.ended
        self._record_ack(shard, reply.ack)
        counted = reply.ack.process_id, env_index
        new = reply.ack.steps - shard.steps.get(counted, 0)
        shard.steps[counted] = reply.ack.steps
        unreported = np.zeros(max(0, new - len(ended)), bool)  # of a worker that died before it could report
        return np.concatenate([unreported, ended[max(0, len(ended) - new) :]])

    def _shard_of(self, env_index: int) -> ShardHandle:
        return self._shards[env_index % len(self._shards)]

    def _record_ack(self, shard: ShardHandle, ack: StoreAck) -> bool:
        """Takes note of what a shard holds; whether it is a new one, which gets the rows of the last checkpoint."""
        if ack.process_id in shard.dead_process_ids:  # reported late, by a worker
            return False
        has_restarted = shard.process_id not in (-1, ack.process_id)
        if has_restarted:
            shard.dead_process_ids.add(shard.process_id)
        lost_rows = shard.rows
        shard.process_id = ack.process_id
        shard.rows = ack.rows
        if not has_restarted:
            return False
        restored_rows = 0
        number = self._shards.index(shard)
        if (segment := _read_rows(shard.checkpoint_file)) is not None:
            shard.actor.append.remote(segment)
            restored_rows = len(segment["rows"])
        warnings.warn(
            f"Replay shard {number} died with {lost_rows} rows; {restored_rows} are back from a checkpoint.",
            stacklevel=2,
        )
        return True

    # Where updates draw.

    def ready(self, due: int) -> int:
        """How many of the updates that are due can be made with what has been drawn."""
        if due and self._block is None:
            self._block = self._next_block()
            self._used_in_block = 0
            self._errors = []
        return 0 if self._block is None else min(due, BLOCK_SIZE - self._used_in_block)

    def _next_block(self) -> SampledBlock | None:
        """The next block of minibatches, of whichever shard answers; None if none does within a short time."""
        update = self._agent.updates
        for _ in self._shards:
            if not self._pending_samples:
                self._request_block(update)
            ready, _ = ray.wait(list(self._pending_samples), num_returns=1, timeout=SAMPLE_TIMEOUT)
            if not ready:  # the shards that were asked are slow or lost: ask another one
                self._request_block(update)
                continue
            (reference,) = ready
            shard = self._shards[self._pending_samples.pop(reference)]
            with contextlib.suppress(*PROCESS_LOST_ERRORS):
                sampled: SampledBlock | None = ray.get(reference)
                if sampled is not None:
                    self._record_ack(shard, sampled.ack)
                    if sampled.observation_statistics is not None:
                        shard.observation_statistics[sampled.ack.process_id] = sampled.observation_statistics
                    self._block_shard = shard
                    self._request_block(update + BLOCK_SIZE)
                    return sampled
            self._request_block(update)
        time.sleep(RETRY_INTERVAL)
        return None

    def _request_block(self, update: int) -> None:
        """Asks the next shard that still has no such order for a block of minibatches."""
        free = [number for number in range(len(self._shards)) if number not in self._pending_samples.values()]
        if free:
            number = min(free, key=lambda number: (number - self._next_shard) % len(self._shards))
            self._next_shard = (number + 1) % len(self._shards)
            self._pending_samples[self._shards[number].actor.sample.remote(update, BLOCK_SIZE)] = number

    def update_statistics(self) -> None:
        """Merges the statistics of the shards, and writes them into the networks."""
        observation_statistics: RunningStatistics | None = self._agent.observation_statistics
        if observation_statistics is None or self._initial_statistics is None:
            return
        observation_statistics.restore(self._initial_statistics)
        for shard in self._shards:
            for state in shard.observation_statistics.values():
                observation_statistics.merge(state)
        write_statistics(observation_statistics, self._agent.normalizers)

    def sample(self, update: int, count: int) -> Packed:
        """The next minibatches of the block.

        Raises:
            ValueError: there are not so many; see `ready`.
        """
        if self._block is None or self.ready(count) < count:
            raise ValueError(f"The shards have not drawn {count} minibatches yet.")
        part = slice(self._used_in_block, self._used_in_block + count)
        packed = tuple(values[part] for values in self._block.packed)
        self._used_in_block += count
        return packed

    def return_range(self) -> tuple[float, float]:
        """See `tfdpg.replay.return_range`, of the shards that answer."""

        def request_ranges() -> list[tuple[float, float]]:
            pending = [shard.actor.return_range.remote() for shard in self._shards]
            ready, _ = ray.wait(pending, num_returns=len(pending), timeout=SAMPLE_TIMEOUT)
            answers = []
            for reference in ready:
                with contextlib.suppress(*PROCESS_LOST_ERRORS):
                    answers.append(ray.get(reference))
            ranges = [answer for answer in answers if answer is not None]
            if not ranges:
                raise ActorUnavailableError("No replay shard answers.", None)
            return ranges

        lows, highs = zip(*retry_while_lost(request_ranges), strict=True)
        return min(lows), max(highs)

    def update_priorities(self, errors: np.ndarray) -> None:
        """Keeps the TD errors until the block is used up, and sends them to its shard."""
        self._errors.append(errors)
        if self._block is None or self._used_in_block < BLOCK_SIZE:
            return
        if self._uses_td_errors:
            self._block_shard.actor.update_priorities.remote(self._block.sample_id, np.concatenate(self._errors))
        self._block = None

    # Where checkpoints are written.

    def save(self, directory: Path) -> None:
        """Writes the rows of each shard as `replay-<number>.npz`; one shard at a time is in memory.

        The file of a shard that does not answer is that of the checkpoint before, so that no checkpoint lacks rows
        that an earlier one had.
        """
        unresponsive = self._unresponsive_shards()
        for number, shard in enumerate(self._shards):
            path = directory / _file_name(number)
            try:
                np.savez(path, **self._fetch_rows(shard, unresponsive))
            except LOST_OR_TIMEOUT_ERRORS as error:
                consequence = (
                    "has those of the checkpoint before it"
                    if _link_or_copy(shard.checkpoint_file, path)
                    else "lacks them"
                )
                warnings.warn(
                    f"Replay shard {number} could not be asked for its rows; the checkpoint {consequence}: {error}",
                    stacklevel=2,
                )

    def _unresponsive_shards(self) -> set[int]:
        """The shards that do not answer within a short time, by their numbers."""
        deadline = time.monotonic() + CHECKPOINT_TIMEOUT
        pending = {shard.actor.status.remote(): number for number, shard in enumerate(self._shards)}
        while pending and (remaining := deadline - time.monotonic()) > 0:
            for reference in ray.wait(list(pending), num_returns=1, timeout=remaining)[0]:
                number = pending.pop(reference)
                try:
                    self._record_ack(self._shards[number], ray.get(reference))
                except PROCESS_LOST_ERRORS:  # it may be starting again
                    time.sleep(FIRST_RETRY_DELAY)
                    pending[self._shards[number].actor.status.remote()] = number
        return set(pending.values())

    def _fetch_rows(self, shard: ShardHandle, unresponsive: set[int]) -> dict[str, Any]:
        """Return the rows of a shard whose transitions are counted.

        Raises:
            Exception: one of `LOST_OR_TIMEOUT_ERRORS` if the shard does not answer.
        """
        if self._shards.index(shard) in unresponsive:
            raise GetTimeoutError(f"It did not answer within {CHECKPOINT_TIMEOUT:g} seconds.")
        width = self._agent.replay.nbytes / self._agent.replay.replay_size
        seconds = CHECKPOINT_TIMEOUT + shard.rows * width / MIN_TRANSFER_RATE
        rows, ack = ray.get(self._request_rows(shard), timeout=seconds)
        if self._record_ack(shard, ack):  # it died since it answered, and its earlier rows are on their way to it
            rows, _ = ray.get(self._request_rows(shard), timeout=seconds)
        return rows

    @staticmethod
    def _request_rows(shard: ShardHandle) -> Any:
        counted = {
            env_index: steps for (process_id, env_index), steps in shard.steps.items() if process_id == shard.process_id
        }
        return shard.actor.rows.remote(shard.process_id, counted)

    def on_saved(self, directory: Path) -> None:
        """Remembers where the rows are, for a shard that dies."""
        for number, shard in enumerate(self._shards):
            if (path := directory / _file_name(number)).exists():
                shard.checkpoint_file = path


def _file_name(number: int) -> str:
    """The name of the file with the rows of a shard in a checkpoint."""
    return f"replay-{number}.npz"


def _read_rows(path: Path | None) -> dict[str, Any] | None:
    """The rows of a shard in a checkpoint; None where there are none."""
    if path is None or not path.exists():
        return None
    with np.load(path) as file:
        return dict(file)


def _link_or_copy(source: Path | None, target: Path) -> bool:
    """Links to a file, or copies it where there are no links; returns whether there was one."""
    if source is None:
        return False
    try:
        os.link(source, target)
    except FileNotFoundError:
        return False
    except OSError:
        shutil.copyfile(source, target)
    return True
