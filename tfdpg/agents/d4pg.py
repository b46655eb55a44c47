"""Distributed distributional deterministic policy gradients (D4PG).

Source: Barth-Maron et al. 2018, "Distributed Distributional Deterministic Policy Gradients", algorithm 1. For actors
in parallel, see `tfdpg.distributed`.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, cast, final

import keras
import numpy as np
import tensorflow as tf

from tfdpg import export
from tfdpg.agents.agent import Agent
from tfdpg.agents.heads import finds_range, make_head
from tfdpg.agents.parts import make_parts
from tfdpg.arguments import keeps_arguments, positive, positive_int, real, refuse_unused, reject
from tfdpg.losses import td_target
from tfdpg.networks import Categorical, Head, Transitions, head_of, unpack_transitions
from tfdpg.replay import Ring, draw_transitions, return_range
from tfdpg.spec import Packed, Spec
from tfdpg.training.steps import climb, critic_step, policy_step, target_step
from tfdpg.training.support import EdgeWatch, Support
from tfdpg.training.updates import where_due


@final
class D4PG(Agent):
    """D4PG: a critic that learns the distribution of N-step returns, and a policy that climbs its mean.

    Args:
        env: the environment or vector environment to be trained on, or a `Spec`.
        pi: your own policy, a Keras model from observations to actions `[batch, act_dim]` in the
            environment's units. It is used as it is, with its weights.
        q1: your own first critic, a Keras model from `[observation, action]` that ends in a layer
            `tfdpg.networks.Categorical`, `Mixture` or `Value`, as `critic` says.
        q2: your own second critic; goes with `q1`, and starts from other weights.
        encoder: a Keras model from raw observations to features `[batch, features]`, for the stock networks;
            each gets a copy.
        critic: what the critic gives: "categorical", probabilities on atoms; "mixture", a mixture of Gaussians; or
            "scalar", a number.
        v_min: first atom of a categorical critic; goes with `v_max`.
        v_max: last atom.
        v_range: "auto" chooses both from the returns seen before the first update, as None does where neither is
            given.
        atoms: number of atoms, equally spaced.
        components: Gaussians of a mixture critic.
        target_samples: samples of the target from which a mixture critic learns.
        min_stddev: smallest standard deviation of its Gaussians.
        critics: 1, or 2, of which the one with the smaller mean is the target.
        torso: hidden layers of the stock networks: "mlp" with `hidden_units`; "control" as in the DeepMind Control
            Suite report (300-200 and 400-300); "layer_norm" as in Acme (256-256-256 and 512-512-256); "two_branch",
            where each part of a Dict observation has a first layer of its own.
        hidden_units: units of each hidden layer of "mlp" and "two_branch".
        activation: Keras activation of their hidden layers.
        gamma: discount factor, in [0, 1].
        polyak: fraction of the old target that is kept at each target update, in [0, 1].
        target_update_every: updates between target updates.
        pi_lr: learning rate of the policy's Adam.
        q_lr: learning rate of the critics' Adams.
        pi_optimizer: a Keras optimizer for the policy, in place of Adam; it may have a learning-rate schedule.
        q_optimizer: likewise for each critic.
        clip_norm: largest global norm of a network's gradient; None does not clip.
        clip_value: largest absolute value of an element of a gradient; None does not clip.
        clip_action_gradient: largest norm of the critic's gradient by the action, in half-ranges of the action, for
            each sample; None does not clip.
        l2: L2 regularisation: l2 · Σ w² over the stock networks' kernels is added to their losses.
        batch_size: transitions in a minibatch.
        start_steps: environment steps with uniformly random actions at the start.
        update_after: environment steps before the first one that earns updates.
        update_every: environment steps between learning rounds, or "episode".
        gradient_steps: updates in a round; None is one for each environment step since the last round.
        epochs_per_round: passes over the whole replay in a round, in place of updates for steps; in a pass a
            transition is in one minibatch at most. Needs `replay="uniform"`.
        max_minibatches_per_round: minibatches in a round at most, shared out evenly among its passes.
        noise: exploration noise, "gaussian" or "ou" (Ornstein-Uhlenbeck, which has a memory).
        act_noise: standard deviation of the exploration noise, as a fraction of the action's half-range; a
            number, or one for each dimension.
        ou_theta: attraction of Ornstein-Uhlenbeck noise to 0 in a step, in [0, 1].
        act_noise_schedule: a factor of the exploration noise, a callable of environment steps such as
            `tfdpg.exploration.Linear` or `Decay`.
        n_step: steps whose rewards are summed before bootstrapping.
        normalize_observations: subtract the running mean of observations and divide by their standard deviation.
        normalize_epsilon: what is added to that standard deviation.
        normalize_clip: largest absolute value of a normalised feature.
        reward_shaper: a callable of (rewards, environment step, steps in all or None) that changes the rewards
            which are stored; logged returns stay as they were.
        recorders: further `tfdpg.replay.Ring`s, or directories for files that `fit_offline` reads, which receive
            every transition.
        replay: how rows are drawn, "uniform" or "prioritized" by their TD errors.
        alpha: how much priorities count, in [0, 1]; None is 0.6.
        beta: how much of their bias is corrected at first, in [0, 1]; None is 1.
        beta_steps: updates over which beta goes to 1; None leaves it.
        normalize_weights: divide the weights that correct it by the largest of the minibatch.
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
        env = gymnasium.make("dm_control/walker-walk-v0")
        agent = tfdpg.D4PG(env, v_min=0, v_max=100, seed=0)
        agent.fit(env, epochs=75, validation_env=gymnasium.make("dm_control/walker-walk-v0"))
        agent.export("exported_models/d4pg-walker")
        ```
    """

    @keeps_arguments
    def __init__(
        self,
        env: Any,
        *,
        pi: keras.Model | None = None,
        q1: keras.Model | None = None,
        q2: keras.Model | None = None,
        encoder: keras.Model | None = None,
        critic: Literal["categorical", "mixture", "scalar"] = "categorical",
        v_min: float | None = None,
        v_max: float | None = None,
        v_range: Literal["auto"] | None = None,
        atoms: int = 51,
        components: int = 5,
        target_samples: int = 32,
        min_stddev: float = 1e-2,
        critics: int = 1,
        torso: Literal["mlp", "control", "layer_norm", "two_branch"] = "mlp",
        hidden_units: Sequence[int] = (256, 256),
        activation: str = "relu",
        gamma: float = 0.99,
        polyak: float = 0.0,
        target_update_every: int = 100,
        pi_lr: float = 1e-4,
        q_lr: float = 1e-4,
        pi_optimizer: keras.optimizers.Optimizer | None = None,
        q_optimizer: keras.optimizers.Optimizer | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        clip_action_gradient: float | None = None,
        l2: float = 0.0,
        batch_size: int = 256,
        start_steps: int = 1000,
        update_after: int = 1000,
        update_every: int | Literal["episode"] = 50,
        gradient_steps: int | None = None,
        epochs_per_round: int | None = None,
        max_minibatches_per_round: int | None = None,
        noise: Literal["gaussian", "ou"] = "gaussian",
        act_noise: float | Sequence[float] = 0.3,
        ou_theta: float = 0.15,
        act_noise_schedule: Callable[[int], float] | None = None,
        n_step: int = 5,
        normalize_observations: bool = False,
        normalize_epsilon: float = 1e-8,
        normalize_clip: float = 5.0,
        reward_shaper: Callable[[np.ndarray, int, int | None], Any] | None = None,
        recorders: Sequence[Ring | str | Path] = (),
        replay: Literal["uniform", "prioritized"] = "prioritized",
        alpha: float | None = None,
        beta: float | None = None,
        beta_steps: int | None = None,
        normalize_weights: bool = False,
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
        limit = clip_action_gradient
        self.clip_action_gradient = None if limit is None else positive("clip_action_gradient", limit)
        if critics not in (1, 2):
            raise reject("critics", "1 or 2", critics)
        own = {"q1": q1, "q2": q2}
        if (critics == 1 and q2 is not None) or (critics == 2 and (q1 is None) != (q2 is None)):
            raise ValueError(f"`q1` and `q2` go together, with critics=2. Received: critics={critics}, {own}")
        self.critics = tuple(own)[:critics]
        head = make_head(self.given, self.changed)
        self.metrics = ("loss_q", "loss_pi", "q1", "q2", "td_error", *head.kind.metrics_of_update)
        if torso in ("control", "layer_norm"):
            refuse_unused(self.changed, ["hidden_units", "activation"], f"`torso` is {torso!r}")
        if replay == "uniform":
            refuse_unused(self.changed, ["normalize_weights"], "`replay` is 'uniform'")
        options = self.given | {"beta": 1.0 if replay == "prioritized" and beta is None else beta}
        networks = {"pi": pi} | {name: own[name] for name in self.critics}
        parts = make_parts(
            spec, options, self.changed, networks, torso=torso, head=head, normalize_weights=normalize_weights
        )
        super().__init__(env, parts)
        self.pi, self.q1, self.q2 = self.networks["pi"], self.networks["q1"], self.networks.get("q2")
        self.head = cast(Head, head_of(self.q1))
        self.signatures["z"] = export.return_signature(self.spec, self.q1, self.head)
        if critic == "categorical":
            self.watchers = [EdgeWatch()]
        if finds_range(self.given):
            networks = [*self.networks.values(), *self.targets.values()]
            self.support = Support([head for head in map(head_of, networks) if isinstance(head, Categorical)])

    def draw(self, rows: np.ndarray, weights: np.ndarray | None) -> Packed:
        """Transitions over `n_step` steps; before the first update, the support is chosen if that was left to us."""
        if self.support is not None:
            self.support.find(self.updates, lambda: return_range(self.replay, self.gamma))
        return draw_transitions(self.replay, rows, self.n_step, self.gamma, weights)

    def update(self, packed: tuple[tf.Tensor, ...], counter: Any) -> dict[str, tf.Tensor]:
        """The critic towards r + γᵐ (1 − d) Z_targ(s', π_targ(s')), the policy up its mean, the targets after them."""
        batch = unpack_transitions(self.spec, packed)
        output_t = self.target_output(batch)
        key = tf.stack([tf.constant(self.seed, tf.int64), counter])
        target = self.head.target(batch.reward, batch.discount, output_t, key)
        losses, values = zip(*[self.update_critic(name, batch, target) for name in self.critics], strict=True)
        loss_pi = self.update_policy(batch)
        where_due(counter % self.target_update_every == 0, self.update_targets)
        mean = td_target(batch.reward, batch.discount, self.head.mean(output_t))
        return {
            "loss_q": tf.add_n(losses),
            "loss_pi": loss_pi,
            "q1": values[0],
            "q2": values[-1],
            "td_error": tf.add_n([tf.abs(mean - q) for q in values]) / len(values),
            **self.head.measure(target),
        }

    def target_output(self, batch: Transitions) -> tf.Tensor:
        """What the target critic says of s' and π_targ(s'); of two critics the one with the smaller mean."""
        action_t = self.targets["pi"](batch.next_observation)
        outputs = [self.targets[name]([batch.next_observation, action_t]) for name in self.critics]
        return functools.reduce(self.smaller, outputs)

    def smaller(self, output1: tf.Tensor, output2: tf.Tensor) -> tf.Tensor:
        """Of two critics' outputs the one with the smaller mean, for each element."""
        is_first = self.head.mean(output1) <= self.head.mean(output2)
        return tf.where(tf.reshape(is_first, [-1] + [1] * (output1.shape.rank - 1)), output1, output2)

    def update_critic(self, name: str, batch: Transitions, target: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """One step down mean w d(r + γᵐ (1 − d) Z', Z(s, a)); returns each element's loss and the mean of Z(s, a)."""

        def loss(output: tf.Tensor) -> tf.Tensor:
            return self.head.td_loss(output, target)

        losses, output = critic_step(self.networks[name], self.optimizers[name], batch, loss)
        return losses, self.head.mean(output)

    def update_policy(self, batch: Transitions) -> tf.Tensor:
        """One step up mean E[Z(s, π(s))]; returns each element's loss."""

        def value(action: tf.Tensor) -> tf.Tensor:
            return self.head.mean(self.q1([batch.observation, action]))

        def loss(action: tf.Tensor) -> tf.Tensor:
            return climb(value, action, self.clip_action_gradient, self.spec.half_range)

        return policy_step(self.pi, self.optimizers["pi"], batch, loss)

    def update_targets(self) -> None:
        """Copies, or averages, all target networks."""
        target_step(self.targets, self.networks, self.polyak)
