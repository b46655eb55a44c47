"""The options of TD7."""

from typing import Annotated, Literal

from tfdpg.agents.options.td3 import TD3Options
from tfdpg.arguments import reject
from tfdpg.options import Choices, Only, Search, Structural
from tfdpg.ranges import Count, Fraction, Natural, NonNegative, Positive

WITHOUT = (
    *("pi", "q1", "q2", "blocks", "l2", "polyak", "action_l2", "policy_gradient", "target_noise_decay"),
    *("target_noise_min", "recurrent", "recurrent_units", "remembers", "sequence_length", "burn_in", "stored_state"),
)


class TD7Options(TD3Options, without=WITHOUT):
    """The options of TD7; the defaults are those of the paper."""

    unused = {
        **dict.fromkeys(("clip_norm", "clip_value", "beta_1")),  # the optimizer of the encoders is always Adam
        "average_policy": Only("the best policy is evaluated and exported", keep_best_policy=False),
    }

    embedding_units: Annotated[Count, Structural] = 256
    """number of elements of the embeddings zs and zsa."""
    encoder_units: Annotated[tuple[Count, ...], Structural] = (256, 256)
    """number of units of each hidden layer of the encoders."""
    encoder_activation: Annotated[str, Structural] = "elu"
    """Keras activation of the hidden layers of the encoders."""
    critic_activation: Annotated[str, Structural] = "elu"
    """Keras activation of the hidden layers of the critics; `activation` is that of the policy."""
    norm: Annotated[Literal["layer", "batch"] | None, Structural, Choices(None, "layer", "batch")] = None
    """"layer" normalises the hidden layers of the policy and the critics before each activation (LayerNorm); "batch"
    does so in the policy, and the critics have batch renormalisation of their inputs and after each activation."""
    preactivation_weight: NonNegative = 0.0
    """weight in the policy's loss of the mean square of its last linear layer (before tanh), which keeps actions away
    from their bounds; 0 disables it."""
    encoder_lr: Annotated[Positive, Search(1e-4, 3e-3, "log")] = 3e-4
    """learning rate of the Adam optimizer of the encoders."""
    target_update_every: Count = 250
    """number of updates between two updates of the target networks and of the fixed encoders, which copy all weights of
    the networks and of the encoders."""
    keep_best_policy: Annotated[bool, Structural] = True
    """whether to assess each policy by its worst return over some training episodes, during which updates are deferred,
    and to evaluate and export the best policy. False trains after each `update_every` steps and evaluates and exports
    the newest policy, or an average (`average_policy`)."""
    assessed_episodes: Annotated[Count, Only(keep_best_policy=True)] = 20
    """maximum number of episodes that assess a policy, after `assess_more_after` updates; before, it is 1."""
    assess_more_after: Annotated[Natural, Only(keep_best_policy=True)] = 750_000
    """number of updates after which `assessed_episodes` episodes assess a policy."""
    best_return_factor: Annotated[Fraction, Only(keep_best_policy=True)] = 0.9
    """factor f in [0, 1] of the best return so far when `assess_more_after` is reached: (1 - f) times its absolute
    value is subtracted from it."""

    critics = 2
    """number of critics, of whose values the smallest is the target; the policy maximises the mean of all."""
    replay = "lap"
    pi_lr = 3e-4
    q_lr = 3e-4
    batch_size = 256
    start_steps = 25_000
    update_after = 25_000
    update_every = 1
    hidden_units = (256, 256)
    """number of units of each hidden layer of the policy and the critics. Before them is a linear layer that is as wide
    as the first of them."""

    def check(self) -> None:
        """Reject networks without hidden layers."""
        if not self.hidden_units:
            raise reject("hidden_units", "a sequence of at least one number", self.hidden_units)
