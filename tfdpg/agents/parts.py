"""What the deterministic actor-critics are made of, from their constructors' arguments."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdpg.arguments import natural, positive, positive_int, real, refuse_unused, reject
from tfdpg.exploration import Behaviour, noisy_actions
from tfdpg.networks import ActorCritic, HeadOptions, Normalizer, actor_critic, check_device, check_hidden
from tfdpg.replay import Recorder, Ring, Sampler, sampler
from tfdpg.spec import Spec
from tfdpg.training.optimizers import make_optimizers
from tfdpg.training.schedule import Schedule


class Parts(NamedTuple):
    """The parts of an agent; see their classes.

    `sampling` are the arguments of the sampler; `targets` the names of the networks that have a target, None for all.
    """

    networks: ActorCritic
    optimizers: dict[str, keras.optimizers.Optimizer]
    schedule: Schedule
    sampler: Sampler
    exploration: Behaviour
    sampling: dict[str, Any]
    targets: Collection[str] | None = None


def make_parts(
    spec: Spec,
    options: Mapping[str, Any],
    changed: Collection[str],
    networks: Mapping[str, keras.Model | None],
    *,
    torso: str = "mlp",
    head: HeadOptions | None = None,
    normalize_weights: bool = True,
) -> Parts:
    """Builds and checks the parts that `options`, a constructor's arguments by name, describe.

    Args:
        spec: the spaces.
        options: those that all deterministic actor-critics have.
        changed: the names of those that are not at their defaults.
        networks: `pi` and the critics that the agent has, one's own or None for a stock one.
        torso: see `tfdpg.acting.make_torso`.
        head: see `actor_critic`.
        normalize_weights: see `tfdpg.replay.Prioritized`.

    Raises:
        ValueError: an option out of its range, or one that another leaves without effect.
    """
    if spec.actions is not None:
        raise ValueError(
            f"The action space {spec.action_space} is not supported by deterministic policies, which need a "
            "one-dimensional float Box. tfdpg.ACER takes Discrete ones."
        )
    for kind in ("pi", "q"):
        if options[f"{kind}_optimizer"] is not None:
            refuse_unused(changed, [f"{kind}_lr"], f"`{kind}_optimizer` is your own")
    if options["noise"] == "gaussian":
        refuse_unused(changed, ["ou_theta"], "`noise` is 'gaussian'")
    check_jit_compile(options["jit_compile"])
    hidden_units, activation = check_hidden(options["hidden_units"], options["activation"])
    seed = natural("seed", options["seed"])
    rates = {kind: positive(f"{kind}_lr", options[f"{kind}_lr"]) for kind in ("pi", "q")}
    with tf.device(check_device(options["device"], {k: v for k, v in networks.items() if v is not None})):
        normalizer = make_normalizer(options, changed)
        built = actor_critic(
            spec,
            networks,
            torso=torso,
            hidden_units=hidden_units,
            activation=activation,
            encoder=options["encoder"],
            normalizer=normalizer,
            l2=real("l2", options["l2"], low=0),
            seed=seed,
            head=head,
        )
        own = {kind: options[f"{kind}_optimizer"] for kind in ("pi", "q")}
        clipping = options["clip_norm"], options["clip_value"]
        optimizers = make_optimizers(built.networks, own, rates, *clipping)
    schedule = Schedule(
        start_steps=options["start_steps"],
        update_after=options["update_after"],
        update_every=options["update_every"],
        gradient_steps=options["gradient_steps"],
    )
    if options["epochs_per_round"] is not None and options["gradient_steps"] is not None:
        raise ValueError(
            "`gradient_steps` and `epochs_per_round` both say how many updates a round has. Received: "
            f"gradient_steps={options['gradient_steps']}, epochs_per_round={options['epochs_per_round']}"
        )
    ring = Ring(spec, positive_int("replay_size", options["replay_size"]), options["replay_dir"])
    names = ("batch_size", "replay", "alpha", "beta", "beta_steps", "epochs_per_round", "max_minibatches_per_round")
    sampling = {name: options[name] for name in names} | {"seed": seed, "normalize_weights": normalize_weights}
    rows = sampler(ring, **sampling)
    noise = (options[name] for name in ("noise", "act_noise", "ou_theta", "act_noise_schedule"))
    return Parts(built, optimizers, schedule, rows, noisy_actions(spec, *noise), sampling)


def check_jit_compile(given: Any) -> None:
    """Raises `ValueError` for a `jit_compile` that there is not."""
    if given not in (True, False, "auto"):
        raise reject("jit_compile", 'True, False or "auto"', given)


def make_normalizer(options: Mapping[str, Any], changed: Collection[str]) -> Normalizer | None:
    """The layer that normalises observations as the options say; None where they are left as they are."""
    if not options["normalize_observations"]:
        refuse_unused(changed, ["normalize_epsilon", "normalize_clip"], "`normalize_observations` is False")
        return None
    epsilon = positive("normalize_epsilon", options["normalize_epsilon"])
    return Normalizer(epsilon, positive("normalize_clip", options["normalize_clip"]), dtype="float32")


def recorders(given: Any, spec: Spec) -> list[Ring | Recorder]:
    """Rings as they are, and a `Recorder` for each directory; one directory may come by itself."""
    several = [given] if isinstance(given, str | Path) else given
    return [one if isinstance(one, Ring | Recorder) else Recorder(one, spec) for one in several]
