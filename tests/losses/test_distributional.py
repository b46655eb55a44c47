"""Distributional losses against numbers worked by hand and against slow, obvious formulas."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats
from tensorflow_probability import distributions as tfd

from tfdpg import losses

ATOMS = np.array([-1.0, 0.0, 1.0, 2.0])


def slow_projection(z, p, atoms):
    """The formula of appendix B, a point at a time."""
    delta = atoms[1] - atoms[0]
    projected = np.zeros(len(atoms))
    for z_j, p_j in zip(z, p, strict=True):
        clipped = min(max(z_j, atoms[0]), atoms[-1])
        for i, z_i in enumerate(atoms):
            projected[i] += min(max(1 - abs(clipped - z_i) / delta, 0), 1) * p_j
    return projected


def test_projection_by_hand():
    projected = losses.project_categorical([[-3.0, 0.25, 1.0, 7.0]], [[0.1, 0.4, 0.2, 0.3]], ATOMS.astype(np.float32))
    np.testing.assert_allclose(projected, [[0.1, 0.3, 0.3, 0.3]], rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_projection_equals_the_formula_keeps_mass_and_inside_the_support_the_mean(dtype):
    rng = np.random.default_rng(0)
    atoms = np.linspace(-5, 3, 9)
    z = rng.normal(0, 4, (2, 6, 7))
    p = rng.dirichlet(np.ones(7), (2, 6))
    projected = losses.project_categorical(z.astype(dtype), p.astype(dtype), atoms.astype(dtype)).numpy()
    assert projected.dtype == dtype and projected.shape == (2, 6, 9)
    for index in np.ndindex(2, 6):
        np.testing.assert_allclose(projected[index], slow_projection(z[index], p[index], atoms), atol=1e-6)
    np.testing.assert_allclose(projected.sum(-1), 1, rtol=1e-5)
    inside = rng.uniform(-5, 3, (2, 6, 7))
    projected = losses.project_categorical(inside, p, atoms).numpy()
    np.testing.assert_allclose(projected @ atoms, (inside * p).sum(-1), rtol=1e-9)


def test_projection_onto_the_same_atoms_changes_nothing():
    p = np.array([[0.1, 0.2, 0.3, 0.4]])
    np.testing.assert_allclose(losses.project_categorical(ATOMS, p, ATOMS), p)


def test_categorical_loss_by_hand():
    """r = 1, discount 0.5: atoms go to [0.5, 1, 1.5, 2]; p uniform, so p' = [0, 1/8, 1/2, 3/8]."""
    atoms = ATOMS.astype(np.float32)
    logits = np.log(np.array([[0.1, 0.2, 0.3, 0.4]], np.float32))
    loss = losses.categorical_td_loss(logits, [1.0], [0.5], np.zeros((1, 4), np.float32), atoms)
    expected = -(0.125 * np.log(0.2) + 0.5 * np.log(0.3) + 0.375 * np.log(0.4))
    np.testing.assert_allclose(loss, [expected], rtol=1e-6)
    terminal = losses.categorical_td_loss(logits, [0.25], [0.0], np.zeros((1, 4), np.float32), atoms)
    np.testing.assert_allclose(terminal, [-(0.75 * np.log(0.2) + 0.25 * np.log(0.3))], rtol=1e-6)


def test_categorical_gradient_is_probabilities_minus_target_and_the_target_has_none():
    logits = tf.Variable([[0.3, -0.2, 0.1, 0.5]])
    logits_t = tf.Variable([[1.0, 0.0, -1.0, 0.5]])
    atoms = tf.constant(ATOMS, tf.float32)
    with tf.GradientTape() as tape:
        loss = losses.categorical_td_loss(logits, tf.constant([0.2]), tf.constant([0.9]), logits_t, atoms)
    gradient, target_gradient = tape.gradient(loss, [logits, logits_t])
    target = slow_projection(0.2 + 0.9 * ATOMS, tf.nn.softmax(logits_t)[0].numpy(), ATOMS)
    np.testing.assert_allclose(gradient, [tf.nn.softmax(logits)[0].numpy() - target], atol=1e-6)
    assert target_gradient is None


def test_bad_shapes_are_named():
    logits = tf.zeros((3, 4))
    with pytest.raises(ValueError, match=r"`logits_t` must have shape \[..., 5\]"):
        losses.categorical_td_loss(logits, tf.zeros(3), tf.zeros(3), logits, tf.zeros(5))
    with pytest.raises(ValueError, match="must have the same shape"):
        losses.categorical_td_loss(logits, tf.zeros(3), tf.zeros((3, 1)), logits, tf.zeros(4))
    with pytest.raises(ValueError, match="vector of two atoms"):
        losses.project_categorical([[1.0]], [[1.0]], [1.0])
    with pytest.raises(ValueError, match="last axis"):
        losses.project_categorical([[1.0]], [[0.5, 0.5]], [0.0, 1.0])
    with pytest.raises(ValueError, match=r"must have shape \[J, \*"):
        losses.mixture_td_loss(mixture([0.5, 0.5], [0.0, 1.0], [1.0, 1.0]), np.zeros((3, 2)))


def mixture(weights, means, stddevs):
    parts = (np.array([values], np.float64) for values in (weights, means, stddevs))
    weights, means, stddevs = parts
    return tfd.MixtureSameFamily(tfd.Categorical(probs=weights), tfd.Normal(means, stddevs))


def test_mixture_loss_by_hand_and_without_gradient_through_samples():
    samples = tf.Variable(np.array([[0.5], [-1.0], [3.0]]))
    with tf.GradientTape() as tape:
        loss = losses.mixture_td_loss(mixture([0.25, 0.75], [0.0, 2.0], [1.0, 0.5]), samples)
    density = 0.25 * stats.norm.pdf([0.5, -1, 3]) + 0.75 * stats.norm.pdf([0.5, -1, 3], 2, 0.5)
    np.testing.assert_allclose(loss, [-np.log(density).mean()], rtol=1e-9)
    assert tape.gradient(loss, samples) is None


def test_mixture_samples_have_the_mixture_s_distribution():
    rng = np.random.default_rng(1)
    weights = [0.2, 0.5, 0.3]
    means = [-4.0, 0.0, 3.0]
    stddevs = [0.5, 1.0, 0.1]
    arrays = (np.array([values]) for values in (weights, means, stddevs))
    samples = losses.mixture_sample(*arrays, rng.random((20_000, 1)), rng.normal(size=(20_000, 1))).numpy()[:, 0]
    cdf = lambda z: sum(w * stats.norm.cdf(z, m, s) for w, m, s in zip(weights, means, stddevs, strict=True))  # noqa: E731
    assert stats.kstest(samples, cdf).pvalue > 0.01
    one = losses.mixture_sample([[0.2, 0.8]], [[1.0, 2.0]], [[0.5, 3.0]], [[0.1], [0.3]], [[1.0], [-1.0]])
    np.testing.assert_allclose(one, [[1.5], [-1.0]])


def test_each_sample_is_of_one_component_on_every_boundary():
    rng = np.random.default_rng(3)
    weights = rng.dirichlet(np.ones(5), 500).astype(np.float32)
    edges = np.cumsum(weights, axis=1, dtype=np.float32)[:, :-1]
    beside = [edges, np.nextafter(edges, np.float32(0)), np.nextafter(edges, np.float32(1))]
    uniform = np.concatenate(beside, axis=1).T  # [J, 500]
    means = np.full((500, 5), -1000, np.float32)
    zeros = np.zeros((500, 5), np.float32)
    samples = losses.mixture_sample(weights, means, zeros, uniform, np.zeros_like(uniform))
    np.testing.assert_array_equal(samples, np.full(uniform.shape, -1000, np.float32))
