"""The options of the networks."""

from collections.abc import Sequence
from typing import Annotated, Literal

from tfdpg.arguments import reject
from tfdpg.options import BuiltIn, Options, Structural
from tfdpg.ranges import Count, KerasCell, Natural, NonNegative


class HiddenLayers(Options, group="networks", marks=(Structural, BuiltIn)):
    """Hidden layers of the stock networks."""

    hidden_units: Sequence[Count] = (256, 256)
    """units of each hidden layer of the stock networks."""
    activation: str = "relu"
    """Keras activation of their hidden layers."""


class Normalisation(HiddenLayers, group="networks", marks=(Structural, BuiltIn)):
    """Normalised hidden layers."""

    norm: Literal["layer", "batch"] | None = None
    """normalisation in their hidden layers: "layer" (LayerNorm) before each activation, or "batch" (batch
    renormalisation, as in CrossQ) of their inputs and behind each activation; None is none."""
    blocks: Natural = 0
    """residual blocks with LayerNorm (SimBa's) in place of hidden layers, of as many units as `hidden_units`, which is
    one number then, and four times as many within; 0 is none."""

    def check(self) -> None:
        """Refuses blocks beside what they are made of."""
        if self.blocks and len(self.hidden_units) != 1:
            raise reject("hidden_units", f"a sequence of one number where `blocks` is {self.blocks}", self.hidden_units)
        if self.blocks:
            self.refuse(["norm"], "`blocks` have LayerNorm")
        if not self.hidden_units:
            self.refuse(["norm"], "there are no hidden layers")


class Recurrence(Options, group="memory", marks=(BuiltIn,)):
    """A memory of the stock networks, between encoder and hidden layers."""

    recurrent: Annotated[Literal["lstm", "gru", "rnn"] | KerasCell | None, Structural] = None
    """the cells of a memory that each network has, "lstm", "gru" or "rnn"; in Python also a Keras RNN cell, of which
    each gets a copy. None is without memory."""
    recurrent_units: Annotated[Count | Sequence[Count], Structural] = 64
    """units of the memory; several numbers are several layers."""
    remembers: Annotated[Sequence[Literal["observation", "action", "reward"]], Structural] = ("observation", "action")
    """what the memory sees of a step: the observation, and the action and the reward before it."""
    sequence_length: Count = 20
    """steps of an episode that an update learns from, for each of the `batch_size` rows that are drawn."""
    burn_in: Natural = 10
    """steps before them, at most, that the memory goes through first, without learning."""
    stored_state: Annotated[bool, Structural] = True
    """store the policy's state with each step, and begin there; otherwise a sequence begins from nothing."""

    def check(self) -> None:
        """Refuses what a memory that there is not leaves without effect, and one that sees no observation."""
        if self.recurrent is None:
            names = "recurrent_units", "remembers", "sequence_length", "burn_in", "stored_state"
            self.refuse(names, "`recurrent` is None")
        elif not isinstance(self.recurrent, str):
            self.refuse(["recurrent_units"], "`recurrent` is a cell of your own")
        units = self.recurrent_units
        if not isinstance(units, int) and not len(units):
            raise reject("recurrent_units", "a positive integer or a sequence of at least one", units)
        if "observation" not in self.remembers or len(set(self.remembers)) < len(self.remembers):
            raise reject("remembers", 'different names with "observation" among them', self.remembers)


class Weights(Options, group="networks", marks=(BuiltIn,)):
    """Regularisation of the stock networks."""

    l2: NonNegative = 0.0
    """L2 regularisation: l2 · Σ w² over the stock networks' kernels is added to their losses."""
