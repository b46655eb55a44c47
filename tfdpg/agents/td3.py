"""Twin delayed deep deterministic policy gradient (TD3), and delayed DDPG, its form with one critic.

Source: Fujimoto, van Hoof, Meger 2018, "Addressing Function Approximation Error in Actor-Critic Methods";
options and defaults are Spinning Up's, and further options those of MATLAB's rlTD3Agent.
"""

import dataclasses
from typing import Any, final

import tensorflow as tf

from tfdpg.agents.agent import Agent
from tfdpg.agents.declarations import deterministic, td_losses
from tfdpg.agents.options import TD3Options
from tfdpg.components import Declaration, Metric, policy_loss, polyak, run_if
from tfdpg.exploration import per_dimension
from tfdpg.losses import smooth_action, td_target
from tfdpg.networks import Batch, flat_values, smallest, stateless_normal
from tfdpg.options import takes_options
from tfdpg.spec import Spec

METRICS = (
    Metric("loss_q", "critic loss"),
    Metric("loss_pi", "policy loss", delayed=True),
    Metric("q1", "value (q1)", spread=True),
    Metric("q2", "value (q2)", spread=True, shown=False),
    Metric("td_error", "TD error", priority=True),
)


def declare(spec: Spec, options: TD3Options) -> Declaration:
    """The components of TD3: a policy, one or two critics, and their target networks."""
    rule = polyak(options.polyak, every=options.target_update_every or options.policy_delay)
    declaration = deterministic(spec, options, ("q1", "q2")[: options.critics], rule, METRICS)
    return dataclasses.replace(declaration, policy_period=options.policy_delay)


@final
class TD3(Agent):
    """TD3: two critics, smoothed target actions, a delayed policy.

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
        super().__init__(env, options, declare)
        self.critics = ("q1", "q2")[: options.critics]
        self.pi = self.networks["pi"]
        self.q1 = self.networks["q1"]
        self.q2 = self.networks.get("q2")
        self.critic_networks = {name: self.networks[name] for name in self.critics}
        self.bootstrap_networks = self.networks | self.targets
        self.td_loss, self.td_error = td_losses(options.replay)
        self.bc_weight = options.bc_weight
        self.action_l2 = options.action_l2
        self.policy_delay = options.policy_delay
        self.policy_critics = self.critics if options.policy_gradient == "min" else self.critics[:1]
        self.target_noise = per_dimension("target_noise", options.target_noise, self.spec) * self.spec.action_scale
        self.noise_clip = options.noise_clip * self.spec.action_scale
        self.target_noise_decay = options.target_noise_decay
        self.target_noise_min = options.target_noise_min

    def update(self, batch: Batch, counter: Any) -> dict[str, tf.Tensor]:
        """Move the critics towards r + γ (1 − d) min_i Q_i,targ(s', a'); with a delay, the policy and the targets."""
        action_t = self.smoothed_action(batch, counter)
        with self.minimize(*self.critics) as step:
            pairs = ((q, self.bootstrap_networks[name]) for name, q in self.critic_networks.items())
            outputs = [batch.ask_both(q, batch.action, q_targ, action_t) for q, q_targ in pairs]
            values = [flat_values(output) for output, _ in outputs]
            target = td_target(batch.reward, batch.discount, smallest([output_t for _, output_t in outputs]))
            losses = [self.td_loss(value, target) for value in values]
            step(*[batch.mean(loss) for loss in losses])
        loss_pi = run_if(counter % self.policy_delay == 0, lambda: self.update_policy(batch), self.batch_elements)
        self.update_copies(counter)
        return {
            "loss_q": tf.add_n(losses),
            "loss_pi": loss_pi,
            "q1": values[0],
            "q2": values[-1],
            "td_error": self.td_error([tf.abs(target - q) for q in values]),
        }

    def smoothed_action(self, batch: Batch, counter: Any) -> tf.Tensor:
        """The next action, a' = clip(π_targ(s') + clip(ε, −c, c), a_low, a_high), `[batch, act_dim]`."""
        action_t = batch.ask_next(self.bootstrap_networks["pi"])
        noise = self.smoothing_noise(counter)
        return smooth_action(action_t, noise, self.noise_clip, self.spec.low, self.spec.high)

    def update_policy(self, batch: Batch) -> tf.Tensor:
        """Take one step towards larger Q(s, π(s)), or min_i Q_i; return the loss of each element."""
        with self.minimize("pi") as step:
            action = batch.ask(self.pi, training=True)
            value = smallest([batch.ask(self.networks[name], action) for name in self.policy_critics])
            loss_pi = policy_loss(self.spec, value, action, batch, self.bc_weight, self.action_l2)
            step(batch.average(loss_pi))
        return loss_pi

    def smoothing_noise(self, counter: tf.Tensor) -> tf.Tensor:
        """Sample ε ~ N(0, σ), `[batch, act_dim]`, independently for each action and dimension, from (seed, counter)."""
        key = tf.stack([tf.constant(self.seed, tf.int64), counter])
        noise = stateless_normal((self.batch_elements, self.spec.act_dim), key)
        if self.target_noise_decay > 0:
            decay = tf.pow(1.0 - self.target_noise_decay, tf.cast(counter - 1, tf.float32))
            noise *= tf.maximum(decay, self.target_noise_min)
        return noise * self.target_noise
