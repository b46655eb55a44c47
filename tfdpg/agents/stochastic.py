"""What a stochastic actor-critic is made of, from its constructor's arguments."""

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import keras
import tensorflow as tf

from tfdpg.acting import MIN_SIGMA
from tfdpg.agents.parts import Parts, check_jit_compile, make_normalizer
from tfdpg.arguments import flag, natural, positive, positive_int, real, refuse_unused, reject
from tfdpg.networks import (
    ActionValues,
    CategoricalPolicy,
    Dueling,
    GaussianPolicy,
    Separate,
    StateActionCritic,
    StochasticPolicy,
    check_device,
    check_hidden,
    stochastic_actor_critic,
)
from tfdpg.replay import Ring, Windows
from tfdpg.spec import Spec
from tfdpg.training.optimizers import make_joint_optimizer
from tfdpg.training.schedule import Schedule

Value = TypeVar("Value")


def by_action_space(spec: Spec, given: Value | None, discrete: Value, box: Value) -> Value:
    """An option as it was given, or the default for the kind of actions."""
    if given is not None:
        return given
    return box if spec.actions is None else discrete


def choose(
    spec: Spec, options: Mapping[str, Any], changed: Collection[str]
) -> tuple[StochasticPolicy, StateActionCritic]:
    """The family of the policy, and the kind of critic, for the action space.

    Raises:
        ValueError: an option out of its range, or one that does nothing there.
    """
    if spec.actions is not None:
        names = ("v", "sigma", "learn_sigma", "dueling", "dueling_samples")
        refuse_unused(changed, names, f"actions are {spec.action_space}")
        family = CategoricalPolicy(spec)
        return family, ActionValues(family)
    learns = flag("learn_sigma", options["learn_sigma"])
    if not learns:
        refuse_unused(changed, ["ent_coef"], "the scale of a Gaussian is fixed (`learn_sigma` is False)")
    sigma = positive("sigma", options["sigma"])
    if learns and sigma <= MIN_SIGMA:
        raise reject("sigma", f"above {MIN_SIGMA} where it is learnt", sigma)
    policy = GaussianPolicy(spec, sigma, learns)
    samples = positive_int("dueling_samples", options["dueling_samples"])
    if not flag("dueling", options["dueling"]):
        refuse_unused(changed, ["dueling_samples"], "`dueling` is False")
        return policy, Separate(policy)
    return policy, Dueling(policy, samples, natural("seed", options["seed"]))


def make_stochastic_parts(
    spec: Spec,
    family: StochasticPolicy,
    options: Mapping[str, Any],
    changed: Collection[str],
    networks: Mapping[str, keras.Model | None],
    averaged: Collection[str],
    n_steps: int,
    on_policy: bool,
) -> Parts:
    """Builds and checks the parts that `options`, a constructor's arguments by name, describe.

    Args:
        spec: the spaces.
        family: the policy's distributions.
        options: all arguments.
        changed: the names of those that are not at their defaults.
        networks: by name, one's own or None for a stock one.
        averaged: the names of those that have an average.
        n_steps: steps in a window.
        on_policy: whether rounds begin with the newest windows.

    Raises:
        ValueError: an option out of its range, or one that another leaves without effect.
    """
    check_jit_compile(options["jit_compile"])
    if options["optimizer"] is not None:
        off = {"clip_norm"} if options["clip_norm"] is None else set()
        refuse_unused(set(changed) - off, ("lr", "clip_norm", "clip_value"), "`optimizer` is your own")
    ratio = real("replay_ratio", options["replay_ratio"], low=0)
    if ratio == 0 and not on_policy:
        raise reject("replay_ratio", "above 0 where `on_policy` is off: there are no updates", ratio)
    if None not in networks.values():
        refuse_unused(changed, ["hidden_units", "activation", "encoder"], "all networks are your own")
    if ratio == 0:
        refuse_unused(changed, ["replay_start"], "`replay_ratio` is 0")
    hidden_units, activation = check_hidden(options["hidden_units"], options["activation"])
    seed, batch_size = natural("seed", options["seed"]), positive_int("batch_size", options["batch_size"])
    with tf.device(check_device(options["device"], {k: v for k, v in networks.items() if v is not None})):
        built = stochastic_actor_critic(
            spec,
            family,
            networks,
            hidden_units=hidden_units,
            activation=activation,
            encoder=options["encoder"],
            normalizer=make_normalizer(options, changed),
            shared_torso=flag("shared_torso", options["shared_torso"]),
            seed=seed,
        )
        rate, clipping = positive("lr", options["lr"]), (options["clip_norm"], options["clip_value"])
        optimizers = make_joint_optimizer(built.networks, options["optimizer"], rate, *clipping)
    schedule = Schedule(
        start_steps=0,
        update_after=0,
        update_every=positive_int("n_steps", n_steps),
        gradient_steps=None,
        each_lane=True,
    )
    size, width = positive_int("replay_size", options["replay_size"]), spec.act_dim + family.record_width
    ring = Ring(spec, size, options["replay_dir"], width, has_windows=True)
    if n_steps >= size:
        raise reject("n_steps", f"less than replay_size={size}", n_steps)
    start = natural("replay_start", options["replay_start"])
    if start > size and ratio > 0:
        raise reject("replay_start", f"at most replay_size={size}", start)
    sampling = {"steps": n_steps, "newest": flag("on_policy", on_policy), "ratio": ratio, "start": start}
    sampler = Windows(ring, seed, batch_size, **sampling)
    return Parts(built, optimizers, schedule, sampler, family.behaviour, sampling, averaged)
