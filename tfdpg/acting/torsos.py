"""Torsos, the hidden layers of the built-in networks, as data that the Keras and the NumPy networks are built from."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from tfdpg.arguments import reject


class Hidden(NamedTuple):
    """A fully connected layer with an activation function, and optional layer normalisation before the activation."""

    units: int
    activation: str
    layer_norm: bool = False


class Norm(NamedTuple):
    """A normalisation layer: "layer" normalises each sample over its features, "batch" each feature over the batch."""

    kind: Literal["layer", "batch"]


class Residual(NamedTuple):
    """x + W₂ f(W₁ LN(x)), a residual block with EXPANSION × units hidden units (SimBa, Lee et al. 2024, section 4)."""

    units: int
    activation: str


Layer = Hidden | Norm | Residual

EXPANSION = 4
"""Ratio of hidden units to outputs in a residual block, as in SimBa."""


class Torso(NamedTuple):
    """The hidden layers of an actor and of critics.

    Attributes:
        name: value of the agents' option `torso`.
        pi: layers of the actor.
        q: layers of the critics.
        action_layer: index of the critics' layer that receives the action; 0 concatenates it with the features.
        has_branches: whether each part of a Dict observation has its own first layer.
        output_scale: factor of the initial weights of the actor's last layer; 1 is Glorot initialization.
    """

    name: str
    pi: tuple[Layer, ...]
    q: tuple[Layer, ...]
    action_layer: int = 0
    has_branches: bool = False
    output_scale: float = 1.0


def mlp(hidden_units: Sequence[int], activation: str, norm: str | None = None, blocks: int = 0) -> Torso:
    """Return a torso with the same layers for the actor and the critics; see `normalized`."""
    layers = normalized(hidden_units, activation, norm, blocks)
    return Torso("mlp", layers, layers)


def normalized(hidden_units: Sequence[int], activation: str, norm: str | None, blocks: int) -> tuple[Layer, ...]:
    """Return hidden layers, with an optional normalisation, or residual blocks.

    Args:
        hidden_units: units of each layer; exactly one number if `blocks` is not 0.
        activation: activation function, by its Keras name.
        norm: "layer" for layer normalisation before each activation; "batch" for batch normalisation of the inputs and
            after each activation, as in CrossQ (Bhatt et al. 2019); None for no normalisation.
        blocks: number of residual blocks, between a linear layer and a layer normalisation, as in SimBa; 0 for fully
            connected layers.
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
    """Return the torso that the agents' options describe.

    Args:
        torso: "mlp": fully connected layers; "control": the networks of Tassa et al. 2018, "DeepMind Control Suite"
            (300-200 and 400-300 units; the critics receive the action at the second layer); "layer_norm": Acme's
            networks (256-256-256 and 512-512-256 units; the first layer has layer normalisation and tanh, the others
            ELU; initial actions are close to 0); "two_branch": each part of a Dict observation has its own first
            layer, and the outputs of these layers are concatenated.
        hidden_units: units of each layer of "mlp" and "two_branch".
        activation: activation function of "mlp" and "two_branch".
        norm: normalisation of "mlp"; see `normalized`.
        blocks: number of residual blocks of "mlp"; see `normalized`.
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
        return mlp(hidden_units, activation, norm, blocks)
    if torso == "two_branch":
        if not hidden_units:
            raise reject("hidden_units", 'one layer or more with torso="two_branch"', hidden_units)
        return mlp(hidden_units, activation)._replace(name=torso, has_branches=True)
    raise reject("torso", '"mlp", "control", "layer_norm" or "two_branch"', torso)
