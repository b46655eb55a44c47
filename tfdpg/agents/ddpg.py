"""Deep deterministic policy gradient (DDPG).

Source: Lillicrap et al. 2016, "Continuous control with deep reinforcement learning"; the update and its options are
skrl's, the schedule and its defaults Spinning Up's.
"""

from typing import Any, final

import tensorflow as tf

from tfdpg.agents.agent import Agent
from tfdpg.agents.declarations import deterministic, td_losses
from tfdpg.agents.options import DDPGOptions
from tfdpg.components import Declaration, Metric, policy_loss, polyak
from tfdpg.losses import td_target
from tfdpg.networks import Batch, flat_values
from tfdpg.options import takes_options
from tfdpg.spec import Spec

METRICS = (
    Metric("loss_q", "critic loss"),
    Metric("loss_pi", "policy loss"),
    Metric("q1", "value (q1)", spread=True),
    Metric("td_error", "TD error", priority=True),
)


def declare(spec: Spec, options: DDPGOptions) -> Declaration:
    """The components of DDPG: a policy, a critic, and their target networks."""
    return deterministic(spec, options, ["q1"], polyak(options.polyak, options.target_update_every), METRICS)


@final
class DDPG(Agent):
    """DDPG: a critic, and a policy that maximises its value.

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
        super().__init__(env, options, declare)
        self.pi = self.networks["pi"]
        self.q1 = self.networks["q1"]
        self.pi_target = self.targets.get("pi", self.pi)
        self.q1_target = self.targets.get("q1", self.q1)
        self.td_loss, _ = td_losses(options.replay)
        self.bc_weight = options.bc_weight
        self.action_l2 = options.action_l2

    def update(self, batch: Batch, counter: Any) -> dict[str, tf.Tensor]:
        """Minimise (y − Q(s, a))², y = r + γ (1 − d) Q_targ(s', π_targ(s')); maximise Q(s, π(s))."""
        action_t = batch.ask_next(self.pi_target)
        with self.minimize("q1") as step:
            q, q_t = map(flat_values, batch.ask_both(self.q1, batch.action, self.q1_target, action_t))
            target = td_target(batch.reward, batch.discount, q_t)
            loss_q = self.td_loss(q, target)
            step(batch.mean(loss_q))
        with self.minimize("pi") as step:
            action = batch.ask(self.pi, training=True)
            value = flat_values(batch.ask(self.q1, action))
            loss_pi = policy_loss(self.spec, value, action, batch, self.bc_weight, self.action_l2)
            step(batch.average(loss_pi))
        self.update_copies(counter)
        return {"loss_q": loss_q, "loss_pi": loss_pi, "q1": q, "td_error": tf.abs(target - q)}
