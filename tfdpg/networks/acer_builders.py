"""Build the networks of stochastic actor-critics (ACER), and check custom networks."""

from collections.abc import Callable, Mapping
from typing import Any

import keras

from tfdpg.acting import mlp
from tfdpg.networks.acer_policies import PolicyDistribution
from tfdpg.networks.builders import custom_networks
from tfdpg.networks.custom import check_loadable, check_separate, check_width, output_on_zeros
from tfdpg.networks.encoder import observation_inputs
from tfdpg.networks.heads import Value
from tfdpg.networks.mlp import action_input, actor_output, features, hidden_layers, initializer, scaled_action
from tfdpg.spec import Spec

OUTPUT_SCALE = 1e-4
"""Scale of the initial weights of the policy's last layer.

It is small, so that the initial policy is close to uniform, or its means are close to the middle of the action box.
"""


def acer_network(options: Any, policy: PolicyDistribution, name: str) -> Callable[[Any], keras.Model]:
    """Return a function that builds `pi`, `v` or `q1` from a component's context.

    With `shared_torso`, all networks of a context share the encoder, and the networks without an action input also
    share the hidden layers.

    Args:
        options: the agent's options.
        policy: the distribution whose parameters `pi` returns.
        name: the network to build: "pi", "v" or "q1".
    """

    def build(context: Any) -> keras.Model:
        layers = mlp(options.hidden_units, options.activation).pi
        spec: Spec = context.spec
        shared: dict[str, Any] = context.shared if options.shared_torso else {}
        if "observation" not in shared:
            shared["observation"] = observation_inputs(spec)
            encoder = features(spec, context.encoder, context.normalizer)
            shared["features"] = encoder(shared["observation"])
        observation = shared["observation"]
        kernel = {"kernel_initializer": initializer(context.seed, len(layers))}
        if name == "q1" and spec.actions is None:
            action = action_input(spec)
            x = keras.layers.Concatenate()([shared["features"], scaled_action(spec, action)])
            y = Value(**kernel, dtype="float32")(hidden_layers(x, layers, context.seed))
            return keras.Model([observation, action], y, name=name)
        if "torso" not in shared:
            shared["torso"] = hidden_layers(shared["features"], layers, context.seed)
        if name == "pi":
            kernel = {"kernel_initializer": initializer(context.seed, len(layers), OUTPUT_SCALE)}
            y = actor_output(policy.output, shared["torso"], **kernel)
        elif name == "v":
            y = Value(**kernel, dtype="float32")(shared["torso"])
        else:
            y = keras.layers.Dense(spec.actions, **kernel, dtype="float32")(shared["torso"])
        return keras.Model(observation, y, name=name)

    return build


def check_given_to_acer(
    spec: Spec, policy: PolicyDistribution, given: Mapping[str, keras.Model | None], options: Any
) -> None:
    """Check custom networks, and the options used with them.

    Args:
        spec: the spaces of the environment.
        policy: the distribution whose parameters `pi` returns.
        given: `pi`, `q1` and, for Box actions, `v` by name; None stands for a built-in network.
        options: the agent's options.

    Raises:
        ValueError: A network has wrong shapes, shares weights with another one or cannot be saved and loaded, or an
            option for built-in networks has no effect.
    """
    own = custom_networks(given, options)
    if own and options.shared_torso:
        received = ", ".join(f"{name}={network!r}" for name, network in own.items())
        raise ValueError(f"`shared_torso` needs built-in networks only. Received: {received}")
    takes_action = {"pi": False, "v": False, "q1": spec.actions is None}
    widths = {"pi": policy.output.units, "v": None, "q1": spec.actions}
    for name, network in own.items():
        check_width(spec, name, network, takes_action[name], widths[name])
        check_loadable(name, network)
    check_separate(own)
    if "pi" in own:
        policy.check(output_on_zeros(spec, own["pi"]))
