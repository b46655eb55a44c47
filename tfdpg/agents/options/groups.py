"""The groups of options that agents share."""

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

from tfdpg.agents.options.networks import HiddenLayers, Normalisation, Recurrence, Weights
from tfdpg.arguments import reject
from tfdpg.options import BuiltIn, Only, Options, Structural, Unsaved
from tfdpg.ranges import Count, Fraction, FractionBelowOne, Natural, NonNegative, Positive, Within
from tfdpg.replay import ReplayBuffer

if TYPE_CHECKING:
    import keras

    from tfdpg.training.environment.collector import RewardShaper


class Schedule(Options, group="schedule"):
    """When to act at random, when to learn, and how much."""

    start_steps: Natural = 10_000
    """environment steps with uniformly random actions at the start."""
    update_after: Natural = 1000
    """environment steps before the first one that earns updates."""
    update_every: Count | Literal["episode"] = 50
    """environment steps between update phases, or "episode": after each episode."""
    gradient_steps: Count | None = None
    """updates in an update phase; None is one for each environment step since the last phase."""
    epochs_per_round: Count | None = None
    """passes over the whole replay buffer in an update phase, in place of updates for steps. In a pass, a transition is
    in one minibatch at most, or with `recurrent` the first of one sequence at most. Needs `replay="uniform"`."""
    max_minibatches_per_round: Count | None = None
    """maximum number of minibatches in an update phase, divided evenly among its passes."""

    def check(self) -> None:
        """Refuses two ways to count a round's updates, and a limit of nothing."""
        if self.epochs_per_round is None:
            self.refuse(["max_minibatches_per_round"], "`epochs_per_round` is None")
        elif self.gradient_steps is not None:
            raise ValueError(
                "`gradient_steps` and `epochs_per_round` both say how many updates a round has. Received: "
                f"gradient_steps={self.gradient_steps}, epochs_per_round={self.epochs_per_round}"
            )


class Minibatch(Options, group="schedule"):
    """What an update takes."""

    batch_size: Count = 100
    """transitions in a minibatch."""


class Returns(Options, group="returns"):
    """What is learnt of rewards."""

    gamma: Fraction = 0.99
    """discount factor, in [0, 1]."""


class NStepReturns(Returns, group="returns"):
    """Returns of several steps."""

    n_step: Count = 1
    """steps whose rewards are summed before bootstrapping."""


class TargetNetworks(Returns, group="returns"):
    """Whether there are target networks."""

    target_networks: Annotated[bool, Structural] = True
    """have target networks, copies that lag behind, bootstrap; without, the networks do so themselves, and a critic
    sees what it learns and what it bootstraps from in one pass (CrossQ's, to go with `norm`)."""


class Targets(TargetNetworks, NStepReturns, group="returns"):
    """Targets of the actor-critics that learn from transitions."""

    polyak: Fraction = 0.995
    """fraction of the old target that is kept at each target update, in [0, 1]."""


class TargetPeriod(Options, group="returns"):
    """When target networks move."""

    target_update_every: Count = 1
    """critic updates between target updates."""


class Exploration(Options, group="exploration"):
    """Noise on actions while collecting."""

    noise: Literal["gaussian", "ou"] = "gaussian"
    """exploration noise, "gaussian" or "ou" (Ornstein-Uhlenbeck, which is correlated in time)."""
    act_noise: NonNegative | Sequence[NonNegative] = 0.1
    """standard deviation of the exploration noise, as a fraction of the action scale; a number, or one for each
    dimension."""
    ou_theta: Annotated[Fraction, Only(noise="ou")] = 0.15
    """attraction of Ornstein-Uhlenbeck noise to 0 in a step, in [0, 1]."""


class Cloning(Options, group="algorithm"):
    """Behaviour cloning."""

    bc_weight: NonNegative = 0.0
    """weight of behaviour cloning in the policy's loss, for training offline: TD3+BC's alpha is 1 / bc_weight; 0 is
    without."""


class Twin(Options, group="algorithm"):
    """One critic or two."""

    critics: Annotated[Literal[1, 2], Structural] = 2
    """2, or 1 for delayed DDPG (smoothing and delay without clipped double Q)."""


class Smoothing(Options, group="algorithm"):
    """TD3's delayed policy updates and smoothed target actions."""

    policy_delay: Count = 2
    """critic updates for each update of the policy."""
    target_noise: NonNegative | Sequence[NonNegative] = 0.2
    """standard deviation of the smoothing noise, as a fraction of the action scale; a number, or one for each
    dimension."""
    noise_clip: NonNegative = 0.5
    """largest absolute smoothing noise, as a fraction of the action scale."""


class Clipping(Options, group="optimisers"):
    """Clipping of gradients."""

    clip_norm: Positive | None = None
    """largest global norm of a network's gradient; None does not clip."""
    clip_value: Positive | None = None
    """largest absolute value of an element of a gradient; None does not clip."""

    def check(self) -> None:
        """Refuses two ways to clip."""
        if self.clip_norm is not None and self.clip_value is not None:
            raise ValueError(
                "Give `clip_norm` or `clip_value`, not both. "
                f"Received: clip_norm={self.clip_norm}, clip_value={self.clip_value}"
            )


class Observations(Options, group="observations"):
    """Normalisation of observations."""

    normalize_observations: Annotated[bool, Structural] = False
    """subtract the running mean of observations and divide by their standard deviation."""
    normalize_epsilon: Annotated[Positive, Only(normalize_observations=True)] = 1e-8
    """what is added to that standard deviation."""
    normalize_clip: Annotated[Positive, Only(normalize_observations=True)] = 5.0
    """largest absolute value of a normalised feature."""


class ReplayStorage(Options, group="replay"):
    """How large the replay is, and where."""

    replay_size: Annotated[int, Within(2)] = 1_000_000
    """observations that the replay holds."""
    replay_dir: str | Path | None = None
    """a directory for the replay, as memory-mapped files that live as long as the agent; None keeps it in memory."""


class Replay(ReplayStorage, group="replay"):
    """How rows are drawn from the replay."""

    replay: Literal["uniform", "prioritized", "lap"] = "uniform"
    """how rows are drawn, "uniform" or "prioritized" by their TD errors; "lap" gives small errors equal priorities, and
    the critics a Huber loss in place of importance weights (Fujimoto et al. 2020)."""
    alpha: Annotated[Fraction | None, Only(replay=("prioritized", "lap"))] = None
    """how much priorities count, in [0, 1]; None is 0.6, or 0.4 with "lap"."""
    beta: Annotated[Fraction | None, Only(replay="prioritized")] = None
    """how much of their bias is corrected at first, in [0, 1]; None is 0.4."""
    beta_steps: Annotated[Count | None, Only(replay="prioritized")] = None
    """updates over which beta goes to 1; None leaves it."""


class Machine(Options, group="machine"):
    """What it runs on, and how."""

    seed: Annotated[Natural | None, Structural] = 0
    """fixes everything random; None draws one, which the agent keeps."""
    jit_compile: bool | Literal["auto"] = "auto"
    """compile updates with XLA; "auto" does, except with convolutions."""
    run_eagerly: bool = False
    """run updates line by line, without compilation, for breakpoints in custom networks and losses."""
    device: str | None = None
    """where networks live and everything compiled runs, "cpu" or "gpu:0" for example; None is TensorFlow's choice, a
    GPU where there is one."""

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
    """a Keras model from raw observations to features `[batch, features]`, for the built-in networks; each gets a
    copy."""


class CustomNetworks(CustomEncoder, group="objects", objects=True, marks=(Structural, Unsaved)):
    """Custom networks."""

    pi: "keras.Model | None" = None
    """your own policy, a Keras model from observations to actions `[batch, act_dim]` in the environment's units. It is
    used as it is, with its weights."""
    q1: "keras.Model | None" = None
    """your own critic, a Keras model from `[observation, action]` to `[batch]` or `[batch, 1]`."""


class SecondCritic(Options, group="objects", objects=True, marks=(Structural, Unsaved)):
    """A custom second critic."""

    q2: "keras.Model | None" = None
    """your own second critic; goes with `q1`, and starts from other weights."""


class Callables(Options, group="objects", objects=True):
    """What is called while collecting."""

    reward_shaper: "RewardShaper | None" = None
    """a callable of (rewards, environment step, steps in all or None) that changes the rewards which are stored; logged
    returns stay as they were."""
    recorders: Annotated["Sequence[ReplayBuffer | str | Path]", Unsaved] = ()
    """further `tfdpg.replay.ReplayBuffer`s, or directories for files that `fit_offline` reads, which receive every
    transition."""


class NoiseSchedule(Options, group="objects", objects=True):
    """How noise goes on."""

    act_noise_schedule: "Callable[[int], float] | None" = None
    """a factor of the exploration noise, a callable of environment steps such as `tfdpg.exploration.Linear` or
    `Decay`."""


class Optimisers(Clipping, group="optimisers"):
    """Adam for each network."""

    pi_lr: Positive = 1e-3
    """learning rate of the policy's Adam."""
    q_lr: Positive = 1e-3
    """learning rate of each critic's Adam."""
    beta_1: FractionBelowOne = 0.9
    """Adam's decay of the mean of gradients, in [0, 1); CrossQ's is 0.5."""


class CustomOptimisers(Optimisers, group="objects", objects=True):
    """Custom optimizers."""

    pi_optimizer: "keras.optimizers.Optimizer | None" = None
    """a Keras optimizer for the policy, in place of Adam; it may have a learning-rate schedule."""
    q_optimizer: "keras.optimizers.Optimizer | None" = None
    """likewise for each critic."""

    def check(self) -> None:
        """Reject options that a custom optimizer leaves without effect."""
        for own, rate in (("pi_optimizer", "pi_lr"), ("q_optimizer", "q_lr")):
            if getattr(self, own) is not None:
                self.refuse([rate], f"`{own}` is your own")
        if self.pi_optimizer is not None and self.q_optimizer is not None:
            self.refuse(["clip_norm", "clip_value", "beta_1"], "both optimizers are your own; clip in these")


class AgentOptions(
    Returns, Minibatch, HiddenLayers, Clipping, Observations, ReplayStorage, Machine, CustomEncoder, Callables
):
    """What all agents have."""


class TransitionOptions(NStepReturns, Schedule, CustomOptimisers, Replay, AgentOptions):
    """What all actor-critics have that learn from transitions."""

    def check(self) -> None:
        """Reject priorities in passes over the replay buffer, and options that have no effect with `beta=1`."""
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
    """What those have that may have two critics."""

    def check(self) -> None:
        """Reject one custom critic where there are two critics."""
        if self.critics == 1 and self.q2 is not None:
            raise ValueError("`q2` needs two critics. Received: critics=1")
        if self.critics == 2 and (self.q1 is None) != (self.q2 is None):
            raise ValueError(f"`q1` and `q2` go together. Received: q1={self.q1!r}, q2={self.q2!r}")
