"""The replay in shards, as the learner sees it: where workers store, and where updates draw."""

import contextlib
import time
import uuid
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import ray

from tfdpg.acting import Moments
from tfdpg.agents.agent import Agent
from tfdpg.distributed.processes import LOST, patiently, start_process
from tfdpg.distributed.shard import Drawn, Receipt, Shard, Stored, split
from tfdpg.distributed.storing import StoringWorker
from tfdpg.spec import Packed
from tfdpg.training.normalization import write_statistics
from tfdpg.training.updates import LARGEST_CHUNK as BLOCK

PAUSE = 0.05
"""Seconds to wait where no shard can be drawn from."""


class _Known:
    """A shard, and what the learner knows of it."""

    def __init__(self, *arguments: Any):
        self.name = f"tfdpg-shard-{uuid.uuid4()}"  # a handle among a worker's arguments would be an object to keep
        self.process = start_process(Shard, *arguments, name=self.name)
        self.incarnation, self.rows = -1, 0
        self.steps: dict[int, int] = {}
        self.moments: dict[int, dict[str, np.ndarray]] = {}


class Shards:
    """The shards of a training; it takes the agent's rows, and gives them back.

    Minibatches come in blocks, from one shard after the other; while updates take one, the next is on its way.

    Args:
        agent: the agent.
        count: how many shards.
    """

    def __init__(self, agent: Agent, count: int):
        like = agent.replay
        ring = like.replay_size // count, agent.options.replay_dir, like.step_width, like.has_windows, like.walks_back
        how = agent.make_draw, agent.moments is not None
        self._agent, self._wants_errors = agent, agent.draw.sampler.wants_errors
        self._shards = [_Known(agent.spec, ring, *how) for _ in range(count)]
        self._saved: list[Path] = []
        self._stack = contextlib.ExitStack()
        self._base = None if agent.moments is None else agent.moments.state()
        self._next: tuple[int, Any] | None = None
        self._block: Drawn | None = None
        self._used, self._turn, self._errors = 0, 0, []

    def __enter__(self) -> "Shards":
        agent = self._agent
        if agent.replay.size:
            for shard, part in zip(self._shards, split(agent.replay, len(self._shards)), strict=True):
                self._notice(shard, ray.get(shard.process.append.remote(part)))
        agent.replay.clear()
        agent.draw.sampler.restore({})
        self._stack.enter_context(agent.learning.from_elsewhere(self))
        return self

    def __exit__(self, kind: Any, *exception: object) -> None:
        """Takes the rows back, where there is room and nothing went wrong, and ends the shards."""
        self._stack.close()
        try:
            if kind is None or issubclass(kind, KeyboardInterrupt):
                self._gather()
        finally:
            for shard in self._shards:
                ray.kill(shard.process)

    def _gather(self) -> None:
        agent = self._agent
        try:
            for shard in self._shards:
                agent.replay.append(self._rows_of(shard))
        except (ValueError, *LOST) as error:
            warnings.warn(
                f"The rows of the shards did not all come back into the agent's replay: {error}", stacklevel=3
            )
        if agent.moments is not None:
            agent.moments.looked_at(agent.replay.added)

    # Where workers store.

    def start_worker(self, lane: int, *arguments: Any) -> Any:
        """Starts the worker of a lane, as a Ray actor."""
        return start_process(StoringWorker, self._of(lane).name, lane, *arguments)

    def take(self, lane: int, reply: Stored) -> np.ndarray:
        """`ended` for each step of a lane that its shard has stored and that was not counted yet."""
        shard, ended = self._of(lane), reply.summary.ended
        self._notice(shard, reply.receipt)
        new = reply.receipt.steps - shard.steps.get(lane, 0)
        shard.steps[lane] = reply.receipt.steps
        unreported = np.zeros(max(0, new - len(ended)), bool)  # of a worker that died before it could report
        return np.concatenate([unreported, ended[max(0, len(ended) - new) :]])

    def _of(self, lane: int) -> _Known:
        return self._shards[lane % len(self._shards)]

    def _notice(self, shard: _Known, receipt: Receipt) -> bool:
        """Takes note of what a shard holds; whether it is a new one, which gets the rows of the last checkpoint."""
        came_back = shard.incarnation not in (-1, receipt.incarnation)
        lost, shard.incarnation, shard.rows = shard.rows, receipt.incarnation, receipt.rows
        if not came_back:
            return False
        shard.steps, back, number = {}, 0, self._shards.index(shard)
        if number < len(self._saved) and self._saved[number].exists():
            with np.load(self._saved[number]) as file:
                segment = dict(file)
            shard.process.append.remote(segment)
            back = len(segment["rows"])
        warnings.warn(f"Replay shard {number} died with {lost} rows; {back} are back from a checkpoint.", stacklevel=2)
        return True

    # Where updates draw.

    def ready(self, due: int) -> int:
        """How many of the updates that are due can be made with what has been drawn."""
        if due and self._block is None:
            self._block, self._used, self._errors = self._next_block(), 0, []
        return 0 if self._block is None else min(due, BLOCK - self._used)

    def _next_block(self) -> Drawn | None:
        update = self._agent.updates
        for _ in self._shards:
            number, reference = self._next or self._ask(update)
            self._next = None
            shard = self._shards[number]
            try:
                drawn: Drawn | None = ray.get(reference)
            except LOST:
                drawn = None
            if drawn is not None:
                self._notice(shard, drawn.receipt)
                if drawn.moments is not None:
                    shard.moments[drawn.receipt.incarnation] = drawn.moments
                self._from = shard
                self._next = self._ask(update + BLOCK)
                return drawn
        time.sleep(PAUSE)
        return None

    def _ask(self, update: int) -> tuple[int, Any]:
        """Asks the next shard for a block of minibatches."""
        number, self._turn = self._turn, (self._turn + 1) % len(self._shards)
        return number, self._shards[number].process.draw.remote(update, BLOCK)

    def take_in(self) -> None:
        """Merges the statistics of the shards, and writes them into the networks."""
        moments: Moments | None = self._agent.moments
        if moments is None or self._base is None:
            return
        moments.restore(self._base)
        for shard in self._shards:
            for state in shard.moments.values():
                moments.merge(state)
        write_statistics(moments, self._agent.normalizers)

    def draw(self, update: int, count: int) -> Packed:
        """The next minibatches of the block.

        Raises:
            ValueError: there are not so many; see `ready`.
        """
        if self._block is None or self.ready(count) < count:
            raise ValueError(f"The shards have not drawn {count} minibatches yet.")
        part = slice(self._used, self._used + count)
        packed = tuple(values[part] for values in self._block.packed)
        self._used += count
        return packed

    def return_range(self) -> tuple[float, float]:
        """See `tfdpg.replay.return_range`, of all shards."""
        ranges = patiently(lambda: ray.get([shard.process.return_range.remote() for shard in self._shards]))
        lows, highs = zip(*[known for known in ranges if known is not None], strict=True)
        return min(lows), max(highs)

    def refresh(self, errors: np.ndarray) -> None:
        """Keeps the TD errors until the block is used up, and sends them to its shard."""
        self._errors.append(errors)
        if self._block is None or self._used < BLOCK:
            return
        if self._wants_errors:
            self._from.process.refresh.remote(self._block.ticket, np.concatenate(self._errors))
        self._block = None

    # Where checkpoints are written.

    def save(self, directory: Path) -> None:
        """Writes the rows of each shard as `replay-<number>.npz`; one shard at a time is in memory."""
        for number, shard in enumerate(self._shards):
            try:
                np.savez(directory / f"replay-{number}.npz", **self._rows_of(shard))
            except LOST as error:
                warnings.warn(f"The checkpoint lacks the rows of replay shard {number}: {error}", stacklevel=2)

    def _rows_of(self, shard: _Known) -> dict[str, Any]:
        rows, receipt = patiently(lambda: ray.get(shard.process.rows.remote()))
        return patiently(lambda: ray.get(shard.process.rows.remote()))[0] if self._notice(shard, receipt) else rows

    def saved(self, directory: Path) -> None:
        """Remembers where the rows are, for a shard that dies."""
        self._saved = [directory / f"replay-{number}.npz" for number in range(len(self._shards))]
