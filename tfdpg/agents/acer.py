"""Actor-critic with experience replay (ACER), for discrete and continuous actions.

Source: Wang et al. 2017, "Sample Efficient Actor-Critic with Experience Replay". Its parallel actor-learners are the
lanes of a vector environment, in one synchronous update.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, final

import keras
import numpy as np
import tensorflow as tf

from tfdpg import export
from tfdpg.agents.agent import Agent
from tfdpg.agents.stochastic import by_action_space, choose, make_stochastic_parts
from tfdpg.arguments import keeps_arguments, positive, real, up_to_infinity
from tfdpg.losses import retrace, trust_region
from tfdpg.networks import Estimate, Sequences, Taken, over_steps, unpack_sequences
from tfdpg.replay import Ring, draw_windows
from tfdpg.spec import Packed, Spec
from tfdpg.training.updates import minimize, polyak_average


@final
class ACER(Agent):
    """ACER: on-policy and off-policy updates of a stochastic policy, within a trust region, on Retrace's returns.

    Discrete actions have a categorical policy and a critic of all their values; Box actions a Gaussian policy and a
    stochastic dueling network. Some defaults are for one kind or the other: 20 | 50 is for Discrete and for Box.

    Args:
        env: the environment or vector environment to be trained on, or a `Spec`.
        pi: your own policy, a Keras model from observations to probabilities `[batch, actions]`; or to means
            `[batch, act_dim]` in the environment's units, followed by scales if `learn_sigma`. Its regularizers
            count, and those of `q1` and `v`; what `add_loss` adds does not.
        q1: your own critic, a Keras model from observations to the values of all actions `[batch, actions]`; or from
            `[observation, action]` to the advantage `[batch]` or `[batch, 1]` of a dueling network, or to the value.
        v: your own state values for Box actions, a Keras model from observations to `[batch]` or `[batch, 1]`.
        encoder: a Keras model from raw observations to features `[batch, features]`, for the stock networks; each
            gets a copy, or all of them one.
        shared_torso: whether the stock networks share features, and the policy and the critic of states (or of all
            actions) hidden layers.
        hidden_units: units of each hidden layer of the stock networks.
        activation: Keras activation of their hidden layers.
        sigma: standard deviation of a Gaussian policy, as a fraction of the action's half-range; the first one, if it
            is learnt.
        learn_sigma: whether it is an output of the policy's network.
        dueling: whether Q(s, a) of Box actions is V(s) + A(s, a) − mean_i A(s, u_i); otherwise `q1` is by itself,
            and V learns from it.
        dueling_samples: the number of u_i.
        gamma: discount factor, in [0, 1].
        reward_scale: factor of the rewards that values are learnt of; logs and exports have values of the rewards
            themselves.
        n_steps: steps in a window; a learning round comes when the lanes have taken so many each, in the mean.
            None is 20 | 50.
        on_policy: whether a round begins with an update on the newest window of each lane. None is True | False.
        replay_ratio: the mean number of updates of a round on windows from the replay (Poisson).
        replay_start: observations in the replay before there are any of these.
        batch_size: windows in an update, whose gradient is the mean over all of their steps; the newest ones take
            several updates where there are more lanes.
        retrace_lambda: λ of Retrace, in [0, 1].
        retrace_clip: where Retrace's traces, ρ to the power of 1 / act_dim, are truncated; infinity is importance
            sampling, which may overflow.
        c: where importance weights are truncated in the policy's gradient, whose bias is then corrected; infinity is
            importance sampling without either. None is 10 | 5.
        delta: δ, how much the divergence from the average policy may grow; infinity is no trust region.
        alpha: α, fraction of the old average policy that is kept at each update, in [0, 1]. None is 0.99 | 0.995.
        critic_average: fraction of an old average critic that is kept, in [0, 1], which then gives V, and Q beside it
            in returns and advantages; None has none.
        ent_coef: weight of the policy's entropy, added after the trust region.
        q_coef: weight of the critic's loss, half a squared error.
        lr: learning rate of RMSprop (decay 0.99, epsilon 1e-5), which trains all networks together.
        optimizer: a Keras optimizer in its place, which clips by itself; it may have a learning-rate schedule.
        clip_norm: largest global norm of the gradient; None does not clip.
        clip_value: largest absolute value of an element of the gradient; goes with `clip_norm=None`.
        normalize_observations: subtract the running mean of observations and divide by their standard deviation.
        normalize_epsilon: what is added to that standard deviation.
        normalize_clip: largest absolute value of a normalised feature.
        reward_shaper: a callable of (rewards, environment step, steps in all or None) that changes the rewards
            which are stored; logged returns stay as they were.
        recorders: further `tfdpg.replay.Ring`s, or directories for files that `fit_offline` reads, which receive
            every transition.
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
        env = gymnasium.make_vec("CartPole-v1", num_envs=8, vectorization_mode="sync")
        agent = tfdpg.ACER(env, seed=0)
        agent.fit(env, epochs=20, validation_env=gymnasium.make("CartPole-v1"))
        agent.export("exported_models/acer-cartpole")
        ```
    """

    metrics = ("loss_q", "loss_pi", "q1", "v", "entropy", "kl", "td_error")

    @keeps_arguments
    def __init__(
        self,
        env: Any,
        *,
        pi: keras.Model | None = None,
        q1: keras.Model | None = None,
        v: keras.Model | None = None,
        encoder: keras.Model | None = None,
        shared_torso: bool = False,
        hidden_units: Sequence[int] = (100, 100),
        activation: str = "relu",
        sigma: float = 0.3,
        learn_sigma: bool = False,
        dueling: bool = True,
        dueling_samples: int = 5,
        gamma: float = 0.99,
        reward_scale: float = 1.0,
        n_steps: int | None = None,
        on_policy: bool | None = None,
        replay_ratio: float = 4.0,
        replay_start: int = 1000,
        batch_size: int = 16,
        retrace_lambda: float = 1.0,
        retrace_clip: float = 1.0,
        c: float | None = None,
        delta: float = 1.0,
        alpha: float | None = None,
        critic_average: float | None = None,
        ent_coef: float = 1e-3,
        q_coef: float = 0.5,
        lr: float = 7e-4,
        optimizer: keras.optimizers.Optimizer | None = None,
        clip_norm: float | None = 10.0,
        clip_value: float | None = None,
        normalize_observations: bool = False,
        normalize_epsilon: float = 1e-8,
        normalize_clip: float = 5.0,
        reward_shaper: Callable[[np.ndarray, int, int | None], Any] | None = None,
        recorders: Sequence[Ring | str | Path] = (),
        replay_size: int = 50_000,
        replay_dir: str | Path | None = None,
        seed: int = 0,
        jit_compile: bool | Literal["auto"] = "auto",
        device: str | None = None,
    ):
        spec = Spec.of(env)
        self.gamma, self.reward_scale = real("gamma", gamma, 0, 1), positive("reward_scale", reward_scale)
        self.retrace_lambda = real("retrace_lambda", retrace_lambda, 0, 1)
        self.retrace_clip = up_to_infinity("retrace_clip", retrace_clip)
        self.c = up_to_infinity("c", by_action_space(spec, c, 10.0, 5.0))
        self.delta = up_to_infinity("delta", delta)
        self.alpha = real("alpha", by_action_space(spec, alpha, 0.99, 0.995), 0, 1)
        self.critic_average = None if critic_average is None else real("critic_average", critic_average, 0, 1)
        self.ent_coef, self.q_coef = real("ent_coef", ent_coef, low=0), real("q_coef", q_coef, low=0)
        self.family, self.critic = choose(spec, self.given, self.changed)
        networks = {"pi": pi} | {name: {"q1": q1, "v": v}[name] for name in self.critic.names}
        averaged = ("pi",) if critic_average is None else tuple(networks)
        schedule = by_action_space(spec, n_steps, 20, 50), by_action_space(spec, on_policy, True, False)
        parts = make_stochastic_parts(spec, self.family, self.given, self.changed, networks, averaged, *schedule)
        super().__init__(env, parts)
        self.pi, self.q1, self.v = self.networks["pi"], self.networks["q1"], self.networks.get("v")
        kinds = self.family, self.critic
        self.signatures = export.stochastic_signatures(spec, *kinds, self.networks, self.reward_scale)
        self.usual_updates = 1 + math.ceil(replay_ratio)

    def draw(self, rows: np.ndarray, weights: np.ndarray | None) -> Packed:
        """Windows of `n_steps` steps; the newest ones come first in a round."""
        return draw_windows(self.replay, rows, self.gamma)

    def update(self, packed: tuple[tf.Tensor, ...], counter: Any) -> dict[str, tf.Tensor]:
        """The critic towards Q^ret, the policy along ACER's gradient within the trust region, then the averages."""
        batch = unpack_sequences(self.spec, packed, self.family.record_width)
        key = tf.stack([tf.constant(self.seed, tf.int64), counter])
        average = self.family.statistics(over_steps(self.targets["pi"], batch.observation))

        def loss() -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            statistics = self.family.statistics(over_steps(self.pi, batch.observation, training=True))
            fixed = tf.stop_gradient(statistics)
            estimate = self.critic.estimate(self.networks, batch, fixed, key, training=True)
            judge = self.judge(estimate, batch, fixed, key)
            rho, target, direction = self.improve(batch, fixed[:, :-1], average[:, :-1], judge)
            loss_pi = -tf.reduce_sum(direction * statistics[:, :-1], axis=-1)
            loss_q = self.critic.loss(estimate, target, rho)
            losses = tf.where(batch.acted > 0, loss_pi + self.q_coef * loss_q, 0.0)
            values = {"q1": estimate.q, "v": estimate.v[:, :-1], "td_error": tf.abs(target - estimate.q)}
            measured = {name: value / self.reward_scale for name, value in values.items()}
            measured |= {"loss_q": loss_q, "loss_pi": loss_pi, **self.divergence(fixed, average)}
            return tf.reduce_sum(losses) / tf.maximum(tf.reduce_sum(batch.acted), 1), measured

        measured = minimize(loss, list(self.networks.values()), self.optimizers["all"])
        for name, target in self.targets.items():
            polyak_average(target, self.networks[name], self.alpha if name == "pi" else self.critic_average or 0.0)
        return {name: mean_of_windows(values, batch.acted) for name, values in measured.items()}

    def improve(
        self, batch: Sequences, statistics: tf.Tensor, average: tf.Tensor, judge: Estimate
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The importance weights and Q^ret `[batch, T]`, and the direction in which the statistics are to move.

        z = g − max(0, (k · g − δ) / |k|²) k, and then up the entropy; 0 where no step was taken.
        """
        acted = batch.acted > 0
        behaviour = self.family.recorded(batch.record)
        rho = tf.where(acted, self.family.ratio(self.family.parameters(statistics), behaviour, batch.action), 1.0)
        traces = self.retrace_lambda * tf.minimum(self.retrace_clip, tf.pow(rho, 1 / self.family.dimensions))
        steps = self.reward_scale * batch.reward, batch.discount
        target, policy_target = (
            retrace(judge.q, judge.v[:, 1:], *steps, following(c, batch)) for c in (traces, self.family.trace(traces))
        )
        taken = Taken(behaviour, batch.action, rho, policy_target, judge.v[:, :-1])
        g = self.family.gradient(statistics, taken, judge, self.c)
        k = self.family.kl_gradient(average, statistics)
        z = trust_region(g, k, self.delta) + self.ent_coef * self.family.entropy_gradient(statistics)
        return rho, target, tf.where(tf.expand_dims(acted, -1), z, 0.0)

    def judge(self, estimate: Estimate, batch: Sequences, statistics: tf.Tensor, key: tf.Tensor) -> Estimate:
        """The values from which returns and advantages are made: the critic's own, or the average critic's.

        Retrace takes V and Q from the same critic: V(s') − Q(s', a') is to be 0 in the mean.
        """
        if self.critic_average is None:
            return estimate
        return self.critic.estimate(self.targets, batch, statistics, key, training=False)

    def divergence(self, statistics: tf.Tensor, average: tf.Tensor) -> dict[str, tf.Tensor]:
        """The policy's entropy, and its divergence KL[average ‖ policy], `[batch, T]`."""
        pair = (self.family.parameters(each[:, :-1]) for each in (statistics, average))
        now, before = map(self.family.distribution, pair)
        return {"entropy": now.entropy(), "kl": before.kl_divergence(now)}


def following(c: tf.Tensor, batch: Sequences) -> tf.Tensor:
    """The traces of the next steps' actions, `[batch, T]`; 0 where there is none of the same episode."""
    c = c * batch.acted
    return tf.where(batch.discount > 0, tf.concat([c[:, 1:], tf.zeros_like(c[:, :1])], axis=1), 0.0)


def mean_of_windows(values: tf.Tensor, acted: tf.Tensor) -> tf.Tensor:
    """The mean over each window's steps `[batch]`; that over all steps for a window without any."""
    values, steps = tf.where(acted > 0, values, 0.0), tf.reduce_sum(acted, axis=1)
    overall = tf.reduce_sum(values) / tf.maximum(tf.reduce_sum(steps), 1)
    return tf.where(steps > 0, tf.reduce_sum(values, axis=1) / tf.maximum(steps, 1), overall)
