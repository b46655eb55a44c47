"""Deep deterministic policy gradient (DDPG).

Source: Lillicrap et al. 2016, "Continuous control with deep reinforcement learning"; the update and its options are
skrl's, the schedule and its defaults Spinning Up's.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, final

import keras
import numpy as np
import tensorflow as tf

from tfdpg.agents.agent import Agent
from tfdpg.agents.parts import make_parts
from tfdpg.arguments import keeps_arguments, positive_int, real
from tfdpg.losses import td_target
from tfdpg.networks import Transitions, flat_values, unpack_transitions
from tfdpg.replay import Ring, draw_transitions
from tfdpg.spec import Packed, Spec
from tfdpg.training.steps import policy_loss, policy_step, target_step, value_step
from tfdpg.training.updates import where_due


@final
class DDPG(Agent):
    """DDPG: a critic, and a policy that climbs it.

    Args:
        env: the environment or vector environment to be trained on, or a `Spec`.
        pi: your own policy, a Keras model from observations to actions `[batch, act_dim]` in the
            environment's units. It is used as it is, with its weights.
        q1: your own critic, a Keras model from `[observation, action]` to `[batch]` or `[batch, 1]`.
        encoder: a Keras model from raw observations to features `[batch, features]`, for the stock networks;
            each gets a copy.
        hidden_units: units of each hidden layer of the stock networks.
        activation: Keras activation of their hidden layers.
        gamma: discount factor, in [0, 1].
        polyak: fraction of the old target that is kept at each target update, in [0, 1].
        target_update_every: critic updates between target updates.
        pi_lr: learning rate of the policy's Adam.
        q_lr: learning rate of the critic's Adam.
        pi_optimizer: a Keras optimizer for the policy, in place of Adam; it may have a learning-rate schedule.
        q_optimizer: likewise for the critic.
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
        n_step: steps whose rewards are summed before bootstrapping.
        bc_weight: weight of behaviour cloning in the policy's loss, for training offline: as in `TD3`; 0 is without.
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
        env = gymnasium.make("Pendulum-v1")
        agent = tfdpg.DDPG(env, seed=0)
        agent.fit(env, epochs=5, validation_env=gymnasium.make("Pendulum-v1"))
        ```
    """

    metrics = ("loss_q", "loss_pi", "q1", "td_error")

    @keeps_arguments
    def __init__(
        self,
        env: Any,
        *,
        pi: keras.Model | None = None,
        q1: keras.Model | None = None,
        encoder: keras.Model | None = None,
        hidden_units: Sequence[int] = (256, 256),
        activation: str = "relu",
        gamma: float = 0.99,
        polyak: float = 0.995,
        target_update_every: int = 1,
        pi_lr: float = 1e-3,
        q_lr: float = 1e-3,
        pi_optimizer: keras.optimizers.Optimizer | None = None,
        q_optimizer: keras.optimizers.Optimizer | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        l2: float = 0.0,
        batch_size: int = 64,
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
        self.target_update_every = positive_int("target_update_every", target_update_every)
        self.n_step = positive_int("n_step", n_step)
        self.bc_weight = real("bc_weight", bc_weight, low=0)
        super().__init__(env, make_parts(spec, self.given, self.changed, {"pi": pi, "q1": q1}))
        self.pi, self.q1 = self.networks["pi"], self.networks["q1"]
        self.pi_target, self.q1_target = self.targets["pi"], self.targets["q1"]

    def draw(self, rows: np.ndarray, weights: np.ndarray | None) -> Packed:
        """Transitions over `n_step` steps."""
        return draw_transitions(self.replay, rows, self.n_step, self.gamma, weights)

    def update(self, packed: tuple[tf.Tensor, ...], counter: Any) -> dict[str, tf.Tensor]:
        """The critic down its squared error, the policy up the critic, the targets after them."""
        batch = unpack_transitions(self.spec, packed)
        target = self.target(batch)
        loss_q, q = value_step(self.q1, self.optimizers["q1"], batch, target)
        loss_pi = self.update_policy(batch)
        where_due(counter % self.target_update_every == 0, self.update_targets)
        return {"loss_q": loss_q, "loss_pi": loss_pi, "q1": q, "td_error": tf.abs(target - q)}

    def target(self, batch: Transitions) -> tf.Tensor:
        """The targets `[batch]`: y = r + γ (1 − d) Q_targ(s', π_targ(s'))."""
        action_t = self.pi_target(batch.next_observation)
        value_t = flat_values(self.q1_target([batch.next_observation, action_t]))
        return td_target(batch.reward, batch.discount, value_t)

    def update_policy(self, batch: Transitions) -> tf.Tensor:
        """One step up mean Q(s, π(s)); returns each element's loss."""

        def loss(action: tf.Tensor) -> tf.Tensor:
            q = flat_values(self.q1([batch.observation, action]))
            return policy_loss(self.spec, q, action, batch.action, self.bc_weight)

        return policy_step(self.pi, self.optimizers["pi"], batch, loss)

    def update_targets(self) -> None:
        """Polyak averaging of both target networks."""
        target_step(self.targets, self.networks, self.polyak)
