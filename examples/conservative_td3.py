"""TD3 with a conservative critic loss: an algorithm of tfdpg with another loss, in a user's own file.

docs/changing-a-loss.md explains this file. To run it:

tfdpg train examples/conservative_td3.py:ConservativeTD3 --env Pendulum-v1
"""

from typing import Any

import tensorflow as tf

import tfdpg
from tfdpg.agents.options import TD3Options
from tfdpg.networks import Batch
from tfdpg.options import takes_options
from tfdpg.ranges import NonNegative


class ConservativeTD3Options(TD3Options):
    """The options of TD3, and the weight of the regulariser."""

    conservatism: NonNegative = 0.1
    """weight of mean(Q(s, pi(s)) - Q(s, a)) in the loss of each critic; 0 is TD3."""


class ConservativeTD3(tfdpg.TD3):
    """TD3 whose critics keep the values of the policy's actions low, relative to those of the stored actions.

    Source: Kumar et al. 2020, "Conservative Q-Learning for Offline Reinforcement Learning", equation 2 with μ = π.
    """

    @takes_options(ConservativeTD3Options)
    def __init__(self, env: Any, options: ConservativeTD3Options):
        """Build the agent for an environment or a `Spec`; the options are keyword arguments."""
        super().__init__(env, options)

    def critic_loss(self, batch: Batch, values: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        """(y − Q_i(s, a))² + conservatism · (Q_i(s, π(s)) − Q_i(s, a)), `[n, batch]`."""
        gap = batch.ask(self.critics, batch.ask(self.pi)) - values
        loss = super().critic_loss(batch, values, target)
        return loss + self.options.conservatism * gap
