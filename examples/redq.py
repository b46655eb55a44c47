"""Randomized ensembled double Q-learning (REDQ) on top of TD3: an algorithm in a user's own file.

Source: Chen et al. 2021, "Randomized Ensembled Double Q-Learning: Learning Fast Without a Model", algorithm 1. The
paper changes SAC; this file changes TD3 in the same way.

docs/changing-a-loss.md explains this file. To run it:

tfdpg train examples/redq.py:REDQ --env Pendulum-v1
"""

from typing import Annotated, Any

import tensorflow as tf

import tfdpg
from tfdpg.agents.options import TD3Options
from tfdpg.components import policy_loss
from tfdpg.networks import Batch, Critics
from tfdpg.options import Structural, takes_options
from tfdpg.ranges import Count


class REDQOptions(TD3Options, without=("policy_gradient",)):
    """The options of REDQ; the numbers of critics and of updates are the paper's."""

    critics = 10
    """number of critics, of which `subset` random ones make the target; the policy maximises the mean of all."""
    subset: Annotated[Count, Structural] = 2
    """number of critics, drawn in each update, of whose values the smallest is the target."""
    start_steps = 5000
    update_after = 5000
    update_every = 1
    gradient_steps = 20
    policy_delay = 20
    target_update_every = 1

    def check(self) -> None:
        """Reject a subset that is larger than the whole."""
        if self.subset > self.critics:
            raise self.conflict("`subset` must not be larger than `critics`.", "subset", "critics")


class REDQ(tfdpg.TD3):
    """TD3 with many critics and many updates in each step; a random subset of the critics makes the target."""

    @takes_options(REDQOptions)
    def __init__(self, env: Any, options: REDQOptions):
        """Build the agent for an environment or a `Spec`; the options are keyword arguments."""
        super().__init__(env, options)

    def next_critics(self, counter: Any) -> Critics:
        """`subset` different target critics, drawn from (seed, counter)."""
        key = tf.stack([tf.constant(self.seed, tf.int64), -counter])
        uniform = tf.random.stateless_uniform([self.options.critics], key, alg="philox")
        return self.target_critics[tf.argsort(uniform)[: self.options.subset]]

    def policy_loss(self, batch: Batch) -> tf.Tensor:
        """−mean_i Q_i(s, π(s)), with the penalties among the options, `[batch]`."""
        action = batch.ask(self.pi, training=True)
        value = tf.reduce_mean(batch.ask(self.critics, action), axis=0)
        return policy_loss(self.spec, value, action, batch, self.options.bc_weight, self.options.action_l2)
