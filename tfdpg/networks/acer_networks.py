"""The networks of a stochastic actor-critic: one's own or stock ones, checked."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from tfdpg.acting import ACTIVATIONS, MLPActor, mlp
from tfdpg.networks.acer_policies import ACERPolicy
from tfdpg.networks.actor_critic import ActorCritic
from tfdpg.networks.custom import check_loadable, check_separate, check_width, output_on_zeros
from tfdpg.networks.encoder import Normalizer, observation_inputs
from tfdpg.networks.heads import Value
from tfdpg.networks.mlp import actor_output, features, hidden_layers, initializer, scaled_action
from tfdpg.spec import Spec
from tfdpg.streams import Purpose, seeds

OUTPUT_SCALE = 1e-4
"""Of the policy's last kernel, so that all actions are as likely at first, or means in the middle of the box."""


def acer_networks(
    spec: Spec,
    policy: ACERPolicy,
    given: Mapping[str, keras.Model | None],
    *,
    hidden_units: Sequence[int],
    activation: str,
    encoder: keras.Model | None,
    normalizer: Normalizer | None,
    shared_torso: bool,
    seed: int,
) -> ActorCritic:
    """Builds the networks that were not given, and checks all.

    Args:
        spec: the spaces.
        policy: what `pi` gives.
        given: `pi`, `q1` and, for Box actions, `v` by name; None for a stock network.
        hidden_units: of each stock network.
        activation: a Keras activation.
        encoder: a model from raw observations to features `[batch, features]`; copied, once for each network or, with
            a shared torso, once for all.
        normalizer: shared by all networks.
        shared_torso: whether all networks share features, and those which take no action hidden layers.
        seed: fixes their initial weights.

    Raises:
        ValueError: networks of wrong shapes, ones that share weights or cannot be saved and loaded, or options of
            stock networks that leave them without effect.
    """
    own = {name: network for name, network in given.items() if network is not None}
    if own and (shared_torso or normalizer is not None):
        raise ValueError(
            "`shared_torso` and `normalize_observations` are for stock networks, all of them. Received: "
            + ", ".join(f"{name}={network!r}" for name, network in own.items())
        )
    if normalizer is not None and encoder is not None:
        raise ValueError("`normalize_observations` is for the stock encoder; put it into your own.")
    if encoder is not None:
        check_loadable("encoder", encoder)
    takes_action = {"pi": False, "v": False, "q1": spec.actions is None}
    widths = {"pi": policy.output.units, "v": None, "q1": spec.actions}
    for name, network in own.items():
        check_width(spec, name, network, takes_action[name], widths[name])
        check_loadable(name, network)
    check_separate(own)
    if "pi" in own:
        policy.check(output_on_zeros(spec, own["pi"]))
    layers = mlp(hidden_units, activation).pi
    stock = _Stock(spec, policy, layers, encoder, normalizer, shared_torso, seed)
    networks = {name: stock.make(name) if network is None else network for name, network in given.items()}
    known = own.get("pi") is None and encoder is None and activation in ACTIVATIONS
    numpy_actor = known and keras.config.dtype_policy().name == "float32"
    statistics = None if normalizer is None else (normalizer.epsilon, normalizer.clip)
    saved = own if encoder is None or len(own) == len(given) else own | {"encoder": encoder}
    return ActorCritic(
        networks,
        saved,
        MLPActor(spec, mlp(hidden_units, activation), statistics, policy.output) if numpy_actor else None,
    )


class _Stock:
    """Makes stock networks, which may share their features and hidden layers."""

    def __init__(
        self,
        spec: Spec,
        policy: ACERPolicy,
        layers: Any,
        encoder: keras.Model | None,
        normalizer: Normalizer | None,
        shares: bool,
        seed: int,
    ):
        self._spec, self._policy, self._layers, self._shares = spec, policy, layers, shares
        self._encoder, self._normalizer, self._seed = encoder, normalizer, seed
        self._observation = observation_inputs(spec)
        self._common: dict[str, Any] = {}

    def make(self, name: str) -> keras.Model:
        """The network of a name: `pi`, `v` or `q1`."""
        (seed,) = seeds(Purpose.NETWORKS, self._seed, *name.encode())
        kernel = {"kernel_initializer": initializer(seed, len(self._layers))}
        if name == "q1" and self._spec.actions is None:
            return self._advantage(seed)
        x = self._torso(seed)
        if name == "pi":
            kernel = {"kernel_initializer": initializer(seed, len(self._layers), OUTPUT_SCALE)}
            y = actor_output(self._policy.output, x, **kernel)
        elif name == "v":
            y = Value(**kernel, dtype="float32")(x)
        else:
            y = keras.layers.Dense(self._spec.actions, **kernel, dtype="float32")(x)
        return keras.Model(self._observation, y, name=name)

    def _advantage(self, seed: int) -> keras.Model:
        action = keras.Input((self._spec.act_dim,), name="a")
        x = keras.layers.Concatenate()([self._features(), scaled_action(self._spec, action)])
        x = hidden_layers(x, self._layers, seed)
        y = Value(kernel_initializer=initializer(seed, len(self._layers)), dtype="float32")(x)
        return keras.Model([self._observation, action], y, name="q1")

    def _features(self) -> Any:
        if not self._shares or "features" not in self._common:
            self._common["features"] = features(self._spec, self._encoder, self._normalizer)(self._observation)
        return self._common["features"]

    def _torso(self, seed: int) -> Any:
        if not self._shares or "torso" not in self._common:
            self._common["torso"] = hidden_layers(self._features(), self._layers, seed)
        return self._common["torso"]
