"""Actor-critic with experience replay (ACER), for discrete and continuous actions.

Source: Wang et al. 2017, "Sample Efficient Actor-Critic with Experience Replay". Its parallel actor-learners are the
lanes of a vector environment, in one synchronous update.
"""

from typing import Any, final

import tensorflow as tf

from tfdpg.agents.agent import Agent
from tfdpg.agents.build import acer_family, build_acer, by_actions
from tfdpg.agents.options import ACEROptions
from tfdpg.losses import retrace, trust_region
from tfdpg.networks import Estimate, Sequences, Taken
from tfdpg.options import takes
from tfdpg.spec import Spec
from tfdpg.training.gradients import descent, polyak_average

METRICS = "loss_q", "loss_pi", "q1", "v", "entropy", "kl", "td_error"


@final
class ACER(Agent):
    """ACER: on-policy and off-policy updates of a stochastic policy, within a trust region, on Retrace's returns.

    Discrete actions have a categorical policy and a critic of all their values; Box actions a Gaussian policy and a
    stochastic dueling network. Some defaults are for one kind or the other: 20 | 50 is for Discrete and for Box.

    Args:
        env: the environment or vector environment to be trained on, its id, or a `Spec`.
        options: keyword arguments; `help(tfdpg.ACER.__init__)` says what they are.

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

    @takes(ACEROptions)
    def __init__(self, env: Any, options: ACEROptions):
        """See the class.

        Args:
            env: the environment or vector environment to be trained on, its id, or a `Spec`.
            options: keyword arguments.
        """
        spec = Spec.of(env)
        self.family, self.critic = acer_family(spec, options)
        super().__init__(env, options, build_acer(spec, options, self.family, self.critic, METRICS))
        self.pi, self.q1, self.v = self.networks["pi"], self.networks["q1"], self.networks.get("v")
        self.reward_scale, self.critic_average = options.reward_scale, options.critic_average
        self.retrace_lambda, self.retrace_clip = options.retrace_lambda, options.retrace_clip
        self.c, self.delta = by_actions(spec, options.c, 10.0, 5.0), options.delta
        self.alpha = by_actions(spec, options.alpha, 0.99, 0.995)
        self.ent_coef, self.q_coef = options.ent_coef, options.q_coef

    def update(self, batch: Sequences, counter: Any) -> dict[str, tf.Tensor]:
        """The critic towards Q^ret, the policy along ACER's gradient within the trust region, then the averages."""
        key = tf.stack([tf.constant(self.seed, tf.int64), counter])
        average = self.family.statistics(batch.ask(self.targets["pi"]))
        with descent(list(self.networks.values()), self.optimizers["all"]) as down:
            statistics = self.family.statistics(batch.ask(self.pi, training=True))
            fixed = tf.stop_gradient(statistics)
            estimate = self.critic.estimate(self.networks, batch, fixed, key, training=True)
            judge = self.judge(estimate, batch, fixed, key)
            rho, target, direction = self.improve(batch, fixed[:, :-1], average[:, :-1], judge)
            loss_pi = -tf.reduce_sum(direction * statistics[:, :-1], axis=-1)
            loss_q = self.critic.loss(estimate, target, rho)
            down(batch.mean(loss_pi + self.q_coef * loss_q))
        for name, averaged in self.targets.items():
            polyak_average(averaged, self.networks[name], self.alpha if name == "pi" else self.critic_average or 0.0)
        values = {"q1": estimate.q, "v": estimate.v[:, :-1], "td_error": tf.abs(target - estimate.q)}
        measured = {name: value / self.reward_scale for name, value in values.items()}
        measured |= {"loss_q": loss_q, "loss_pi": loss_pi, **self.divergence(fixed, average)}
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
