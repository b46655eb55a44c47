"""What agents are made of, as data (`Declaration`), and the networks and optimizers built from it (`Networks`).

A *component* is a Keras model that an optimizer trains. A *copy* has the architecture of a component and weights of its
own, which a rule updates from those of its source; target networks are copies.
"""

import contextlib
import copy
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Never, Protocol

import keras
import numpy as np
import tensorflow as tf

from tfdpg.acting import Exploration, RecurrentSpec
from tfdpg.arguments import positive_int, real, reject, warn
from tfdpg.compat.keras import (
    accept_unused_keys,
    accepts_unused_keys,
    flatten_layers,
    layers_without_build,
    quiet_build,
    unused_keys,
)
from tfdpg.losses import bc_loss, clip_action_gradient, smoothness_loss
from tfdpg.networks import Batch, Normalizer, free_graphs, in_flat_state, observation_inputs, while_loop
from tfdpg.replay import MakeMinibatchBuilder, ReplayBuffer
from tfdpg.spec import Packed, Spec
from tfdpg.streams import Purpose, seeds

__all__ = [
    "Component",
    "Context",
    "Copy",
    "Declaration",
    "Metric",
    "Minibatches",
    "Networks",
    "OptimizerSpec",
    "PolicySpec",
    "UpdateRule",
    "adam",
    "clipped_policy_loss",
    "critics",
    "every",
    "on_request",
    "policy_loss",
    "polyak",
    "rmsprop",
    "run_if",
    "running_average",
    "scalar",
    "smoothness_penalty",
]
"""What declarations and updates in users' own files use; the rest is for tfdpg's other modules."""


def __dir__() -> list[str]:
    return __all__


@dataclasses.dataclass(frozen=True, kw_only=True)
class Context:
    """What the function that builds a component receives.

    Attributes:
        spec: the spaces of the environment.
        seed: the seed of the component's initial weights.
        normalizer: the layer that normalises observations, which the components of an agent share; a copy has its own.
            None where observations are not normalised.
        encoder: the user's encoder, of which each network has a copy; None is the built-in one.
        shared: an empty dict in which functions that build components with common layers keep these. The components of
            an agent have one, and each copy has another.
    """

    spec: Spec
    seed: int
    normalizer: Normalizer | None
    encoder: keras.Model | None
    shared: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Component:
    """One of an agent's networks.

    Args:
        name: its name, such as `pi` or `q1`, under which it is saved.
        build: builds the model from a `Context`. Copies of the component are built by it, too.
        given: the user's own model, used in place of a built one; None builds the model.

    Example:
        ```python
        Component("pi", policy_network(options), given=options.pi)
        ```
    """

    name: str
    build: Callable[[Context], keras.Model]
    given: keras.Model | None = None


def critics(
    name: str,
    n: int,
    build: Callable[[str], Callable[[Context], keras.Model]],
    given: Mapping[str, keras.Model | None] = MappingProxyType({}),
) -> list[Component]:
    """Return n critics of one kind, the components `name`1 to `name`n.

    `tfdpg.networks.Critics` calls them together in an update.

    Args:
        name: the name without number, such as "q".
        n: the number of critics, at least 1.
        build: makes the function that builds a critic from its name, such as
            `functools.partial(critic_network, options)`.
        given: the user's own models by name.

    Example:
        ```python
        components = [Component("pi", policy_network(options)), *critics("q", 10, partial(critic_network, options))]
        ```
    """
    names = [f"{name}{i}" for i in range(1, positive_int("n", n) + 1)]
    return [Component(each, build(each), given.get(each)) for each in names]


@dataclasses.dataclass(frozen=True)
class UpdateRule:
    """How a copy follows its source; made by `polyak`, `every` and `running_average`.

    Args:
        kept: the fraction of a trainable weight that is kept at each update of the copy, in [0, 1]; or a function that
            computes it from the number of the update, an int64 tensor that counts from 1.
        period: updates between those of the copy; None is on request (`Networks.copy_weights`).
    """

    kept: float | Callable[[tf.Tensor], tf.Tensor]
    period: int | None


def polyak(kept: float, every: int = 1) -> UpdateRule:
    """Average: copy ← kept · copy + (1 − kept) · source, for the weights that are trainable in the source.

    The other weights, such as statistics of normalisation layers, are copied.

    Args:
        kept: the fraction of the old weights that is kept, in [0, 1].
        every: updates between two averages, at least 1.

    Raises:
        ValueError: an argument is out of its range.

    Source: Lillicrap et al. 2016 (DDPG), algorithm 1, with τ = 1 − kept.
    """
    return UpdateRule(real("kept", kept, 0, 1), positive_int("every", every))


def every(period: int) -> UpdateRule:
    """Copy all weights once in `period` updates.

    Args:
        period: updates between two copies, at least 1.

    Raises:
        ValueError: `period` is not a positive integer.

    Source: Mnih et al. 2015, "Human-level control through deep reinforcement learning".
    """
    return UpdateRule(0.0, positive_int("period", period))


def running_average(fraction: float, every: int = 50) -> UpdateRule:
    """Average over the last part of training: copy ← kept · copy + (1 − kept) · source, like `polyak`.

    kept is max(0, 1 − every / (fraction · n)) in update n. The copy thus reaches back over about the newest
    fraction · n updates; older weights have a smaller and smaller part in it. The span grows with n, so the random
    weights from before the first updates are soon forgotten.

    Args:
        fraction: the part of all updates so far over which the copy averages, above 0 and at most 1.
        every: updates between two averages, at least 1.

    Raises:
        ValueError: an argument is out of its range.

    Source: Karras et al. 2024, "Analyzing and Improving the Training Dynamics of Diffusion Models", section 3.1, where
    the weight of the parameters in update t is proportional to t to the power of γ = 1 / fraction − 1.
    """
    if real("fraction", fraction, 0, 1) == 0:
        raise reject("fraction", "a number above 0 and at most 1", fraction)
    span = fraction / positive_int("every", every)
    return UpdateRule(lambda counter: tf.maximum(0.0, 1 - 1 / (span * tf.cast(counter, tf.float32))), every)


on_request = UpdateRule(0.0, None)
"""Copy all weights when the agent calls `Networks.copy_weights`."""


@dataclasses.dataclass(frozen=True)
class Copy:
    """A network with the architecture of another and weights of its own.

    Args:
        name: its name, such as `pi_target`.
        of: the name of its source, a component or another copy.
        rule: when and how its weights follow those of the source. At first they are equal.
    """

    name: str
    of: str
    rule: UpdateRule


@dataclasses.dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer; made by `adam` and `rmsprop`.

    Args:
        make: makes a Keras optimizer of a given name.
        components: the names of the components that it trains.
        options: the names of the agent's options that set the optimizer and its learning rate, by the keys "optimizer"
            and "learning_rate". `load_agent` uses them when an option of a saved agent changes.
    """

    make: Callable[[str], keras.optimizers.Optimizer]
    components: tuple[str, ...]
    options: Mapping[str, str]


def adam(options: Any, name: str, of: Sequence[str] | None = None) -> OptimizerSpec:
    """Return Adam, or a copy of the user's optimizer, as the agent's options describe it.

    For the name "pi", the options are `pi_lr` and, if there is one, `pi_optimizer`, and `beta_1`, `clip_norm` and
    `clip_value`. For another name, the prefix is that name without digits at its end: the optimizers of "q1" and "q2"
    use `q_lr` and `q_optimizer`.

    Args:
        options: the agent's options.
        name: the name from which the prefix of the options is made.
        of: the names of the components that the optimizer trains; None is the one called `name`.

    Source: Kingma, Ba 2015, "Adam: A Method for Stochastic Optimization".
    """
    prefix = name.rstrip("0123456789")
    own = getattr(options, f"{prefix}_optimizer", None)

    def make(name: str) -> keras.optimizers.Optimizer:
        if own is not None:
            return _copied(f"{prefix}_optimizer", own, f"{name}_")
        rate = getattr(options, f"{prefix}_lr")
        return _scaled(FusedAdam(rate, options.beta_1, name=f"{name}_adam", **_clipping(options)))

    names = {"optimizer": f"{prefix}_optimizer", "learning_rate": f"{prefix}_lr"}
    return OptimizerSpec(make, tuple(of or [name]), names)


def rmsprop(options: Any, of: Sequence[str]) -> OptimizerSpec:
    """Return RMSprop, or a copy of the user's optimizer, as the agent's options describe it.

    The options are `lr`, `optimizer`, `clip_norm` and `clip_value`. RMSprop has a decay of 0.99 and an epsilon of 1e-5.

    Args:
        options: the agent's options.
        of: the names of the components that the optimizer trains.
    """

    def make(name: str) -> keras.optimizers.Optimizer:
        if options.optimizer is not None:
            return _copied("optimizer", options.optimizer)
        return _scaled(keras.optimizers.RMSprop(options.lr, rho=0.99, epsilon=1e-5, **_clipping(options)))

    return OptimizerSpec(make, tuple(of), {"optimizer": "optimizer", "learning_rate": "lr"})


class PolicySpec:
    """A policy, made by calling components and copies.

    Args:
        networks: the names of components and copies.
        call: computes the policy's output from Keras' inputs for an observation and the networks. It may be omitted
            for a single network, whose output is then the policy's.
        recurrent: the recurrent state of a policy of one recurrent network; None if it is not recurrent.

    Raises:
        ValueError: `call` is missing for several networks, or is given for a recurrent policy.

    Example:
        ```python
        PolicySpec("encoder", "pi", call=lambda observation, encoder, pi: pi(encoder(observation)))
        ```
    """

    def __init__(self, *networks: str, call: Callable[..., Any] | None = None, recurrent: RecurrentSpec | None = None):
        if call is None and len(networks) != 1:
            raise ValueError(f"`call` must be given unless a policy has exactly one network. Received: {networks}")
        if call is not None and recurrent is not None:
            raise reject("call", "None for a recurrent policy, which is a single network", call)
        self.networks = networks
        self.call = call
        self.recurrent = recurrent

    def build(self, spec: Spec, networks: "Networks") -> keras.Model:
        """Return the policy as a Keras model, from an observation to its output, with the weights of the networks.

        Raises:
            ValueError: a name is neither that of a component nor that of a copy.
        """
        _check_known("The networks of a policy", self.networks, networks.all)
        parts = [networks[name] for name in self.networks]
        if self.call is None:
            return parts[0]
        observation = observation_inputs(spec)
        return keras.Model(observation, self.call(observation, *parts), name="_".join(self.networks))


@keras.saving.register_keras_serializable("tfdpg")
class Scalar(keras.layers.Layer):
    """A trainable number, whatever the input.

    Args:
        value: its initial value.
    """

    def __init__(self, value: float, **kwargs: Any):
        super().__init__(**kwargs)
        self.value = float(value)
        self.scalar = self.add_weight(
            name="value", shape=(), initializer=keras.initializers.Constant(value), dtype="float32", autocast=False
        )

    def call(self, x: Any) -> Any:
        """The number for each row of the input, `[batch, 1]`."""
        return self.scalar + tf.zeros_like(x)

    def get_config(self) -> dict[str, Any]:
        """The initial value."""
        return super().get_config() | {"value": self.value}


def scalar(value: float) -> Callable[[Context], keras.Model]:
    """Return a function that builds a component of one trainable number, such as a temperature.

    The number is `agent.networks[name].trainable_variables[0]`, a float32 variable `[]`.

    Args:
        value: the initial value.

    Example:
        ```python
        Component("log_temperature", scalar(0.0))
        ```
    """

    def build(context: Context) -> keras.Model:
        x = keras.Input((1,))
        return keras.Model(x, Scalar(value)(x))

    return build


@dataclasses.dataclass(frozen=True, kw_only=True)
class Minibatches:
    """The replay buffer and the minibatches that updates take from it.

    `tfdpg.agents.declarations.minibatches` makes it for transitions and sequences.

    Attributes:
        replay: the replay buffer.
        make_minibatch_builder: a picklable function from a replay buffer to the object that samples minibatches from
            it.
        unpack: makes the `batch` of `Agent.update` from the packed arrays of a minibatch; called in the compiled call.
        pack: packs the arrays of `Agent.train_on_batch`, by name, in the same way as sampled ones.
        batch_elements: the number of elements of a minibatch: transitions, steps of sequences, or windows.
        replay_device: the device of a copy of the replay buffer, from which updates take minibatches of transitions;
            None sends it the minibatches.
    """

    replay: ReplayBuffer
    make_minibatch_builder: MakeMinibatchBuilder
    unpack: Callable[[tuple[tf.Tensor, ...]], Any]
    pack: Callable[[Mapping[str, Any]], Packed]
    batch_elements: int
    replay_device: str | None = None


@dataclasses.dataclass(frozen=True)
class Metric:
    """A quantity that `Agent.update` returns, and how it is logged.

    Args:
        name: its name in what `update` returns, in `History`, CSV files and TensorBoard.
        label: its name in plots; None is `name`, with spaces in place of underscores.
        delayed: whether an update may leave it unmeasured, as NaN for all elements.
        spread: whether its standard deviation, minimum and maximum are logged too, as `<name>_std`, `<name>_min` and
            `<name>_max`.
        priority: whether it is the absolute TD error, from which prioritised replay sets priorities.
        loss: whether it is a loss: it is part of the sum `loss`, and training stops if it is not finite. None is
            whether `name` begins with `loss`.
        shown: whether printed progress contains it. None is whether it is a loss or `spread` is True.

    Callbacks that monitor a loss or a TD error minimise it; for other metrics, they need a `mode`.

    Example:
        ```python
        metrics = [
            Metric("loss_q", "critic loss"),
            Metric("loss_pi", "policy loss", delayed=True),
            Metric("q1", spread=True),
            Metric("td_error", priority=True),
        ]
        ```
    """

    name: str
    label: str | None = None
    delayed: bool = False
    spread: bool = False
    priority: bool = False
    loss: bool | None = None
    shown: bool | None = None

    def __post_init__(self):
        if self.label is None:
            object.__setattr__(self, "label", self.name.replace("_", " "))
        if self.loss is None:
            object.__setattr__(self, "loss", self.name.startswith("loss"))
        if self.shown is None:
            object.__setattr__(self, "shown", self.loss or self.spread)


def _check_metrics(metrics: Sequence[Any]) -> None:
    """Raise an error unless these are metrics with different names, of which one at most sets priorities."""
    for metric in metrics:
        if not isinstance(metric, Metric):
            raise reject("metrics", "a sequence of tfdpg.Metric, such as Metric('loss_q')", metric)
    names = [metric.name for metric in metrics]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"Metrics must have different names. Received twice: {', '.join(twice)}")
    if len(errors := [metric.name for metric in metrics if metric.priority]) > 1:
        raise ValueError(f"One metric at most may have priority=True. Received: {', '.join(errors)}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Declaration:
    """All that an agent is made of: networks, optimizers, copies, policies, replay buffer and schedule.

    A function `declare(spec, options)` returns it, and the constructor of an agent passes that function to `Agent`.

    Attributes:
        spec: the spaces of the environment.
        components: the networks that are trained.
        optimizers: the optimizers, made by `adam` and `rmsprop`, by name. Each component has one optimizer.
        copies: the copies of components, in the order in which they are updated.
        encoder: the user's encoder, which is the option `encoder`; None is the built-in one.
        normalizer: makes a layer that normalises observations; None does not normalise them.
        seeds_by_position: whether the seed of a component depends on its position instead of its name.
        behaviour: the policy that acts during collection, and in `evaluate(stochastic=True)`.
        exploration: turns the outputs of `behaviour` into steps.
        evaluation: the policy of `predict`, `evaluate`, `policy` and `export`; None is that of `behaviour`. Its outputs
            are actions `[batch, act_dim]`, or, for a Discrete action space, a number for each action
            `[batch, actions]`, of which the largest is chosen.
        signatures: makes the signatures of the export, by name, from the networks by name and the evaluation policy.
        action_values: makes models from `[observation, action]` to values, by name, from the networks by name. They
            replace networks of these names in exports, if critics have further inputs; None replaces none.
        minibatches: the replay buffer, and the minibatches that updates take from it.
        schedule: when to act at random, when to make updates, and how many; made by
            `tfdpg.agents.declarations.update_schedule`.
        metrics: what `Agent.update` returns. Prioritised replay needs a metric with `priority=True`.
        unused: why options have no effect in these spaces or with these options, by name. A changed one raises
            `ValueError`.
        updates_per_phase: the number of updates in a usual update phase; None is the number of the schedule.
        policy_period: the behaviour policy changes only in updates whose number is a multiple of it, at least 1. `fit`
            may then make the updates before these together with them.
        device_state: the initial values of variables that updates read and write, by name. They are saved.
        host_state: the initial values of numbers, strings and lists that are saved with the agent, by name.
        before_phase: functions that run before each update phase. They receive the agent and its minibatches.
        after_phase: functions that run after each update phase. They receive the agent and what the phase logged.
        after_episode: functions that run after each training episode. They receive the agent, the episode (its return,
            without reward shaping, its length, whether it was terminated and truncated, and its sub-environment or
            worker), and the number of updates that the policy had when it chose the episode's first action, or −1 if
            that action was random.
        after_from_export: functions that run when `Agent.from_export` has made an agent and set its weights. They
            receive the agent.
        defers_updates: whether updates that are due are not made at first, but counted; see `Agent.defers_updates`.
    """

    spec: Spec
    components: Sequence[Component]
    optimizers: Mapping[str, OptimizerSpec]
    copies: Sequence[Copy] = ()
    encoder: keras.Model | None = None
    normalizer: Callable[[], Normalizer] | None = None
    seeds_by_position: bool = False
    behaviour: PolicySpec
    exploration: Exploration
    evaluation: PolicySpec | None = None
    signatures: Callable[[Mapping[str, keras.Model], keras.Model], Mapping[str, Any]]
    action_values: Callable[[Mapping[str, keras.Model]], Mapping[str, keras.Model]] | None = None
    minibatches: Minibatches
    schedule: Any
    metrics: Sequence[Metric]
    unused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    updates_per_phase: int | None = None
    policy_period: int = 1
    device_state: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    host_state: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    before_phase: Sequence[Callable[[Any, Any], None]] = ()
    after_phase: Sequence[Callable[[Any, dict[str, float]], None]] = ()
    after_episode: Sequence[Callable[[Any, Any, int], None]] = ()
    after_from_export: Sequence[Callable[[Any], None]] = ()
    defers_updates: bool = False

    def __post_init__(self):
        _check_metrics(self.metrics)

    @property
    def given(self) -> dict[str, keras.Model]:
        """The user's models, by the options that take them."""
        given = {each.name: each.given for each in self.components} | {"encoder": self.encoder}
        return {name: model for name, model in given.items() if model is not None}


class Networks:
    """The networks and optimizers of an agent.

    Args:
        declaration: what the agent is made of.
        seed: the agent's seed.
        device: where the networks are; None is TensorFlow's choice.

    Attributes:
        components: the networks that are trained, by name.
        copies: the copies of components, by name.
        optimizers: the optimizers, by name.
        state: the variables of `Declaration.device_state`, by name.
        given: the user's own models, by the options that take them.
        sources: the names of the copies' sources, by the names of the copies.
        minimized: the names of the optimizers that have made a step, or whose step was traced.
        frozen: the names of components that do not change now, nor do their copies; see `training_only`.

    Raises:
        ValueError: two networks have the same name, or an optimizer or a copy names a network that does not exist.
    """

    def __init__(self, declaration: Declaration, seed: int, device: str | None):
        _check_names(declaration)
        _warn_of_missing_build(declaration.given)
        for model in declaration.given.values():
            if unused_keys(model, dict.fromkeys(declaration.spec.shapes)):
                accept_unused_keys(model)
        self._declaration = declaration
        self._seed = seed
        self.given = declaration.given
        self.sources = {declared.name: declared.of for declared in declaration.copies}
        self.minimized: set[str] = set()
        self.frozen: frozenset[str] = frozenset()
        with tf.device(device), free_graphs():
            shared: dict[str, Any] = {}
            self.components: dict[str, keras.Model] = {
                component.name: self._built(component, shared) if component.given is None else component.given
                for component in declaration.components
            }
            self.optimizers = {name: self._optimizer(name, spec) for name, spec in declaration.optimizers.items()}
            copies = {declared.name: self._copy(declared) for declared in declaration.copies}
            self.copies: dict[str, keras.Model] = copies
            self.state = {
                name: tf.Variable(value, trainable=False, name=name) for name, value in declaration.device_state.items()
            }

    def __getitem__(self, name: str) -> keras.Model:
        """The component or the copy of a name."""
        return self.components[name] if name in self.components else self.copies[name]

    def source(self, name: str) -> str:
        """The component whose architecture a component or copy has."""
        while name in self.sources:
            name = self.sources[name]
        return name

    @property
    def all(self) -> dict[str, keras.Model]:
        """Components and copies, by name."""
        return self.components | self.copies

    @property
    def targets(self) -> dict[str, keras.Model]:
        """The target networks, by the names of their sources."""
        return {
            declared.of: self.copies[declared.name]
            for declared in self._declaration.copies
            if declared.name == f"{declared.of}_target"
        }

    @property
    def variables(self) -> dict[str, list[Any]]:
        """All variables that are saved, in lists by name."""
        networks = {name: network.variables for name, network in self.all.items()}
        optimizers = {f"{name}_optimizer": optimizer.variables for name, optimizer in self.optimizers.items()}
        return networks | optimizers | ({"state": list(self.state.values())} if self.state else {})

    @property
    def trained(self) -> list[Any]:
        """The variables that updates change, each once: trainable weights, and the state of optimizers."""
        optimizers = [variable for optimizer in self.optimizers.values() for variable in optimizer.variables]
        periodic = [self.copies[each.name] for each in self._declaration.copies if each.rule.period is not None]
        variables = trainable_variables([*self.components.values(), *periodic]) + optimizers
        return [variable for variable in variables if variable.name != "learning_rate"]

    def restore(self, arrays: Mapping[str, np.ndarray], changes: Mapping[str, Any]) -> None:
        """Set all variables, after a checkpoint was loaded.

        An optimizer among the changes stays as it is; a learning rate among them is kept.

        Args:
            arrays: the arrays of `variables`, by the name of the list and the position: `pi/0`, ...
            changes: the options that differ from those of the saved agent.

        Raises:
            ValueError: an array has another shape or type, or a weight of a network is not finite.
        """
        optimizers = {f"{name}_optimizer": name for name in self.optimizers}
        for name, variables in self.variables.items():
            own = optimizers.get(name)
            options = {} if own is None else self._declaration.optimizers[own].options
            if options.get("optimizer") in changes:
                continue
            rate = None if own is None else float(self.optimizers[own].learning_rate)
            for i, variable in enumerate(variables):
                variable.assign(_check_variable(f"{name}/{i}", arrays[f"{name}/{i}"], variable, name in self.all))
            if own is not None and options.get("learning_rate") in changes:
                self.optimizers[own].learning_rate = rate

    def minimize(self, *names: str) -> contextlib.AbstractContextManager[Callable[..., None]]:
        """Take one step of one or more optimizers, on the weights of their components and on no others.

        `step` takes a loss `[]` for each optimizer; or one loss for all, `[]` or `[n]`, of which each optimizer makes
        the sum smaller by the weights of its components. The losses may have parts in common; each optimizer has its
        own gradient tape. Regularisation losses of the networks are added. The optimizers step at the end of the block.

        Args:
            names: the names of optimizers in `Declaration.optimizers`.

        Returns:
            A context manager whose value is `step`.

        Example:
            ```python
            with self.minimize("q1", "q2") as step:
                values = batch.ask(Critics.of("q", self.networks), batch.action)
                step(batch.mean(tf.square(target - values)))
            ```
        """
        self.minimized |= {*names}
        trained: list[Trained] = []
        for name in names:
            components = self._declaration.optimizers[name].components
            is_frozen = not self.frozen.isdisjoint(components)
            trained.append(
                ([self.components[each] for each in components], None if is_frozen else self.optimizers[name])
            )
        return minimize(*trained)

    def can_train_only(self, names: Iterable[str]) -> bool:
        """Return whether an optimizer trains some of these components and no others."""
        return any({*names}.issuperset(spec.components) for spec in self._declaration.optimizers.values())

    @contextlib.contextmanager
    def training_only(self, names: Iterable[str]) -> Iterator[None]:
        """Inside the context, which includes tracing, updates change only these components and their copies.

        The other components keep their weights and the statistics of normalisation layers, and their optimizers keep
        their state. An optimizer that also trains another component makes no step.

        Args:
            names: the names of components.
        """
        before = self.frozen
        self.frozen = frozenset(self.components) - {*names}
        try:
            yield
        finally:
            self.frozen = before

    def update_copies(self, counter: Any) -> None:
        """Update the copies that are due after an update, in the order of their declaration; in the compiled call.

        Args:
            counter: the number of the update, an int64 tensor, counting from 1.
        """
        for period, group in itertools.groupby(self._declaration.copies, key=lambda declared: declared.rule.period):
            apply = functools.partial(self._update, list(group), counter)
            if period == 1:
                apply()
            elif period is not None:
                run_if(counter % period == 0, apply)

    def copy_weights(self, *names: str) -> None:
        """Copy all weights of their sources into copies, in the order of their declaration.

        Args:
            names: the names of copies in `Declaration.copies`.

        Raises:
            ValueError: a name is not that of a copy.
        """
        if unknown := [name for name in names if name not in self.copies]:
            raise ValueError(f"`names` must be names of copies, {', '.join(self.copies)}. Received: {unknown[0]!r}")
        for declared in self._declaration.copies:
            if declared.name in names and self.source(declared.name) not in self.frozen:
                update_copy(self.copies[declared.name], self[declared.of], 0.0)

    @property
    def following(self) -> dict[str, keras.Model]:
        """The networks that share the present statistics of observations: all but copies on request and their copies.

        The statistics of a copy on request are those of its source when its weights were copied.
        """
        frozen = set()
        for declared in self._declaration.copies:
            if declared.rule.period is None or declared.of in frozen:
                frozen.add(declared.name)
        return {name: network for name, network in self.all.items() if name not in frozen}

    def _update(self, copies: Sequence[Copy], counter: Any) -> None:
        for declared in copies:
            if self.source(declared.name) not in self.frozen:
                kept = declared.rule.kept
                update_copy(self.copies[declared.name], self[declared.of], kept(counter) if callable(kept) else kept)

    def _built(self, component: Component, shared: dict[str, Any]) -> keras.Model:
        declaration = self._declaration
        key = component.name.encode()
        (seed,) = seeds(Purpose.NETWORKS, self._seed, *key)
        if declaration.seeds_by_position:
            position = declaration.components.index(component)
            seed = seeds(Purpose.NETWORKS, self._seed, count=position + 1)[position]
        if declaration.normalizer is not None and "normalizer" not in shared:
            shared["normalizer"] = declaration.normalizer()
        return component.build(
            Context(
                spec=declaration.spec,
                seed=seed,
                normalizer=shared.get("normalizer"),
                encoder=declaration.encoder,
                shared=shared,
            )
        )

    def _copy(self, declared: Copy) -> keras.Model:
        name = self.source(declared.of)
        source = self.components[name]
        component = next(each for each in self._declaration.components if each.name == name)
        if component.given is not None:
            with quiet_build():
                copied = copy.deepcopy(source)
            if accepts_unused_keys(source):
                accept_unused_keys(copied)
            return copied
        made = self._built(component, {})
        for variable, value in zip(made.variables, source.variables, strict=True):
            variable.assign(value)
        return made

    def _optimizer(self, name: str, spec: OptimizerSpec) -> keras.optimizers.Optimizer:
        optimizer = spec.make(name)
        optimizer.build(trainable_variables(self.components[component] for component in spec.components))
        return optimizer


def _warn_of_missing_build(given: Mapping[str, keras.Model]) -> None:
    """Warn once about the layers in custom networks that have no method `build`."""
    kinds = dict.fromkeys(kind.__name__ for model in given.values() for kind in layers_without_build(model))
    if kinds:
        warn(
            f"Custom layers have no method `build`, so Keras may not restore their weights: {', '.join(kinds)}. Write "
            "`build(self, input_shape)`, and build the layers inside there."
        )


def _check_names(declaration: Declaration) -> None:
    """Raise `ValueError` unless the optimizers and copies of a declaration name networks that exist."""
    components = [component.name for component in declaration.components]
    sources = {declared.name: declared.of for declared in declaration.copies}
    names = [*components, *(declared.name for declared in declaration.copies)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"Components and copies must have different names. Received twice: {', '.join(twice)}")
    trained = [name for spec in declaration.optimizers.values() for name in spec.components]
    _check_known("The components of an optimizer", trained, components)
    if twice := sorted({name for name in trained if trained.count(name) > 1}):
        raise ValueError(f"A component must have one optimizer. Received several for: {', '.join(twice)}")
    _check_known("The source of a copy", sources.values(), names)
    for name in sources:
        chain = [name]
        while chain[-1] in sources:
            chain.append(sources[chain[-1]])
            if chain[-1] in chain[:-1]:
                raise ValueError(f"A copy must lead to a component. Received: {' of '.join(chain)}")


def _check_known(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"{what} must be among {', '.join(known)}. Received: {name!r}")


def _check_variable(name: str, array: np.ndarray, variable: Any, is_weight: bool) -> np.ndarray:
    """Return the array, after checking that it has the variable's shape and type and, for a weight, is finite."""
    now = np.asarray(variable)
    if (array.shape, array.dtype) != (now.shape, now.dtype):
        raise ValueError(f"{name} must be {now.dtype} {now.shape}. Received: {array.dtype} {array.shape}")
    if is_weight and not np.isfinite(array).all():
        raise ValueError(f"{name} has numbers that are not finite")
    return array


def update_copy(target: keras.Model, source: keras.Model, kept: float | tf.Tensor) -> None:
    """Update the weights of a copy: target ← kept · target + (1 − kept) · source.

    This is the rule for weights that are trainable in the source. The others, such as the statistics of normalisation
    layers, are copied.

    Args:
        target: the copy.
        source: the network that it follows, of the same architecture.
        kept: the fraction of the old weights that is kept, in [0, 1]; 0 copies all.
    """
    for old, new in zip(target.weights, source.weights, strict=True):
        old.assign(kept * old + (1 - kept) * new if new.trainable else new)


Trained = tuple[Sequence[keras.Model], keras.optimizers.Optimizer | None]
"""Networks, and an optimizer that was built for their trainable variables; None leaves the networks as they are."""


@contextlib.contextmanager
def minimize(*trained: Trained) -> Iterator[Callable[..., None]]:
    """One step of one or more optimizers, on the trainable weights of their networks and on nothing else.

        with minimize(([critic], optimizer)) as step:
            step(tf.reduce_mean(td_loss(critic([observation, action]), target)))

    `step` takes a loss for each optimizer, or one loss for all, `[]` or `[n]`, of which each makes the sum smaller. The
    losses may have parts in common; each has a gradient tape of its own, which follows only its networks.
    The networks' own losses (regularizers; for a single network those of `add_loss`, too) are added. The optimizers'
    steps are taken at the end of the block.

    Args:
        trained: networks with their optimizer.
    """
    with contextlib.ExitStack() as stack:
        steps: list[_Step | _NoStep] = [
            stack.enter_context(_NoStep(networks) if optimizer is None else _Step(networks, optimizer))
            for networks, optimizer in trained
        ]

        def step(*losses: tf.Tensor) -> None:
            for one, loss in zip(steps, losses * len(steps) if len(losses) == 1 else losses, strict=True):
                one.minimize(tf.reduce_sum(loss))

        yield step


class _NoStep:
    """Networks that a step leaves as they are: their layers are not trainable inside the context."""

    def __init__(self, networks: Sequence[keras.Model]):
        layers = [layer for network in networks for layer in flatten_layers(network)]
        self._networks = networks
        self._before = [(each, each.trainable) for layer in layers for each in (layer, *layer.variables)]

    def __enter__(self) -> "_NoStep":
        for network in self._networks:
            network.trainable = False
        return self

    def minimize(self, loss: tf.Tensor) -> None:
        """Ignore the loss."""

    def __exit__(self, *exception: Any) -> None:
        for each, trainable in self._before:
            each.trainable = trainable


class _Step:
    """One step of an optimizer."""

    def __init__(self, networks: Sequence[keras.Model], optimizer: keras.optimizers.Optimizer):
        self._networks = networks
        self._optimizer = optimizer
        self._loss = tf.constant(0.0)
        self._variables = trainable_variables(networks)
        self._weights = [variable.value for variable in self._variables]
        self._tape = tf.GradientTape(watch_accessed_variables=False)

    def __enter__(self) -> "_Step":
        self._tape.__enter__()
        self._tape.watch(self._weights)
        return self

    def minimize(self, loss: tf.Tensor) -> None:
        """Set the loss `[]` that the step makes smaller."""
        self._loss = self._optimizer.scale_loss(loss + layer_losses(self._networks))  # in mixed float16 precision only

    def __exit__(self, kind: type[BaseException] | None, *exception: Any) -> None:
        self._tape.__exit__(kind, *exception)
        if kind is None:
            self._optimizer.apply(self._tape.gradient(self._loss, self._weights), self._variables)


def layer_losses(networks: Sequence[keras.Model]) -> Any:
    """The losses of a network; of several, which may share layers, the regularization of each variable once."""
    if len(networks) == 1:
        return sum(networks[0].losses)
    variables = trainable_variables(networks)
    return sum(variable.regularizer(variable) for variable in variables if variable.regularizer is not None)


def trainable_variables(networks: Iterable[keras.Model]) -> list[Any]:
    """The trainable variables of networks, each once."""
    return list({id(v): v for network in networks for v in network.trainable_variables}.values())


def run_if(is_due: tf.Tensor, update: Callable[[], Any], size: int = 0) -> tf.Tensor:
    """Run `update` if `is_due`, as a loop of one pass or none, which XLA runs in place.

    Out of a conditional, XLA copies every weight that one of its branches changes, twice, whichever branch runs.

    Args:
        is_due: a bool tensor, `[]`.
        update: changes weights, and returns a metric `[size]` if `size` is not 0.
        size: the number of elements in the metric, usually `Agent.batch_elements`; 0 if `update` returns no metric.

    Returns:
        The metric, `[size]`; NaN if `update` was not due.

    Example:
        ```python
        is_due = counter % self.policy_delay == 0
        loss_pi = run_if(is_due, lambda: self.update_policy(batch), self.batch_elements)
        ```
    """
    passes = tf.cast(is_due, tf.int32)
    nothing = tf.fill([size], math.nan)

    def run(i: tf.Tensor, metric: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        result = update()
        return i + 1, result if size else metric

    return while_loop(lambda i, _: i < passes, run, [0, nothing])[1]


def policy_loss(
    spec: Spec, q: tf.Tensor, action: tf.Tensor, batch: Batch, bc_weight: float, action_l2: float = 0.0
) -> tf.Tensor:
    """Return the loss of a deterministic policy, −Q(s, π(s)) + w · mean_i a_i², or with behaviour cloning TD3+BC's.

    a is π(s) as a fraction of the action scale.

    Args:
        spec: the spaces of the environment.
        q: Q(s, π(s)), `[batch]`.
        action: π(s), `[batch, act_dim]`, in the environment's units.
        batch: the minibatch, whose actions are cloned.
        bc_weight: the weight of behaviour cloning, at least 0; see `tfdpg.losses.bc_loss`.
        action_l2: the weight w of the mean squared action, at least 0.

    Returns:
        The losses, `[batch]`.

    Source: Silver et al. 2014, "Deterministic Policy Gradient Algorithms"; Fujimoto, Gu 2021 (TD3+BC). The penalty of
    actions is that of OpenAI Baselines' program for hindsight data replay.
    """
    action, data_action = ((a - spec.center) / spec.action_scale for a in (action, batch.action))
    loss = -q if bc_weight == 0 else bc_loss(q, action, data_action, bc_weight, batch.average)
    return loss if action_l2 == 0 else loss + action_l2 * tf.reduce_mean(tf.square(action), axis=-1)


OBSERVATION_NOISE = 0.2
"""Standard deviation of the noise of `smoothness_penalty`, as a fraction of that of each feature in the minibatch."""


class _SmoothAgent(Protocol):
    """What `smoothness_penalty` reads of an agent."""

    spec: Spec
    networks: dict[str, keras.Model]
    seed: int

    @property
    def options(self) -> Any: ...


def smoothness_penalty(
    agent: _SmoothAgent, batch: Batch, counter: Any, policy: Callable[[Any], tf.Tensor] | None = None
) -> tf.Tensor | float:
    """Return λ times how much a deterministic policy's actions change in time and with noise, to add to its loss.

    λ is the option `smoothness`. The change in time is that from an observation to the next one in the minibatch, which
    is `n_step` steps later; in sequences, it is that from each step to the next step. The noise is Gaussian, and its
    standard deviation is a fifth of that of each feature in the minibatch. Arrays of integers have no noise.

    Args:
        agent: the agent, with the option `smoothness`.
        batch: the minibatch.
        counter: the number of the update, int64 `[]`. The noise depends only on the agent's seed and this number.
        policy: returns the actions at the observations of a minibatch, `[batch, act_dim]`, in the environment's units;
            None asks the network `pi`.

    Returns:
        The penalties, `[batch]`, or 0 if λ is 0.

    Source: Mysore, Mabsout, Mancuso, Saenko 2021 (CAPS); see `tfdpg.losses.smoothness_loss`. The paper chooses the
    standard deviation by the expected noise of measurements; Kwak, Hwang 2026 use 0.2 in the units of observations.
    """
    weight = agent.options.smoothness
    if weight == 0:
        return 0.0
    ask = policy or (lambda at: at.ask(agent.networks["pi"]))
    key = tf.stack([tf.constant(~agent.seed, tf.int64), counter])  # other random numbers have the key (seed, counter)
    action = ask(batch)
    actions = action, batch.ask_following(ask, action), ask(batch.with_noise(OBSERVATION_NOISE, key))
    return weight * smoothness_loss(*(each / agent.spec.action_scale for each in actions))


def clipped_policy_loss(
    value: Callable[[tf.Tensor], tf.Tensor], action: tf.Tensor, limit: float | None, action_scale: np.ndarray
) -> tf.Tensor:
    """Return −Q(s, π(s)), whose gradient with respect to the action may be clipped.

    Args:
        value: maps actions `[batch, act_dim]` to their values `[batch]`.
        action: π(s), `[batch, act_dim]`, in the environment's units.
        limit: the largest norm of each sample's ∇_a Q, measured in units of the action scale, above 0; None does not
            clip.
        action_scale: half the width of the action box, `[act_dim]`.

    Returns:
        The losses, `[batch]`.
    """
    if limit is None:
        return -value(action)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        fixed = tf.stop_gradient(action)
        tape.watch(fixed)
        q = value(fixed)
    gradient = clip_action_gradient(tape.gradient(q, fixed), limit, action_scale)
    rise = tf.reduce_sum(tf.stop_gradient(gradient) * (action - fixed), axis=-1)  # 0, with the clipped gradient
    return -(tf.stop_gradient(q) + rise)


def _clipping(options: Any) -> dict[str, Any]:
    limits = {"global_clipnorm": options.clip_norm, "clipvalue": options.clip_value}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _copied(name: str, own: Any, prefix: str = "") -> keras.optimizers.Optimizer:
    if not isinstance(own, keras.optimizers.Optimizer):
        raise reject(name, "a Keras optimizer", own)
    return type(own).from_config(own.get_config() | {"name": f"{prefix}{own.name}"})


def _scaled(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimizer, with its loss scaled where Keras' dtype policy is mixed_float16."""
    if keras.config.dtype_policy().name != "mixed_float16":
        return optimizer
    return keras.optimizers.LossScaleOptimizer(optimizer, name=f"{optimizer.name}_scaled")


class FusedAdam(keras.optimizers.Adam):
    """Keras' Adam, with one operation for each variable where Keras has twenty, which are traced one by one."""

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            self.update_step(tf.convert_to_tensor(gradient), variable, learning_rate)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One step: m ← m + (g − m)(1 − β₁), v ← v + (g² − v)(1 − β₂), w ← w − α m / (√v + ε).

        α = η √(1 − β₂ᵗ) / (1 − β₁ᵗ).
        """
        iterations: Any = self.iterations
        index = self._get_variable_index(variable)
        step = tf.cast(iterations + 1, tf.float32)
        if in_flat_state():
            m, v = self._momentums[index], self._velocities[index]
            beta_1, beta_2 = tf.constant(self.beta_1), tf.constant(self.beta_2)  # 1 − β in float32, as the operation
            rate = learning_rate * tf.sqrt(1 - tf.pow(beta_2, step)) / (1 - tf.pow(beta_1, step))
            m.assign(m + (gradient - m) * (1 - beta_1))
            v.assign(v + (tf.square(gradient) - v) * (1 - beta_2))
            variable.assign(variable - m * rate / (tf.sqrt(v) + self.epsilon))
            return
        var, m, v = (_handle(each) for each in (variable, self._momentums[index], self._velocities[index]))
        tf.raw_ops.ResourceApplyAdam(
            var=var,
            m=m,
            v=v,
            beta1_power=tf.pow(self.beta_1, step),
            beta2_power=tf.pow(self.beta_2, step),
            lr=learning_rate,
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=gradient,
        )


def _handle(variable: Any) -> Any:
    """TensorFlow's handle of a variable of its own, or of Keras'."""
    return variable.handle if isinstance(variable, tf.Variable) else variable.value.handle


class Optimizers:
    """Several optimizers, as `keras.optimizers.MultiOptimizer` shows them to callbacks.

    `LearningRateScheduler`, `ReduceLROnPlateau` and `TensorBoard` then treat each one, by its name.

    Attributes:
        optimizers: the optimizers; their names differ.
        iterations: the number of updates ever made.
        built: True; an agent builds its optimizers when it is made.
    """

    built = True

    def __init__(self, optimizers: Sequence[keras.optimizers.Optimizer], iterations: tf.Variable):
        self.optimizers = list(optimizers)
        self.iterations = iterations

    @property
    def learning_rate(self) -> Never:
        """Raise `AttributeError`, as `MultiOptimizer` does: each optimizer has its own learning rate."""
        raise AttributeError(
            "An agent has a learning rate for each optimizer; read them from `agent.optimizers`. A callback that needs "
            "one for all, such as wandb's WandbMetricsLogger, does not work: see the page on experiment trackers."
        )

    def get_config(self) -> dict[str, Any]:
        """Return the configuration of each optimizer, by its name."""
        return {each.name: each.get_config() for each in self.optimizers}
