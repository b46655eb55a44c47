"""Update phases: sample minibatches, make updates, and pass their results on."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tfdpg.arguments import natural, reject
from tfdpg.components import Declaration, Networks
from tfdpg.networks import FlatState
from tfdpg.spec import Packed
from tfdpg.training.agent_data import AgentData
from tfdpg.training.environment.env_runner import Episode
from tfdpg.training.learning.divergence import divergence
from tfdpg.training.learning.epoch_metrics import EpochMetrics
from tfdpg.training.learning.updates import LARGEST_CHUNK, SHARED_CHUNK, CompiledUpdates, UpdateResult, uses_xla

FEW_UPDATES = 4
"""The largest number of updates in a call for which large variables are passed alone (`FlatState`)."""
Update = Callable[[Any, Any], dict[str, tf.Tensor]]
"""Makes one update with a minibatch and the number of the update, and returns its metrics."""


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
        name: the name of the algorithm, for messages.
        declaration: what the agent is made of.
        networks: the networks and optimizers that were built from it.
        data: the data that the agent learns from.
        update: makes one update: `Agent.update`.
        before: functions that run before each update phase. They receive the minibatches.
        after: functions that run after each update phase. They receive the logs of the phase.
        after_episode: functions that run after each training episode. They receive the episode, and the number of
            updates that the policy had when it chose the episode's first action; −1 if that action was random.

    Raises:
        ValueError: replay is prioritised, and no metric sets priorities.

    Attributes:
        metrics: the metrics that `update` returns.
        epoch_metrics: the metrics of the updates in this epoch.
        epoch: the number of epochs completed; the highest that was reached if `fit` started again from an earlier one.
        host_state: numbers, strings and lists that are saved with the agent, by name.
        counter: the number of updates ever made, an int64 variable `[]`, which lags behind `updates` at times.
        remote_replay: the replay shards, while the agent's rows are in other processes; otherwise None. They are
            `Minibatches` that can also save their rows for a checkpoint (`save(directory)`) and receive the directory
            of the finished checkpoint (`on_saved(directory)`).
        acting_updates: the number of updates that the weights of the acting policy have.
        has_diverged: whether losses or weights were NaN or infinite after the last updates.
    """

    def __init__(
        self,
        name: str,
        declaration: Declaration,
        networks: Networks,
        data: AgentData,
        update: Update,
        before: Sequence[Callable[[Minibatches], None]],
        after: Sequence[Callable[[dict[str, float]], None]],
        after_episode: Sequence[Callable[[Episode, int], None]],
    ):
        self._name = name
        self._networks = networks
        self._data = data
        self._update = update
        self.metrics = tuple(declaration.metrics)
        self.epoch_metrics = EpochMetrics(self.metrics)
        with tf.device(data.options.device):
            self.counter = tf.Variable(tf.constant(0, tf.int64), trainable=False, name="updates")
        self._td_error = next((i for i, metric in enumerate(self.metrics) if metric.priority), None)
        if self._td_error is None and data.minibatch_builder.sampler.uses_td_errors:
            raise ValueError(
                "Prioritised replay needs the TD error among the declared `metrics`: Metric(name, priority=True). "
                "Declare it, or pass replay='uniform' to the agent."
            )
        self._updates_per_phase = declaration.updates_per_phase
        self._policy_period = declaration.policy_period
        self._before = before
        self._after = after
        self._after_episode = after_episode
        self.host_state = dict(declaration.host_state)
        self.epoch = 0
        self._local_replay = _LocalReplay(data)
        self.remote_replay: Any = None
        self.acting_updates = 0
        self.has_diverged = False
        self._compiled: dict[bool, CompiledUpdates] = {}
        self._state: FlatState | None = None
        self._warm_up = 0  # the number of first updates that train only `_critics`
        self._critics: frozenset[str] = frozenset()
        self._warm_up_updates: CompiledUpdates | None = None
        self._is_flat = False
        self._may_be_flat = True  # until the agent's code was traced, and did not allow it
        self._show: Callable[[str], None] = print
        self._is_busy = False  # whether this object reads or assigns variables
        self._is_captured = False  # whether compiled functions of users may read variables, so that all are written
        self._made: int | None = None  # updates ever made; None outside of `flat_state`: see `counter`
        self._held: list[Packed] = []  # minibatches of updates that are made later
        self._period = 1  # updates are held back until their number is a multiple of this

    @property
    def updates(self) -> int:
        """The number of updates made, those held back included."""
        return (int(self.counter) if self._made is None else self._made) + len(self._held)

    def begin_with_critics(self, updates: int, critics: Iterable[str]) -> None:
        """Let the first updates ever made train only the critics.

        Args:
            updates: the number of these updates.
            critics: the names of the components that are critics.

        Raises:
            ValueError: no optimizer trains only critics.
        """
        if not self._networks.can_train_only(critics):
            raise reject("warm_up_updates", f"0 for {self._name}: none of its optimizers trains only critics", updates)
        self._warm_up = updates
        self._critics = frozenset(critics)

    def due_updates(self) -> int:
        """Return the number of updates to make now according to the schedule, and begin their phase.

        The first phase contains the updates that train only the critics, beside those that are due.
        """
        due = self._data.due_updates()
        return due + self._left_of_warm_up(self.updates) if due else 0

    def _left_of_warm_up(self, updates: int) -> int:
        return max(0, self._warm_up - updates)

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
        minibatches: Minibatches = self.remote_replay or self._local_replay
        minibatches.update_statistics()
        for prepare in self._before:
            prepare(minibatches)
        total = self.updates + updates
        compiled = self._compiled.get(True)
        period = self._period if compiled is not None and compiled.delays_policy else 1
        may_hold &= not self._left_of_warm_up(self.updates)
        later = total % period if may_hold and updates < period else 0
        updates += len(self._held) - later
        logs = {}
        if updates > 0:
            logs = self._make(updates, functools.partial(self._sample, minibatches), self._prioritize(minibatches))
        self._held += [minibatches.sample(update, 1) for update in range(self.updates, total)]
        if self._is_captured or not self._is_flat:
            self.synchronize()
        for watch in self._after:
            watch(logs)
        return logs

    def end_episode(self, episode: Episode, updates: int) -> None:
        """Run the functions in `Declaration.after_episode`.

        Args:
            episode: the episode that ended.
            updates: the number of updates that the policy had when it chose the episode's first action; −1 if that
                action was random.
        """
        self.synchronize()
        for function in self._after_episode:
            function(episode, updates)

    def complete(self, epoch: int) -> None:
        """Record that an epoch is complete, by its number from 0."""
        self.epoch = max(self.epoch, epoch + 1)

    def state(self) -> dict[str, Any]:
        """Return the counters, the host state and the metrics of this epoch, as plain JSON values."""
        self.synchronize()
        counters = {"updates": self.updates, "epoch": self.epoch}
        return counters | {"host_state": dict(self.host_state), "statistics": self.epoch_metrics.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`, after networks and optimizers.

        Raises:
            ValueError: a counter is not a natural number.
        """
        self.counter.assign(natural("updates", state["updates"]))
        self.epoch = natural("epoch", state["epoch"])
        self.host_state |= {name: state["host_state"][name] for name in self.host_state}
        self.epoch_metrics.restore(state["statistics"])

    def compile(self) -> None:
        """Compile the updates and the policy, without making an update. Call it inside `flat_state`."""
        data = self._data
        spec = data.spec
        packed = tuple(np.zeros((1, width), group) for group, width in zip(spec.groups, spec.widths, strict=True))
        data.behaviour.with_network(data.actor).greedy(packed)
        if len(data.replay):  # rows that were loaded are counted and indexed before the first step, too
            self._local_replay.update_statistics()
            self._local_replay.sample(self.updates, 1)
        if self._data.options.run_eagerly:
            return
        compiled = self._updates(self._is_flat)
        self._is_busy = True
        try:
            compiled.compile(self._data.example)
            if self._left_of_warm_up(self.updates):
                with self._networks.training_only(self._critics):
                    self._of_critics().compile(self._data.example)
        finally:
            self._is_busy = False
        if self._is_flat and compiled.reason_not_flat:
            self._leave_flat_state(compiled)

    def update_on_batch(self, packed: Packed) -> dict[str, float]:
        """Make one update on a packed minibatch, `[1, batch, ...]`; return its metrics and `loss`."""
        if self._data.device_replay is not None:
            self._data.device_replay.refuse("An update with given transitions")
        self.synchronize()
        for prepare in self._before:
            prepare(self._local_replay)
        logs = self._make(1, lambda update, count: packed)
        self.synchronize()
        for watch in self._after:
            watch(logs)
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
        networks, data = self._networks, self._data
        self._show = show
        self._is_flat = is_allowed and self._may_be_flat and profits_from_flat_state(networks, data)
        uses_td_errors = data.minibatch_builder.sampler.uses_td_errors
        others = self._before or self._after or data.normalizers or data.device_replay  # its rows may be overwritten
        may_hold = not (others or uses_td_errors)
        holds = self._is_flat and may_hold and self._policy_period <= LARGEST_CHUNK
        self._period = self._policy_period if holds else 1
        if self._is_flat:
            optimizers = networks.optimizers.values()
            are_few = self._chunk() <= FEW_UPDATES
            self._state = self._state or FlatState(networks.trained, optimizers, data.options.device, are_few)
            self._state.notify_of_reads(self._on_read)
        self._is_captured |= any(model.predict_function is not None for model in networks.all.values())
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
            f"Each update of {self._name} passes its variables one by one, which takes longer than as "
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
            parts = self._networks, self._data, self.metrics, self._next_update
            self._compiled[is_flat] = CompiledUpdates(*parts, self._chunk(), self._state if is_flat else None)
        return self._compiled[is_flat]

    def _chunk(self) -> int:
        """Return the largest number of updates in a call."""
        schedule = self._data.schedule
        num_envs = max(1, schedule.num_envs)
        updates = self._updates_per_phase or (schedule.updates_per_phase or LARGEST_CHUNK) * num_envs
        largest = SHARED_CHUNK if self._data.is_shared else LARGEST_CHUNK
        return min(largest, max(updates, self._period))

    def _next_update(self, batch: Any) -> dict[str, tf.Tensor]:
        """Make the next update; after one that trained all networks, refuse options that were changed and never read.

        Compiled code contains every branch. Without it, an update with a delayed policy may not reach all losses.
        """
        values = self._update(batch, self.counter.assign_add(1))
        if not tf.executing_eagerly() or self._networks.minimized.issuperset(self._networks.optimizers):
            self._data.options.refuse_unread(f"in {self._name}, which never reads it")
        return values

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

    def _make_compiled(self, before: int, updates: int, *arguments: Any) -> UpdateResult:
        """Make updates, of which the first may train only the critics."""
        first = min(updates, self._left_of_warm_up(before))
        if not first:
            return self._updates(self._is_flat)(before, updates, *arguments)
        if self._state is not None:
            self._state.write_variables()
        with self._networks.training_only(self._critics):
            result = self._of_critics()(before, first, *arguments)
        if result.nonfinite or first == updates:
            return result
        rest = self._updates(self._is_flat)(before + first, updates - first, *arguments)
        measured = np.concatenate([result.measured, rest.measured])
        return rest._replace(measured=measured, finite_updates=result.finite_updates + rest.finite_updates)

    def _of_critics(self) -> CompiledUpdates:
        """Return the updates that train only the critics. They are traced inside `Networks.training_only`."""
        if self._warm_up_updates is None:
            largest = SHARED_CHUNK if self._data.is_shared else LARGEST_CHUNK
            chunk = min(largest, self._warm_up)
            parts = self._networks, self._data, self.metrics, self._next_update
            self._warm_up_updates = CompiledUpdates(*parts, chunk, None)
        return self._warm_up_updates

    def _make(self, updates: int, *arguments: Any) -> dict[str, float]:
        """Make updates, and pass weights to the actor and metrics to the epoch, or raise the error of a divergence."""
        if not self._is_flat:
            self.synchronize()
        before = self.updates - len(self._held)
        self._is_busy = True
        try:
            result = self._make_compiled(before, updates, *arguments)
        finally:
            self._is_busy = False
        compiled = self._compiled.get(self._is_flat)
        if self._is_flat and compiled is not None and compiled.reason_not_flat:
            self._leave_flat_state(compiled)
        self._made = before + len(result.measured) if self._is_flat else None
        logs = {}
        if not result.nonfinite:
            with self._data.lock:
                self._data.actor.load(result.weights)
                self.acting_updates = self.updates
            logs = self.epoch_metrics.add(result.measured)
        self.has_diverged = result.nonfinite != [] or not math.isfinite(logs["loss"])
        env_steps = self._data.schedule.env_steps
        if self.has_diverged and (error := divergence(result, self.metrics, before, env_steps)):
            self._held.clear()
            raise error
        self.has_diverged = False
        return logs


class _LocalReplay:
    """Minibatches from the agent's own replay buffer."""

    def __init__(self, data: AgentData):
        self._data = data
        self._rows = np.empty((0, data.options.batch_size), np.int64)

    def update_statistics(self) -> None:
        statistics = self._data.observation_statistics
        if statistics is None:
            return
        buffer = self._data.minibatch_builder.buffer
        with self._data.lock:
            added = buffer.added
            first = max(statistics.rows_seen, added - buffer.replay_size)
            observation = buffer.observation(np.arange(first, added) % buffer.replay_size)
        if first < added:
            statistics.update(observation)
            statistics.set_rows_seen(added)
            self._data.write_statistics()

    def sample(self, update: int, count: int) -> Packed:
        packed, self._rows = self._data.sample_for_update(update, count)
        return packed

    def update_priorities(self, errors: np.ndarray) -> None:
        self._data.update_priorities(self._rows, errors)

    def return_range(self) -> tuple[float, float]:
        return self._data.return_range()


def profits_from_flat_state(networks: Networks, data: AgentData) -> bool:
    """Return whether updates may be faster on `FlatState`.

    Without XLA, the parts of the flat tensors are copied. A policy that does not act in NumPy reads its variables, so
    these would have to be written after each update phase.
    """
    options = data.options
    in_numpy = data.actor.weights_from is not None
    return in_numpy and not options.run_eagerly and uses_xla(networks, options.jit_compile)
