"""The optimizer steps of the deterministic actor-critics, inside the compiled call."""

from collections.abc import Callable, Mapping

import keras
import numpy as np
import tensorflow as tf

from tfdpg.losses import bc_loss, clip_action_gradient, td_loss
from tfdpg.networks import Transitions, flat_values
from tfdpg.spec import Spec
from tfdpg.training.updates import minimize, polyak_average


def critic_step(
    critic: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    batch: Transitions,
    loss: Callable[[tf.Tensor], tf.Tensor],
) -> tuple[tf.Tensor, tf.Tensor]:
    """One step down mean w · loss(critic(s, a)); returns each element's loss, without its weight w, and output."""

    def of_critic() -> tuple[tf.Tensor, tuple[tf.Tensor, tf.Tensor]]:
        output = critic([batch.observation, batch.action], training=True)
        losses = loss(output)
        return tf.reduce_mean(batch.weight * losses), (losses, output)

    return minimize(of_critic, critic, optimizer)


def value_step(
    critic: keras.Model, optimizer: keras.optimizers.Optimizer, batch: Transitions, target: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """One step down mean w (y − Q(s, a))²; returns each element's loss, without its weight w, and value."""
    losses, output = critic_step(critic, optimizer, batch, lambda output: td_loss(flat_values(output), target))
    return losses, flat_values(output)


def policy_step(
    pi: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    batch: Transitions,
    loss: Callable[[tf.Tensor], tf.Tensor],
) -> tf.Tensor:
    """One step down mean loss(π(s)); returns each element's loss."""

    def of_policy() -> tuple[tf.Tensor, tf.Tensor]:
        losses = loss(pi(batch.observation, training=True))
        return tf.reduce_mean(losses), losses

    return minimize(of_policy, pi, optimizer)


def climb(
    value: Callable[[tf.Tensor], tf.Tensor], action: tf.Tensor, limit: float | None, half_range: np.ndarray
) -> tf.Tensor:
    """−Q(s, a), `[batch]`, whose gradient by the action may be clipped.

    Args:
        value: from actions to their values `[batch]`.
        action: π(s), `[batch, act_dim]`.
        limit: the largest norm of each sample's ∇_a Q, with a in half-ranges; None does not clip.
        half_range: half the width of the action box, `[act_dim]`.
    """
    if limit is None:
        return -value(action)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        fixed = tf.stop_gradient(action)
        tape.watch(fixed)
        q = value(fixed)
    gradient = clip_action_gradient(tape.gradient(q, fixed), limit, half_range)
    rise = tf.reduce_sum(tf.stop_gradient(gradient) * (action - fixed), axis=-1)  # 0, with the clipped gradient
    return -(tf.stop_gradient(q) + rise)


def policy_loss(spec: Spec, q: tf.Tensor, action: tf.Tensor, data_action: tf.Tensor, bc_weight: float) -> tf.Tensor:
    """−Q(s, π(s)), with behaviour cloning if it has a weight, `[batch]`."""
    if bc_weight == 0:
        return -q
    action, data_action = ((a - spec.center) / spec.half_range for a in (action, data_action))
    return bc_loss(q, action, data_action, bc_weight)


def target_step(targets: Mapping[str, keras.Model], networks: Mapping[str, keras.Model], polyak: float) -> None:
    """Polyak averaging of each target network with its online network."""
    for name, target in targets.items():
        polyak_average(target, networks[name], polyak)
