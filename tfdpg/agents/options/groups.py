"""The groups of options that agents share."""

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

from tfdpg.agents.options.networks import HiddenLayers, Normalisation, Recurrence, Weights
from tfdpg.arguments import reject
from tfdpg.options import BuiltIn, Choices, Only, Options, Search, Structural, Unsaved
from tfdpg.ranges import Count, Fraction, FractionBelowOne, Natural, NonNegative, Positive, Within
from tfdpg.replay import ReplayBuffer

if TYPE_CHECKING:
    import keras

    from tfdpg.training.environment.collector import RewardShaper


class Schedule(Options, group="schedule"):
    """When to act at random, when to learn, and how much."""

    start_steps: Annotated[Natural, Search(1000, 25_000, "log")] = 10_000
    """number of environment steps at the start of training in which actions are uniformly random."""
    update_after: Natural = 1000
    """number of environment steps before updates begin; no updates are made for these steps."""
    update_every: Count | Literal["episode"] = 50
    """number of environment steps between two update phases; "episode" makes one after each episode."""
    gradient_steps: Annotated[Count | None, Choices(None, 10, 25, 100)] = None
    """number of updates in an update phase; None makes one for each environment step since the last phase."""
    epochs_per_round: Count | None = None
    """number of passes over the whole replay buffer in an update phase, which replace `gradient_steps`. In a pass, each
    transition is in one minibatch at most; with `recurrent`, each transition starts one sequence at most. Requires
    `replay="uniform"`. None makes no passes."""
    max_minibatches_per_round: Count | None = None
    """maximum number of minibatches in an update phase, divided evenly among the passes of `epochs_per_round`; None
    sets no limit."""

    def check(self) -> None:
        """Reject two ways to count the updates of an update phase, and a limit on passes that are not made."""
        if self.epochs_per_round is None:
            self.refuse(["max_minibatches_per_round"], "`epochs_per_round` is None")
        elif self.gradient_steps is not None:
            raise ValueError(
                "`gradient_steps` and `epochs_per_round` both say how many updates a round has. Received: "
                f"gradient_steps={self.gradient_steps}, epochs_per_round={self.epochs_per_round}"
            )


class Minibatch(Options, group="schedule"):
    """What an update takes."""

    batch_size: Annotated[Count, Search(16, 512, "log")] = 100
    """number of transitions in a minibatch; with `recurrent`, number of sequences."""


class Returns(Options, group="returns"):
    """What is learnt of rewards."""

    gamma: Annotated[Fraction, Search(0.95, 0.999, "log of 1 - x")] = 0.99
    """discount factor, in [0, 1]."""


class NStepReturns(Returns, group="returns"):
    """Returns of several steps."""

    n_step: Annotated[Count, Search(1, 5)] = 1
    """number of steps whose discounted rewards are summed before bootstrapping."""


class TargetNetworks(Returns, group="returns"):
    """Whether there are target networks."""

    target_networks: Annotated[bool, Structural] = True
    """whether the targets are computed with target networks. False computes them with the networks themselves, and each
    critic processes the actions taken and the next actions in one pass, as in CrossQ, so that `norm="batch"` uses the
    statistics of both."""


class Targets(TargetNetworks, NStepReturns, group="returns"):
    """Targets of the actor-critics that learn from transitions."""

    polyak: Annotated[Fraction, Search(0.98, 0.999, "log of 1 - x")] = 0.995
    """fraction of the old target weights that is kept at each target update, in [0, 1]; 0 copies the weights."""


class TargetPeriod(Options, group="returns"):
    """When target networks move."""

    target_update_every: Count = 1
    """number of critic updates between two updates of the target networks."""


class Exploration(Options, group="exploration"):
    """Noise on actions while collecting."""

    noise: Annotated[Literal["gaussian", "ou"], Choices("gaussian", "ou")] = "gaussian"
    """exploration noise: "gaussian", or "ou" for Ornstein-Uhlenbeck noise, which is correlated in time."""
    act_noise: Annotated[NonNegative | Sequence[NonNegative], Search(0.02, 0.5, "log")] = 0.1
    """standard deviation of the exploration noise, as a fraction of the action scale; one number, or one for each
    action dimension."""
    ou_theta: Annotated[Fraction, Only(noise="ou")] = 0.15
    """θ of Ornstein-Uhlenbeck noise, its attraction to 0 in each step, in [0, 1]."""
    random_eps: Fraction = 0.0
    """probability of a uniformly random action in each step after `start_steps`, in [0, 1]; Andrychowicz et al. (2017)
    use 0.2."""


class Cloning(Options, group="algorithm"):
    """Behaviour cloning."""

    bc_weight: NonNegative = 0.0
    """weight of behaviour cloning in the policy's loss, for training on stored data; 0 disables it. TD3+BC's alpha is
    1 / bc_weight."""


class ActionPenalty(Options, group="algorithm"):
    """A penalty of large actions."""

    action_l2: NonNegative = 0.0
    """weight in the policy's loss of the mean square of its actions, as fractions of the action scale, which keeps
    actions away from their bounds; OpenAI Baselines uses 1 with hindsight experience replay, and 0 disables it."""


class Twin(Options, group="algorithm"):
    """Several critics."""

    critics: Annotated[Count, Structural, Choices(1, 2)] = 2
    """number of critics, of whose values the smallest is the target; 1 is delayed DDPG, with smoothing and delay but
    without clipped double Q-learning."""


class Smoothing(Options, group="algorithm"):
    """TD3's delayed policy updates and smoothed target actions."""

    policy_delay: Annotated[Count, Search(1, 4)] = 2
    """number of critic updates for each update of the policy."""
    target_noise: Annotated[NonNegative | Sequence[NonNegative], Search(0.05, 0.5, "log")] = 0.2
    """standard deviation of the noise that smooths target actions, as a fraction of the action scale; one number, or
    one for each action dimension."""
    noise_clip: NonNegative = 0.5
    """largest absolute value of the noise that smooths target actions, as a fraction of the action scale."""


class Clipping(Options, group="optimisers"):
    """Clipping of gradients."""

    clip_norm: Annotated[Positive | None, Choices(None, 1.0, 10.0)] = None
    """largest global norm of a network's gradient; None does not clip."""
    clip_value: Positive | None = None
    """largest absolute value of an element of a gradient; None does not clip."""

    def check(self) -> None:
        """Reject both ways to clip gradients at the same time."""
        if self.clip_norm is not None and self.clip_value is not None:
            raise ValueError(
                "Give `clip_norm` or `clip_value`, not both. "
                f"Received: clip_norm={self.clip_norm}, clip_value={self.clip_value}"
            )


class Observations(Options, group="observations"):
    """Normalisation of observations."""

    normalize_observations: Annotated[bool, Structural, Choices(False, True)] = False
    """whether the networks subtract the running mean of observations and divide by their standard deviation."""
    normalize_epsilon: Annotated[Positive, Only(normalize_observations=True)] = 1e-8
    """number that is added to the standard deviation by which observations are divided."""
    normalize_clip: Annotated[Positive, Only(normalize_observations=True)] = 5.0
    """largest absolute value of a normalised observation; larger ones are clipped."""


class ReplayStorage(Options, group="replay"):
    """How large the replay is, and where."""

    replay_size: Annotated[int, Within(2)] = 1_000_000
    """number of observations that the replay buffer holds."""
    replay_dir: str | Path | None = None
    """directory for memory-mapped files with the replay buffer, which are deleted with the agent; None keeps the replay
    buffer in memory."""


class Replay(ReplayStorage, group="replay"):
    """How rows are drawn from the replay."""

    replay: Literal["uniform", "prioritized", "lap"] = "uniform"
    """how transitions are sampled: "uniform"; "prioritized", by their TD errors (Schaul et al. 2015); or "lap", by
    their TD errors, with equal priorities for small ones and a Huber loss in place of importance weights (Fujimoto et
    al. 2020)."""
    alpha: Annotated[Fraction | None, Only(replay=("prioritized", "lap"))] = None
    """exponent of the priorities, in [0, 1]; 0 samples uniformly. None is 0.6 for `replay="prioritized"` and 0.4 for
    "lap"."""
    beta: Annotated[Fraction | None, Only(replay="prioritized")] = None
    """initial exponent of the importance weights, in [0, 1]; 1 corrects the bias of the priorities. None is 0.4."""
    beta_steps: Annotated[Count | None, Only(replay="prioritized")] = None
    """number of updates over which `beta` increases linearly to 1; None keeps it constant."""


class Hindsight(Options, group="replay"):
    """Hindsight experience replay."""

    her: Annotated[Literal["future", "final", "episode"] | None, Structural] = None
    """hindsight experience replay (Andrychowicz et al. 2017), for environments with a desired goal: where the goals
    come from that replace the desired goals of sampled transitions. "future" is a goal that was achieved later in the
    same episode; "final" the goal achieved last; "episode" any goal achieved in the episode. The environment's
    `compute_reward` gives the new rewards. None keeps the goals."""
    her_ratio: Annotated[Fraction, Only(her=("future", "final", "episode"))] = 0.8
    """probability that a sampled transition gets a new goal, in [0, 1]."""


class Machine(Options, group="machine"):
    """What it runs on, and how."""

    seed: Annotated[Natural | None, Structural] = 0
    """seed of all random numbers; None draws a seed, which the agent keeps."""
    jit_compile: bool | Literal["auto"] = "auto"
    """whether to compile updates with XLA; "auto" does so unless a network has convolutions."""
    run_eagerly: bool = False
    """whether to run updates without compilation, so that breakpoints in custom networks and losses take effect."""
    device: str | None = None
    """device of the networks and of compiled functions, such as "cpu" or "gpu:0"; None is TensorFlow's choice, which is
    a GPU if there is one."""

    def check(self) -> None:
        """Draws the seed, if it is to be drawn; refuses to compile what is to run eagerly."""
        if self.seed is None:
            object.__setattr__(self, "seed", secrets.randbits(31))
        if self.run_eagerly and self.jit_compile is True:
            raise ValueError("`run_eagerly=True` compiles nothing. Received: jit_compile=True")

    @property
    def drawn_seed(self) -> int:
        """`seed`, which is a number once it has been drawn."""
        return cast(int, self.seed)


class CustomEncoder(Options, group="objects", objects=True, marks=(Structural, Unsaved)):
    """A custom encoder."""

    encoder: Annotated["keras.Model | None", BuiltIn] = None
    """Keras model from raw observations to features `[batch, features]`, which the built-in networks use as their
    input. Each network gets a copy. None is the built-in encoder."""


class CustomNetworks(CustomEncoder, group="objects", objects=True, marks=(Structural, Unsaved)):
    """Custom networks."""

    pi: "keras.Model | None" = None
    """custom policy: a Keras model from observations to actions `[batch, act_dim]` in the environment's units, with the
    weights that it has. None builds a network."""
    q1: "keras.Model | None" = None
    """custom critic: a Keras model from `[observation, action]` to `[batch]` or `[batch, 1]`. None builds a network."""


class SecondCritic(Options, group="objects", objects=True, marks=(Structural, Unsaved)):
    """A custom second critic."""

    q2: "keras.Model | None" = None
    """custom second critic, which must be given together with `q1` and have other initial weights."""


class Callables(Options, group="objects", objects=True):
    """What is called while collecting."""

    reward_shaper: "RewardShaper | None" = None
    """callable that returns the rewards to store. Its arguments are the rewards `[num_envs]`, the number of the
    environment step, and the total number of steps or None. Logged returns are those of the environment."""
    recorders: Annotated["Sequence[ReplayBuffer | str | Path]", Unsaved] = ()
    """further replay buffers (`tfdpg.replay.ReplayBuffer`), or directories for files that `fit_offline` reads, which
    receive every transition."""


class NoiseSchedule(Options, group="objects", objects=True):
    """How noise goes on."""

    act_noise_schedule: "Callable[[int], float] | None" = None
    """callable from the number of environment steps to a factor of the exploration noise, such as
    `tfdpg.exploration.Linear` or `tfdpg.exploration.Decay`; None is a factor of 1."""


class Optimisers(Clipping, group="optimisers"):
    """Adam for each network."""

    pi_lr: Annotated[Positive, Search(1e-4, 3e-3, "log")] = 1e-3
    """learning rate of the Adam optimizer of the policy."""
    q_lr: Annotated[Positive, Search(1e-4, 3e-3, "log")] = 1e-3
    """learning rate of the Adam optimizer of each critic."""
    beta_1: Annotated[FractionBelowOne, Choices(0.5, 0.9)] = 0.9
    """decay of the mean of gradients in Adam, in [0, 1); CrossQ uses 0.5."""


class CustomOptimisers(Optimisers, group="objects", objects=True):
    """Custom optimizers."""

    pi_optimizer: "keras.optimizers.Optimizer | None" = None
    """Keras optimizer for the policy, in place of Adam; its learning-rate schedule counts updates of the policy."""
    q_optimizer: "keras.optimizers.Optimizer | None" = None
    """Keras optimizer for each critic, which gets a copy, in place of Adam; it may have a learning-rate schedule."""

    def check(self) -> None:
        """Reject options that have no effect with a custom optimizer."""
        for own, rate in (("pi_optimizer", "pi_lr"), ("q_optimizer", "q_lr")):
            if getattr(self, own) is not None:
                self.refuse([rate], f"`{own}` is your own")
        if self.pi_optimizer is not None and self.q_optimizer is not None:
            self.refuse(["clip_norm", "clip_value", "beta_1"], "both optimizers are your own; clip in these")


class AgentOptions(
    Returns, Minibatch, HiddenLayers, Clipping, Observations, ReplayStorage, Machine, CustomEncoder, Callables
):
    """What all agents have."""


class TransitionOptions(NStepReturns, Schedule, CustomOptimisers, Replay, Hindsight, AgentOptions):
    """What all actor-critics have that learn from transitions."""

    def check(self) -> None:
        """Reject priorities in passes over the replay buffer, options without effect, and shaped rewards of goals."""
        if self.her is not None and self.reward_shaper is not None:
            raise ValueError(
                "`her` computes the rewards of new goals with the environment's `compute_reward`, which does not know "
                "`reward_shaper`. Change the rewards in a wrapper that also has a `compute_reward`. "
                f"Received: her={self.her!r}"
            )
        if self.replay != "uniform" and self.epochs_per_round is not None:
            raise ValueError(
                "`epochs_per_round` passes over all rows, which leaves no place for priorities. "
                f"Received: epochs_per_round={self.epochs_per_round}, replay={self.replay!r}"
            )
        if self.beta == 1:
            self.refuse(["beta_steps"], "`beta` is 1")


class OffPolicyOptions(Targets, Weights, Normalisation, Recurrence, TransitionOptions, CustomNetworks):
    """What those have whose networks may be recurrent or custom."""

    def check(self) -> None:
        """Reject options that others leave without effect, and networks that cannot learn with them."""
        if not self.target_networks:
            self.refuse(["polyak", "target_update_every"], "`target_networks` is False")
        if self.norm == "batch" and self.batch_size < 2:
            raise reject("batch_size", "at least 2 where `norm` is 'batch'", self.batch_size)
        if self.recurrent is not None and self.her is not None:
            raise ValueError(
                "`her` is for networks without a memory: what a recurrent network remembers of an episode depends on "
                f"the goal that it had. Received: recurrent={self.recurrent!r}, her={self.her!r}"
            )
        if self.recurrent is not None and self.norm == "batch":
            message = "`norm='batch'` is for networks without a memory. Received: recurrent="
            raise ValueError(f"{message}{self.recurrent!r}")
        if self.reward_shaper is not None and "reward" in self.remembers:
            raise ValueError(
                "`reward_shaper` changes the rewards that are stored, and a policy that remembers rewards sees those "
                f"that the environment gives. Received: remembers={self.remembers}"
            )


class DeterministicOptions(Exploration, NoiseSchedule, OffPolicyOptions):
    """What all deterministic actor-critics have."""


class TwinOptions(Twin, DeterministicOptions, SecondCritic):
    """What those have that may have several critics."""

    def check(self) -> None:
        """Reject one custom critic where there are two critics, and any where there are more."""
        if self.critics == 1 and self.q2 is not None:
            raise ValueError("`q2` needs two critics. Received: critics=1")
        if self.critics > 2 and (self.q1 is not None or self.q2 is not None):
            raise ValueError(f"Your own `q1` and `q2` are for one or two critics. Received: critics={self.critics}")
        if self.critics == 2 and (self.q1 is None) != (self.q2 is None):
            raise ValueError(f"`q1` and `q2` go together. Received: q1={self.q1!r}, q2={self.q2!r}")
