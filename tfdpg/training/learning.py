"""Learning rounds: draw, update, and hand on what came out."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from tfdpg.acting import Moments
from tfdpg.networks import Actor, Normalizer
from tfdpg.replay import Draw, return_range
from tfdpg.spec import Packed
from tfdpg.training.divergence import divergence
from tfdpg.training.normalization import take_in
from tfdpg.training.schedule import Schedule
from tfdpg.training.statistics import Statistics
from tfdpg.training.updates import LARGEST_CHUNK, CompiledUpdates, Learnt, wants_xla


class Minibatches(Protocol):
    """Where updates take their minibatches from."""

    def take_in(self) -> None:
        """Brings the statistics of observations up to date with the rows, before a round of updates."""
        ...

    def draw(self, update: int, count: int) -> Packed:
        """The minibatches of the updates after the first `update`, packed, each array `[count, batch, width]`."""
        ...

    def refresh(self, errors: np.ndarray) -> None:
        """Takes the TD errors of what was just drawn, `[count, batch]`."""
        ...

    def return_range(self) -> tuple[float, float]:
        """See `tfdpg.replay.return_range`."""
        ...


class Elsewhere(Minibatches, Protocol):
    """Of rows that the agent does not hold itself."""

    def save(self, directory: Path) -> None:
        """Writes the rows as `replay-*.npz`, for a checkpoint."""
        ...

    def saved(self, directory: Path) -> None:
        """Is told where that checkpoint now is."""
        ...


class Learns(Protocol):
    """What learning asks of an agent; see `Agent` for the meaning."""

    networks: dict[str, keras.Model]
    metrics: tuple[str, ...]
    counter: tf.Variable
    batch_size: int
    elements: int
    schedule: Schedule
    actor: Actor
    draw: Draw
    statistics: Statistics
    normalizers: list[Normalizer]
    moments: Moments | None

    @property
    def options(self) -> Any: ...
    @property
    def unpack(self) -> Callable[[tuple[tf.Tensor, ...]], Any]: ...
    def update(self, batch: Any, counter: Any) -> dict[str, tf.Tensor]: ...


class Learning:
    """The learning rounds of an agent.

    Args:
        agent: the agent.
        usual_updates: the updates of a usual update phase; None is what the schedule says.
        before: functions that run before each update phase. They receive the agent and its minibatches.
        after: functions that run after each update phase. They receive the agent and what the phase logged.

    Attributes:
        elsewhere: where minibatches come from while the rows are elsewhere; None is the agent's own replay.
        has_diverged: whether losses or weights were NaN or infinite after the last updates.
    """

    def __init__(
        self,
        agent: Learns,
        usual_updates: int | None,
        before: Sequence[Callable[[Any, Minibatches], None]],
        after: Sequence[Callable[[Any, dict[str, float]], None]],
    ):
        self._agent = agent
        self._usual_updates = usual_updates
        self._before = before
        self._after = after
        self._own = _OwnReplay(agent)
        self.elsewhere: Elsewhere | None = None
        self.has_diverged = False
        self._updates: CompiledUpdates | None = None

    def round(self, updates: int) -> dict[str, float]:
        """Makes `updates` updates, at least one; returns the means of their metrics and `loss`.

        Raises:
            ValueError: there is nothing to learn from.
            FloatingPointError: losses or weights became NaN or infinite.
        """
        agent, minibatches, made = self._agent, self.elsewhere or self._own, int(self._agent.counter)
        minibatches.take_in()
        for prepare in self._before:
            prepare(agent, minibatches)
        td_error = agent.metrics.index("td_error")
        learnt = self._compiled(
            updates,
            lambda done, count: minibatches.draw(made + done, count),
            lambda measured: minibatches.refresh(measured[:, td_error]),
        )
        logs = self._take(learnt, made)
        for watch in self._after:
            watch(agent, logs)
        return logs

    def on_batch(self, packed: Packed) -> dict[str, float]:
        """One update on a packed minibatch `[1, batch, ...]`; returns its metrics and `loss`."""
        made = int(self._agent.counter)
        for prepare in self._before:
            prepare(self._agent, self._own)
        return self._take(self._compiled(1, lambda done, count: packed), made)

    @contextlib.contextmanager
    def from_elsewhere(self, minibatches: Elsewhere) -> Iterator[None]:
        """Draws from there for a while."""
        self.elsewhere = minibatches
        try:
            yield
        finally:
            self.elsewhere = None

    def expect(self, updates: int) -> None:
        """Is told how many updates a round may have, before the first one."""
        if self._updates is None:
            self._usual_updates = updates

    @property
    def function(self) -> Any:
        """The compiled updates; None before the first."""
        return None if self._updates is None else self._updates.function

    @property
    def _compiled(self) -> CompiledUpdates:
        """The agent's updates, to be compiled at the first call."""
        agent, options = self._agent, self._agent.options
        if self._updates is None:
            lanes = max(1, agent.schedule.lanes)
            usual = self._usual_updates or (agent.schedule.usual_updates or LARGEST_CHUNK) * lanes
            jit = not options.run_eagerly and options.jit_compile
            self._updates = CompiledUpdates(
                agent.update,
                agent.unpack,
                agent.counter,
                metrics=agent.metrics,
                chunk=min(LARGEST_CHUNK, usual),
                elements=agent.elements,
                networks=agent.networks,
                acting=agent.actor.weights_from,
                jit_compile=wants_xla(list(agent.networks.values())) if jit == "auto" else bool(jit),
                run_eagerly=options.run_eagerly,
                device=options.device,
            )
        return self._updates

    def _take(self, learnt: Learnt, made: int) -> dict[str, float]:
        """Hands on what updates after the first `made` gave."""
        agent, logs = self._agent, {}
        if not learnt.broken:
            agent.actor.load(learnt.weights)
            logs = agent.statistics.add(learnt.measured)
        self.has_diverged = learnt.broken != [] or not math.isfinite(logs["loss"])
        if self.has_diverged and (error := divergence(learnt, agent.metrics, made, agent.schedule.env_steps)):
            raise error
        self.has_diverged = False
        return logs


class _OwnReplay:
    """Minibatches of the agent's own replay."""

    def __init__(self, agent: Learns):
        self._agent = agent
        self._rows = np.empty((0, agent.batch_size), np.int64)

    def take_in(self) -> None:
        agent = self._agent
        if agent.moments is not None:
            take_in(agent.draw.ring, agent.moments, agent.normalizers)

    def draw(self, update: int, count: int) -> Packed:
        packed, self._rows = self._agent.draw(update, count)
        return packed

    def refresh(self, errors: np.ndarray) -> None:
        self._agent.draw.refresh(self._rows, errors)

    def return_range(self) -> tuple[float, float]:
        return return_range(self._agent.draw.ring, self._agent.draw.gamma)
