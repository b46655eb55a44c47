"""The options of TD7."""

from typing import Annotated, Literal

from tfdpg.agents.options.groups import (
    Cloning,
    Exploration,
    NoiseSchedule,
    Smoothing,
    TargetNetworks,
    TransitionOptions,
)
from tfdpg.arguments import reject
from tfdpg.options import Only, Structural
from tfdpg.ranges import Count, Fraction, Natural, NonNegative, Positive


class TD7Options(Cloning, Smoothing, TargetNetworks, Exploration, NoiseSchedule, TransitionOptions, group="algorithm"):
    """The options of TD7; the defaults are those of the paper."""

    embedding_units: Annotated[Count, Structural] = 256
    """number of elements of the embeddings zs and zsa."""
    encoder_units: Annotated[tuple[Count, ...], Structural] = (256, 256)
    """units of each hidden layer of the encoders."""
    encoder_activation: Annotated[str, Structural] = "elu"
    """Keras activation of the hidden layers of the encoders."""
    critic_activation: Annotated[str, Structural] = "elu"
    """Keras activation of the hidden layers of the critics; `activation` is that of the policy."""
    norm: Annotated[Literal["layer", "batch"] | None, Structural] = None
    """"layer" normalises the hidden layers of the policy and the critics before each activation (LayerNorm); "batch"
    does so in the policy, and the critics have batch renormalisation of their inputs and after each activation."""
    preactivation_weight: NonNegative = 0.0
    """weight in the policy's loss of the mean square of its last linear layer (before tanh), which keeps actions from
    settling at their bounds; 0 is without."""
    encoder_lr: Positive = 3e-4
    """learning rate of the Adam optimizer of the encoders."""
    target_update_every: Count = 250
    """updates between two copies of all networks into their target networks and of the encoders into the fixed ones."""
    keep_best_policy: Annotated[bool, Structural] = True
    """judge each policy by its worst return over training episodes, during which updates are deferred, and evaluate and
    export the best one; False trains after each `update_every` steps and evaluates the newest policy."""
    assessed_episodes: Annotated[Count, Only(keep_best_policy=True)] = 20
    """maximum number of episodes that judge a policy, after `assess_more_after` updates; before, it is 1."""
    assess_more_after: Annotated[Natural, Only(keep_best_policy=True)] = 750_000
    """updates after which `assessed_episodes` episodes judge a policy."""
    best_return_factor: Annotated[Fraction, Only(keep_best_policy=True)] = 0.9
    """fraction of the best return that is kept when `assess_more_after` is reached, in [0, 1]; the rest of its absolute
    value is subtracted."""

    replay = "lap"
    pi_lr = 3e-4
    q_lr = 3e-4
    batch_size = 256
    start_steps = 25_000
    update_after = 25_000
    update_every = 1
    hidden_units = (256, 256)
    """units of each hidden layer of the policy and the critics; a linear layer of as many units as the first one comes
    before."""

    def check(self) -> None:
        """Reject networks without hidden layers, and minibatches that cannot be normalised."""
        if not self.hidden_units:
            raise reject("hidden_units", "a sequence of at least one number", self.hidden_units)
        if self.norm == "batch" and self.batch_size < 2:
            raise reject("batch_size", "at least 2 where `norm` is 'batch'", self.batch_size)
