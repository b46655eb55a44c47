"""What agents are made of, from their options."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import keras
import tensorflow as tf

from tfdpg import export
from tfdpg.acting import MIN_SIGMA, BoxAction, Exploration, Output, Recall
from tfdpg.agents.options import ACEROptions, AgentOptions, DeterministicOptions, OffPolicyOptions
from tfdpg.arguments import reject
from tfdpg.exploration import noisy_actions
from tfdpg.networks import (
    ACERCritic,
    ACERPolicy,
    ActionValues,
    ActorCritic,
    CategoricalPolicy,
    Cells,
    Dueling,
    GaussianPolicy,
    HeadOptions,
    Normalizer,
    Separate,
    acer_networks,
    actor_critic,
    check_device,
    graphs_are_freed,
    unpack_histories,
    unpack_sequences,
    unpack_transitions,
)
from tfdpg.options import Stock
from tfdpg.replay import MakeDraw, Recorder, Ring, sequences, transitions, windows
from tfdpg.spec import Packed, Spec
from tfdpg.training.batches import pack_sequences, pack_transitions, pack_windows
from tfdpg.training.learning import Preparation, Watcher
from tfdpg.training.optimizers import make_joint_optimizer, make_optimizers
from tfdpg.training.schedule import Schedule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """All that an agent is made of.

    Attributes:
        spec: the spaces.
        networks: the networks, and how they can be had again.
        targets: copies of those that have one, by the same names.
        optimizers: one for each network, by its name, or one for "all".
        schedule: when to act at random, when to learn, and how much.
        replay: the ring of rows.
        make_draw: what updates draw from a ring.
        unpack: makes a minibatch of one row of what was drawn.
        pack: packs a minibatch of arrays by name, as what was drawn is.
        elements: how many elements a minibatch has for an update: transitions, steps of sequences, or windows.
        exploration: what is done with the policy's outputs while collecting.
        metrics: the names of what `update` measures; `td_error` is among them.
        signatures: what the export has.
        usual_updates: the updates of a usual round; None is what the schedule says.
        preparations: what is done before each learning round.
        watchers: who sees what it logged.
    """

    spec: Spec
    networks: ActorCritic
    targets: dict[str, keras.Model]
    optimizers: dict[str, keras.optimizers.Optimizer]
    schedule: Schedule
    replay: Ring
    make_draw: MakeDraw
    unpack: Callable[[tuple[tf.Tensor, ...]], Any]
    pack: Callable[[Mapping[str, Any]], Packed]
    elements: int
    exploration: Exploration
    metrics: tuple[str, ...]
    signatures: dict[str, export.Signature]
    usual_updates: int | None = None
    preparations: Sequence[Preparation] = ()
    watchers: Sequence[Watcher] = ()

    def having(self, **others: Any) -> "Parts":
        """The same with other ones in their place."""
        return dataclasses.replace(self, **others)


def with_noise(spec: Spec, options: DeterministicOptions) -> tuple[Output, Exploration]:
    """A policy that gives actions, to which noise is added while collecting."""
    noise = options.noise, options.act_noise, options.ou_theta, options.act_noise_schedule
    return BoxAction(spec), noisy_actions(spec, *noise)


def build(
    env: Any,
    options: OffPolicyOptions,
    critics: Sequence[str],
    metrics: Sequence[str],
    *,
    policy: Callable[[Spec, Any], tuple[Output, Exploration]] = with_noise,
    torso: str = "mlp",
    head: HeadOptions | None = None,
    sampling: Mapping[str, Any] = MappingProxyType({}),
) -> Parts:
    """The parts of an actor-critic that learns from transitions.

    Args:
        env: the environment, a vector environment, the id of one, or a `Spec`.
        options: its options.
        critics: the names of its critics.
        metrics: the names of what its update measures.
        policy: from the spaces and the options to what `pi` gives, and what is made of that while collecting.
        torso: see `tfdpg.acting.make_torso`.
        head: see `actor_critic`.
        sampling: what `tfdpg.replay.sampler` is to take in place of the options.

    Raises:
        ValueError: spaces or networks that cannot be served, or an option that others leave without effect.
    """
    spec = Spec.of(env)
    if spec.actions is not None:
        raise ValueError(
            f"The action space {spec.action_space} is not supported by this agent, which needs a float Box. "
            "tfdpg.ACER takes Discrete ones."
        )
    given, (output, exploration) = _given_networks(options, ("pi", *critics)), policy(spec, options)
    cells = None
    if options.recurrent is not None:
        remembered = options.recurrent_units, options.remembers, options.stored_state
        cells = Cells.of(spec, options.recurrent, *remembered)
    with tf.device(_device(options, given)), graphs_are_freed():
        networks = actor_critic(
            spec,
            given,
            torso=torso,
            hidden_units=options.hidden_units,
            activation=options.activation,
            norm=options.norm,
            blocks=options.blocks,
            encoder=options.encoder,
            normalizer=_normalizer(options),
            l2=options.l2,
            seed=options.drawn_seed,
            head=head,
            output=output,
            cells=cells,
        )
        own = {"pi": options.pi_optimizer, "q": options.q_optimizer}
        rates = {"pi": options.pi_lr, "q": options.q_lr}
        clipping = options.clip_norm, options.clip_value
        optimizers = make_optimizers(networks.networks, own, rates, options.beta_1, *clipping)
        targets = {name: networks.copied(name) for name in networks.networks} if options.target_networks else {}
    return Parts(
        spec=spec,
        networks=networks,
        targets=targets,
        optimizers=optimizers,
        schedule=Schedule(
            start_steps=options.start_steps,
            update_after=options.update_after,
            update_every=options.update_every,
            gradient_steps=options.gradient_steps,
        ),
        exploration=exploration,
        metrics=tuple(metrics),
        signatures=export.signatures(spec, networks.networks, networks.recall),
        **_drawn(spec, options, networks.recall, sampling),
    )


def _drawn(spec: Spec, options: OffPolicyOptions, recall: Recall | None, sampling: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that hold and draw transitions, or sequences for networks that recall."""
    size, place, batch, gamma = options.replay_size, options.replay_dir, options.batch_size, options.gamma
    names = ("batch_size", "replay", "alpha", "beta", "beta_steps", "epochs_per_round", "max_minibatches_per_round")
    sampling = {name: getattr(options, name) for name in (*names, "seed", "n_step", "gamma")} | {**sampling}
    if recall is None:
        return {
            "replay": Ring(spec, size, place, n_step=options.n_step, gamma=gamma),
            "make_draw": functools.partial(transitions, **sampling),
            "unpack": functools.partial(unpack_transitions, spec),
            "pack": functools.partial(pack_transitions, spec, batch, gamma),
            "elements": batch,
        }
    part = {"burn_in": options.burn_in, "length": options.sequence_length}
    return {
        "replay": Ring(
            spec, size, place, spec.act_dim + recall.stored_width, walks_back=True, n_step=options.n_step, gamma=gamma
        ),
        "make_draw": functools.partial(sequences, recall=recall, **part, **sampling),
        "unpack": functools.partial(unpack_histories, spec, recall=recall, **part),
        "pack": functools.partial(pack_sequences, spec, recall, batch, *part.values(), options.n_step, gamma),
        "elements": batch * options.sequence_length,
    }


def build_acer(
    spec: Spec, options: ACEROptions, policy: ACERPolicy, critic: ACERCritic, metrics: Sequence[str]
) -> Parts:
    """The parts of ACER.

    Args:
        spec: the spaces.
        options: its options.
        policy: the policy's distributions; see `acer_family`.
        critic: the kind of critic.
        metrics: the names of what its update measures.

    Raises:
        ValueError: networks that cannot be served, or an option that others leave without effect.
    """
    given = _given_networks(options, ("pi", *critic.names))
    steps, on_policy = by_actions(spec, options.n_steps, 20, 50), by_actions(spec, options.on_policy, True, False)
    size, ratio = options.replay_size, options.replay_ratio
    if ratio == 0 and not on_policy:
        raise reject("replay_ratio", "above 0 where `on_policy` is off: there are no updates", ratio)
    if steps >= size:
        raise reject("n_steps", f"less than replay_size={size}", steps)
    if options.replay_start > size and ratio > 0:
        raise reject("replay_start", f"at most replay_size={size}", options.replay_start)
    with tf.device(_device(options, given)), graphs_are_freed():
        networks = acer_networks(
            spec,
            policy,
            given,
            hidden_units=options.hidden_units,
            activation=options.activation,
            encoder=options.encoder,
            normalizer=_normalizer(options),
            shared_torso=options.shared_torso,
            seed=options.drawn_seed,
        )
        clipping = options.clip_norm, options.clip_value
        optimizers = make_joint_optimizer(networks.networks, options.optimizer, options.lr, *clipping)
        averaged = ("pi",) if options.critic_average is None else tuple(given)
        targets = {name: networks.copied(name) for name in averaged}
    sampling = {"steps": steps, "newest": on_policy, "ratio": ratio, "start": options.replay_start}
    sampling |= {"seed": options.drawn_seed, "batch_size": options.batch_size, "gamma": options.gamma}
    return Parts(
        spec=spec,
        networks=networks,
        targets=targets,
        optimizers=optimizers,
        schedule=Schedule(start_steps=0, update_after=0, update_every=steps, gradient_steps=None, each_lane=True),
        replay=Ring(
            spec,
            size,
            options.replay_dir,
            spec.act_dim + policy.record_width,
            has_windows=True,
            gamma=options.gamma,
        ),
        make_draw=functools.partial(windows, **sampling),
        unpack=functools.partial(unpack_sequences, spec, record_width=policy.record_width),
        pack=functools.partial(pack_windows, spec, options.batch_size, steps, policy.record_width, options.gamma),
        elements=options.batch_size,
        exploration=policy.exploration,
        metrics=tuple(metrics),
        signatures=export.acer_signatures(spec, policy, critic, networks.networks, options.reward_scale),
        usual_updates=1 + math.ceil(ratio),
    )


def acer_family(spec: Spec, options: ACEROptions) -> tuple[ACERPolicy, ACERCritic]:
    """The family of ACER's policy, and the kind of its critic, for the action space.

    Raises:
        ValueError: an option that does nothing there.
    """
    if spec.actions is not None:
        names = ("v", "sigma", "learn_sigma", "dueling", "dueling_samples")
        options.refuse(names, f"actions are {spec.action_space}")
        family = CategoricalPolicy(spec)
        return family, ActionValues(family)
    if not options.learn_sigma:
        options.refuse(["ent_coef"], "the scale of a Gaussian is fixed (`learn_sigma` is False)")
    elif options.sigma <= MIN_SIGMA:
        raise reject("sigma", f"above {MIN_SIGMA} where it is learnt", options.sigma)
    policy = GaussianPolicy(spec, options.sigma, options.learn_sigma)
    if not options.dueling:
        return policy, Separate(policy)
    return policy, Dueling(policy, options.dueling_samples, options.drawn_seed)


def by_actions(spec: Spec, given: Any, discrete: Any, box: Any) -> Any:
    """An option as it was given, or the default for the kind of actions."""
    if given is not None:
        return given
    return box if spec.actions is None else discrete


def recorders(given: Any, spec: Spec) -> list[Ring | Recorder]:
    """Rings as they are, and a `Recorder` for each directory; one directory may come by itself."""
    several = [given] if isinstance(given, str | Path) else given
    return [one if isinstance(one, Ring | Recorder) else Recorder(one, spec) for one in several]


def _given_networks(options: AgentOptions, names: Sequence[str]) -> dict[str, keras.Model | None]:
    """One's own networks, by their names, and None for stock ones."""
    given = {name: getattr(options, name) for name in names}
    if None not in given.values():
        *others, last = (f"`{name}`" for name in names)
        options.refuse(options.names(Stock), f"{', '.join(others)} and {last} are your own")
    return given


def _device(options: AgentOptions, given: Mapping[str, keras.Model | None]) -> str | None:
    return check_device(options.device, {name: network for name, network in given.items() if network is not None})


def _normalizer(options: AgentOptions) -> Normalizer | None:
    """The layer that normalises observations; None where they are left as they are."""
    if not options.normalize_observations:
        return None
    return Normalizer(options.normalize_epsilon, options.normalize_clip, dtype="float32")
