"""Losses of distributional critics: categorical on atoms, or a mixture of Gaussians.

Source: Barth-Maron et al. 2018, "Distributed Distributional Deterministic Policy Gradients", appendices A and B.
"""

from typing import Any

import tensorflow as tf
from tensorflow.types.experimental import TensorLike

from tfdpg.losses.td import same_shape


def project_categorical(atoms_from: TensorLike, probs: TensorLike, atoms_to: TensorLike) -> tf.Tensor:
    """Project a distribution onto a fixed support: `p'_i = Σ_j h_i(clip(z_j, Vmin, Vmax)) p_j`.

    h_i(z) = clip(1 − |z − z_i| / Δ, 0, 1) is the hat function of atom i. The probability of a point between two atoms
    is divided between them so that the mean is preserved; that of a point outside the support moves to the edge atom.

    Args:
        atoms_from: atoms of the distribution, [..., m].
        probs: probabilities of these atoms, [..., m].
        atoms_to: the support, increasing and equally spaced, [l].

    Returns:
        The probabilities of `atoms_to`, [..., l].

    Raises:
        ValueError: `atoms_to` is not a vector with at least two atoms, or the last axes of `atoms_from` and `probs`
            differ.

    Source: Barth-Maron et al. 2018, appendix B; Bellemare et al. 2017, eq. 7.
    """
    probs = tf.convert_to_tensor(probs)
    atoms_from, atoms_to = (tf.convert_to_tensor(values, probs.dtype) for values in (atoms_from, atoms_to))
    if atoms_to.shape.rank != 1 or atoms_to.shape[0] < 2:
        raise ValueError(f"`atoms_to` must be a vector of two atoms or more. Received: shape {atoms_to.shape}")
    if atoms_from.shape[-1] != probs.shape[-1]:
        raise ValueError(
            f"`atoms_from` and `probs` must agree in their last axis. Received: {atoms_from.shape}, {probs.shape}"
        )
    count = atoms_to.shape[0]
    v_min = atoms_to[0]
    v_max = atoms_to[-1]
    position = (tf.clip_by_value(atoms_from, v_min, v_max) - v_min) * ((count - 1) / (v_max - v_min))
    position, probs = position + tf.zeros_like(probs), probs + tf.zeros_like(position)
    lower = tf.minimum(tf.floor(position), count - 2)
    upper_part = probs * (position - lower)
    projected = _scatter(lower, probs - upper_part, count) + _scatter(lower + 1, upper_part, count)
    return tf.reshape(projected, tf.concat([tf.shape(probs)[:-1], [count]], axis=0))


def _scatter(atom: tf.Tensor, probs: tf.Tensor, count: int) -> tf.Tensor:
    """Add up probabilities `[..., m]` by their target atoms: [n, count], with all leading axes flattened to n."""
    flat = tf.reshape(tf.cast(atom, tf.int32), [-1, atom.shape[-1]])
    rows = tf.broadcast_to(tf.range(tf.shape(flat)[0])[:, None], tf.shape(flat))
    zeros = tf.zeros([tf.shape(flat)[0], count], probs.dtype)
    return tf.tensor_scatter_nd_add(zeros, tf.stack([rows, flat], axis=-1), tf.reshape(probs, tf.shape(flat)))


def categorical_td_loss(
    logits_tm1: TensorLike, r_t: TensorLike, discount_t: TensorLike, logits_t: TensorLike, atoms: TensorLike
) -> tf.Tensor:
    """Return the cross-entropy `-Σ_i p'_i log p_i` with the projected Bellman target, through which no gradient flows.

    Args:
        logits_tm1: the critic's logits for the actions taken, [..., l].
        r_t: rewards, [...]; for n steps, their discounted sum.
        discount_t: discounts gamma^m (1 - terminated), [...].
        logits_t: the target critic's logits for the next observation, [..., l].
        atoms: the support of both distributions, [l].

    Returns:
        The losses, [...].

    Raises:
        ValueError: The shapes do not match.

    Source: Barth-Maron et al. 2018, appendix A, "Categorical".
    """
    logits_tm1, logits_t = same_shape(logits_tm1=logits_tm1, logits_t=logits_t)
    return cross_entropy(logits_tm1, categorical_target(r_t, discount_t, logits_t, atoms))


def cross_entropy(logits_tm1: TensorLike, target: TensorLike) -> tf.Tensor:
    """Return the cross-entropy `-Σ_i p'_i log p_i`.

    Args:
        logits_tm1: the critic's logits for the actions taken, [..., l]; p is their softmax.
        target: p', the probabilities of the target, [..., l]; see `categorical_target`.

    Returns:
        The losses, [...].

    Raises:
        ValueError: The shapes differ.

    Source: Barth-Maron et al. 2018, appendix A, "Categorical".
    """
    logits_tm1, target = same_shape(logits_tm1=logits_tm1, target=target)
    return -tf.reduce_sum(target * tf.nn.log_softmax(logits_tm1), axis=-1)


def categorical_target(r_t: TensorLike, discount_t: TensorLike, logits_t: TensorLike, atoms: TensorLike) -> tf.Tensor:
    """Return the projected Bellman target of a categorical critic: the distribution of r + discount · z on the atoms.

    Args:
        r_t: rewards, [...]; for n steps, their discounted sum.
        discount_t: discounts gamma^m (1 - terminated), [...].
        logits_t: the target critic's logits for the next observation, [..., l].
        atoms: the support of both distributions, increasing and equally spaced, [l].

    Returns:
        The probabilities of the atoms, [..., l], without gradient.

    Raises:
        ValueError: The shapes do not match.

    Source: Barth-Maron et al. 2018, appendix A, "Categorical"; `project_categorical` is the projection.
    """
    logits_t = tf.convert_to_tensor(logits_t)
    r_t, discount_t, atoms = (tf.convert_to_tensor(values, logits_t.dtype) for values in (r_t, discount_t, atoms))
    r_t, discount_t = same_shape(r_t=r_t, discount_t=discount_t)
    if not logits_t.shape.is_compatible_with(r_t.shape + atoms.shape[:1]):
        raise ValueError(
            f"`logits_t` must have shape [..., {atoms.shape[0]}] for `r_t` of shape [...]. "
            f"Received: {logits_t.shape} and {r_t.shape}"
        )
    moved = r_t[..., None] + discount_t[..., None] * atoms
    return tf.stop_gradient(project_categorical(moved, tf.nn.softmax(logits_t), atoms))


def mixture_td_loss(distribution_tm1: Any, target_samples: TensorLike) -> tf.Tensor:
    """Return the sampled cross-entropy `-mean_j log p(z_j)`, without gradient through the samples.

    Args:
        distribution_tm1: the critic's distribution for the actions taken, from TF-Probability, of batch shape [...].
        target_samples: samples of the Bellman target, r + discount * z, [J, ...].

    Returns:
        The losses, [...].

    Raises:
        ValueError: The shape of the samples is not [J, ...].

    Source: Barth-Maron et al. 2018, appendix A, "Mixture of Gaussians".
    """
    samples = tf.convert_to_tensor(target_samples, distribution_tm1.dtype)
    batch = distribution_tm1.batch_shape
    if samples.shape.rank != batch.rank + 1 or not samples.shape[1:].is_compatible_with(batch):
        raise ValueError(f"`target_samples` must have shape [J, *{batch}]. Received: {samples.shape}")
    return -tf.reduce_mean(distribution_tm1.log_prob(tf.stop_gradient(samples)), axis=0)


def mixture_sample(
    weights: TensorLike, means: TensorLike, stddevs: TensorLike, uniform: TensorLike, normal: TensorLike
) -> tf.Tensor:
    """Sample mixtures of Gaussians, given uniform and normal random numbers.

    Args:
        weights: weights of the components, [..., K], with sum 1.
        means: means of the components, [..., K].
        stddevs: standard deviations of the components, [..., K].
        uniform: numbers in [0, 1) that select the components, [J, ...].
        normal: standard normal numbers, [J, ...].

    Returns:
        The samples, [J, ...].
    """
    weights, means, stddevs = same_shape(weights=weights, means=means, stddevs=stddevs)
    passed = tf.expand_dims(uniform, -1) >= tf.cumsum(weights, axis=-1)[..., :-1]
    index = tf.reduce_sum(tf.cast(passed, tf.int32), axis=-1)
    chosen = tf.one_hot(index, means.shape[-1], dtype=means.dtype)
    mean, stddev = (tf.reduce_sum(chosen * values, axis=-1) for values in (means, stddevs))
    return mean + stddev * normal
