"""What builds the components of actor-critics that learn from transitions, and checks of the user's own models."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from tfdpg.networks.custom import check_critics, check_loadable, check_separate, check_width, warn_of_range
from tfdpg.networks.heads import HeadOptions, Value
from tfdpg.networks.mlp import OutputTransform, mlp_actor, mlp_critic
from tfdpg.networks.recurrent import RNNSpec, recurrent_actor, recurrent_critic
from tfdpg.spec import Spec


def hidden_layers_of(options: Any) -> dict[str, Any]:
    """The options of the hidden layers, as `make_torso` takes them."""
    torso = getattr(options, "torso", "mlp")
    names = "hidden_units", "activation", "norm", "blocks"
    return {"torso": torso} | {name: getattr(options, name) for name in names}


def policy_network(
    options: Any, output: OutputTransform | None = None, cells: RNNSpec | None = None
) -> Callable[[Any], keras.Model]:
    """What builds a policy (see `mlp_actor`) from a component's context.

    Args:
        options: the agent's options.
        output: transforms the last layer; None is actions.
        cells: of a recurrent policy.
    """

    def build(context: Any) -> keras.Model:
        given: dict[str, Any] = _given(options, context)
        if cells is None:
            return mlp_actor(context.spec, **given, output=output)
        return recurrent_actor(cells, context.spec, **given, output=output)

    return build


def critic_network(
    options: Any, name: str, head: HeadOptions | None = None, cells: RNNSpec | None = None
) -> Callable[[Any], keras.Model]:
    """What builds a critic (see `mlp_critic`) from a component's context.

    Args:
        options: the agent's options.
        name: the name of the critic.
        head: makes the last layer; None is for values.
        cells: of a recurrent critic.
    """

    def build(context: Any) -> keras.Model:
        given: dict[str, Any] = _given(options, context)
        if cells is None:
            return mlp_critic(context.spec, **given, name=name, head=head or Value)
        return recurrent_critic(cells, context.spec, **given, name=name, head=head or Value)

    return build


def _given(options: Any, context: Any) -> dict[str, Any]:
    layers = hidden_layers_of(options) | {"l2": options.l2, "seed": context.seed}
    return layers | {"encoder": context.encoder, "normalizer": context.normalizer}


def check_given(
    spec: Spec,
    given: Mapping[str, keras.Model | None],
    options: Any,
    *,
    head: HeadOptions | None = None,
    output: OutputTransform | None = None,
) -> None:
    """Check the user's own models, and the options beside them.

    Args:
        spec: the spaces.
        given: `pi` and the critics by name; None is a built-in network.
        options: the agent's options.
        head: makes the last layer of each critic, and the user's critics end in such a layer; None is for values.
        output: what `pi` returns; None is actions.

    Raises:
        ValueError: models of wrong shapes, that share weights or cannot be saved and loaded, critics that are equal, or
            an option that goes with built-in networks only.
    """
    own = {name: network for name, network in given.items() if network is not None}
    _check_options(spec, given, list(own), options)
    if options.encoder is not None:
        check_loadable("encoder", options.encoder)
    if "pi" in own:
        width = spec.act_dim if output is None else output.units
        check_width(spec, "pi", own["pi"], takes_action=False, width=width)
        if output is None:
            warn_of_range(spec, own["pi"])
    critics = {name: network for name, network in own.items() if name != "pi"}
    check_critics(spec, critics, None if head is None else head.kind)
    check_separate(own)
    for name, network in own.items():  # built by now: the checks before have called them
        check_loadable(name, network)


def _check_options(spec: Spec, given: Mapping[str, keras.Model | None], own: Sequence[str], options: Any) -> None:
    """Raises `ValueError` for options that built-in networks cannot have together, or beside the user's own."""
    torso = hidden_layers_of(options)["torso"]
    if options.normalize_observations and (own or options.encoder is not None):
        raise ValueError("`normalize_observations` is for stock networks with the stock encoder; put it into your own.")
    if options.recurrent is not None and (own or torso == "two_branch"):
        received = [f"{name}={given[name]!r}" for name in sorted(own)] or [f"torso={torso!r}"]
        raise ValueError(
            "`recurrent` is for stock networks, all of them, without branches. Received: " + ", ".join(received)
        )
    if torso == "two_branch" and (options.encoder is not None or len(spec.leaves) < 2):
        raise ValueError(
            "`torso='two_branch'` needs a Dict of two observations or more, and the stock encoder. "
            f"Received: {spec.observation_space}, encoder={options.encoder!r}"
        )
