"""Update phases: sample minibatches, make updates, and pass their results on."""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import keras
import numpy as np

from tfdpg.acting import RunningStatistics
from tfdpg.compat.keras import flatten_layers
from tfdpg.networks import FlatState, Normalizer
from tfdpg.replay import return_range
from tfdpg.spec import Packed
from tfdpg.training.learning.divergence import divergence
from tfdpg.training.learning.updates import LARGEST_CHUNK, CompiledUpdates, uses_xla


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

    Raises:
        ValueError: replay is prioritised, and no metric sets priorities.

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
        self._td_error = next((i for i, metric in enumerate(agent.metrics) if metric.priority), None)
        if self._td_error is None and agent.minibatch_builder.sampler.uses_td_errors:
            raise ValueError(
                "Prioritised replay needs the TD error among the declared `metrics`: Metric(name, priority=True). "
                "Declare it, or pass replay='uniform' to the agent."
            )
        self._updates_per_phase = updates_per_phase
        self._before = before
        self._after = after
        self._local_replay = _LocalReplay(agent)
        self.remote_replay: Any = None
        self.has_diverged = False
        self._compiled: dict[bool, CompiledUpdates] = {}
        self._state: FlatState | None = None
        self._is_flat = False
        self._may_be_flat = True  # until the agent's code was traced, and did not allow it
        self._show: Callable[[str], None] = print
        self._is_busy = False  # whether this object reads or assigns variables
        self._is_captured = False  # whether compiled functions of users may read variables, so that all are written
        self._made: int | None = None  # updates ever made; None outside of `flat_state`: see the agent's counter
        self._held: list[Packed] = []  # minibatches of updates that are made later
        self._period = 1  # updates are held back until their number is a multiple of this

    @property
    def updates(self) -> int:
        """The number of updates made, those held back included."""
        return (int(self._agent.counter) if self._made is None else self._made) + len(self._held)

    def run_update_phase(self, updates: int, may_hold: bool = False) -> dict[str, float]:
        """Make `updates` updates; return the means of their metrics and `loss`, or an empty dict if none was made.

        Args:
            updates: the number of updates.
            may_hold: whether updates that do not change the behaviour policy may be held back, inside `flat_state`.
                Their minibatches are sampled, and they are made together with the next one that does.

        Raises:
            ValueError: the replay buffer holds no transition.
            FloatingPointError: losses or weights became NaN or infinite.
        """
        if not updates:
            return {}
        agent = self._agent
        minibatches: Minibatches = self.remote_replay or self._local_replay
        minibatches.update_statistics()
        for prepare in self._before:
            prepare(agent, minibatches)
        total = self.updates + updates
        compiled = self._compiled.get(True)
        period = self._period if compiled is not None and compiled.delays_policy else 1
        later = total % period if may_hold and updates < period else 0
        updates += len(self._held) - later
        logs = {}
        if updates > 0:
            logs = self._make(updates, functools.partial(self._sample, minibatches), self._prioritize(minibatches))
        self._held += [minibatches.sample(update, 1) for update in range(self.updates, total)]
        if self._is_captured or not self._is_flat:
            self.synchronize()
        for watch in self._after:
            watch(agent, logs)
        return logs

    def update_on_batch(self, packed: Packed) -> dict[str, float]:
        """Make one update on a packed minibatch, `[1, batch, ...]`; return its metrics and `loss`."""
        self.synchronize()
        for prepare in self._before:
            prepare(self._agent, self._local_replay)
        logs = self._make(1, lambda update, count: packed)
        self.synchronize()
        for watch in self._after:
            watch(self._agent, logs)
        return logs

    @contextlib.contextmanager
    def flat_state(self, is_allowed: bool, show: Callable[[str], None] = print) -> Iterator[None]:
        """Inside the context, updates may leave variables as they are until `synchronize` is called.

        The state of updates is then in flat tensors, which saves time in each call. The variables hold the newest
        values again at the end of the context, and before someone reads or assigns one of them. A function that users
        compile inside the context reads them without notice, so after that all updates are written at once.

        The code of the agent decides when it is traced for the first time: if it uses a variable in a way that flat
        tensors cannot follow, the updates stay on variables.

        Args:
            is_allowed: whether nothing inside the context reads variables after each update phase.
            show: prints a line; called once if the agent's code does not allow flat tensors.
        """
        agent = self._agent
        self._show = show
        self._is_flat = is_allowed and self._may_be_flat and profits_from_flat_state(agent)
        uses_td_errors = agent.minibatch_builder.sampler.uses_td_errors
        may_hold = not (self._before or self._after or agent.normalizers or uses_td_errors)
        self._period = agent.policy_period if self._is_flat and may_hold and agent.policy_period <= LARGEST_CHUNK else 1
        if self._is_flat:
            optimizers = agent.optimizers.values()
            self._state = self._state or FlatState(agent.trained_variables, optimizers, agent.options.device)
            self._state.notify_of_reads(self._on_read)
        models = itertools.chain(agent.networks.values(), agent.copies.values())
        self._is_captured |= any(model.predict_function is not None for model in models)
        try:
            yield
        finally:
            try:
                self.synchronize()
            finally:
                self._end_flat_state()

    def _end_flat_state(self) -> None:
        if self._is_flat and self._state is not None:
            self._state.stop_notifying()
        self._is_flat = False
        self._period = 1

    def _leave_flat_state(self, updates: CompiledUpdates) -> None:
        """Stay on variables from now on, as these updates already do, and say why."""
        self._end_flat_state()
        self._state = None
        self._may_be_flat = False
        self._compiled = {False: updates}
        self._show(
            f"Each update of {type(self._agent).__name__} passes its variables one by one, which takes longer than as "
            f"one flat tensor: {updates.reason_not_flat}."
        )

    def _on_read(self, is_compiling: bool) -> None:
        """Let the variables hold the newest values before someone reads one of them."""
        if not self._is_busy:
            self._is_captured |= is_compiling
            self.synchronize()

    def synchronize(self) -> None:
        """Let networks and optimizers hold the newest values, after the updates that were held back."""
        try:
            if self._held:
                self._make(len(self._held), functools.partial(self._sample, None))
        finally:
            self._made = None
            if self._state is not None and self._state.is_newer:
                self._is_busy = True
                try:
                    self._state.write_variables()
                finally:
                    self._is_busy = False

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
        if not self._compiled:
            self._updates_per_phase = updates

    @property
    def function(self) -> Any:
        """The compiled updates; None before the first."""
        return next((updates.function for updates in self._compiled.values()), None)

    def _updates(self, is_flat: bool) -> CompiledUpdates:
        """Return the agent's updates, of flat tensors or of variables."""
        if is_flat not in self._compiled:
            schedule = self._agent.schedule
            num_envs = max(1, schedule.num_envs)
            updates = self._updates_per_phase or (schedule.updates_per_phase or LARGEST_CHUNK) * num_envs
            chunk = min(LARGEST_CHUNK, max(updates, self._period))
            self._compiled[is_flat] = CompiledUpdates(self._agent, chunk, self._state if is_flat else None)
        return self._compiled[is_flat]

    def _prioritize(self, minibatches: Minibatches) -> Callable[[np.ndarray], None]:
        """Return a function that sets priorities from the metrics of updates, `[updates, metrics, batch]`."""
        index = self._td_error
        return lambda measured: None if index is None else minibatches.update_priorities(measured[:, index])

    def _sample(self, minibatches: Minibatches | None, update: int, count: int) -> Packed:
        """Return the next `count` minibatches: those held back, and then new ones."""
        packed = self._held[:count]
        del self._held[:count]
        if count > len(packed) and minibatches is not None:
            packed.append(minibatches.sample(update + len(packed), count - len(packed)))
        return packed[0] if len(packed) == 1 else tuple(map(np.concatenate, zip(*packed, strict=True)))

    def _make(self, updates: int, *arguments: Any) -> dict[str, float]:
        """Make updates, and pass weights to the actor and metrics to the epoch, or raise the error of a divergence."""
        agent = self._agent
        if not self._is_flat:
            self.synchronize()
        before = self.updates - len(self._held)
        self._is_busy = True
        try:
            compiled = self._updates(self._is_flat)
            result = compiled(before, updates, *arguments)
        finally:
            self._is_busy = False
        if self._is_flat and compiled.reason_not_flat:
            self._leave_flat_state(compiled)
        self._made = before + len(result.measured) if self._is_flat else None
        logs = {}
        if not result.nonfinite:
            agent.actor.load(result.weights)
            logs = agent.epoch_metrics.add(result.measured)
        self.has_diverged = result.nonfinite != [] or not math.isfinite(logs["loss"])
        if self.has_diverged and (error := divergence(result, agent.metrics, before, agent.schedule.env_steps)):
            self._held.clear()
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


def profits_from_flat_state(agent: Any) -> bool:
    """Return whether an agent's updates may be faster on `FlatState`.

    Without XLA, the parts of the flat tensors are copied. A policy that does not act in NumPy reads its variables, so
    these would have to be written after each update phase.
    """
    return uses_xla(agent) and not agent.options.run_eagerly and agent.actor.weights_from is not None


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
