"""The options that agents share. No TensorFlow is imported."""

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, cast

from tfdpg.arguments import reject
from tfdpg.options import OBJECTS, BuiltIn, Choices, Group, Not, Only, Options, Search, Structural, Unsaved
from tfdpg.ranges import Count, Fraction, FractionBelowOne, KerasCell, Natural, NonNegative, Positive, Within
from tfdpg.replay import ReplayBuffer

if TYPE_CHECKING:
    import keras

    from tfdpg.training.environment.collector import RewardShaper


class AgentOptions(Options, group="algorithm"):
    """The options of every agent."""

    SCHEDULE: ClassVar = Group("schedule")

    batch_size: Annotated[Count, Search(16, 512, "log")] = 100
    """number of transitions in a minibatch; with `recurrent`, number of sequences."""

    RETURNS: ClassVar = Group("returns")

    gamma: Annotated[Fraction, Search(0.95, 0.999, "log of 1 - x")] = 0.99
    """discount factor, in [0, 1]."""

    NETWORKS: ClassVar = Group("networks", Structural, BuiltIn)

    hidden_units: Annotated[Sequence[Count], Choices((64, 64), (128, 128), (256, 256), (400, 300))] = (256, 256)
    """number of units of each hidden layer of the built-in networks."""
    activation: str = "relu"
    """Keras activation of the hidden layers of the built-in networks."""

    OPTIMIZERS: ClassVar = Group("optimisers")

    clip_norm: Annotated[Positive | None, Choices(None, 1.0, 10.0)] = None
    """largest global norm of a network's gradient; None does not clip."""
    clip_value: Positive | None = None
    """largest absolute value of an element of a gradient; None does not clip."""

    OBSERVATIONS: ClassVar = Group("observations")

    normalize_observations: Annotated[bool, Structural, Choices(False, True)] = False
    """whether the networks subtract the running mean of observations and divide by their standard deviation."""
    normalize_epsilon: Annotated[Positive, Only(normalize_observations=True)] = 1e-8
    """number that is added to the standard deviation by which observations are divided."""
    normalize_clip: Annotated[Positive, Only(normalize_observations=True)] = 5.0
    """largest absolute value of a normalised observation; larger ones are clipped."""
    missing: Annotated[Literal["error", "hold"], Structural] = "error"
    """what happens to numbers of an observation that are NaN or infinite: "error" stops with a message; with "hold"
    such a number keeps its last value, and the networks also receive a flag for each number that was ever missing."""
    frame_stack: Annotated[Count, Structural] = 1
    """number of successive observations that the networks receive together; 1 is the newest one alone."""
    observation_names: Annotated[Sequence[str] | None, Structural] = None
    """name of each number of an observation, for messages and exports; None numbers them, such as `x[4]`."""

    REPLAY: ClassVar = Group("replay")

    replay_size: Annotated[int, Within(2)] = 1_000_000
    """number of observations that the replay buffer holds."""
    replay_dir: str | Path | None = None
    """directory for memory-mapped files with the replay buffer, which are deleted with the agent; None keeps the replay
    buffer in memory."""

    MACHINE: ClassVar = Group("machine")

    seed: Annotated[Natural | None, Structural] = 0
    """seed of all random numbers; None draws a seed, which the agent keeps."""
    jit_compile: bool | Literal["auto"] = "auto"
    """whether to compile updates with XLA; "auto" does so unless a network has convolutions."""
    run_eagerly: bool = False
    """whether to run updates without compilation, so that breakpoints in custom networks and losses take effect."""
    device: str | None = None
    """device of the networks and of compiled functions, such as "cpu" or "gpu:0"; None is TensorFlow's choice, which is
    a GPU if there is one."""

    CUSTOM_NETWORKS: ClassVar = Group(OBJECTS, Structural, Unsaved)

    encoder: Annotated["keras.Model | None", BuiltIn] = None
    """Keras model from raw observations to features `[batch, features]`, which the built-in networks use as their
    input. Each network gets a copy. None is the built-in encoder."""
    preprocess: "keras.Model | None" = None
    """Keras model from observations to numbers `[batch, n]`, which is not trained: it converts units, computes
    differences, and so on. All networks receive its output in place of the observation, and exports contain it."""
    pi: "keras.Model | None" = None
    """custom policy: a Keras model from observations to actions `[batch, act_dim]` in the environment's units, with the
    weights that it has. None builds a network."""
    q1: "keras.Model | None" = None
    """custom critic: a Keras model from `[observation, action]` to `[batch]` or `[batch, 1]`. None builds a network."""

    CALLABLES: ClassVar = Group(OBJECTS)

    reward_shaper: "RewardShaper | None" = None
    """callable that returns the rewards to store. Its arguments are the rewards `[num_envs]`, the number of the
    environment step, and the total number of steps or None. Logged returns are those of the environment. Data of
    `fit_offline` and `demonstrations` is stored as it is, so its rewards must already be on this scale."""
    recorders: Annotated["Sequence[ReplayBuffer | str | Path]", Unsaved] = ()
    """further replay buffers (`tfdpg.replay.ReplayBuffer`), or directories for files that `fit_offline` reads, which
    receive every transition."""

    def check(self) -> None:
        """Draw the seed if it is None; reject two ways to clip gradients, and the compilation of what runs eagerly."""
        if self.seed is None:
            object.__setattr__(self, "seed", secrets.randbits(31))
        if self.run_eagerly and self.jit_compile is True:
            raise ValueError("`run_eagerly=True` compiles nothing. Received: jit_compile=True")
        if self.clip_norm is not None and self.clip_value is not None:
            raise self.conflict("Give `clip_norm` or `clip_value`, not both.", "clip_norm", "clip_value")

    @property
    def drawn_seed(self) -> int:
        """`seed`, which is a number once it has been drawn."""
        return cast(int, self.seed)


class OffPolicyOptions(AgentOptions):
    """The options of actor-critics that learn from transitions, or from sequences if they are recurrent."""

    unused = dict.fromkeys(
        ("clip_norm", "clip_value", "beta_1"),
        Only("both optimizers are your own; clip in these", pi_optimizer=None, q_optimizer=None),
    )

    bc_weight: NonNegative = 0.0
    """weight of behaviour cloning in the policy's loss, for training on stored data; 0 disables it. TD3+BC's alpha is
    1 / bc_weight."""
    action_l2: NonNegative = 0.0
    """weight in the policy's loss of the mean square of its actions, as fractions of the action scale, which keeps
    actions away from their bounds; OpenAI Baselines uses 1 with hindsight experience replay, and 0 disables it."""
    smoothness: NonNegative = 0.0
    """weight in the policy's loss of how much its actions change from one observation to the next and with small noise
    in an observation, as fractions of the action scale (Mysore et al. 2021); 0 disables it."""
    critics: Annotated[Count, Structural, Choices(1, 2)] = 2
    """number of critics, of whose values the smallest is the target."""

    average_policy: Annotated[Fraction, Structural] = 0.0
    """part of all updates so far over which the average of the policy's weights reaches back, in [0, 1]; with 0.05, it
    reaches back over about the newest 5 %. The average is evaluated and exported, changes every 50 updates, and does
    not affect training. 0 evaluates and exports the newest policy."""

    SCHEDULE: ClassVar = Group("schedule")

    start_steps: Annotated[Natural, Search(1000, 25_000, "log")] = 10_000
    """number of environment steps at the start of training in which actions are uniformly random."""
    update_after: Natural = 1000
    """number of environment steps before updates begin; no updates are made for these steps."""
    warm_up_updates: Natural = 0
    """number of first updates that train only the critics, for a policy that is not to change before its critics have
    learnt from new data. `fit` makes them all in the first update phase, in addition to those that are due; in real
    time or with rollout workers, they are the first updates that become due."""
    update_every: Count | Literal["episode"] = 50
    """number of environment steps between two update phases; "episode" makes one after each episode."""
    gradient_steps: Annotated[Count | None, Choices(None, 10, 25, 100)] = None
    """number of updates in an update phase; None makes one for each environment step since the last phase."""
    epochs_per_round: Count | None = None
    """number of passes over the whole replay buffer in an update phase, which replace `gradient_steps`. In a pass, each
    transition is in one minibatch at most; with `recurrent`, each transition starts one sequence at most. Requires
    `replay="uniform"`. None makes no passes."""
    max_minibatches_per_round: Annotated[Count | None, Only(epochs_per_round=Not(None))] = None
    """maximum number of minibatches in an update phase, divided evenly among the passes of `epochs_per_round`; None
    sets no limit."""

    EXPLORATION: ClassVar = Group("exploration")

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

    RETURNS: ClassVar = Group("returns")

    n_step: Annotated[Count, Search(1, 5)] = 1
    """number of steps whose discounted rewards are summed before bootstrapping."""
    target_networks: Annotated[bool, Structural] = True
    """whether the targets are computed with target networks. False computes them with the networks themselves, and each
    critic processes the actions taken and the next actions in one pass, as in CrossQ, so that `norm="batch"` uses the
    statistics of both."""
    polyak: Annotated[Fraction, Only(target_networks=True), Search(0.98, 0.999, "log of 1 - x")] = 0.995
    """fraction of the old target weights that is kept at each target update, in [0, 1]; 0 copies the weights."""

    NETWORKS: ClassVar = Group("networks", Structural, BuiltIn)

    norm: Annotated[
        Literal["layer", "batch"] | None,
        Choices(None, "layer", "batch"),
        Only("`blocks` have LayerNorm", blocks=0),
        Only("there are no hidden layers", hidden_units=Not(())),
    ] = None
    """normalisation in the built-in networks: "layer" before each activation (LayerNorm); "batch" of the inputs and
    after each activation (batch renormalisation, as in CrossQ); None does not normalise."""
    blocks: Natural = 0
    """number of residual blocks with LayerNorm, as in SimBa, which replace the hidden layers; 0 has none.
    `hidden_units` is then a single number: the width of the blocks, which are four times as wide inside."""

    REGULARISATION: ClassVar = Group("networks", BuiltIn)

    l2: NonNegative = 0.0
    """L2 regularisation: l2 · Σ w² over the kernels of the built-in networks is added to their losses."""

    MEMORY: ClassVar = Group("memory", BuiltIn)

    recurrent: Annotated[Literal["lstm", "gru", "rnn"] | KerasCell | None, Structural] = None
    """makes all networks recurrent, with the cells "lstm", "gru" or "rnn"; in Python also a Keras RNN cell, of which
    each network gets a copy. None has no recurrent layers."""
    recurrent_units: Annotated[Count | Sequence[Count], Structural, Only(recurrent=("lstm", "gru", "rnn"))] = 64
    """number of units of the recurrent layer; several numbers are several layers."""
    remembers: Annotated[
        Sequence[Literal["observation", "action", "reward"]], Structural, Only(recurrent=Not(None))
    ] = ("observation", "action")
    """inputs of the recurrent layers at each step: the observation, and the previous action and reward."""
    sequence_length: Annotated[Count, Only(recurrent=Not(None))] = 20
    """number of successive steps of an episode from which an update learns, for each of `batch_size` sequences."""
    burn_in: Annotated[Natural, Only(recurrent=Not(None))] = 10
    """maximum number of steps before each sequence over which the networks are unrolled without learning, to compute
    their recurrent state."""
    stored_state: Annotated[bool, Structural, Only(recurrent=Not(None))] = True
    """whether to store the recurrent state of the policy with each step and to start sequences from it. False starts
    them from a zero state."""

    OPTIMIZERS: ClassVar = Group("optimisers")

    pi_lr: Annotated[Positive, Only(pi_optimizer=None), Search(1e-4, 3e-3, "log")] = 1e-3
    """learning rate of the Adam optimizer of the policy."""
    q_lr: Annotated[Positive, Only(q_optimizer=None), Search(1e-4, 3e-3, "log")] = 1e-3
    """learning rate of the Adam optimizer of each critic."""
    beta_1: Annotated[FractionBelowOne, Choices(0.5, 0.9)] = 0.9
    """decay of the mean of gradients in Adam, in [0, 1); CrossQ uses 0.5."""

    REPLAY: ClassVar = Group("replay")

    replay: Literal["uniform", "prioritized", "lap"] = "uniform"
    """how transitions are sampled: "uniform"; "prioritized", by their TD errors (Schaul et al. 2015); or "lap", by
    their TD errors, with equal priorities for small ones and a Huber loss in place of importance weights (Fujimoto et
    al. 2020)."""
    alpha: Annotated[Fraction | None, Only(replay=("prioritized", "lap"))] = None
    """exponent of the priorities, in [0, 1]; 0 samples uniformly. None is 0.6 for `replay="prioritized"` and 0.4 for
    "lap"."""
    beta: Annotated[Fraction | None, Only(replay="prioritized")] = None
    """initial exponent of the importance weights, in [0, 1]; 1 corrects the bias of the priorities. None is 0.4."""
    beta_steps: Annotated[Count | None, Only(replay="prioritized"), Only(beta=Not(1))] = None
    """number of updates over which `beta` increases linearly to 1; None keeps it constant."""
    her: Annotated[Literal["future", "final", "episode"] | None, Structural] = None
    """hindsight experience replay (Andrychowicz et al. 2017), for environments with a desired goal: where the goals
    come from that replace the desired goals of sampled transitions. "future" is a goal that was achieved later in the
    same episode; "final" the goal achieved last; "episode" any goal achieved in the episode. The environment's
    `compute_reward` gives the new rewards. None keeps the goals."""
    her_ratio: Annotated[Fraction, Only(her=("future", "final", "episode"))] = 0.8
    """probability that a sampled transition gets a new goal, in [0, 1]."""
    replay_device: str | None = None
    """device that also holds the observations and actions of the replay buffer, so that minibatches are not sent to it;
    the same as `device`, such as "gpu:0". Training is the same. None sends the minibatches."""

    CUSTOM_NETWORKS: ClassVar = Group(OBJECTS, Structural, Unsaved)

    q2: "keras.Model | None" = None
    """custom second critic, which must be given together with `q1` and have other initial weights."""

    CALLABLES: ClassVar = Group(OBJECTS)

    act_noise_schedule: "Callable[[int], float] | None" = None
    """callable from the number of environment steps to a factor of the exploration noise, such as
    `tfdpg.exploration.Linear` or `tfdpg.exploration.Decay`; None is a factor of 1."""
    pi_optimizer: "keras.optimizers.Optimizer | None" = None
    """Keras optimizer for the policy, in place of Adam; its learning-rate schedule counts updates of the policy."""
    q_optimizer: "keras.optimizers.Optimizer | None" = None
    """Keras optimizer for each critic, which gets a copy, in place of Adam; it may have a learning-rate schedule."""

    def check(self) -> None:
        """Reject options that exclude each other, and networks that cannot learn with the others."""
        if self.epochs_per_round is not None and self.gradient_steps is not None:
            raise self.conflict(
                "`gradient_steps` and `epochs_per_round` both say how many updates a round has.",
                *("gradient_steps", "epochs_per_round"),
            )
        if self.epochs_per_round is not None and self.replay != "uniform":
            raise self.conflict(
                "`epochs_per_round` passes over all rows, which leaves no place for priorities.",
                *("epochs_per_round", "replay"),
            )
        self._check_replay_device()
        if self.her is not None and self.reward_shaper is not None:
            raise self.conflict(
                "`her` computes the rewards of new goals with the environment's `compute_reward`, which does not know "
                "`reward_shaper`. Change the rewards in a wrapper that also has a `compute_reward`.",
                "her",
            )
        if self.critics == 1 and self.q2 is not None:
            raise self.conflict("`q2` needs two critics.", "critics")
        if self.critics > 2 and (self.q1 is not None or self.q2 is not None):
            raise self.conflict("Your own `q1` and `q2` are for one or two critics.", "critics")
        if self.critics == 2 and (self.q1 is None) != (self.q2 is None):
            raise ValueError(f"`q1` and `q2` go together. Received: q1={self.q1!r}, q2={self.q2!r}")
        self._check_networks()

    def _check_replay_device(self) -> None:
        if self.replay_device is None:
            return
        if self.replay_device != self.device:
            raise self.conflict("`replay_device` must be None or the same as `device`.", "replay_device", "device")
        if self.her is not None:
            raise self.conflict("`replay_device` has no place for the new goals of `her`.", "replay_device", "her")
        if self.recurrent is not None:
            raise self.conflict("`replay_device` is for transitions, not sequences.", "replay_device", "recurrent")

    def _check_networks(self) -> None:
        if self.norm == "batch" and self.batch_size < 2:
            raise reject("batch_size", "at least 2 where `norm` is 'batch'", self.batch_size)
        if self.blocks and len(self.hidden_units) != 1:
            raise reject("hidden_units", f"a sequence of one number where `blocks` is {self.blocks}", self.hidden_units)
        units = self.recurrent_units
        if not isinstance(units, int) and not len(units):
            raise reject("recurrent_units", "a positive integer or a sequence of at least one", units)
        if "observation" not in self.remembers or len(set(self.remembers)) < len(self.remembers):
            raise reject("remembers", 'different names with "observation" among them', self.remembers)
        if self.recurrent is not None and self.norm == "batch":
            raise self.conflict("`norm='batch'` is for networks without a memory.", "recurrent")
        if self.recurrent is not None and self.her is not None:
            raise self.conflict(
                "`her` is for networks without a memory: what a recurrent network remembers of an episode depends on "
                "the goal that it had.",
                *("recurrent", "her"),
            )
        if self.reward_shaper is not None and "reward" in self.remembers:
            raise self.conflict(
                "`reward_shaper` changes the rewards that are stored, and a policy that remembers rewards sees those "
                "that the environment gives.",
                "remembers",
            )
