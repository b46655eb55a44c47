"""Parts that the declarations of several agents share."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import keras
import tensorflow as tf

from tfdpg import export
from tfdpg.acting import Exploration
from tfdpg.agents.options import AgentOptions, OffPolicyOptions
from tfdpg.components import (
    Component,
    Copy,
    Declaration,
    Metric,
    Minibatches,
    PolicySpec,
    UpdateRule,
    adam,
    critics,
    running_average,
)
from tfdpg.exploration import noisy_actions
from tfdpg.losses import huber_td_loss, td_loss
from tfdpg.networks import (
    HeadOptions,
    Normalizer,
    OutputTransform,
    RNNSpec,
    check_device,
    check_given,
    critic_network,
    policy_network,
    unpack_sequences,
    unpack_transitions,
)
from tfdpg.replay import (
    ACHIEVED,
    DESIRED,
    Recorder,
    ReplayBuffer,
    sequence_minibatches,
    transition_minibatches,
)
from tfdpg.spec import Spec
from tfdpg.training.environment.schedule import Schedule
from tfdpg.training.learning.batches import pack_sequences, pack_transitions


def actor_critic(
    spec: Spec,
    options: Any,
    rule: UpdateRule,
    *,
    policy_period: int | None = None,
    head: HeadOptions | None = None,
    output: OutputTransform | None = None,
    exploration: Exploration | None = None,
    sampling: Mapping[str, Any] = MappingProxyType({}),
) -> Declaration:
    """Declare an actor-critic that learns from transitions or, if it is recurrent, from sequences.

    Args:
        spec: the spaces of the environment.
        options: the agent's options, which inherit from `OffPolicyOptions`. `critics` is the number of critics, which
            are named q1, ..., qn.
        rule: the rule of the target networks, made by `polyak` or `every`.
        policy_period: the policy is updated in updates whose number is a multiple of it, and its loss is measured then;
            None is in each update.
        head: makes the last layer of each critic; None is for values.
        output: transforms the policy's last layer; None is for actions.
        exploration: turns the outputs of the policy into steps; None adds noise to actions.
        sampling: arguments of `tfdpg.replay.make_sampler` in place of the options.

    Raises:
        ValueError: a space or a model is not supported, or an option has no effect because of another one.
    """
    check_box(spec)
    names = "pi", *(f"q{i}" for i in range(1, options.critics + 1))
    given = given_networks(options, names)
    check_given(spec, given, options, head=head, output=output)
    if exploration is None:
        noise = options.noise, options.act_noise, options.ou_theta, options.act_noise_schedule, options.random_eps
        exploration = noisy_actions(spec, *noise)
    cells = recurrent_cells(spec, options)
    recurrent_spec = None if cells is None else cells.recurrent_spec
    critic = functools.partial(critic_network, options, head=head, cells=cells)
    targets = [Copy(f"{name}_target", name, rule) for name in names] if options.target_networks else []
    behaviour = PolicySpec("pi", recurrent=recurrent_spec)
    averages, evaluation = averaged(behaviour, options.average_policy)
    return Declaration(
        spec=spec,
        components=[
            Component("pi", policy_network(options, output, cells), given["pi"]),
            *critics("q", options.critics, critic, given),
        ],
        optimizers={name: adam(options, name) for name in names},
        copies=[*targets, *averages],
        encoder=options.encoder,
        normalizer=normalizer(options),
        seeds_by_position=True,
        behaviour=behaviour,
        evaluation=evaluation,
        exploration=exploration,
        signatures=functools.partial(export.signatures, spec, critics=names[1:], recurrent_spec=recurrent_spec),
        minibatches=minibatches(spec, options, cells, sampling),
        schedule=update_schedule(options),
        metrics=[
            *metrics(names[1:], delayed=policy_period is not None),
            *map(Metric, () if head is None else head.kind.metrics_of_update),
        ],
        policy_period=policy_period or 1,
    )


def averaged(policy: PolicySpec, fraction: float) -> tuple[list[Copy], PolicySpec | None]:
    """Return copies of the networks of a policy with running averages of their weights, and the policy of the copies.

    Args:
        policy: the policy that is trained.
        fraction: the part of all updates over which the copies average, in [0, 1]; with 0, there are no copies and no
            policy of them.
    """
    if not fraction:
        return [], None
    copies = [Copy(f"{name}_average", name, running_average(fraction)) for name in policy.networks]
    return copies, PolicySpec(*(each.name for each in copies), call=policy.call, recurrent=policy.recurrent)


def metrics(critics: Sequence[str], delayed: bool = False) -> list[Metric]:
    """Return the metrics of an actor-critic: its losses, the values of its critics, and the TD error.

    Args:
        critics: the names of the critics, whose values have these names.
        delayed: whether some updates leave the policy as it is.
    """
    losses = Metric("loss_q", "critic loss"), Metric("loss_pi", "policy loss", delayed=delayed)
    values = (Metric(name, f"value ({name})", spread=True, shown=i == 0) for i, name in enumerate(critics))
    return [*losses, *values, Metric("td_error", "TD error", priority=True)]


def td_losses(replay: str) -> tuple[Callable[..., tf.Tensor], Callable[[tf.Tensor], tf.Tensor]]:
    """Return the loss of scalar critics, and a function that combines the TD errors of several critics.

    Args:
        replay: the option `replay`. For "lap", these are the Huber loss and the largest TD error (Fujimoto, Meger,
            Precup 2020). Otherwise, they are the squared error and the mean of the TD errors.

    Returns:
        A loss with the arguments of `tfdpg.losses.td_loss`, and a function from the absolute TD errors of the critics,
        `[n, batch]`, to one TD error `[batch]`, for the metric that has `priority=True`.
    """
    loss, combine = (huber_td_loss, tf.reduce_max) if replay == "lap" else (td_loss, tf.reduce_mean)
    return loss, functools.partial(combine, axis=0)


def update_schedule(options: OffPolicyOptions) -> Schedule:
    """Return the schedule of updates that the options describe, for `Declaration.schedule`.

    Args:
        options: the agent's options, with `start_steps`, `update_after`, `update_every` and `gradient_steps`.
    """
    return Schedule(
        start_steps=options.start_steps,
        update_after=options.update_after,
        update_every=options.update_every,
        gradient_steps=options.gradient_steps,
    )


def minibatches(
    spec: Spec, options: Any, cells: RNNSpec | None, sampling: Mapping[str, Any] = MappingProxyType({})
) -> Minibatches:
    """Declare minibatches of transitions, or of sequences for recurrent networks.

    Args:
        spec: the spaces of the environment.
        options: the agent's options, which inherit from `OffPolicyOptions`.
        cells: the cells of recurrent networks, which `recurrent_cells` makes; None for transitions.
        sampling: arguments of `tfdpg.replay.make_sampler` in place of the options.
    """
    size = options.replay_size
    place = options.replay_dir
    batch = options.batch_size
    gamma = options.gamma
    names = ("batch_size", "replay", "alpha", "beta", "beta_steps", "epochs_per_round", "max_minibatches_per_round")
    sampling = {name: getattr(options, name) for name in (*names, "seed", "n_step", "gamma")} | {**sampling}
    if options.replay_device is not None and "uint8" in spec.groups:
        raise options.conflict("`replay_device` is for observations without images.", "replay_device")
    if cells is None:
        if options.her is not None:
            check_goals(spec)
            sampling |= {"her": options.her, "her_ratio": options.her_ratio}
        has_goals = options.her is not None
        return Minibatches(
            replay=ReplayBuffer(spec, size, place, has_predecessors=has_goals, n_step=options.n_step, gamma=gamma),
            make_minibatch_builder=functools.partial(transition_minibatches, **sampling),
            unpack=functools.partial(unpack_transitions, spec),
            pack=functools.partial(pack_transitions, spec, batch, gamma),
            batch_elements=batch,
            replay_device=options.replay_device,
        )
    recurrent_spec = cells.recurrent_spec
    part = {"burn_in": options.burn_in, "length": options.sequence_length}
    width = spec.act_dim + recurrent_spec.stored_width
    return Minibatches(
        replay=ReplayBuffer(spec, size, place, width, has_predecessors=True, n_step=options.n_step, gamma=gamma),
        make_minibatch_builder=functools.partial(
            sequence_minibatches, recurrent_spec=recurrent_spec, **part, **sampling
        ),
        unpack=functools.partial(unpack_sequences, spec, recurrent_spec=recurrent_spec, **part),
        pack=functools.partial(pack_sequences, spec, recurrent_spec, batch, *part.values(), options.n_step, gamma),
        batch_elements=batch * options.sequence_length,
    )


def recurrent_cells(spec: Spec, options: OffPolicyOptions) -> RNNSpec | None:
    """Return the cells of recurrent networks; None if the networks are not recurrent.

    Args:
        spec: the spaces of the environment.
        options: the agent's options, with `recurrent`, `recurrent_units`, `remembers` and `stored_state`.

    Returns:
        The cells, for `policy_network`, `critic_network` and `minibatches`. Their `recurrent_spec` is for `PolicySpec`.

    Raises:
        ValueError: the option `recurrent` is not a supported cell.
    """
    if options.recurrent is None:
        return None
    return RNNSpec.of(spec, options.recurrent, options.recurrent_units, options.remembers, options.stored_state)


def normalizer(options: AgentOptions) -> Callable[[], Normalizer] | None:
    """Return a function that makes a `Normalizer`, for `Declaration.normalizer`; None without normalisation.

    Args:
        options: the agent's options, with `normalize_observations`, `normalize_epsilon` and `normalize_clip`.
    """
    if not options.normalize_observations:
        return None
    return functools.partial(Normalizer, options.normalize_epsilon, options.normalize_clip, dtype="float32")


def check_box(spec: Spec) -> None:
    """Raise `ValueError` unless the action space is a Box.

    Args:
        spec: the spaces of the environment.
    """
    if spec.actions is not None:
        raise ValueError(
            f"The action space {spec.action_space} is not supported by this agent, which needs a Box. "
            "tfdpg.ACER takes Discrete ones."
        )


def check_goals(spec: Spec) -> None:
    """Raise `ValueError` unless observations have goals that hindsight experience replay can exchange.

    Args:
        spec: the spaces of the environment.
    """
    goals = [leaf for leaf in spec.leaves if leaf.name in (ACHIEVED, DESIRED) and leaf.dtype == "float32"]
    if len(goals) < 2 or goals[0].space != goals[1].space:
        raise ValueError(
            f"`her` needs a Dict observation space in which {ACHIEVED!r} and {DESIRED!r} are equal Boxes of floats. "
            f"Received: {spec.observation_space}"
        )


def given_networks(options: AgentOptions, names: Sequence[str]) -> dict[str, keras.Model | None]:
    """Return the custom networks among the options, by name, and None for built-in networks.

    Args:
        options: the agent's options.
        names: the names of options that take a network, such as `("pi", "q1", "q2")`.

    Raises:
        ValueError: a network is on another device than the option `device`.
    """
    given = {name: getattr(options, name, None) for name in names}
    check_device(options.device, {name: network for name, network in given.items() if network is not None})
    return given


def recorders(given: Any, spec: Spec) -> list[ReplayBuffer | Recorder]:
    """Return replay buffers as they are, and a `Recorder` for each directory; `given` may be a single directory."""
    several = [given] if isinstance(given, str | Path) else given
    for one in several:
        if isinstance(one, ReplayBuffer):
            spec.check(one.spec, "recorders")
    return [one if isinstance(one, ReplayBuffer | Recorder) else Recorder(one, spec) for one in several]
