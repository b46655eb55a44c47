"""Update phases: draw, update, and hand on what came out."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from tfdpg.acting import RunningStatistics
from tfdpg.networks import Normalizer, PolicyInference
from tfdpg.replay import MinibatchBuilder, ReplayBuffer, return_range
from tfdpg.spec import Packed
from tfdpg.training.environment.schedule import Schedule
from tfdpg.training.learning.divergence import divergence
from tfdpg.training.learning.epoch_metrics import EpochMetrics
from tfdpg.training.learning.updates import LARGEST_CHUNK, CompiledUpdates, UpdateResult, should_use_xla


class Minibatches(Protocol):
    """Where updates take their minibatches from."""

    def update_statistics(self) -> None:
        """Brings the statistics of observations up to date with the rows, before a round of updates."""
        ...

    def sample(self, update: int, count: int) -> Packed:
        """The minibatches of the updates after the first `update`, packed, each array `[count, batch, width]`."""
        ...

    def update_priorities(self, errors: np.ndarray) -> None:
        """Takes the TD errors of what was just drawn, `[count, batch]`."""
        ...

    def return_range(self) -> tuple[float, float]:
        """See `tfdpg.replay.return_range`."""
        ...


class RemoteReplay(Minibatches, Protocol):
    """Of rows that the agent does not hold itself."""

    def save(self, directory: Path) -> None:
        """Writes the rows as `replay-*.npz`, for a checkpoint."""
        ...

    def on_saved(self, directory: Path) -> None:
        """Is told where that checkpoint now is."""
        ...


class LearningAgent(Protocol):
    """What learning asks of an agent; see `Agent` for the meaning."""

    networks: dict[str, keras.Model]
    metrics: tuple[str, ...]
    counter: tf.Variable
    batch_size: int
    batch_elements: int
    schedule: Schedule
    actor: PolicyInference
    minibatch_builder: MinibatchBuilder
    epoch_metrics: EpochMetrics
    normalizers: list[Normalizer]
    observation_statistics: RunningStatistics | None

    @property
    def options(self) -> Any: ...
    @property
    def unpack(self) -> Callable[[tuple[tf.Tensor, ...]], Any]: ...
    def update(self, batch: Any, counter: Any) -> dict[str, tf.Tensor]: ...


class Learner:
    """The learning rounds of an agent.

    Args:
        agent: the agent.
        updates_per_phase: the updates of a usual update phase; None is what the schedule says.
        before: functions that run before each update phase. They receive the agent and its minibatches.
        after: functions that run after each update phase. They receive the agent and what the phase logged.

    Attributes:
        remote_replay: where minibatches come from while the rows are elsewhere; None is the agent's own replay.
        has_diverged: whether losses or weights were NaN or infinite after the last updates.
    """

    def __init__(
        self,
        agent: LearningAgent,
        updates_per_phase: int | None,
        before: Sequence[Callable[[Any, Minibatches], None]],
        after: Sequence[Callable[[Any, dict[str, float]], None]],
    ):
        self._agent = agent
        self._updates_per_phase = updates_per_phase
        self._before = before
        self._after = after
        self._local_replay = _LocalReplay(agent)
        self.remote_replay: RemoteReplay | None = None
        self.has_diverged = False
        self._updates: CompiledUpdates | None = None

    def run_update_phase(self, updates: int) -> dict[str, float]:
        """Makes `updates` updates, at least one; returns the means of their metrics and `loss`.

        Raises:
            ValueError: there is nothing to learn from.
            FloatingPointError: losses or weights became NaN or infinite.
        """
        agent = self._agent
        minibatches = self.remote_replay or self._local_replay
        updates_before = int(self._agent.counter)
        minibatches.update_statistics()
        for prepare in self._before:
            prepare(agent, minibatches)
        td_error = agent.metrics.index("td_error")
        result = self._compiled(
            updates,
            lambda done, count: minibatches.sample(updates_before + done, count),
            lambda measured: minibatches.update_priorities(measured[:, td_error]),
        )
        logs = self._finish_updates(result, updates_before)
        for watch in self._after:
            watch(agent, logs)
        return logs

    def update_on_batch(self, packed: Packed) -> dict[str, float]:
        """One update on a packed minibatch `[1, batch, ...]`; returns its metrics and `loss`."""
        updates_before = int(self._agent.counter)
        for prepare in self._before:
            prepare(self._agent, self._local_replay)
        return self._finish_updates(self._compiled(1, lambda done, count: packed), updates_before)

    @contextlib.contextmanager
    def draw_from(self, minibatches: RemoteReplay) -> Iterator[None]:
        """Draws from there for a while."""
        self.remote_replay = minibatches
        try:
            yield
        finally:
            self.remote_replay = None

    def set_updates_per_phase(self, updates: int) -> None:
        """Is told how many updates a round may have, before the first one."""
        if self._updates is None:
            self._updates_per_phase = updates

    @property
    def function(self) -> Any:
        """The compiled updates; None before the first."""
        return None if self._updates is None else self._updates.function

    @property
    def _compiled(self) -> CompiledUpdates:
        """The agent's updates, to be compiled at the first call."""
        agent = self._agent
        options = self._agent.options
        if self._updates is None:
            num_envs = max(1, agent.schedule.num_envs)
            updates_per_phase = (
                self._updates_per_phase or (agent.schedule.updates_per_phase or LARGEST_CHUNK) * num_envs
            )
            jit = not options.run_eagerly and options.jit_compile
            self._updates = CompiledUpdates(
                agent.update,
                agent.unpack,
                agent.counter,
                metrics=agent.metrics,
                chunk=min(LARGEST_CHUNK, updates_per_phase),
                batch_elements=agent.batch_elements,
                networks=agent.networks,
                acting=agent.actor.weights_from,
                jit_compile=should_use_xla(list(agent.networks.values())) if jit == "auto" else bool(jit),
                run_eagerly=options.run_eagerly,
                device=options.device,
            )
        return self._updates

    def _finish_updates(self, result: UpdateResult, updates_before: int) -> dict[str, float]:
        """Hands on what updates after the first `made` gave."""
        agent = self._agent
        logs = {}
        if not result.nonfinite:
            agent.actor.load(result.weights)
            logs = agent.epoch_metrics.add(result.measured)
        self.has_diverged = result.nonfinite != [] or not math.isfinite(logs["loss"])
        if self.has_diverged and (error := divergence(result, agent.metrics, updates_before, agent.schedule.env_steps)):
            raise error
        self.has_diverged = False
        return logs


class _LocalReplay:
    """Minibatches of the agent's own replay."""

    def __init__(self, agent: LearningAgent):
        self._agent = agent
        self._rows = np.empty((0, agent.batch_size), np.int64)

    def update_statistics(self) -> None:
        agent = self._agent
        if agent.observation_statistics is not None:
            update_statistics(agent.minibatch_builder.buffer, agent.observation_statistics, agent.normalizers)

    def sample(self, update: int, count: int) -> Packed:
        packed, self._rows = self._agent.minibatch_builder(update, count)
        return packed

    def update_priorities(self, errors: np.ndarray) -> None:
        self._agent.minibatch_builder.update_priorities(self._rows, errors)

    def return_range(self) -> tuple[float, float]:
        return return_range(self._agent.minibatch_builder.buffer, self._agent.minibatch_builder.gamma)


def update_statistics(
    buffer: ReplayBuffer, observation_statistics: RunningStatistics, normalizers: Sequence[Normalizer]
) -> None:
    """Adds the observations of the rows that are new since the last time, and writes mean and variance."""
    first = max(observation_statistics.rows_seen, buffer.added - buffer.replay_size)
    if first == buffer.added:
        return
    observation_statistics.update(buffer.observation(np.arange(first, buffer.added) % buffer.replay_size))
    observation_statistics.set_rows_seen(buffer.added)
    write_statistics(observation_statistics, normalizers)


def write_statistics(observation_statistics: RunningStatistics, normalizers: Sequence[Normalizer]) -> None:
    """Writes mean and variance into the networks."""
    for normalizer in normalizers:
        normalizer.mean.assign(observation_statistics.mean)
        normalizer.variance.assign(observation_statistics.variance)


def find_normalizers(networks: Iterable[keras.Model]) -> list[Normalizer]:
    """The normalisers in some networks, each once."""
    layers = [layer for network in networks for layer in network._flatten_layers()]
    return list({id(layer): layer for layer in layers if isinstance(layer, Normalizer)}.values())


def check_normalizers(normalizers: Iterable[Normalizer], features: int) -> None:
    """Raise `ValueError` if a normaliser of a custom network does not receive all features of an observation."""
    for normalizer in normalizers:
        if normalizer.mean.shape != (features,):
            raise ValueError(
                f"The layer {normalizer.name!r}, a tfdpg.networks.Normalizer, must receive the {features} features of "
                f"an observation, and nothing else: apply it before other layers. Received: {normalizer.mean.shape[0]}"
            )
