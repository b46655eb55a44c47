"""Build the networks of actor-critics that learn from transitions, and check custom networks."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from tfdpg.networks.custom import check_critics, check_loadable, check_separate, check_width, warn_of_range
from tfdpg.networks.heads import HeadOptions, Value
from tfdpg.networks.mlp import OutputTransform, mlp_actor, mlp_critic
from tfdpg.networks.recurrent import RNNSpec, recurrent_actor, recurrent_critic
from tfdpg.spec import Spec


def policy_network(
    options: Any, output: OutputTransform | None = None, cells: RNNSpec | None = None
) -> Callable[[Any], keras.Model]:
    """Return a function that builds a policy (see `mlp_actor`) from a component's `Context`.

    Args:
        options: the agent's options, which describe the hidden layers, the encoder and the regularisation.
        output: transforms the last linear layer; None for tanh and rescaling to the action bounds.
        cells: recurrent cells, which `tfdpg.agents.declarations.recurrent_cells` makes from the options; None for a
            policy that is not recurrent.

    Returns:
        A function for `Component.build`. Its models map an observation to an action `[batch, act_dim]` in the
        environment's units, or to the output of `output`.
    """

    def build(context: Any) -> keras.Model:
        make = mlp_actor if cells is None else functools.partial(recurrent_actor, cells)
        return make(context.spec, **_given(options, context), output=output)

    return build


def critic_network(
    options: Any, name: str, head: HeadOptions | None = None, cells: RNNSpec | None = None
) -> Callable[[Any], keras.Model]:
    """Return a function that builds a critic (see `mlp_critic`) from a component's `Context`.

    Args:
        options: the agent's options, which describe the hidden layers, the encoder and the regularisation.
        name: name of the critic, such as "q1".
        head: builds the last layer; None for `Value`.
        cells: recurrent cells, which `tfdpg.agents.declarations.recurrent_cells` makes from the options; None for a
            critic that is not recurrent.

    Returns:
        A function for `Component.build`. Its models map `[observation, action]` to the output of the head, which is
        values `[batch]` by default.
    """

    def build(context: Any) -> keras.Model:
        make = mlp_critic if cells is None else functools.partial(recurrent_critic, cells)
        return make(context.spec, **_given(options, context), name=name, head=head or Value)

    return build


def _given(options: Any, context: Any) -> dict[str, Any]:
    """Return the arguments that the functions that build networks have in common."""
    described = {name: getattr(options, name) for name in ("hidden_units", "activation", "norm", "blocks", "l2")}
    of_context = {name: getattr(context, name) for name in ("seed", "encoder", "normalizer")}
    return {"torso": getattr(options, "torso", "mlp"), **described, **of_context}


def check_given(
    spec: Spec,
    given: Mapping[str, keras.Model | None],
    options: Any,
    *,
    head: HeadOptions | None = None,
    output: OutputTransform | None = None,
) -> None:
    """Check custom networks, and the options used with them.

    Args:
        spec: the spaces of the environment.
        given: `pi` and the critics by name; None stands for a built-in network.
        options: the agent's options.
        head: the head in which each custom critic must end; None for critics that return values, `[batch]` or
            `[batch, 1]`.
        output: the output transform of the built-in policy, whose `units` a custom `pi` must return; None for actions
            `[batch, act_dim]`.

    Raises:
        ValueError: A network has wrong shapes, shares weights with another one or cannot be saved and loaded; two
            critics have equal weights; or an option needs built-in networks.
    """
    own = custom_networks(given, options)
    _check_options(spec, own, options)
    if "pi" in own:
        width = spec.act_dim if output is None else output.units
        check_width(spec, "pi", own["pi"], takes_action=False, width=width)
        if output is None:
            warn_of_range(spec, own["pi"])
    critics = {name: network for name, network in own.items() if name != "pi"}
    check_critics(spec, critics, None if head is None else head.kind)
    check_separate(own)
    for name, network in own.items():  # the checks above have called, and so built, the networks
        check_loadable(name, network)


def custom_networks(given: Mapping[str, keras.Model | None], options: Any) -> dict[str, keras.Model]:
    """Return the custom networks, after checking the encoder that is given beside them.

    Raises:
        ValueError: as `check_encoder`, or there is no built-in network for the encoder.
    """
    own = {name: network for name, network in given.items() if network is not None}
    if options.encoder is not None and len(own) == len(given):
        raise ValueError(f"`encoder` needs a built-in network. Received: {', '.join(own)}, encoder={options.encoder!r}")
    check_encoder(options, list(own))
    return own


def check_encoder(options: Any, own: Sequence[str] = ()) -> None:
    """Check the custom encoder among the options.

    Args:
        options: the agent's options.
        own: the names of custom networks, which have no encoder.

    Raises:
        ValueError: observations are to be normalised although there is no built-in encoder, or the encoder cannot be
            saved and loaded.
    """
    if options.normalize_observations and (own or options.encoder is not None):
        raise ValueError(
            "`normalize_observations` needs built-in networks and the built-in encoder; add the layer to your own."
        )
    if options.encoder is not None:
        check_loadable("encoder", options.encoder)


def _check_options(spec: Spec, own: Mapping[str, keras.Model], options: Any) -> None:
    """Raise `ValueError` for options that exclude each other or custom networks."""
    torso = getattr(options, "torso", "mlp")
    if options.recurrent is not None and (own or torso == "two_branch"):
        received = [f"{name}={own[name]!r}" for name in sorted(own)] or [f"torso={torso!r}"]
        raise ValueError("`recurrent` needs built-in networks only, without branches. Received: " + ", ".join(received))
    if torso == "two_branch" and (options.encoder is not None or len(spec.leaves) < 2):
        raise ValueError(
            "`torso='two_branch'` needs a Dict space with at least two observations, and the built-in encoder. "
            f"Received: {spec.observation_space}, encoder={options.encoder!r}"
        )
