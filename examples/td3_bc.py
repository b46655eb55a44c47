"""TD3+BC whose weight of behaviour cloning is learned: an algorithm in a user's own file, for stored data.

TD3+BC (Fujimoto, Gu 2021) has a fixed weight. Here, the weight rises while the policy's actions are further from the
stored ones than a given distance, and falls while they are closer, as the temperature of SAC follows a target entropy.

docs/changing-a-loss.md explains this file; stored data are a data set, a table, or the directory of a saved agent.
"""

import dataclasses
from typing import Any

import tensorflow as tf

import tfdpg
from tfdpg.agents.options import TD3Options
from tfdpg.components import Component, adam, scalar
from tfdpg.networks import Batch, smallest
from tfdpg.options import takes_options
from tfdpg.ranges import Positive


class TD3BCOptions(TD3Options, without=("bc_weight", "action_l2")):
    """The options of TD3, and those of the weight."""

    distance: Positive = 0.1
    """mean squared difference of the policy's actions and the stored ones to which the weight leads, as fractions of
    the action scale; below the spread of the stored actions, the weight grows, and the policy only clones."""
    weight_lr: Positive = 1e-3
    """learning rate of the weight's Adam."""


class TD3BC(tfdpg.TD3):
    """TD3 whose policy stays at a given distance from stored actions, with a learned weight of behaviour cloning."""

    @takes_options(TD3BCOptions)
    def __init__(self, env: Any, options: TD3BCOptions):
        """Build the agent for an environment or a `Spec`; the options are keyword arguments."""
        super().__init__(env, options)
        self.log_weight = self.networks["log_weight"].trainable_variables[0]

    @staticmethod
    def declare(spec: tfdpg.Spec, options: TD3BCOptions) -> tfdpg.Declaration:
        """The components of TD3, and the logarithm of the weight with an optimizer of its own."""
        td3 = tfdpg.TD3.declare(spec, options)
        return dataclasses.replace(
            td3,
            components=[*td3.components, Component("log_weight", scalar(0.0))],
            optimizers={**td3.optimizers, "weight": adam(options, "weight", of=["log_weight"])},
            metrics=[*td3.metrics, tfdpg.Metric("weight")],
        )

    def update(self, batch: Batch, counter: Any) -> dict[str, tf.Tensor]:
        """The update of TD3; its metrics and the weight."""
        weight = tf.fill([self.batch_elements], tf.exp(self.log_weight.value))
        return super().update(batch, counter) | {"weight": weight}

    def update_policy(self, batch: Batch, counter: Any) -> tf.Tensor:
        """Take one step of the policy's optimizer, and one of the weight's; return the policy's loss, `[batch]`."""
        loss_pi = super().update_policy(batch, counter)
        with self.minimize("weight") as step:
            excess = self.distance(batch, batch.ask(self.pi)) - self.options.distance
            step(-batch.average(self.log_weight.value * excess))
        return loss_pi

    def policy_loss(self, batch: Batch) -> tf.Tensor:
        """Weight · mean((π(s) − a)²) − Q_1(s, π(s)) / mean|Q_1|, `[batch]`."""
        action = batch.ask(self.pi, training=True)
        value = smallest(batch.ask(self.policy_critics, action))
        scale = tf.stop_gradient(batch.average(tf.abs(value)))
        weight = tf.exp(self.log_weight.value)
        return weight * self.distance(batch, action) - value / scale

    def distance(self, batch: Batch, action: tf.Tensor) -> tf.Tensor:
        """The mean squared difference of actions `[batch, act_dim]` and the stored ones, `[batch]`."""
        return tf.reduce_mean(tf.square((action - batch.action) / self.spec.action_scale), axis=-1)
