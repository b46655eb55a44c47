"""A learning round: draw, update, and hand on what came out."""

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
    schedule: Schedule
    collector: Collector
    actor: Actor
    statistics: Statistics
    normalizers: list[Normalizer]
    moments: Moments | None

    @property
    def updates(self) -> int: ...
    def draw(self, rows: np.ndarray, weights: np.ndarray | None) -> Packed: ...
    def update(self, packed: tuple[tf.Tensor, ...], counter: Any) -> dict[str, tf.Tensor]: ...


def learn(agent: Learns, updates: int, compiled: CompiledUpdates) -> dict[str, float]:
    """Makes `updates` updates, at least one; returns the means of their metrics and `loss`."""
    if agent.moments is not None:
        take_in(agent.replay, agent.moments, agent.normalizers)
    td_error = agent.metrics.index("td_error")
    rows = np.empty((0, agent.batch_size), np.int64)

    def draw(count: int) -> Packed:
        nonlocal rows
        rows, weights = agent.sampler.draw(agent.updates, count)
        return agent.draw(rows, weights)

    learnt = compiled(updates, draw, lambda measured: agent.sampler.refresh(rows, measured[:, td_error]))
    agent.actor.load(learnt.weights)
    return agent.statistics.add(learnt.measured)


def compile_updates(agent: Learns, usual: int | None = None) -> CompiledUpdates:
    """The agent's update, to be compiled at the first call.

    Args:
        agent: the agent.
        usual: the updates that a round usually has; None is what the agent's schedule says.
    """
    usual = usual or (agent.schedule.usual_updates or LARGEST_CHUNK) * max(1, len(agent.collector.lanes))
    jit = wants_xla(list(agent.networks.values())) if agent.jit_compile == "auto" else bool(agent.jit_compile)
    return CompiledUpdates(
        agent.update,
        agent.counter,
        metrics=agent.metrics,
        chunk=min(LARGEST_CHUNK, usual),
        batch_size=agent.batch_size,
        acting=agent.actor.source,
        jit_compile=jit,
        device=agent.device,
    )
