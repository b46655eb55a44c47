"""What lies between features and outputs of the stock networks, as data that Keras and NumPy builders share."""

from collections.abc import Sequence
from typing import NamedTuple

from tfdpg.arguments import reject


class Hidden(NamedTuple):
    """A fully connected layer, with normalised activations (LayerNorm) if so wanted, and its activation function."""

    units: int
    activation: str
    layer_norm: bool = False


class Torso(NamedTuple):
    """The hidden layers of an actor and of critics.

    Attributes:
        name: what the agents' option calls it.
        pi: the actor's layers.
        q: the critics'.
        action_layer: the critics' layer that takes the action; 0 takes it with the features.
        has_branches: whether each part of a Dict observation has a first layer of its own.
        output_scale: the scale of the actor's last kernel, of 1 for Glorot's.
    """

    name: str
    pi: tuple[Hidden, ...]
    q: tuple[Hidden, ...]
    action_layer: int = 0
    has_branches: bool = False
    output_scale: float = 1.0


def mlp(hidden_units: Sequence[int], activation: str) -> Torso:
    """The same fully connected layers for actor and critics."""
    layers = tuple(Hidden(units, activation) for units in hidden_units)
    return Torso("mlp", layers, layers)


def make_torso(name: str, hidden_units: Sequence[int], activation: str) -> Torso:
    """The torso that the agents' options describe.

    Args:
        name: "mlp", or "control" (Tassa et al. 2018, "DeepMind Control Suite": 300-200 and 400-300, the action joins
            at the critics' second layer), "layer_norm" (Acme's: 256-256-256 and 512-512-256, of which the first is
            normalised before a tanh, then ELU; actions start near 0), or "two_branch" (each part of a Dict observation
            has a first layer of its own, whose outputs are concatenated).
        hidden_units: of "mlp" and "two_branch".
        activation: of "mlp" and "two_branch".
    """
    if name == "control":
        pi, q = ((Hidden(a, "relu"), Hidden(b, "relu")) for a, b in ((300, 200), (400, 300)))
        return Torso(name, pi, q, action_layer=1)
    if name == "layer_norm":
        pi, q = (
            (Hidden(first, "tanh", layer_norm=True), *(Hidden(units, "elu") for units in rest))
            for first, *rest in ((256, 256, 256), (512, 512, 256))
        )
        return Torso(name, pi, q, output_scale=1e-4)
    stock = mlp(hidden_units, activation)
    if name == "mlp":
        return stock
    if name == "two_branch":
        if not hidden_units:
            raise reject("hidden_units", "one layer or more, for a torso with branches", hidden_units)
        return stock._replace(name=name, has_branches=True)
    raise reject("torso", '"mlp", "control", "layer_norm" or "two_branch"', name)
