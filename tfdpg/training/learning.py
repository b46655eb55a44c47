"""A learning round: draw, update, and hand on what came out."""

from pathlib import Path
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from tfdpg.acting import Moments
from tfdpg.networks import Actor, Normalizer
from tfdpg.replay import Ring, Sampler
from tfdpg.spec import Packed
from tfdpg.training.collector import Collector
from tfdpg.training.normalization import take_in
from tfdpg.training.schedule import Schedule
from tfdpg.training.statistics import Statistics
from tfdpg.training.updates import LARGEST_CHUNK, CompiledUpdates, wants_xla


class Source(Protocol):
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


class Elsewhere(Source, Protocol):
    """Rows that the agent does not hold itself."""

    def save(self, directory: Path) -> None:
        """Writes the rows as `replay-*.npz`, for a checkpoint."""
        ...

    def saved(self, directory: Path) -> None:
        """Is told where that checkpoint now is."""
        ...


class Learns(Protocol):
    """What a learning round asks of an agent; see `Agent` for the meaning."""

    networks: dict[str, keras.Model]
    metrics: tuple[str, ...]
    counter: tf.Variable
    batch_size: int
    jit_compile: Any
    device: str | None
    replay: Ring
    sampler: Sampler
    source: Elsewhere | None
    schedule: Schedule
    collector: Collector
    actor: Actor
    statistics: Statistics
    normalizers: list[Normalizer]
    moments: Moments | None
    usual_updates: int | None

    @property
    def updates(self) -> int: ...
    def draw(self, rows: np.ndarray, weights: np.ndarray | None) -> Packed: ...
    def update(self, packed: tuple[tf.Tensor, ...], counter: Any) -> dict[str, tf.Tensor]: ...


def learn(agent: Learns, updates: int, compiled: CompiledUpdates) -> dict[str, float]:
    """Makes `updates` updates, at least one; returns the means of their metrics and `loss`.

    Raises:
        FloatingPointError: weights became NaN or infinite.
    """
    source = agent.source or _OwnReplay(agent)
    source.take_in()
    td_error = agent.metrics.index("td_error")
    learnt = compiled(
        updates,
        lambda count: source.draw(agent.updates, count),
        lambda measured: source.refresh(measured[:, td_error]),
    )
    if learnt.broken:
        raise FloatingPointError(
            f"The weights of {' and '.join(f'`{name}`' for name in learnt.broken)} became NaN or infinite in updates "
            f"{agent.updates - updates + 1} to {agent.updates}, at environment step {agent.schedule.env_steps}. Lower "
            "the learning rates, clip gradients (`clip_norm`), or look for rewards that are far too large. An earlier "
            "checkpoint is sound; of these weights none is written."
        )
    agent.actor.load(learnt.weights)
    return agent.statistics.add(learnt.measured)


class _OwnReplay:
    """The agent's own replay as a source, for a round."""

    def __init__(self, agent: Learns):
        self._agent = agent
        self._rows = np.empty((0, agent.batch_size), np.int64)

    def take_in(self) -> None:
        agent = self._agent
        if agent.moments is not None:
            take_in(agent.replay, agent.moments, agent.normalizers)

    def draw(self, update: int, count: int) -> Packed:
        self._rows, weights = self._agent.sampler.draw(update, count)
        return self._agent.draw(self._rows, weights)

    def refresh(self, errors: np.ndarray) -> None:
        self._agent.sampler.refresh(self._rows, errors)


def compile_updates(agent: Learns, usual: int | None = None) -> CompiledUpdates:
    """The agent's update, to be compiled at the first call.

    Args:
        agent: the agent.
        usual: the updates that a round usually has; None is what the agent or its schedule says.
    """
    usual = usual or agent.usual_updates
    usual = usual or (agent.schedule.usual_updates or LARGEST_CHUNK) * max(1, len(agent.collector.lanes))
    jit = wants_xla(list(agent.networks.values())) if agent.jit_compile == "auto" else bool(agent.jit_compile)
    return CompiledUpdates(
        agent.update,
        agent.counter,
        metrics=agent.metrics,
        chunk=min(LARGEST_CHUNK, usual),
        batch_size=agent.batch_size,
        networks=agent.networks,
        acting=agent.actor.source,
        jit_compile=jit,
        device=agent.device,
    )
