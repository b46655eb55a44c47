"""The options of the networks."""

from collections.abc import Sequence
from typing import Annotated, Literal

from tfdpg.arguments import reject
from tfdpg.options import BuiltIn, Choices, Options, Structural
from tfdpg.ranges import Count, KerasCell, Natural, NonNegative


class HiddenLayers(Options, group="networks", marks=(Structural, BuiltIn)):
    """Hidden layers of the built-in networks."""

    hidden_units: Annotated[Sequence[Count], Choices((64, 64), (128, 128), (256, 256), (400, 300))] = (256, 256)
    """number of units of each hidden layer of the built-in networks."""
    activation: str = "relu"
    """Keras activation of the hidden layers of the built-in networks."""


class Normalisation(HiddenLayers, group="networks", marks=(Structural, BuiltIn)):
    """Normalised hidden layers."""

    norm: Annotated[Literal["layer", "batch"] | None, Choices(None, "layer", "batch")] = None
    """normalisation in the built-in networks: "layer" before each activation (LayerNorm); "batch" of the inputs and
    after each activation (batch renormalisation, as in CrossQ); None does not normalise."""
    blocks: Natural = 0
    """number of residual blocks with LayerNorm, as in SimBa, which replace the hidden layers; 0 has none.
    `hidden_units` is then a single number: the width of the blocks, which are four times as wide inside."""

    def check(self) -> None:
        """Reject residual blocks together with options that they replace."""
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
    each network gets a copy. None has no recurrent layers."""
    recurrent_units: Annotated[Count | Sequence[Count], Structural] = 64
    """number of units of the recurrent layer; several numbers are several layers."""
    remembers: Annotated[Sequence[Literal["observation", "action", "reward"]], Structural] = ("observation", "action")
    """inputs of the recurrent layers at each step: the observation, and the previous action and reward."""
    sequence_length: Count = 20
    """number of successive steps of an episode from which an update learns, for each of `batch_size` sequences."""
    burn_in: Natural = 10
    """maximum number of steps before each sequence over which the networks are unrolled without learning, to compute
    their recurrent state."""
    stored_state: Annotated[bool, Structural] = True
    """whether to store the recurrent state of the policy with each step and to start sequences from it. False starts
    them from a zero state."""

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
