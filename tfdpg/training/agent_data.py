"""An agent's data: what it acts with, what it stores, and the minibatches that it learns from."""

import contextlib
import functools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdpg.acting import BehaviourPolicy, Preprocessing, RecurrentSpec, RecurrentState, RunningStatistics
from tfdpg.compat.keras import flatten_layers
from tfdpg.components import Declaration, Networks, PolicySpec
from tfdpg.networks import Normalizer, PolicyInference, Preprocessed, numpy_policy
from tfdpg.replay import GoalFunctions, Recorder, ReplayBuffer, TimeSteps, return_range
from tfdpg.replay.demonstrations import Demonstrations
from tfdpg.replay.minibatches import Gather, MinibatchBuilder
from tfdpg.spec import Packed
from tfdpg.training.environment.collector import Collector
from tfdpg.training.lateness import Lateness
from tfdpg.training.learning.device_replay import DeviceReplay

EXAMPLE_ROWS = 2000
"""The number of rows of an invented episode, which must be longer than the sequences of minibatches."""
LOADED_COUNT = 1000
"""The smallest number of observations as which a mean and variance that are loaded with weights count."""
ATTEMPTS = 5
"""How often rows are packed while another thread may store steps, before this thread has to wait."""


class AgentData:
    """The data of an agent, from the policy that acts to the minibatches of updates.

    Args:
        declaration: what the agent is made of.
        networks: the networks that were built from it.
        options: the options of the agent.
        recorders: receive all steps, beside the replay buffer.
        preprocessing: computes what networks receive of the environment's observations; None if they receive these.

    Attributes:
        spec: the spaces of the environment; with `preprocessing`, those of the features that it computes.
        preprocessing: see above.
        options: the options of the agent.
        replay: the replay buffer.
        may_grow: whether `fit_offline` makes the replay buffer larger if its data does not fit.
        minibatch_builder: samples minibatches from the replay buffer.
        device_replay: the replay buffer on the device of the updates, from which these take minibatches; None if they
            receive the minibatches of `sample`.
        demonstrations: what minibatches are mixed with in this `fit`; None outside of it, or if there are none.
        demonstrations_state: the state of those of the last `fit`, as arrays; empty if there were none.
        make_minibatch_builder: makes another such object for any replay buffer.
        pack: makes a packed minibatch of the arrays that `Agent.train_on_batch` receives.
        unpack: makes the minibatch that `Agent.update` receives of a packed one.
        batch_elements: the number of elements of a minibatch: transitions, steps of sequences, or windows.
        schedule: the schedule of updates, and its counters.
        normalizers: the layers that normalise observations.
        observation_statistics: the mean and variance of observations; None if no layer normalises them.
        recurrent_spec: the recurrent state of the policy; None if it is not recurrent.
        actor: computes the outputs of the behaviour policy, in NumPy if possible.
        evaluation_actor: computes the outputs of the evaluation policy.
        evaluation_networks: the names of the networks of the evaluation policy.
        behaviour: selects actions during collection.
        collector: stores actions with their outcomes.
        lateness: the times of the steps of a real-time training run; None in other ones.
        lock: held by a thread that reads or changes what the collector changes, while two threads share the data.
    """

    def __init__(
        self,
        declaration: Declaration,
        networks: Networks,
        options: Any,
        recorders: Sequence[ReplayBuffer | Recorder],
        preprocessing: Preprocessing | None = None,
    ):
        self.spec = spec = declaration.spec
        self.preprocessing = preprocessing
        self.options = options
        minibatches = declaration.minibatches
        self.replay = minibatches.replay
        self.may_grow = not options.is_changed("replay_size")
        self.make_minibatch_builder = minibatches.make_minibatch_builder
        self.minibatch_builder = minibatches.make_minibatch_builder(minibatches.replay)
        place = minibatches.replay_device
        self.device_replay = None if place is None else DeviceReplay(self.minibatch_builder, place)
        self.demonstrations: Demonstrations | None = None
        self.demonstrations_state: dict[str, np.ndarray] = {}
        self.pack = minibatches.pack
        self.unpack = minibatches.unpack
        self.batch_elements = minibatches.batch_elements
        self.schedule = declaration.schedule
        self.schedule.defers_updates = declaration.defers_updates
        self.normalizers = _find_normalizers(networks.following.values())
        self.observation_statistics = RunningStatistics(spec) if self.normalizers else None
        if self.observation_statistics is not None:
            _check_normalizers(self.normalizers, len(self.observation_statistics.mean))
        evaluation = declaration.evaluation or declaration.behaviour
        self.recurrent_spec = declaration.behaviour.recurrent
        self.actor = self._inference(declaration.behaviour, networks)
        self.evaluation_networks = evaluation.networks
        same = evaluation is declaration.behaviour
        self.evaluation_actor = self.actor if same else self._inference(evaluation, networks)
        self._whole_actor = self._preprocessed(self.actor)
        self._whole_evaluation_actor = self._whole_actor if same else self._preprocessed(self.evaluation_actor)
        state = None if self.recurrent_spec is None else RecurrentState(self.recurrent_spec)
        self.behaviour = BehaviourPolicy(spec, self.actor, declaration.exploration, state)
        acting = self.replay, self.schedule, self.behaviour, options.drawn_seed, options.reward_shaper
        self.collector = Collector(spec, *acting, recorders, preprocessing)
        self.lateness: Lateness | None = None
        self.lock: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()

    def _inference(self, policy: PolicySpec, networks: Networks) -> PolicyInference:
        """Return the forward pass of a policy, in NumPy unless one of its networks is custom."""
        model = policy.build(self.spec, networks)
        is_built_in = networks.given.keys().isdisjoint(["encoder", *map(networks.source, policy.networks)])
        in_numpy = numpy_policy(self.spec, model, policy.recurrent) if is_built_in else None
        width = 0 if policy.recurrent is None else policy.recurrent.width
        return PolicyInference(self.spec, model, in_numpy, self.options.device, width)

    def _preprocessed(self, actor: PolicyInference) -> PolicyInference:
        """Return the forward pass of a policy from the environment's observations."""
        if self.preprocessing is None:
            return actor
        model = Preprocessed.of(self.preprocessing, self.options.preprocess, actor.pi)
        raw = self.preprocessing.raw
        state = self.preprocessing.recurrent_spec
        in_numpy = None if actor.weights_from is None else numpy_policy(raw, model, state)
        return PolicyInference(raw, model, in_numpy, self.options.device, 0 if state is None else state.width)

    def whole_policy(self, explores: bool = False) -> PolicyInference:
        """Return the evaluation policy, or the behaviour policy, from the environment's observations to outputs."""
        actor = self._whole_actor if explores else self._whole_evaluation_actor
        if self.preprocessing is not None and isinstance(actor.pi, Preprocessed) and actor.pi.hold is not None:
            actor.pi.hold.flagged.assign(self.preprocessing.flagged)
        return actor

    @property
    def policy_state(self) -> RecurrentSpec | None:
        """The state of `whole_policy`: recurrent, or of the preprocessing; None if it has none."""
        return self.recurrent_spec if self.preprocessing is None else self.preprocessing.recurrent_spec

    def whole_behaviour(self) -> BehaviourPolicy:
        """Return a behaviour policy for the environment's observations, with present weights and a state of its own."""
        actor = self.whole_policy(explores=True).snapshot()
        behaviour = self.behaviour.with_network(actor)
        if self.preprocessing is None:
            return behaviour
        state = self.preprocessing.recurrent_spec
        memory = None if state is None else RecurrentState(state)
        return BehaviourPolicy(self.preprocessing.raw, actor, behaviour.exploration, memory)

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Inside the context, one thread collects data and another one learns."""
        if self.device_replay is not None:
            self.device_replay.refuse("Real-time training")
        buffers = [builder.buffer for builder in self._builders]
        self.lock = threading.RLock()
        for buffer in buffers:
            buffer.lock = self.lock
        try:
            with self.actor.copied_weights():
                yield
        finally:
            for buffer in buffers:
                buffer.lock = contextlib.nullcontext()
            self.lock = contextlib.nullcontext()

    @property
    def _builders(self) -> list[MinibatchBuilder]:
        """What makes minibatches of the agent's own replay buffer, and of demonstrations."""
        return [self.minibatch_builder, *(() if self.demonstrations is None else [self.demonstrations.builder])]

    @property
    def is_shared(self) -> bool:
        """Whether two threads use the data."""
        return not isinstance(self.lock, contextlib.nullcontext)

    @contextlib.contextmanager
    def mixed_with(self, demonstrations: Demonstrations, ratio: float, joins: bool) -> Iterator[None]:
        """Inside the context, a share of each minibatch are demonstrations, to which steps of an operator may join."""
        if self.device_replay is not None:
            self.device_replay.refuse("Training with demonstrations")
        with demonstrations.mixed_with(self.minibatch_builder, ratio):
            self.demonstrations = demonstrations
            self.collector.joined = demonstrations if joins else None
            try:
                yield
            finally:
                self.demonstrations_state = demonstrations.state()
                self.demonstrations = self.collector.joined = None

    def sample(self, update: int, count: int) -> tuple[Packed, np.ndarray]:
        """Return packed minibatches `[count, batch, ...]` for the updates after the first `update`, and their slots.

        Another thread that stores steps does not wait until the rows are packed. If it has stored one in the meantime,
        they are packed again. After `ATTEMPTS`, it has to wait.
        """
        before = self.replay.added
        gather, rows = self._sample(update, count)
        packed: Packed = ()
        for attempt in range(1, ATTEMPTS + 1):
            packed = gather()
            with self.lock:
                if (added := self.replay.added) == before:
                    break
                if np.isin(rows, np.arange(before, added) % self.replay.replay_size).any():  # they are overwritten
                    gather, rows = self._sample(update, count)
                before = added
                if attempt == ATTEMPTS:
                    packed = gather()
        return packed, rows

    def sample_for_update(self, update: int, count: int) -> tuple[Packed, np.ndarray]:
        """Return what the compiled updates receive of minibatches, and the slots; see `sample`."""
        if self.device_replay is None:
            return self.sample(update, count)
        rows, weights = self.minibatch_builder.sampler.sample(update, count)
        self.device_replay.update()
        return self.device_replay.pack(rows, weights), rows

    def unpack_for_update(self, packed: tuple[tf.Tensor, ...]) -> Any:
        """Return the minibatch that `Agent.update` receives, of what `sample_for_update` packed for it."""
        return self.unpack(packed if self.device_replay is None else self.device_replay.gather(*packed))

    def _sample(self, update: int, count: int) -> tuple[Gather, np.ndarray]:
        own = self.minibatch_builder
        sample = own.sample if self.demonstrations is None else functools.partial(self.demonstrations.sample, own)
        return sample(update, count)

    def update_priorities(self, rows: np.ndarray, errors: np.ndarray) -> None:
        """Update the priorities of sampled rows `[count, batch]` from their TD errors."""
        own = self.minibatch_builder
        if self.demonstrations is None:
            own.update_priorities(rows, errors)
        else:
            self.demonstrations.update_priorities(own, rows, errors)

    def return_range(self) -> tuple[float, float]:
        """Estimate the smallest and the largest return of all transitions; see `tfdpg.replay.return_range`."""
        ranges = [return_range(builder.buffer, builder.gamma) for builder in self._builders]
        low, high = zip(*ranges, strict=True)
        return min(low), max(high)

    def example(self, minibatches: int) -> Packed:
        """Return minibatches of invented transitions, which have the shapes of those for updates."""
        if self.device_replay is not None:
            return self.device_replay.example(minibatches, self.options.batch_size)
        replay = self.replay.like(EXAMPLE_ROWS)
        spec = self.spec
        observation = tuple(np.zeros((EXAMPLE_ROWS, w), g) for g, w in zip(spec.groups, spec.widths, strict=True))
        steps = np.ones((EXAMPLE_ROWS, replay.step_width), np.float32)
        zeros = np.zeros(EXAMPLE_ROWS, np.float32)
        replay.extend(0, TimeSteps(observation, steps, zeros, zeros > 0, np.arange(EXAMPLE_ROWS) == 0))
        builder = self.make_minibatch_builder(replay)
        builder.hindsight = None  # the environment's functions are for goals that it can have
        packed, _ = builder(0, minibatches)
        return packed

    def grow(self, rows: int) -> None:
        """Let the replay buffer hold this number of rows, which becomes the option `replay_size`."""
        if self.device_replay is not None:
            self.device_replay.refuse(f"A replay buffer that grows to replay_size={rows}, unless that is given,")
        sampler = self.minibatch_builder.sampler
        state = sampler.state()
        self.replay.resize(rows)
        sampler.restore(state)
        self.options = self.options.replaced(replay_size=rows)

    def relabel_with(self, env: Any) -> None:
        """See `Agent.relabel_with`."""
        if self.minibatch_builder.hindsight is not None:
            self.minibatch_builder.hindsight.functions = GoalFunctions(env)

    def due_updates(self) -> int:
        """Return the number of updates to make now according to the schedule, and begin their phase."""
        return self.schedule.release(self.minibatch_builder.sampler.updates_due(self.schedule.begin_update_phase()))

    def state(self) -> dict[str, Any]:
        """Return the counters and random states of acting, as plain JSON values."""
        flagged = {} if self.preprocessing is None else {"flagged": self.preprocessing.flagged.tolist()}
        return self.schedule.state() | {"collector": self.collector.state()} | flagged

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`, after the networks and the replay buffer."""
        self.schedule.restore(state)
        self.collector.restore(state["collector"])
        if self.preprocessing is not None:
            self.preprocessing.flagged[:] = state["flagged"]
        self.actor.refresh()

    def write_statistics(self) -> None:
        """Write the mean and variance of observations into the networks."""
        statistics: Any = self.observation_statistics
        for normalizer in self.normalizers:
            normalizer.mean.assign(statistics.mean)
            normalizer.variance.assign(statistics.variance)

    def read_statistics(self) -> None:
        """Replace the mean and variance of observations by those in the networks, unless these are the initial ones."""
        statistics = self.observation_statistics
        if statistics is None:
            return
        normalizer = self.normalizers[0]
        mean, variance = np.asarray(normalizer.mean, float), np.asarray(normalizer.variance, float)
        if mean.any() or (variance != 1).any():
            statistics.adopt(mean, variance, max(statistics.count, LOADED_COUNT))


def _find_normalizers(networks: Iterable[keras.Model]) -> list[Normalizer]:
    """Return the normalisation layers of networks, each once."""
    layers = [layer for network in networks for layer in flatten_layers(network)]
    return list({id(layer): layer for layer in layers if isinstance(layer, Normalizer)}.values())


def _check_normalizers(normalizers: Iterable[Normalizer], features: int) -> None:
    """Raise `ValueError` if a normaliser of a custom network does not receive all features of an observation."""
    for normalizer in normalizers:
        if normalizer.mean.shape != (features,):
            raise ValueError(
                f"The layer {normalizer.name!r}, a tfdpg.networks.Normalizer, must receive the {features} features of "
                f"an observation, and nothing else: apply it before other layers. Received: {normalizer.mean.shape[0]}"
            )
