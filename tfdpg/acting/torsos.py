"""What lies between features and outputs of the stock networks, as data that Keras and NumPy builders share."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from tfdpg.arguments import reject


class Hidden(NamedTuple):
    """A fully connected layer, with normalised activations (LayerNorm) if so wanted, and its activation function."""

    units: int
    activation: str
    layer_norm: bool = False


class Norm(NamedTuple):
    """A normalisation by itself: of each sample over features ("layer"), or of each feature over samples ("batch")."""

    kind: Literal["layer", "batch"]


class Residual(NamedTuple):
    """x + W₂ f(W₁ LN(x)), with EXPANSION times as many units within (SimBa, Lee et al. 2024, section 4)."""

    units: int
    activation: str


Layer = Hidden | Norm | Residual

EXPANSION = 4
"""SimBa's."""


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
    pi: tuple[Layer, ...]
    q: tuple[Layer, ...]
    action_layer: int = 0
    has_branches: bool = False
    output_scale: float = 1.0


def mlp(hidden_units: Sequence[int], activation: str) -> Torso:
    """The same fully connected layers for actor and critics."""
    layers = normalized(hidden_units, activation, None, 0)
    return Torso("mlp", layers, layers)


def normalized(hidden_units: Sequence[int], activation: str, norm: str | None, blocks: int) -> tuple[Layer, ...]:
    """Hidden layers with a kind of normalisation, or residual blocks.

    "layer" stands before each activation; "batch" of the inputs and behind each activation, as in CrossQ (Bhatt et al.
    2019). Blocks follow a linear layer, and a layer normalisation follows them, as in SimBa.
    """
    if norm not in (None, "layer", "batch"):
        raise reject("norm", '"layer", "batch" or None', norm)
    if blocks:
        if len(hidden_units) != 1 or norm is not None:
            raise reject("blocks", f"0 beside hidden_units={tuple(hidden_units)}, norm={norm!r}", blocks)
        (units,) = hidden_units
        return (Hidden(units, "linear"), *[Residual(units, activation)] * blocks, Norm("layer"))
    layers = [Hidden(units, activation, layer_norm=norm == "layer") for units in hidden_units]
    if norm != "batch":
        return tuple(layers)
    return (Norm("batch"), *(part for layer in layers for part in (layer, Norm("batch"))))


def make_torso(
    torso: str, hidden_units: Sequence[int], activation: str, norm: str | None = None, blocks: int = 0
) -> Torso:
    """The torso that the agents' options describe.

    Args:
        torso: "mlp", or "control" (Tassa et al. 2018, "DeepMind Control Suite": 300-200 and 400-300, the action joins
            at the critics' second layer), "layer_norm" (Acme's: 256-256-256 and 512-512-256, of which the first is
            normalised before a tanh, then ELU; actions start near 0), or "two_branch" (each part of a Dict observation
            has a first layer of its own, whose outputs are concatenated).
        hidden_units: of "mlp" and "two_branch".
        activation: of "mlp" and "two_branch".
        norm: of "mlp", as `normalized` has it.
        blocks: likewise.
    """
    if torso != "mlp" and (norm is not None or blocks):
        raise reject("torso", '"mlp" beside `norm` or `blocks`', torso)
    if torso == "control":
        pi, q = ((Hidden(a, "relu"), Hidden(b, "relu")) for a, b in ((300, 200), (400, 300)))
        return Torso(torso, pi, q, action_layer=1)
    if torso == "layer_norm":
        pi, q = (
            (Hidden(first, "tanh", layer_norm=True), *(Hidden(units, "elu") for units in rest))
            for first, *rest in ((256, 256, 256), (512, 512, 256))
        )
        return Torso(torso, pi, q, output_scale=1e-4)
    if torso == "mlp":
        layers = normalized(hidden_units, activation, norm, blocks)
        return Torso(torso, layers, layers)
    if torso == "two_branch":
        if not hidden_units:
            raise reject("hidden_units", "one layer or more, for a torso with branches", hidden_units)
        return mlp(hidden_units, activation)._replace(name=torso, has_branches=True)
    raise reject("torso", '"mlp", "control", "layer_norm" or "two_branch"', torso)
