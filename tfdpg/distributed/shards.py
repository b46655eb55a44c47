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

from tfdpg.acting import Moments
from tfdpg.agents.agent import Agent
from tfdpg.distributed import fleet
from tfdpg.distributed.processes import FIRST_DELAY, LOST, patiently, start_process
from tfdpg.distributed.shard import Drawn, Receipt, Shard, Stored, split
from tfdpg.distributed.storing import StoringWorker
from tfdpg.distributed.waiting import Waiting
from tfdpg.spec import Packed
from tfdpg.training.normalization import write_statistics
from tfdpg.training.updates import LARGEST_CHUNK as BLOCK

PAUSE = 0.05
"""Seconds to wait where no shard can be drawn from."""
PATIENCE = 1.0
"""Seconds to wait for minibatches before they are asked of another shard as well."""
CHECKPOINT_PATIENCE = 5.0
"""Seconds that a checkpoint waits for shards that do not answer."""
SLOWEST_TRANSFER = 5e6
"""Bytes a second at which the rows of a shard that answers arrive at least; a slower one counts as lost."""
LOST_OR_LATE = (*LOST, GetTimeoutError)
"""What is raised where a shard does not answer."""


class _Known:
    """A shard, and what the learner knows of it."""

    def __init__(self, *arguments: Any):
        self.name = f"tfdpg-shard-{uuid.uuid4()}"  # a handle among a worker's arguments would be an object to keep
        self.process = start_process(Shard, *arguments, name=self.name)
        self.incarnation, self.rows = -1, 0
        self.earlier: set[int] = set()  # incarnations that died
        self.steps: dict[tuple[int, int], int] = {}  # counted, by incarnation and lane
        self.saved: Path | None = None  # its rows in the newest checkpoint that has them
        self.moments: dict[int, dict[str, np.ndarray]] = {}


class Shards:
    """The shards of a training; it takes the agent's rows, and gives them back.

    Minibatches come in blocks, from one shard after the other; while updates take one, the next is on its way.

    Args:
        agent: the agent.
        count: how many shards.
        waiting: what happens while a shard cannot start.
    """

    def __init__(self, agent: Agent, count: int, waiting: Waiting):
        like = agent.replay
        ring = like.replay_size // count, agent.options.replay_dir, like.step_width, like.has_windows, like.walks_back
        how = agent.make_draw, agent.moments is not None
        self._waiting = waiting
        self._agent, self._wants_errors = agent, agent.draw.sampler.wants_errors
        self._shards = [_Known(agent.spec, ring, *how) for _ in range(count)]
        self._stack = contextlib.ExitStack()
        self._base = None if agent.moments is None else agent.moments.state()
        self._asked: dict[Any, int] = {}
        self._block: Drawn | None = None
        self._used, self._turn, self._errors = 0, 0, []

    def __enter__(self) -> "Shards":
        agent = self._agent
        if agent.replay.size:
            for number, part in enumerate(split(agent.replay, len(self._shards))):
                shard = self._shards[number]
                reference = shard.process.append.remote(part)
                self._notice(shard, self._waiting.first_answer(reference, f"Replay shard {number}", fleet.GRACE))
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
        agent, missing = self._agent, self._unanswering()
        for number, shard in enumerate(self._shards):
            try:
                agent.replay.append(self._rows_of(shard, missing))
            except (ValueError, *LOST_OR_LATE) as error:
                saved = _read(shard.saved) if isinstance(error, LOST_OR_LATE) else None
                if saved is not None:
                    agent.replay.append(saved)
                warnings.warn(
                    f"The rows of replay shard {number} did not come back into the agent's replay buffer: {error} "
                    f"{0 if saved is None else len(saved['rows'])} rows came back from a checkpoint.",
                    stacklevel=3,
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
        counted = reply.receipt.incarnation, lane
        new = reply.receipt.steps - shard.steps.get(counted, 0)
        shard.steps[counted] = reply.receipt.steps
        unreported = np.zeros(max(0, new - len(ended)), bool)  # of a worker that died before it could report
        return np.concatenate([unreported, ended[max(0, len(ended) - new) :]])

    def _of(self, lane: int) -> _Known:
        return self._shards[lane % len(self._shards)]

    def _notice(self, shard: _Known, receipt: Receipt) -> bool:
        """Takes note of what a shard holds; whether it is a new one, which gets the rows of the last checkpoint."""
        if receipt.incarnation in shard.earlier:  # reported late, by a worker
            return False
        came_back = shard.incarnation not in (-1, receipt.incarnation)
        if came_back:
            shard.earlier.add(shard.incarnation)
        lost, shard.incarnation, shard.rows = shard.rows, receipt.incarnation, receipt.rows
        if not came_back:
            return False
        back, number = 0, self._shards.index(shard)
        if (segment := _read(shard.saved)) is not None:
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
        """The next block of minibatches, of whichever shard answers; None if none does within a short time."""
        update = self._agent.updates
        for _ in self._shards:
            if not self._asked:
                self._ask(update)
            ready, _ = ray.wait(list(self._asked), num_returns=1, timeout=PATIENCE)
            if not ready:  # the shards that were asked are slow or lost: ask another one
                self._ask(update)
                continue
            (reference,) = ready
            shard = self._shards[self._asked.pop(reference)]
            with contextlib.suppress(*LOST):
                drawn: Drawn | None = ray.get(reference)
                if drawn is not None:
                    self._notice(shard, drawn.receipt)
                    if drawn.moments is not None:
                        shard.moments[drawn.receipt.incarnation] = drawn.moments
                    self._from = shard
                    self._ask(update + BLOCK)
                    return drawn
            self._ask(update)
        time.sleep(PAUSE)
        return None

    def _ask(self, update: int) -> None:
        """Asks the next shard that still has no such order for a block of minibatches."""
        free = [number for number in range(len(self._shards)) if number not in self._asked.values()]
        if free:
            number = min(free, key=lambda number: (number - self._turn) % len(self._shards))
            self._turn = (number + 1) % len(self._shards)
            self._asked[self._shards[number].process.draw.remote(update, BLOCK)] = number

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
        """See `tfdpg.replay.return_range`, of the shards that answer."""

        def ask() -> list[tuple[float, float]]:
            asked = [shard.process.return_range.remote() for shard in self._shards]
            ready, _ = ray.wait(asked, num_returns=len(asked), timeout=PATIENCE)
            answers = []
            for reference in ready:
                with contextlib.suppress(*LOST):
                    answers.append(ray.get(reference))
            known = [answer for answer in answers if answer is not None]
            if not known:
                raise ActorUnavailableError("No replay shard answers.", None)
            return known

        lows, highs = zip(*patiently(ask), strict=True)
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
        """Writes the rows of each shard as `replay-<number>.npz`; one shard at a time is in memory.

        The file of a shard that does not answer is that of the checkpoint before, so that no checkpoint lacks rows
        that an earlier one had.
        """
        missing = self._unanswering()
        for number, shard in enumerate(self._shards):
            path = directory / _file_of(number)
            try:
                np.savez(path, **self._rows_of(shard, missing))
            except LOST_OR_LATE as error:
                kept = "has those of the checkpoint before it" if _carry(shard.saved, path) else "lacks them"
                warnings.warn(
                    f"Replay shard {number} could not be asked for its rows; the checkpoint {kept}: {error}",
                    stacklevel=2,
                )

    def _unanswering(self) -> set[int]:
        """The shards that do not answer within a short time, by their numbers."""
        deadline = time.monotonic() + CHECKPOINT_PATIENCE
        asked = {shard.process.receipt.remote(): number for number, shard in enumerate(self._shards)}
        while asked and (remaining := deadline - time.monotonic()) > 0:
            for reference in ray.wait(list(asked), num_returns=1, timeout=remaining)[0]:
                number = asked.pop(reference)
                try:
                    self._notice(self._shards[number], ray.get(reference))
                except LOST:  # it may be starting again
                    time.sleep(FIRST_DELAY)
                    asked[self._shards[number].process.receipt.remote()] = number
        return set(asked.values())

    def _rows_of(self, shard: _Known, missing: set[int]) -> dict[str, Any]:
        """The rows of a shard whose transitions are counted; raises one of `LOST_OR_LATE` if it does not answer."""
        if self._shards.index(shard) in missing:
            raise GetTimeoutError(f"It did not answer within {CHECKPOINT_PATIENCE:g} seconds.")
        width = self._agent.replay.nbytes / self._agent.replay.replay_size
        seconds = CHECKPOINT_PATIENCE + shard.rows * width / SLOWEST_TRANSFER
        rows, receipt = ray.get(self._ask_for_rows(shard), timeout=seconds)
        if self._notice(shard, receipt):  # it died since it answered, and its earlier rows are on their way to it
            rows, _ = ray.get(self._ask_for_rows(shard), timeout=seconds)
        return rows

    @staticmethod
    def _ask_for_rows(shard: _Known) -> Any:
        counted = {lane: steps for (process, lane), steps in shard.steps.items() if process == shard.incarnation}
        return shard.process.rows.remote(shard.incarnation, counted)

    def saved(self, directory: Path) -> None:
        """Remembers where the rows are, for a shard that dies."""
        for number, shard in enumerate(self._shards):
            if (path := directory / _file_of(number)).exists():
                shard.saved = path


def _file_of(number: int) -> str:
    """The name of the file with the rows of a shard in a checkpoint."""
    return f"replay-{number}.npz"


def _read(path: Path | None) -> dict[str, Any] | None:
    """The rows of a shard in a checkpoint; None where there are none."""
    if path is None or not path.exists():
        return None
    with np.load(path) as file:
        return dict(file)


def _carry(source: Path | None, target: Path) -> bool:
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
