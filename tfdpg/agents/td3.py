"""Twin delayed deep deterministic policy gradient (TD3), and delayed DDPG, its form with one critic.

Source: Fujimoto, van Hoof, Meger 2018, "Addressing Function Approximation Error in Actor-Critic Methods";
options and defaults are Spinning Up's, and further options those of MATLAB's rlTD3Agent.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, final

import keras
import numpy as np
import tensorflow as tf

from tfdpg.agents.agent import Agent
from tfdpg.agents.parts import make_parts
from tfdpg.arguments import keeps_arguments, positive_int, real, refuse_unused, reject
from tfdpg.exploration import per_dimension
from tfdpg.losses import smooth_action, td_target
from tfdpg.networks import Transitions, flat_values, stateless_normal, unpack_transitions
from tfdpg.replay import Ring, draw_transitions
from tfdpg.spec import Packed, Spec
from tfdpg.training.steps import policy_loss, policy_step, target_step, value_step
from tfdpg.training.updates import where_due


@final
class TD3(Agent):
    """TD3: two critics, smoothed target actions, a delayed policy.

    Args:
        env: the environment or vector environment to be trained on, or a `Spec`.
        pi: your own policy, a Keras model from observations to actions `[batch, act_dim]` in the
            environment's units. It is used as it is, with its weights.
        q1: your own first critic, a Keras model from `[observation, action]` to `[batch]` or `[batch, 1]`.
        q2: your own second critic; goes with `q1`, and starts from other weights.
        encoder: a Keras model from raw observations to features `[batch, features]`, for the stock networks;
            each gets a copy.
        critics: 2, or 1 for delayed DDPG (smoothing and delay without clipped double Q).
        hidden_units: units of each hidden layer of the stock networks.
        activation: Keras activation of their hidden layers.
        gamma: discount factor, in [0, 1].
        polyak: fraction of the old target that is kept at each target update, in [0, 1].
        target_update_every: critic updates between target updates; None is `policy_delay`.
        pi_lr: learning rate of the policy's Adam.
        q_lr: learning rate of the critics' Adams.
        pi_optimizer: a Keras optimizer for the policy, in place of Adam; it may have a learning-rate schedule.
        q_optimizer: likewise for each critic.
        clip_norm: largest global norm of a network's gradient; None does not clip.
        clip_value: largest absolute value of an element of a gradient; None does not clip.
        l2: L2 regularisation: l2 · Σ w² over the stock networks' kernels is added to their losses.
        batch_size: transitions in a minibatch.
        start_steps: environment steps with uniformly random actions at the start.
        update_after: environment steps before the first one that earns updates.
        update_every: environment steps between learning rounds, or "episode".
        gradient_steps: updates in a round; None is one for each environment step since the last round.
        epochs_per_round: passes over the whole replay in a round, in place of updates for steps; in a pass a
            transition is in one minibatch at most.
        max_minibatches_per_round: minibatches in a round at most, shared out evenly among its passes.
        noise: exploration noise, "gaussian" or "ou" (Ornstein-Uhlenbeck, which has a memory).
        act_noise: standard deviation of the exploration noise, as a fraction of the action's half-range; a
            number, or one for each dimension.
        ou_theta: attraction of Ornstein-Uhlenbeck noise to 0 in a step, in [0, 1].
        act_noise_schedule: a factor of the exploration noise, a callable of environment steps such as
            `tfdpg.exploration.Linear` or `Decay`.
        target_noise: standard deviation of the smoothing noise, as a fraction of the action's half-range; a
            number, or one for each dimension.
        target_noise_decay: part of it that is lost at each update, in [0, 1].
        target_noise_min: fraction of it that decay leaves.
        noise_clip: largest absolute smoothing noise, as a fraction of the action's half-range.
        policy_delay: critic updates for each update of the policy.
        policy_gradient: what the policy climbs, "q1" or "min", the smaller of the critics.
        n_step: steps whose rewards are summed before bootstrapping.
        bc_weight: weight of behaviour cloning in the policy's loss, for training offline: TD3+BC's alpha is
            1 / bc_weight; 0 is without.
        normalize_observations: subtract the running mean of observations and divide by their standard deviation.
        normalize_epsilon: what is added to that standard deviation.
        normalize_clip: largest absolute value of a normalised feature.
        reward_shaper: a callable of (rewards, environment step, steps in all or None) that changes the rewards
            which are stored; logged returns stay as they were.
        recorders: further `tfdpg.replay.Ring`s, or directories for files that `fit_offline` reads, which receive
            every transition.
        replay: how rows are drawn, "uniform" or "prioritized" by their TD errors.
        alpha: how much priorities count, in [0, 1]; None is 0.6.
        beta: how much of their bias is corrected at first, in [0, 1]; None is 0.4.
        beta_steps: updates over which beta goes to 1; None leaves it.
        replay_size: observations that the replay holds.
        replay_dir: a directory for the replay, as memory-mapped files that live as long as the agent; None keeps
            it in memory.
        seed: fixes everything random.
        jit_compile: compile updates with XLA; "auto" does, except with convolutions.
        device: where networks live and everything compiled runs, "cpu" or "gpu:0" for example; None is
            TensorFlow's choice, a GPU where there is one.

    Raises:
        ValueError: an argument out of its range or without effect, spaces that are not supported, or networks of
            wrong shapes.

    Example:
        ```python
        env = gymnasium.make("HalfCheetah-v5")
        agent = tfdpg.TD3(env, seed=0)
        agent.fit(env, epochs=75, validation_env=gymnasium.make("HalfCheetah-v5"))
        agent.export("exported_models/td3-halfcheetah")
        ```
    """

    metrics = ("loss_q", "loss_pi", "q1", "q2", "td_error")

    @keeps_arguments
    def __init__(
        self,
        env: Any,
        *,
        pi: keras.Model | None = None,
        q1: keras.Model | None = None,
        q2: keras.Model | None = None,
        encoder: keras.Model | None = None,
        critics: int = 2,
        hidden_units: Sequence[int] = (256, 256),
        activation: str = "relu",
        gamma: float = 0.99,
        polyak: float = 0.995,
        target_update_every: int | None = None,
        pi_lr: float = 1e-3,
        q_lr: float = 1e-3,
        pi_optimizer: keras.optimizers.Optimizer | None = None,
        q_optimizer: keras.optimizers.Optimizer | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        l2: float = 0.0,
        batch_size: int = 100,
        start_steps: int = 10_000,
        update_after: int = 1000,
        update_every: int | Literal["episode"] = 50,
        gradient_steps: int | None = None,
        epochs_per_round: int | None = None,
        max_minibatches_per_round: int | None = None,
        noise: Literal["gaussian", "ou"] = "gaussian",
        act_noise: float | Sequence[float] = 0.1,
        ou_theta: float = 0.15,
        act_noise_schedule: Callable[[int], float] | None = None,
        target_noise: float | Sequence[float] = 0.2,
        target_noise_decay: float = 0.0,
        target_noise_min: float = 0.0,
        noise_clip: float = 0.5,
        policy_delay: int = 2,
        policy_gradient: Literal["q1", "min"] = "q1",
        n_step: int = 1,
        bc_weight: float = 0.0,
        normalize_observations: bool = False,
        normalize_epsilon: float = 1e-8,
        normalize_clip: float = 5.0,
        reward_shaper: Callable[[np.ndarray, int, int | None], Any] | None = None,
        recorders: Sequence[Ring | str | Path] = (),
        replay: Literal["uniform", "prioritized"] = "uniform",
        alpha: float | None = None,
        beta: float | None = None,
        beta_steps: int | None = None,
        replay_size: int = 1_000_000,
        replay_dir: str | Path | None = None,
        seed: int = 0,
        jit_compile: bool | Literal["auto"] = "auto",
        device: str | None = None,
    ):
        spec = Spec.of(env)
        self.gamma = real("gamma", gamma, 0, 1)
        self.polyak = real("polyak", polyak, 0, 1)
        self.target_noise = per_dimension("target_noise", target_noise, spec)
        self.target_noise_decay = real("target_noise_decay", target_noise_decay, 0, 1)
        self.target_noise_min = real("target_noise_min", target_noise_min, 0, 1)
        self.noise_clip = real("noise_clip", noise_clip, low=0)
        self.policy_delay = positive_int("policy_delay", policy_delay)
        every = target_update_every
        self.target_update_every = self.policy_delay if every is None else positive_int("target_update_every", every)
        if policy_gradient not in ("q1", "min"):
            raise reject("policy_gradient", '"q1" or "min"', policy_gradient)
        self.policy_gradient = policy_gradient
        self.n_step = positive_int("n_step", n_step)
        self.bc_weight = real("bc_weight", bc_weight, low=0)
        if critics not in (1, 2):
            raise reject("critics", "1 or 2", critics)
        own = {"q1": q1, "q2": q2}
        if critics == 1 and (q2 is not None or policy_gradient == "min"):
            raise ValueError("`q2` and `policy_gradient='min'` need two critics. Received: critics=1")
        if critics == 2 and (q1 is None) != (q2 is None):
            raise ValueError(f"`q1` and `q2` go together. Received: q1={q1!r}, q2={q2!r}")
        self.critics = tuple(own)[:critics]
        if self.target_noise_decay == 0:
            refuse_unused(self.changed, ["target_noise_min"], "`target_noise_decay` is 0")
        networks = {"pi": pi} | {name: own[name] for name in self.critics}
        super().__init__(env, make_parts(spec, self.given, self.changed, networks))
        self.pi, self.q1, self.q2 = self.networks["pi"], self.networks["q1"], self.networks.get("q2")

    def draw(self, rows: np.ndarray, weights: np.ndarray | None) -> Packed:
        """Transitions over `n_step` steps."""
        return draw_transitions(self.replay, rows, self.n_step, self.gamma, weights)

    def update(self, packed: tuple[tf.Tensor, ...], counter: Any) -> dict[str, tf.Tensor]:
        """Clipped double Q-learning on smoothed targets; every `policy_delay` updates the policy; then the targets."""
        batch = unpack_transitions(self.spec, packed)
        target = self.target(batch, self.smoothing_noise(counter))
        losses, values = zip(*[self.update_critic(name, batch, target) for name in self.critics], strict=True)
        is_due = counter % self.policy_delay == 0
        loss_pi = where_due(is_due, lambda: self.update_policy(batch), self.batch_size)
        where_due(counter % self.target_update_every == 0, self.update_targets)
        return {
            "loss_q": tf.add_n(losses),
            "loss_pi": loss_pi,
            "q1": values[0],
            "q2": values[-1],
            "td_error": tf.add_n([tf.abs(target - q) for q in values]) / len(values),
        }

    def target(self, batch: Transitions, noise: tf.Tensor) -> tf.Tensor:
        """The targets `[batch]`.

        y = r + γ (1 − d) min_i Q_i,targ(s', a'), with a' = clip(π_targ(s') + clip(ε, −c, c), a_low, a_high).
        """
        noise_clip = self.noise_clip * self.spec.half_range
        action_t = smooth_action(
            self.targets["pi"](batch.next_observation), noise, noise_clip, self.spec.low, self.spec.high
        )
        value_t = self.smallest([self.targets[name] for name in self.critics], batch.next_observation, action_t)
        return td_target(batch.reward, batch.discount, value_t)

    def update_critic(self, name: str, batch: Transitions, target: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """One step down mean w (y − Q(s, a))²; returns each element's loss and value."""
        return value_step(self.networks[name], self.optimizers[name], batch, target)

    def update_policy(self, batch: Transitions) -> tf.Tensor:
        """One step up mean Q(s, π(s)), or min_i Q_i; returns each element's loss."""
        climbed = self.critics if self.policy_gradient == "min" else self.critics[:1]

        def loss(action: tf.Tensor) -> tf.Tensor:
            q = self.smallest([self.networks[name] for name in climbed], batch.observation, action)
            return policy_loss(self.spec, q, action, batch.action, self.bc_weight)

        return policy_step(self.pi, self.optimizers["pi"], batch, loss)

    def update_targets(self) -> None:
        """Polyak averaging of all target networks."""
        target_step(self.targets, self.networks, self.polyak)

    def smallest(self, critics: Sequence[keras.Model], observation: Any, action: tf.Tensor) -> tf.Tensor:
        """min_i Q_i(s, a), `[batch]`."""
        return tf.reduce_min([flat_values(q([observation, action])) for q in critics], axis=0)

    def smoothing_noise(self, counter: tf.Tensor) -> tf.Tensor:
        """ε ~ N(0, σ) `[batch, act_dim]`, a sample for each action and dimension; a function of (seed, counter)."""
        key = tf.stack([tf.constant(self.seed, tf.int64), counter])
        noise = stateless_normal((self.batch_size, self.spec.act_dim), key)
        if self.target_noise_decay > 0:
            left = tf.pow(1.0 - self.target_noise_decay, tf.cast(counter - 1, tf.float32))
            noise *= tf.maximum(left, self.target_noise_min)
        return noise * (self.target_noise * self.spec.half_range)
