"""Quantiles and conditional values at risk (CVaR) of the return distributions of critics.

The quantile at level u is the smallest z with F(z) ≥ u. CVaR at level u is the mean of the worst fraction u of
outcomes: 1/u ∫_0^u F⁻¹(v) dv (Rockafellar, Uryasev 2000). Levels are clipped to [1e-6, 1 − 1e-6].
"""

import math

import tensorflow as tf
from tensorflow.types.experimental import TensorLike

SMALLEST_LEVEL = 1e-6
BISECTIONS = 40


def categorical_quantiles(atoms: TensorLike, probs: TensorLike, levels: TensorLike) -> tf.Tensor:
    """Return quantiles of categorical distributions: the smallest atom z with F(z) ≥ u for each level u.

    Args:
        atoms: the support, increasing, [l].
        probs: probabilities of the atoms, [..., l].
        levels: levels for each distribution, [..., L], or for all distributions, [L]. They are clipped to
            [1e-6, 1 − 1e-6].

    Returns:
        The quantiles, [..., L].
    """
    atoms, probs, levels = _tensors(atoms, probs, levels)
    below = tf.expand_dims(tf.cumsum(probs, axis=-1), -2) < tf.expand_dims(levels, -1)
    index = tf.minimum(tf.reduce_sum(tf.cast(below, tf.int32), axis=-1), tf.shape(atoms)[0] - 1)
    return tf.gather(atoms, index)


def categorical_cvar(atoms: TensorLike, probs: TensorLike, levels: TensorLike) -> tf.Tensor:
    """Return conditional values at risk of categorical distributions: the mean of the worst fraction u of outcomes.

    For level u, this is 1/u ∫_0^u F⁻¹(v) dv.

    Args:
        atoms: the support, increasing, [l].
        probs: probabilities of the atoms, [..., l].
        levels: levels for each distribution, [..., L], or for all distributions, [L]. They are clipped to
            [1e-6, 1 − 1e-6].

    Returns:
        The conditional values at risk, [..., L].

    Source: Rockafellar, Uryasev 2000, "Optimization of Conditional Value-at-Risk".
    """
    atoms, probs, levels = _tensors(atoms, probs, levels)
    before = tf.expand_dims(tf.cumsum(probs, axis=-1, exclusive=True), -2)
    in_tail = tf.minimum(tf.maximum(tf.expand_dims(levels, -1) - before, 0), tf.expand_dims(probs, -2))
    return tf.reduce_sum(in_tail * atoms, axis=-1) / tf.reduce_sum(in_tail, axis=-1)


def mixture_quantiles(weights: TensorLike, means: TensorLike, stddevs: TensorLike, levels: TensorLike) -> tf.Tensor:
    """Return quantiles of mixtures of Gaussians, by bisection between the quantiles of the components.

    Args:
        weights: weights of the components, [..., K], with sum 1.
        means: means of the components, [..., K].
        stddevs: standard deviations of the components, above 0, [..., K].
        levels: levels for each distribution, [..., L], or for all distributions, [L]. They are clipped to
            [1e-6, 1 − 1e-6].

    Returns:
        The quantiles, [..., L].
    """
    weights, means, stddevs, levels = _tensors(weights, means, stddevs, levels)
    weights, means, stddevs = (tf.expand_dims(values, -2) for values in (weights, means, stddevs))
    each = means + stddevs * tf.math.ndtri(tf.expand_dims(levels, -1))
    low = tf.reduce_min(each, axis=-1)
    high = tf.reduce_max(each, axis=-1)

    def halve(low: tf.Tensor, high: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        middle = (low + high) / 2
        cdf = tf.reduce_sum(weights * _normal_cdf((tf.expand_dims(middle, -1) - means) / stddevs), axis=-1)
        return tf.where(cdf < levels, middle, low), tf.where(cdf < levels, high, middle)

    low, high = tf.while_loop(lambda *_: True, halve, (low, high), maximum_iterations=BISECTIONS)
    return (low + high) / 2


def mixture_cvar(weights: TensorLike, means: TensorLike, stddevs: TensorLike, levels: TensorLike) -> tf.Tensor:
    """Return conditional values at risk of mixtures of Gaussians: the mean of the worst fraction of outcomes.

    They are `Σ_k w_k (μ_k Φ(x_k) − σ_k φ(x_k)) / Σ_k w_k Φ(x_k)`, where x_k = (q − μ_k) / σ_k and q is the quantile
    that `mixture_quantiles` returns.

    Args:
        weights: w, the weights of the components, [..., K], with sum 1.
        means: μ, the means of the components, [..., K].
        stddevs: σ, the standard deviations of the components, above 0, [..., K].
        levels: levels for each distribution, [..., L], or for all distributions, [L]. They are clipped to
            [1e-6, 1 − 1e-6].

    Returns:
        The conditional values at risk, [..., L].

    Source: Rockafellar, Uryasev 2000, "Optimization of Conditional Value-at-Risk", for the definition.
    """
    weights, means, stddevs, levels = _tensors(weights, means, stddevs, levels)
    quantile = tf.expand_dims(mixture_quantiles(weights, means, stddevs, levels), -1)
    weights, means, stddevs = (tf.expand_dims(values, -2) for values in (weights, means, stddevs))
    x = (quantile - means) / stddevs
    density = tf.exp(-tf.square(x) / 2) / math.sqrt(2 * math.pi)
    tail = tf.reduce_sum(weights * (means * _normal_cdf(x) - stddevs * density), axis=-1)
    return tail / tf.reduce_sum(weights * _normal_cdf(x), axis=-1)


def _normal_cdf(x: tf.Tensor) -> tf.Tensor:
    return tf.math.erfc(-x / math.sqrt(2)) / 2


def _tensors(*values: TensorLike) -> list[tf.Tensor]:
    first, *others = values
    first = tf.convert_to_tensor(first)
    *rest, levels = (first, *(tf.convert_to_tensor(value, first.dtype) for value in others))
    return [*rest, tf.clip_by_value(levels, SMALLEST_LEVEL, 1 - SMALLEST_LEVEL)]
