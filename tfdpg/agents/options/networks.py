"""The options of the networks."""

from collections.abc import Sequence
from typing import Annotated, Literal

from tfdpg.arguments import reject
from tfdpg.options import BuiltIn, Options, Structural
from tfdpg.ranges import Count, KerasCell, Natural, NonNegative


class HiddenLayers(Options, group="networks", marks=(Structural, BuiltIn)):
    """Hidden layers of the built-in networks."""

    hidden_units: Sequence[Count] = (256, 256)
    """units of each hidden layer of the built-in networks."""
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
    """Recurrent cells of the built-in networks, between the encoder and the hidden layers."""

    recurrent: Annotated[Literal["lstm", "gru", "rnn"] | KerasCell | None, Structural] = None
    """makes all networks recurrent, with the cells "lstm", "gru" or "rnn"; in Python also a Keras RNN cell, of which
    each network gets a copy. None is not recurrent."""
    recurrent_units: Annotated[Count | Sequence[Count], Structural] = 64
    """units of the recurrent layer; several numbers are several layers."""
    remembers: Annotated[Sequence[Literal["observation", "action", "reward"]], Structural] = ("observation", "action")
    """inputs of the recurrent layers at each step: the observation, and the previous action and reward."""
    sequence_length: Count = 20
    """steps of an episode that an update learns from, for each of the `batch_size` rows that are sampled."""
    burn_in: Natural = 10
    """maximum number of steps before them over which the networks are unrolled first, without learning (burn-in)."""
    stored_state: Annotated[bool, Structural] = True
    """store the policy's recurrent state with each step and start sequences from it; otherwise they start from a zero
    state."""

    def check(self) -> None:
        """Reject options of recurrent networks where networks are not recurrent, and inputs without the observation."""
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
    """Regularisation of the built-in networks."""

    l2: NonNegative = 0.0
    """L2 regularisation: l2 · Σ w² over the kernels of the built-in networks is added to their losses."""
