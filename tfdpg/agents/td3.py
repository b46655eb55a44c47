"""Twin delayed deep deterministic policy gradient (TD3), and delayed DDPG, its form with one critic.

Source: Fujimoto, van Hoof, Meger 2018, "Addressing Function Approximation Error in Actor-Critic Methods";
options and defaults are Spinning Up's, and further options those of MATLAB's rlTD3Agent.
"""

from typing import Any

import tensorflow as tf

from tfdpg.agents.agent import Agent
from tfdpg.agents.declarations import actor_critic, td_losses
from tfdpg.agents.options import TD3Options
from tfdpg.components import Declaration, policy_loss, polyak, run_if, smoothness_penalty
from tfdpg.exploration import per_dimension
from tfdpg.losses import smooth_action, td_target
from tfdpg.networks import Batch, Critics, per_critic, smallest, stateless_normal
from tfdpg.options import takes_options
from tfdpg.spec import Spec


def declare(spec: Spec, options: TD3Options) -> Declaration:
    """The components of TD3: a policy, the critics q1, ..., qn, and their target networks."""
    rule = polyak(options.polyak, every=options.target_update_every or options.policy_delay)
    return actor_critic(spec, options, rule, policy_period=options.policy_delay)


class TD3(Agent):
    """TD3: two critics, smoothed target actions, a delayed policy.

    A subclass may override `declare`, which returns what the agent is made of, `update`, or one of the methods that
    `update` calls: `target_action`, `next_critics`, `target_value`, `critic_loss`, `update_policy` and `policy_loss`.

    Args:
        env: an environment or vector environment whose spaces the agent is for, its id, or a `Spec`.
        options: keyword arguments; `help(tfdpg.TD3.__init__)` describes them.

    Raises:
        ValueError: an argument is out of its range or has no effect, the spaces are not supported, or a custom network
            has a wrong shape.

    Example:
        ```python
        env = gymnasium.make("HalfCheetah-v5")
        agent = tfdpg.TD3(env, seed=0)
        agent.fit(env, epochs=75, validation_env=gymnasium.make("HalfCheetah-v5"))
        agent.export("exported_models/td3-halfcheetah")
        ```
    """

    @takes_options(TD3Options)
    def __init__(self, env: Any, options: TD3Options):
        """See the class.

        Args:
            env: an environment or vector environment with the spaces of the agent, its id, or a `Spec`.
            options: keyword arguments.
        """
        super().__init__(env, options, self.declare)
        self.pi = self.networks["pi"]
        self.pi_target = self.targets.get("pi", self.pi)
        self.critics = Critics.of("q", self.networks)
        self.target_critics = Critics.of("q", self.networks | self.targets)
        self.td_loss, self.td_error = td_losses(options.replay)
        self.policy_delay = options.policy_delay
        per_dimension("target_noise", options.values()["target_noise"], self.spec)  # raises an error now, not later

    declare = staticmethod(declare)

    def update(self, batch: Batch, counter: Any) -> dict[str, tf.Tensor]:
        """Move the critics towards r + γ (1 − d) min_i Q_i,targ(s', a'); with a delay, the policy and the targets."""
        action_t = self.target_action(batch, counter)
        with self.minimize(*self.critics.names) as step:
            values, values_t = batch.ask_both(self.critics, batch.action, self.next_critics(counter), action_t)
            target = self.target_value(batch, values_t)
            losses = self.critic_loss(batch, values, target)
            step(batch.mean(losses))
        is_due = counter % self.policy_delay == 0
        loss_pi = run_if(is_due, lambda: self.update_policy(batch, counter), self.batch_elements)
        self.update_copies(counter)
        return {
            "loss_q": tf.reduce_sum(losses, axis=0),
            "loss_pi": loss_pi,
            **self.critics.by_name(values),
            "td_error": self.td_error(tf.abs(target - values)),
        }

    def target_action(self, batch: Batch, counter: Any) -> tf.Tensor:
        """The next action, a' = clip(π_targ(s') + clip(ε, −c, c), a_low, a_high), `[batch, act_dim]`."""
        noise = self.smoothing_noise(counter)
        clip = self.options.noise_clip * self.spec.action_scale
        return smooth_action(batch.ask_next(self.pi_target), noise, clip, self.spec.low, self.spec.high)

    def next_critics(self, counter: Any) -> Critics:
        """The critics that value the next action: all target critics, or the critics where there are no targets."""
        return self.target_critics

    def target_value(self, batch: Batch, values_t: tf.Tensor) -> tf.Tensor:
        """Y = r + γ (1 − d) min_i Q_i,targ(s', a'), `[batch]`, without gradient.

        Args:
            batch: the minibatch.
            values_t: the values of the next action by `next_critics`, `[n, batch]`.
        """
        return td_target(batch.reward, batch.discount, smallest(values_t))

    def critic_loss(self, batch: Batch, values: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        """(y − Q_i(s, a))², `[n, batch]`, or the Huber loss with `replay="lap"`.

        Args:
            batch: the minibatch.
            values: Q_i(s, a), `[n, batch]`.
            target: y, `[batch]`.
        """
        return per_critic(lambda value: self.td_loss(value, target), values)

    def policy_loss(self, batch: Batch) -> tf.Tensor:
        """−Q_1(s, π(s)), or −min_i Q_i(s, π(s)), with the penalties among the options, `[batch]`."""
        action = batch.ask(self.pi, training=True)
        value = smallest(batch.ask(self.policy_critics, action))
        return policy_loss(self.spec, value, action, batch, self.options.bc_weight, self.options.action_l2)

    @property
    def policy_critics(self) -> Critics:
        """The critics whose smallest value the policy maximises: the first, or all with `policy_gradient="min"`."""
        return self.critics if self.options.policy_gradient == "min" else self.critics[:1]

    def update_policy(self, batch: Batch, counter: Any) -> tf.Tensor:
        """Take one step of the policy's optimizer; return the loss of each element, `[batch]`."""
        with self.minimize("pi") as step:
            loss_pi = self.policy_loss(batch) + smoothness_penalty(self, batch, counter)
            step(batch.average(loss_pi))
        return loss_pi

    def smoothing_noise(self, counter: tf.Tensor) -> tf.Tensor:
        """Sample ε ~ N(0, σ), `[batch, act_dim]`, independently for each action and dimension, from (seed, counter)."""
        key = tf.stack([tf.constant(self.seed, tf.int64), counter])
        noise = stateless_normal((self.batch_elements, self.spec.act_dim), key)
        options = self.options
        if options.target_noise_decay > 0:
            decay = tf.pow(1.0 - options.target_noise_decay, tf.cast(counter - 1, tf.float32))
            noise *= tf.maximum(decay, options.target_noise_min)
        return noise * (per_dimension("target_noise", options.target_noise, self.spec) * self.spec.action_scale)
