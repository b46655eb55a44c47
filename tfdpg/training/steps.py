"""The optimizer steps of the deterministic actor-critics, inside the compiled call."""

from collections.abc import Callable, Mapping

import keras
import tensorflow as tf

from tfdpg.losses import bc_loss, td_loss
from tfdpg.networks import Transitions, flat_values
from tfdpg.spec import Spec
from tfdpg.training.updates import minimize, polyak_average


def critic_step(
    critic: keras.Model, optimizer: keras.optimizers.Optimizer, batch: Transitions, target: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """One step down mean w (y − Q(s, a))²; returns each element's loss, without its weight w, and value."""

    def loss() -> tuple[tf.Tensor, tuple[tf.Tensor, tf.Tensor]]:
        q = flat_values(critic([batch.observation, batch.action], training=True))
        losses = td_loss(q, target)
        return tf.reduce_mean(batch.weight * losses), (losses, q)

    return minimize(loss, critic, optimizer)


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
