"""The options of ACER."""

from typing import TYPE_CHECKING, Annotated, ClassVar

from tfdpg.agents.options.common import AgentOptions
from tfdpg.options import OBJECTS, Choices, Group, Not, Only, Search, Structural, Unsaved
from tfdpg.ranges import Count, Fraction, Natural, NonNegative, Positive, PositiveOrInfinite

if TYPE_CHECKING:
    import keras


class ACEROptions(AgentOptions):
    """The options of ACER; 20 | 50 is for Discrete actions and for Box."""

    unused = dict.fromkeys(("clip_norm", "clip_value"), Only(optimizer=None))

    n_steps: Annotated[Count | None, Choices(None, 5, 20, 50)] = None
    """number of steps in a window, and number of steps of each sub-environment, on average, between two update phases.
    None is 20 | 50."""
    on_policy: bool | None = None
    """whether an update phase begins with an update on the newest window of each sub-environment. None is True |
    False."""
    replay_ratio: Annotated[NonNegative, Search(1.0, 8.0, "log")] = 4.0
    """mean number of updates in an update phase on windows from the replay buffer, which has a Poisson distribution."""
    replay_start: Annotated[Natural, Only(replay_ratio=Not(0))] = 1000
    """number of observations in the replay buffer before the first update on windows from it."""
    batch_size = 16
    """number of windows in an update, whose gradient is the mean over all of their steps. If there are more
    sub-environments than that, the update on their newest windows becomes several updates."""
    sigma: Annotated[Positive, Search(0.1, 0.6, "log")] = 0.3
    """standard deviation of a Gaussian policy, as a fraction of the action scale; with `learn_sigma`, its initial
    value."""
    learn_sigma: Annotated[bool, Structural] = False
    """whether the standard deviation is an output of the policy network."""
    dueling: Annotated[bool, Structural] = True
    """whether Q(s, a) of Box actions is V(s) + A(s, a) − mean_i A(s, u_i), with actions u_i sampled from the policy.
    False has separate networks for Q and V, and V learns from Q."""
    dueling_samples: Annotated[Count, Only(dueling=True)] = 5
    """number of actions u_i that the dueling network samples."""
    shared_torso: Annotated[bool, Structural] = False
    """whether the built-in networks share the encoder, and the policy and the critic of states (or of all actions) also
    share the hidden layers."""
    reward_scale: Annotated[Positive, Structural, Search(0.01, 10.0, "log")] = 1.0
    """factor by which rewards are multiplied for learning values. Logs and exports contain the values of the original
    rewards."""
    retrace_lambda: Fraction = 1.0
    """λ of the Retrace targets, in [0, 1]."""
    retrace_clip: PositiveOrInfinite = 1.0
    """upper limit of the traces of Retrace, ρ to the power of 1 / act_dim. Infinity is plain importance sampling, which
    may overflow."""
    c: PositiveOrInfinite | None = None
    """upper limit of importance weights in the policy gradient; a second term corrects the bias. Infinity is plain
    importance sampling. None is 10 | 5."""
    delta: Annotated[PositiveOrInfinite, Search(0.1, 10.0, "log")] = 1.0
    """δ of the trust region: how much the divergence from the average policy may grow. Infinity has no trust region."""
    alpha: Fraction | None = None
    """α: fraction of the old average policy that is kept at each update, in [0, 1]. None is 0.99 | 0.995."""
    critic_average: Annotated[Fraction | None, Structural] = None
    """fraction of an average critic that is kept at each update, in [0, 1]. This critic then computes the values in
    returns and advantages. None has no average critic."""
    ent_coef: Annotated[NonNegative, Search(1e-4, 1e-2, "log")] = 1e-3
    """weight of the gradient of the policy's entropy, which is added after the trust region."""
    q_coef: NonNegative = 0.5
    """weight of the critic's loss, which is half the squared error."""
    lr: Annotated[Positive, Only(optimizer=None), Search(1e-4, 3e-3, "log")] = 7e-4
    """learning rate of the RMSprop optimizer of all networks (decay 0.99, epsilon 1e-5)."""

    hidden_units = (100, 100)
    clip_norm = 10.0
    """largest global norm of the gradient; None does not clip."""
    replay_size = 50_000
    pi = None
    """custom policy: a Keras model from observations to probabilities `[batch, actions]`; or to means `[batch,
    act_dim]` in the environment's units, followed by standard deviations with `learn_sigma`. The regularizers of custom
    networks are added to the loss; losses from `add_loss` are not. None builds a network."""
    q1 = None
    """custom critic: a Keras model from observations to the values of all actions `[batch, actions]`; or for Box
    actions from `[observation, action]` to `[batch]` or `[batch, 1]`, the advantage with `dueling`, otherwise the
    value. None builds a network."""
    encoder = None
    """Keras model from raw observations to features `[batch, features]`, which the built-in networks use as their
    input. Each network gets a copy; with `shared_torso`, all share one. None is the built-in encoder."""

    CUSTOM_NETWORKS: ClassVar = Group(OBJECTS, Structural, Unsaved)

    v: "keras.Model | None" = None
    """custom critic of states for Box actions: a Keras model from observations to `[batch]` or `[batch, 1]`. None
    builds a network."""

    CALLABLES: ClassVar = Group(OBJECTS)

    optimizer: "keras.optimizers.Optimizer | None" = None
    """Keras optimizer in place of RMSprop, with its own clipping of gradients; it may have a learning-rate schedule."""
