"""Update phases: sample minibatches, make updates, and pass their results on."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import keras
import numpy as np

from tfdpg.acting import RunningStatistics
from tfdpg.compat.keras import flatten_layers
from tfdpg.networks import Normalizer
from tfdpg.replay import return_range
from tfdpg.spec import Packed
from tfdpg.training.learning.divergence import divergence
from tfdpg.training.learning.updates import LARGEST_CHUNK, CompiledUpdates, UpdateResult


class Minibatches(Protocol):
    """Where an agent's minibatches come from: its own replay buffer, or replay shards in other processes."""

    def update_statistics(self) -> None:
        """Update the observation statistics with the new rows, before an update phase."""
        ...

    def sample(self, update: int, count: int) -> Packed:
        """Sample packed minibatches, each array `[count, batch, width]`, for `count` updates after update `update`."""
        ...

    def update_priorities(self, errors: np.ndarray) -> None:
        """Set priorities from the TD errors of the minibatches last sampled, `[count, batch]`."""
        ...

    def return_range(self) -> tuple[float, float]:
        """See `tfdpg.replay.return_range`."""
        ...


class Learner:
    """Runs the update phases of an agent.

    Args:
        agent: the agent.
        updates_per_phase: the number of updates in a typical update phase; None takes it from the schedule.
        before: functions that run before each update phase. They receive the agent and its minibatches.
        after: functions that run after each update phase. They receive the agent and the logs of the phase.

    Attributes:
        remote_replay: the replay shards, while the agent's rows are in other processes; otherwise None.
        has_diverged: whether losses or weights were NaN or infinite after the last updates.
    """

    def __init__(
        self,
        agent: Any,
        updates_per_phase: int | None,
        before: Sequence[Callable[[Any, Minibatches], None]],
        after: Sequence[Callable[[Any, dict[str, float]], None]],
    ):
        self._agent = agent
        self._updates_per_phase = updates_per_phase
        self._before = before
        self._after = after
        self._local_replay = _LocalReplay(agent)
        self.remote_replay: Any = None
        self.has_diverged = False
        self._updates: CompiledUpdates | None = None

    def run_update_phase(self, updates: int) -> dict[str, float]:
        """Make `updates` updates, at least one; return the means of their metrics and `loss`.

        Raises:
            ValueError: the replay buffer holds no transition.
            FloatingPointError: losses or weights became NaN or infinite.
        """
        agent = self._agent
        minibatches: Minibatches = self.remote_replay or self._local_replay
        updates_before = agent.updates
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
        """Make one update on a packed minibatch, `[1, batch, ...]`; return its metrics and `loss`."""
        updates_before = self._agent.updates
        for prepare in self._before:
            prepare(self._agent, self._local_replay)
        return self._finish_updates(self._compiled(1, lambda done, count: packed), updates_before)

    @contextlib.contextmanager
    def draw_from(self, minibatches: Any) -> Iterator[None]:
        """Sample from replay shards inside the context.

        Args:
            minibatches: `Minibatches` that can also save their rows for a checkpoint (`save(directory)`) and receive
                the directory of the finished checkpoint (`on_saved(directory)`).
        """
        self.remote_replay = minibatches
        try:
            yield
        finally:
            self.remote_replay = None

    def set_updates_per_phase(self, updates: int) -> None:
        """Set the number of updates in a typical update phase; ignored after the first update."""
        if self._updates is None:
            self._updates_per_phase = updates

    @property
    def function(self) -> Any:
        """The compiled updates; None before the first."""
        return None if self._updates is None else self._updates.function

    @property
    def _compiled(self) -> CompiledUpdates:
        """The agent's updates, compiled at the first call."""
        if self._updates is None:
            schedule = self._agent.schedule
            num_envs = max(1, schedule.num_envs)
            updates = self._updates_per_phase or (schedule.updates_per_phase or LARGEST_CHUNK) * num_envs
            self._updates = CompiledUpdates(self._agent, min(LARGEST_CHUNK, updates))
        return self._updates

    def _finish_updates(self, result: UpdateResult, updates_before: int) -> dict[str, float]:
        """Pass weights to the actor and metrics to the epoch, or raise the error of updates that diverged."""
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
    """Minibatches from the agent's own replay buffer."""

    def __init__(self, agent: Any):
        self._agent = agent
        self._rows = np.empty((0, agent.batch_size), np.int64)

    def update_statistics(self) -> None:
        agent = self._agent
        statistics = agent.observation_statistics
        if statistics is None:
            return
        buffer = agent.minibatch_builder.buffer
        first = max(statistics.rows_seen, buffer.added - buffer.replay_size)
        if first < buffer.added:
            statistics.update(buffer.observation(np.arange(first, buffer.added) % buffer.replay_size))
            statistics.set_rows_seen(buffer.added)
            write_statistics(statistics, agent.normalizers)

    def sample(self, update: int, count: int) -> Packed:
        packed, self._rows = self._agent.minibatch_builder(update, count)
        return packed

    def update_priorities(self, errors: np.ndarray) -> None:
        self._agent.minibatch_builder.update_priorities(self._rows, errors)

    def return_range(self) -> tuple[float, float]:
        return return_range(self._agent.minibatch_builder.buffer, self._agent.minibatch_builder.gamma)


def write_statistics(statistics: RunningStatistics, normalizers: Iterable[Normalizer]) -> None:
    """Write the mean and variance of observations into the networks."""
    for normalizer in normalizers:
        normalizer.mean.assign(statistics.mean)
        normalizer.variance.assign(statistics.variance)


def find_normalizers(networks: Iterable[keras.Model]) -> list[Normalizer]:
    """Return the normalisation layers of networks, each once."""
    layers = [layer for network in networks for layer in flatten_layers(network)]
    return list({id(layer): layer for layer in layers if isinstance(layer, Normalizer)}.values())


def check_normalizers(normalizers: Iterable[Normalizer], features: int) -> None:
    """Raise `ValueError` if a normaliser of a custom network does not receive all features of an observation."""
    for normalizer in normalizers:
        if normalizer.mean.shape != (features,):
            raise ValueError(
                f"The layer {normalizer.name!r}, a tfdpg.networks.Normalizer, must receive the {features} features of "
                f"an observation, and nothing else: apply it before other layers. Received: {normalizer.mean.shape[0]}"
            )
