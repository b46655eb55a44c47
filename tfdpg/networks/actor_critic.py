"""The networks of a deterministic actor-critic: one's own or stock ones, checked."""

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import keras

from tfdpg.acting import ACTIVATIONS, BoxAction, MLPActor, Output, Recall, make_torso
from tfdpg.networks.custom import check_critics, check_loadable, check_separate, check_width, warn_of_range
from tfdpg.networks.encoder import Normalizer
from tfdpg.networks.heads import HeadOptions, Value
from tfdpg.networks.mlp import mlp_actor, mlp_critic
from tfdpg.networks.recurrent import Cells, recurrent_actor, recurrent_critic
from tfdpg.spec import Spec
from tfdpg.streams import Purpose, seeds


class ActorCritic(NamedTuple):
    """Networks, and how they can be had again.

    Attributes:
        networks: by the names of the exported signatures, `pi` first.
        own: the models that plain arguments cannot rebuild, by the arguments that take them.
        numpy_actor: the policy's forward pass in NumPy, or None where there is none.
        recall: what the policy recalls of an episode; None where it has no memory.
    """

    networks: dict[str, keras.Model]
    own: dict[str, keras.Model]
    numpy_actor: MLPActor | None
    recall: Recall | None = None

    def copied(self, name: str) -> keras.Model:
        """A network like one of these, with weights of its own that are the same, as a target network is at first.

        A stock one is made again, which takes a third of the time of saving and loading.
        """
        network = self.networks[name]
        if self.own:
            return copy.deepcopy(network)
        twin = type(network).from_config(network.get_config())
        for copied, variable in zip(twin.variables, network.variables, strict=True):
            copied.assign(variable)
        return twin


def actor_critic(
    spec: Spec,
    given: Mapping[str, keras.Model | None],
    *,
    torso: str = "mlp",
    hidden_units: Sequence[int],
    activation: str,
    norm: str | None = None,
    blocks: int = 0,
    encoder: keras.Model | None,
    normalizer: Normalizer | None,
    l2: float,
    seed: int,
    head: HeadOptions | None = None,
    output: Output | None = None,
    cells: Cells | None = None,
) -> ActorCritic:
    """Builds the networks that were not given, and checks all.

    Args:
        spec: the spaces.
        given: `pi` and the critics by name, None for a stock network.
        torso: see `mlp_actor`.
        hidden_units: of the stock networks, as the four that follow.
        activation: a Keras activation.
        norm: see `mlp_actor`.
        blocks: see `mlp_actor`.
        encoder: see `mlp_actor`.
        normalizer: shared by all networks.
        l2: see `mlp_actor`.
        seed: fixes their initial weights.
        head: makes the last layer of each critic, and all critics end in such a layer; None is for values.
        output: what `pi` gives; None is actions.
        cells: of the networks' memories; None is without.

    Raises:
        ValueError: networks of wrong shapes, ones that share weights or cannot be saved and loaded, critics that
            are equal.
    """
    layers = {"torso": torso, "hidden_units": hidden_units, "activation": activation, "norm": norm, "blocks": blocks}
    own = frozenset(name for name, network in given.items() if network is not None)
    _check_stock(spec, given, own, torso, encoder, normalizer, cells)
    stock = layers | {"encoder": encoder, "l2": l2, "normalizer": normalizer}
    own_seeds = seeds(Purpose.NETWORKS, seed, count=len(given))
    makers = (mlp_actor, mlp_critic)
    if cells is not None:
        makers = functools.partial(recurrent_actor, cells), functools.partial(recurrent_critic, cells)
    make_actor, make_critic = makers
    networks = {}
    for (name, network), network_seed in zip(given.items(), own_seeds, strict=True):
        if network is not None:
            networks[name] = network
        elif name == "pi":
            networks[name] = make_actor(spec, **stock, seed=network_seed, output=output)
        else:
            networks[name] = make_critic(spec, **stock, seed=network_seed, name=name, head=head or Value)
    if cells is None:
        check_width(spec, "pi", networks["pi"], takes_action=False, width=(output or BoxAction(spec)).units)
        if "pi" in own and isinstance(output or BoxAction(spec), BoxAction):
            warn_of_range(spec, networks["pi"])
        critics = {name: network for name, network in networks.items() if name != "pi"}
        check_critics(spec, critics, None if head is None else head.kind)
    check_separate(networks)
    for name in own:  # built by now: the checks before have called them
        check_loadable(name, networks[name])
    kinds = () if cells is None else cells.kinds
    known = activation in ACTIVATIONS and all(kind for kind, _ in kinds)
    is_stock = given["pi"] is None and encoder is None and known
    numpy_actor = is_stock and keras.config.dtype_policy().name == "float32"
    statistics = None if normalizer is None else (normalizer.epsilon, normalizer.clip)
    recall = None if cells is None else cells.recall
    saved = {name: networks[name] for name in (own if encoder is None else networks)}
    return ActorCritic(
        networks,
        saved if cells is None or encoder is None else {"encoder": encoder},
        MLPActor(spec, make_torso(**layers), statistics, output, cast(Any, kinds), recall) if numpy_actor else None,
        recall,
    )


def _check_stock(
    spec: Spec,
    given: Mapping[str, keras.Model | None],
    own: frozenset[str],
    torso: str,
    encoder: keras.Model | None,
    normalizer: Normalizer | None,
    cells: Cells | None,
) -> None:
    """Raises `ValueError` for what stock networks cannot have together, or beside networks of one's own."""
    if normalizer is not None and (own or encoder is not None):
        raise ValueError("`normalize_observations` is for stock networks with the stock encoder; put it into your own.")
    if cells is not None and (own or torso == "two_branch"):
        received = [f"{name}={given[name]!r}" for name in sorted(own)] or [f"torso={torso!r}"]
        raise ValueError(
            "`recurrent` is for stock networks, all of them, without branches. Received: " + ", ".join(received)
        )
    if torso == "two_branch" and (encoder is not None or len(spec.leaves) < 2):
        raise ValueError(
            "`torso='two_branch'` needs a Dict of two observations or more, and the stock encoder. "
            f"Received: {spec.observation_space}, encoder={encoder!r}"
        )
    if encoder is not None:
        check_loadable("encoder", encoder)
