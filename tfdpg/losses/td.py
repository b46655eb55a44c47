"""Temporal-difference targets and losses of deterministic policy gradient algorithms.

Sources: Silver et al. 2014 and Lillicrap et al. 2016 (DDPG); Fujimoto et al. 2018 (TD3).
"""

from collections.abc import Callable

import tensorflow as tf
from tensorflow.types.experimental import TensorLike


def td_target(r_t: TensorLike, discount_t: TensorLike, value_t: TensorLike) -> tf.Tensor:
    """Return the Bellman target `y = r + discount * v`, through which no gradient flows.

    Args:
        r_t: rewards, [...]; for n steps, their discounted sum.
        discount_t: discounts gamma^m (1 - terminated), [...]; a truncated episode bootstraps.
        value_t: the target networks' value of the next observation, [...].

    Returns:
        The targets, [...].

    Raises:
        ValueError: The shapes differ.

    Source: Fujimoto et al. 2018, eq. 10, with `value_t` = min_i Q_i'(s', a').
    """
    r_t, discount_t, value_t = same_shape(r_t=r_t, discount_t=discount_t, value_t=value_t)
    return tf.stop_gradient(r_t + discount_t * value_t)


def td_loss(q_tm1: TensorLike, target: TensorLike) -> tf.Tensor:
    """Return the squared errors `(target - q)^2`, without a factor of one half.

    Args:
        q_tm1: the critic's values of the actions taken, [...].
        target: the targets, [...].

    Returns:
        The losses, [...].

    Raises:
        ValueError: The shapes differ (`[B, 1] - [B]` would broadcast to `[B, B]`).

    Source: Spinning Up, TD3, L(phi_i, D).
    """
    q_tm1, target = same_shape(q_tm1=q_tm1, target=target)
    return tf.square(target - q_tm1)


def huber_td_loss(q_tm1: TensorLike, target: TensorLike) -> tf.Tensor:
    """Return the Huber loss of the errors δ = target - q: δ²/2 where |δ| < 1, otherwise |δ| - 1/2.

    Args:
        q_tm1: the critic's values of the actions taken, [...].
        target: the targets, [...].

    Returns:
        The losses, [...].

    Raises:
        ValueError: The shapes differ.

    Source: Fujimoto, Meger, Precup 2020, "An Equivalence between Loss Functions and Non-Uniform Sampling in
    Experience Replay", section 4, whose priorities go with this loss.
    """
    q_tm1, target = same_shape(q_tm1=q_tm1, target=target)
    error = tf.abs(target - q_tm1)
    return tf.where(error < 1, 0.5 * tf.square(error), error - 0.5)


def bc_loss(
    q_t: TensorLike,
    action: TensorLike,
    data_action: TensorLike,
    bc_weight: float,
    average: Callable[[tf.Tensor], tf.Tensor] = tf.reduce_mean,
) -> tf.Tensor:
    """Return the policy loss with behaviour cloning: `-q / mean |q| + w * mean_dim (a - b)^2`.

    No gradient flows through mean |q|. This is TD3+BC's loss, `-lambda q + (a - b)^2` with lambda = alpha / mean |q|,
    divided by alpha. So w = 1 / alpha, and TD3+BC's alpha of 2.5 is a weight of 0.4.

    Args:
        q_t: the critic's values of the policy's actions, [B].
        action: the policy's actions, rescaled to [-1, 1], [B, act_dim].
        data_action: the actions in the data, rescaled to [-1, 1], [B, act_dim].
        bc_weight: w, at least 0.
        average: computes the mean over [B], without padding.

    Returns:
        The losses, [B].

    Raises:
        ValueError: The shapes of the actions differ.

    Source: Fujimoto, Gu 2021, "A Minimalist Approach to Offline Reinforcement Learning", eq. 3 and 5.
    """
    q_t = tf.convert_to_tensor(q_t)
    action, data_action = same_shape(action=action, data_action=data_action)
    size = tf.stop_gradient(average(tf.abs(q_t)))
    return bc_weight * tf.reduce_mean(tf.square(action - data_action), axis=-1) - tf.math.divide_no_nan(q_t, size)


def td7_policy_loss(
    q_t: TensorLike,
    action: TensorLike,
    data_action: TensorLike,
    bc_weight: float,
    average: Callable[[tf.Tensor], tf.Tensor] = tf.reduce_mean,
) -> tf.Tensor:
    """Return TD7's policy loss with behaviour cloning: `-mean_i q_i + w * mean |q| * mean_dim (a - b)^2`.

    mean |q| is the mean over the minibatch and the critics, through which no gradient flows.

    Args:
        q_t: the critics' values of the policy's actions, [B, critics].
        action: the policy's actions, rescaled to [-1, 1], [B, act_dim].
        data_action: the actions in the data, rescaled to [-1, 1], [B, act_dim].
        bc_weight: w, at least 0; the paper's lambda is 0.1 for offline training and 0 otherwise.
        average: computes the mean over [B], without padding.

    Returns:
        The losses, [B].

    Raises:
        ValueError: The shapes of the actions differ.

    Source: Fujimoto et al. 2023, "For SALE", section 5.
    """
    q_t = tf.convert_to_tensor(q_t)
    action, data_action = same_shape(action=action, data_action=data_action)
    size = tf.stop_gradient(average(tf.reduce_mean(tf.abs(q_t), axis=-1)))
    distance = tf.reduce_mean(tf.square(action - data_action), axis=-1)
    return bc_weight * size * distance - tf.reduce_mean(q_t, axis=-1)


def smooth_action(
    action: TensorLike, noise: TensorLike, noise_clip: TensorLike, low: TensorLike, high: TensorLike
) -> tf.Tensor:
    """Smooth the target policy: `clip(a + clip(noise, -c, c), low, high)`.

    Args:
        action: the target policy's actions, [..., act_dim].
        noise: independent noise for each action and dimension, [..., act_dim], in the environment's units.
        noise_clip: largest absolute noise, a scalar or [act_dim], in the environment's units, at least 0.
        low: lower bounds of the actions, [act_dim].
        high: upper bounds of the actions, [act_dim].

    Returns:
        Actions inside the box, [..., act_dim].

    Raises:
        ValueError: The shapes of `action` and `noise` differ (one noise vector for the whole batch is not smoothing).

    Source: Fujimoto et al. 2018, sec. 5.3 and eq. 14.
    """
    action, noise = same_shape(action=action, noise=noise)
    noise_clip, low, high = (tf.convert_to_tensor(bound, action.dtype) for bound in (noise_clip, low, high))
    return tf.clip_by_value(action + tf.clip_by_value(noise, -noise_clip, noise_clip), low, high)


def smoothness_loss(action: TensorLike, next_action: TensorLike, near_action: TensorLike) -> tf.Tensor:
    """Return how much a policy's actions change in time and with noise, `mean_dim (a - a')^2 + 5 mean_dim (a - b)^2`.

    The gradient flows through all three actions.

    Args:
        action: the policy's actions a = π(s), rescaled to [-1, 1], [..., act_dim].
        next_action: a' = π(s'), at the next observations, rescaled likewise, [..., act_dim].
        near_action: b = π(s + noise), rescaled likewise, [..., act_dim].

    Returns:
        The losses, [...].

    Raises:
        ValueError: The shapes differ.

    Source: Mysore, Mabsout, Mancuso, Saenko 2021, "Regularizing Action Policies for Smooth Control with Reinforcement
    Learning" (CAPS): the temporal and the spatial term, which have a weight each there. Their distance is Euclidean.
    Here it is squared, so that the loss has a gradient where the actions are equal, and a mean over the dimensions, so
    that a weight means the same for any number of them. The squares and the ratio of the weights, 5, are those of Kwak,
    Hwang 2026, "Enhancing Control Policy Smoothness by Aligning Actions with Predictions from Preceding States", in
    whose program CAPS is compared with other methods.
    """
    action, next_action, near_action = same_shape(action=action, next_action=next_action, near_action=near_action)
    temporal = tf.reduce_mean(tf.square(action - next_action), axis=-1)
    spatial = tf.reduce_mean(tf.square(action - near_action), axis=-1)
    return temporal + 5 * spatial


def clip_action_gradient(gradient: TensorLike, limit: float, action_scale: TensorLike) -> tf.Tensor:
    """Clip the norm of each gradient with respect to an action, measured in units of the action scale.

    Args:
        gradient: ∇_a Q, [..., act_dim], in the environment's units.
        limit: largest norm of action_scale · ∇_a Q, above 0.
        action_scale: half the width of the action box, [act_dim].

    Returns:
        The gradients, [..., act_dim], in the environment's units. Those with a norm of at most `limit` are unchanged.

    Source: Acme's D4PG, which clips them to a norm of 1.
    """
    gradient = tf.convert_to_tensor(gradient)
    norm = tf.norm(gradient * tf.convert_to_tensor(action_scale, gradient.dtype), axis=-1, keepdims=True)
    return gradient * (limit / tf.maximum(norm, limit))


def same_shape(**tensors: TensorLike) -> list[tf.Tensor]:
    """Return the arguments as tensors; raises `ValueError` if their shapes differ."""
    values = [tf.convert_to_tensor(value) for value in tensors.values()]
    for value in values[1:]:
        if value.shape.rank != values[0].shape.rank or not value.shape.is_compatible_with(values[0].shape):
            shapes = ", ".join(f"{name}: {v.shape}" for name, v in zip(tensors, values, strict=True))
            raise ValueError(f"These must have the same shape. Received: {shapes}")
    return values
