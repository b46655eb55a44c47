"""Deep deterministic policy gradient (DDPG).

Source: Lillicrap et al. 2016, "Continuous control with deep reinforcement learning"; the update and its options are
skrl's, the schedule and its defaults Spinning Up's.
"""

from typing import Any

import tensorflow as tf

from tfdpg.agents.agent import Agent
from tfdpg.agents.declarations import actor_critic, td_losses
from tfdpg.agents.options import DDPGOptions
from tfdpg.components import Declaration, policy_loss, polyak, smoothness_penalty
from tfdpg.losses import td_target
from tfdpg.networks import Batch, flat_values
from tfdpg.options import takes_options
from tfdpg.spec import Spec


def declare(spec: Spec, options: DDPGOptions) -> Declaration:
    """The components of DDPG: a policy, a critic, and their target networks."""
    return actor_critic(spec, options, polyak(options.polyak, options.target_update_every))


class DDPG(Agent):
    """DDPG: a critic, and a policy that maximises its value.

    A subclass may override `declare`, which returns what the agent is made of, `update`, or one of the methods that
    `update` calls: `target_value`, `critic_loss` and `policy_loss`.

    Args:
        env: an environment or vector environment whose spaces the agent is for, its id, or a `Spec`.
        options: keyword arguments; `help(tfdpg.DDPG.__init__)` describes them.

    Raises:
        ValueError: an argument is out of its range or has no effect, the spaces are not supported, or a custom network
            has a wrong shape.

    Example:
        ```python
        env = gymnasium.make("Pendulum-v1")
        agent = tfdpg.DDPG(env, seed=0)
        agent.fit(env, epochs=5, validation_env=gymnasium.make("Pendulum-v1"))
        ```
    """

    @takes_options(DDPGOptions)
    def __init__(self, env: Any, options: DDPGOptions):
        """See the class.

        Args:
            env: an environment or vector environment with the spaces of the agent, its id, or a `Spec`.
            options: keyword arguments.
        """
        super().__init__(env, options, self.declare)
        self.pi = self.networks["pi"]
        self.q1 = self.networks["q1"]
        self.pi_target = self.targets.get("pi", self.pi)
        self.q1_target = self.targets.get("q1", self.q1)
        self.td_loss, _ = td_losses(options.replay)

    declare = staticmethod(declare)

    def update(self, batch: Batch, counter: Any) -> dict[str, tf.Tensor]:
        """Minimise (y − Q(s, a))², y = r + γ (1 − d) Q_targ(s', π_targ(s')); maximise Q(s, π(s))."""
        action_t = batch.ask_next(self.pi_target)
        with self.minimize("q1") as step:
            q, q_t = map(flat_values, batch.ask_both(self.q1, batch.action, self.q1_target, action_t))
            target = self.target_value(batch, q_t)
            loss_q = self.critic_loss(batch, q, target)
            step(batch.mean(loss_q))
        with self.minimize("pi") as step:
            loss_pi = self.policy_loss(batch) + smoothness_penalty(self, batch, counter)
            step(batch.average(loss_pi))
        self.update_copies(counter)
        return {"loss_q": loss_q, "loss_pi": loss_pi, "q1": q, "td_error": tf.abs(target - q)}

    def target_value(self, batch: Batch, q_t: tf.Tensor) -> tf.Tensor:
        """Y = r + γ (1 − d) Q_targ(s', π_targ(s')), `[batch]`, for Q_targ(s', π_targ(s')) `[batch]`."""
        return td_target(batch.reward, batch.discount, q_t)

    def critic_loss(self, batch: Batch, q: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        """(y − Q(s, a))², or the Huber loss with `replay="lap"`, `[batch]`, for Q(s, a) and y, `[batch]`."""
        return self.td_loss(q, target)

    def policy_loss(self, batch: Batch) -> tf.Tensor:
        """−Q(s, π(s)), with the penalties among the options, `[batch]`."""
        action = batch.ask(self.pi, training=True)
        value = flat_values(batch.ask(self.q1, action))
        return policy_loss(self.spec, value, action, batch, self.options.bc_weight, self.options.action_l2)
