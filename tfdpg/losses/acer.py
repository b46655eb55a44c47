"""ACER's policy gradient with respect to the statistics of the policy's distribution, and its trust region.

All directions are directions of ascent, and no gradient flows through them.

Source: Wang et al. 2017, "Sample Efficient Actor-Critic with Experience Replay" (ACER).
"""

import tensorflow as tf
from tensorflow.types.experimental import TensorLike

from tfdpg.losses.td import same_shape

MIN_PROBABILITY = 1e-8
"""Lower limit of probabilities in denominators and logarithms; a softmax can be 0."""


def acer_gradient_categorical(
    probs: TensorLike,
    behaviour_probs: TensorLike,
    action: TensorLike,
    q: TensorLike,
    target: TensorLike,
    v: TensorLike,
    c: float,
) -> tf.Tensor:
    """Return the truncated policy gradient with bias correction over all actions, for probabilities (equation 9).

    min(c, ρ(a)) (target − V) ∇ log f(a) + Σ_a' f(a') [1 − c / ρ(a')]₊ (Q(a') − V) ∇ log f(a'), with ρ = f / μ.

    Args:
        probs: f, the policy's probabilities, `[..., A]`.
        behaviour_probs: μ, the behaviour policy's probabilities, `[..., A]`.
        action: the action taken, integers `[...]`.
        q: Q(s, ·), `[..., A]`.
        target: the return estimate for the action taken, Q^ret, `[...]`.
        v: V(s), `[...]`.
        c: upper limit of importance weights, above 0; `math.inf` for plain importance sampling.

    Returns:
        The direction for `probs`, `[..., A]`.

    Raises:
        ValueError: The shapes do not match.

    Source: Wang et al. 2017, equation 9.
    """
    probs, behaviour_probs, q = same_shape(probs=probs, behaviour_probs=behaviour_probs, q=q)
    action, target, v, _ = same_shape(action=action, target=target, v=v, one_of_q=q[..., 0])
    limit = tf.cast(c, probs.dtype)
    taken = tf.one_hot(tf.cast(action, tf.int32), probs.shape[-1], dtype=probs.dtype)
    # min(c, ρ) ∇ log f = min(c / f, 1 / μ): finite where f is 0, since μ of a sampled action is not 0
    weight = tf.where(taken > 0, tf.minimum(limit / probs, 1 / behaviour_probs), 0)
    # f [1 − c / ρ]₊ ∇ log f = [1 − c / ρ]₊
    excess = tf.nn.relu(probs - tf.where(tf.math.is_inf(limit), limit, limit * behaviour_probs))
    correction = tf.math.divide_no_nan(excess, probs)
    return tf.stop_gradient(weight * (target - v)[..., None] + correction * (q - v[..., None]))


def acer_gradient_gaussian(
    loc: TensorLike,
    scale: TensorLike,
    rho: TensorLike,
    action: TensorLike,
    target: TensorLike,
    v: TensorLike,
    rho_prime: TensorLike,
    action_prime: TensorLike,
    q_prime: TensorLike,
    c: float,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the truncated policy gradient with bias correction from one sample, for a Gaussian (equations 15 and 16).

    min(c, ρ) (target − V) ∇ log f(a) + [1 − c / ρ']₊ (Q(a') − V) ∇ log f(a'), with a' sampled from f.

    Args:
        loc: means of f, `[..., act_dim]`.
        scale: standard deviations of f, `[..., act_dim]`.
        rho: f(a) / μ(a) of the action taken, `[...]`.
        action: the action taken, as sampled, `[..., act_dim]`.
        target: the return estimate for the action taken, Q^opc, `[...]`.
        v: V(s), `[...]`.
        rho_prime: f(a') / μ(a'), `[...]`.
        action_prime: a', `[..., act_dim]`.
        q_prime: Q(s, a'), `[...]`.
        c: upper limit of importance weights, above 0; `math.inf` for plain importance sampling.

    Returns:
        The directions for `loc` and `scale`, `[..., act_dim]` each.

    Raises:
        ValueError: The shapes do not match.

    Source: Wang et al. 2017, equations 15 and 16.
    """
    loc, scale, action, action_prime = same_shape(loc=loc, scale=scale, action=action, action_prime=action_prime)
    rho, target, v, rho_prime, q_prime, _ = same_shape(
        rho=rho, target=target, v=v, rho_prime=rho_prime, q_prime=q_prime, one_of_loc=loc[..., 0]
    )
    limit = tf.cast(c, loc.dtype)
    weight = (tf.minimum(limit, rho) * (target - v))[..., None]
    correction = (tf.nn.relu(1 - limit / rho_prime) * (q_prime - v))[..., None]
    away = (action - loc) / scale
    away_prime = (action_prime - loc) / scale
    on_loc = (weight * away + correction * away_prime) / scale
    on_scale = (weight * (tf.square(away) - 1) + correction * (tf.square(away_prime) - 1)) / scale
    return tf.stop_gradient(on_loc), tf.stop_gradient(on_scale)


def acer_v_target(rho: TensorLike, target: TensorLike, q: TensorLike, v: TensorLike) -> tf.Tensor:
    """Return the target of a separate value network: min(1, ρ) (target − Q(s, a)) + V(s) (equation 14).

    Args:
        rho: importance weight of the action taken, `[...]`.
        target: Q^ret of the action taken, `[...]`.
        q: Q(s, a), `[...]`.
        v: V(s), `[...]`.

    Returns:
        The target, `[...]`, without gradient.

    Raises:
        ValueError: The shapes differ.

    Source: Wang et al. 2017, equation 14.
    """
    rho, target, q, v = same_shape(rho=rho, target=target, q=q, v=v)
    return tf.stop_gradient(tf.minimum(tf.ones_like(rho), rho) * (target - q) + v)


def trust_region(g: TensorLike, k: TensorLike, delta: float) -> tf.Tensor:
    """Return the direction closest to g along which the divergence grows by at most delta (equations 11 and 12).

    g − max(0, (k · g − δ) / |k|²) k; g itself where k = 0.

    Args:
        g: gradient with respect to the statistics, `[..., n]`.
        k: gradient of KL[average ‖ policy] with respect to the statistics, `[..., n]`.
        delta: δ, at least 0; `math.inf` for no trust region.

    Returns:
        The direction, `[..., n]`, without gradient.

    Raises:
        ValueError: The shapes differ.

    Source: Wang et al. 2017, equations 11 and 12.
    """
    g, k = same_shape(g=g, k=k)
    excess = tf.reduce_sum(k * g, axis=-1, keepdims=True) - tf.cast(delta, g.dtype)
    square = tf.reduce_sum(tf.square(k), axis=-1, keepdims=True)
    return tf.stop_gradient(g - tf.math.divide_no_nan(tf.nn.relu(excess), square) * k)


def kl_gradient_categorical(average: TensorLike, probs: TensorLike) -> tf.Tensor:
    """Return ∇_f KL[average ‖ f] = −average / f for the probabilities f of a categorical distribution.

    Args:
        average: probabilities of the average policy, `[..., A]`.
        probs: f, the policy's probabilities, `[..., A]`. Values below 1e-8 count as 1e-8.

    Returns:
        The gradient, `[..., A]`.

    Raises:
        ValueError: The shapes differ.

    Source: Wang et al. 2017, section 3.3: k in equation 11 is this gradient.
    """
    average, probs = same_shape(average=average, probs=probs)
    return tf.stop_gradient(-average / tf.maximum(probs, MIN_PROBABILITY))


def kl_gradient_gaussian(
    average_loc: TensorLike, average_scale: TensorLike, loc: TensorLike, scale: TensorLike
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return ∇ KL[average ‖ f] with respect to the means m and the standard deviations s of a diagonal Gaussian f.

    The gradients are (m − m̄) / s² and 1 / s − (s̄² + (m − m̄)²) / s³.

    Args:
        average_loc: m̄, the means of the average policy, `[..., act_dim]`.
        average_scale: s̄, its standard deviations, above 0, `[..., act_dim]`.
        loc: m, the means of f, `[..., act_dim]`.
        scale: s, its standard deviations, above 0, `[..., act_dim]`.

    Returns:
        The gradients with respect to `loc` and `scale`, `[..., act_dim]` each.

    Raises:
        ValueError: The shapes differ.

    Source: Wang et al. 2017, section 3.3: k in equation 11 is this gradient.
    """
    average_loc, average_scale, loc, scale = same_shape(
        average_loc=average_loc, average_scale=average_scale, loc=loc, scale=scale
    )
    apart = loc - average_loc
    on_scale = (1 - (tf.square(average_scale) + tf.square(apart)) / tf.square(scale)) / scale
    return tf.stop_gradient(apart / tf.square(scale)), tf.stop_gradient(on_scale)


def entropy_gradient_categorical(probs: tf.Tensor) -> tf.Tensor:
    """Return the gradient of the entropy −Σ f log f of a categorical distribution, −(log f + 1).

    Args:
        probs: f, the policy's probabilities, `[..., A]`. Values below 1e-8 count as 1e-8.

    Returns:
        The gradient with respect to `probs`, `[..., A]`.
    """
    return tf.stop_gradient(-tf.math.log(tf.maximum(probs, MIN_PROBABILITY)) - 1)


def entropy_gradient_gaussian(scale: tf.Tensor) -> tf.Tensor:
    """Return the gradient of the entropy of a diagonal Gaussian with respect to its standard deviations s, 1 / s.

    Args:
        scale: s, above 0, `[..., act_dim]`.

    Returns:
        The gradient with respect to `scale`, `[..., act_dim]`. The gradient with respect to the means is 0.
    """
    return tf.stop_gradient(1 / scale)
