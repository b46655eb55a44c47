"""The options of ACER."""

from typing import TYPE_CHECKING, Annotated

from tfdpg.agents.options.groups import AgentOptions, Clipping, CustomNetworks
from tfdpg.options import Only, Options, Structural, Unsaved
from tfdpg.ranges import Count, Fraction, Natural, NonNegative, Positive, PositiveOrInfinite

if TYPE_CHECKING:
    import keras


class StateValues(Options, group="objects", objects=True, marks=(Structural, Unsaved)):
    """A custom critic of states."""

    v: "keras.Model | None" = None
    """your own state values for Box actions, a Keras model from observations to `[batch]` or `[batch, 1]`."""


class JointOptimiser(Clipping, group="objects", objects=True):
    """One optimizer for all networks."""

    optimizer: "keras.optimizers.Optimizer | None" = None
    """a Keras optimizer in place of RMSprop, which clips by itself; it may have a learning-rate schedule."""


class ACEROptions(JointOptimiser, StateValues, CustomNetworks, AgentOptions, group="algorithm"):
    """The options of ACER; 20 | 50 is for Discrete actions and for Box."""

    n_steps: Count | None = None
    """steps in a window. An update phase follows when the sub-environments have taken that many steps each, on
    average. None is 20 | 50."""
    on_policy: bool | None = None
    """whether an update phase begins with an update on the newest window of each sub-environment. None is True |
    False."""
    replay_ratio: NonNegative = 4.0
    """the mean number of updates in an update phase on windows from the replay buffer (Poisson)."""
    replay_start: Natural = 1000
    """observations in the replay buffer before the first of these updates."""
    batch_size = 16
    """windows in an update, whose gradient is the mean over all of their steps. If there are more sub-environments, the
    newest windows take several updates."""
    sigma: Positive = 0.3
    """standard deviation of a Gaussian policy, as a fraction of the action scale; the initial one, if it is learnt."""
    learn_sigma: Annotated[bool, Structural] = False
    """whether it is an output of the policy's network."""
    dueling: Annotated[bool, Structural] = True
    """whether Q(s, a) of Box actions is V(s) + A(s, a) − mean_i A(s, u_i); otherwise `q1` is by itself, and V learns
    from it."""
    dueling_samples: Annotated[Count, Only(dueling=True)] = 5
    """the number of u_i."""
    shared_torso: Annotated[bool, Structural] = False
    """whether the built-in networks share features, and the policy and the critic of states (or of all actions) hidden
    layers."""
    reward_scale: Annotated[Positive, Structural] = 1.0
    """factor of the rewards that values are learnt of; logs and exports have values of the rewards themselves."""
    retrace_lambda: Fraction = 1.0
    """λ of Retrace, in [0, 1]."""
    retrace_clip: PositiveOrInfinite = 1.0
    """where Retrace's traces, ρ to the power of 1 / act_dim, are truncated; infinity is importance sampling, which may
    overflow."""
    c: PositiveOrInfinite | None = None
    """where importance weights are truncated in the policy's gradient, whose bias is then corrected; infinity is
    importance sampling without either. None is 10 | 5."""
    delta: PositiveOrInfinite = 1.0
    """δ, how much the divergence from the average policy may grow; infinity is no trust region."""
    alpha: Fraction | None = None
    """α, fraction of the old average policy that is kept at each update, in [0, 1]. None is 0.99 | 0.995."""
    critic_average: Annotated[Fraction | None, Structural] = None
    """fraction of an old average critic that is kept, in [0, 1], which then gives V, and Q beside it in returns and
    advantages; None has none."""
    ent_coef: NonNegative = 1e-3
    """weight of the policy's entropy, added after the trust region."""
    q_coef: NonNegative = 0.5
    """weight of the critic's loss, half a squared error."""
    lr: Positive = 7e-4
    """learning rate of RMSprop (decay 0.99, epsilon 1e-5), which trains all networks together."""

    hidden_units = (100, 100)
    clip_norm = 10.0
    """largest global norm of the gradient; None does not clip."""
    replay_size = 50_000
    pi = None
    """your own policy, a Keras model from observations to probabilities `[batch, actions]`; or to means `[batch,
    act_dim]` in the environment's units, followed by scales if `learn_sigma`. Its regularizers count, and those of `q1`
    and `v`; what `add_loss` adds does not."""
    q1 = None
    """your own critic, a Keras model from observations to the values of all actions `[batch, actions]`; or from
    `[observation, action]` to the advantage `[batch]` or `[batch, 1]` of a dueling network, or to the value."""
    encoder = None
    """a Keras model from raw observations to features `[batch, features]`, for the built-in networks; each gets a copy,
    or with `shared_torso` all share one."""

    def check(self) -> None:
        """Reject options that a custom optimizer, or a `replay_ratio` of 0, leaves without effect."""
        if self.optimizer is not None:
            clipping = ["clip_value"] if self.clip_norm is None else ["clip_norm", "clip_value"]
            self.refuse(["lr", *clipping], "`optimizer` is your own")
        if self.replay_ratio == 0:
            self.refuse(["replay_start"], "`replay_ratio` is 0")
