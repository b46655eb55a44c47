import math

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_probability import distributions as tfd

from tfdpg import losses

RNG = np.random.default_rng(0)


def probabilities(*shape):
    return tf.nn.softmax(tf.constant(RNG.normal(size=shape))).numpy()


def test_categorical_numbers_by_hand():
    probs = [0.5, 0.3, 0.2]
    behaviour = [0.1, 0.6, 0.3]
    q = [1.0, 2.0, -1.0]
    # rho = 5, 0.5, 2/3; action 0 is truncated at 2, and corrected by 1 - 2/5
    found = losses.acer_gradient_categorical(probs, behaviour, 0, q, 4.0, 0.5, 2.0)
    np.testing.assert_allclose(found, [2 / 0.5 * 3.5 + 0.6 * 0.5, 0, 0], rtol=1e-6)
    found = losses.acer_gradient_categorical(probs, behaviour, 1, q, 4.0, 0.5, 2.0)
    np.testing.assert_allclose(found, [0.6 * 0.5, 0.5 / 0.3 * 3.5, 0], rtol=1e-6)
    plain = losses.acer_gradient_categorical(probs, behaviour, 0, q, 4.0, 0.5, math.inf)
    np.testing.assert_allclose(plain, [5 / 0.5 * 3.5, 0, 0], rtol=1e-6)


@pytest.mark.parametrize("c", [0.5, 2.0, 10.0, math.inf])
def test_the_categorical_gradient_is_that_of_log_probabilities(c):
    probs = probabilities(4, 5, 3)
    behaviour = probabilities(4, 5, 3)
    q = RNG.normal(size=(4, 5, 3))
    target = RNG.normal(size=(4, 5))
    v = RNG.normal(size=(4, 5))
    action = RNG.integers(0, 3, (4, 5))
    rho = probs / behaviour
    with tf.GradientTape() as tape:
        f = tf.constant(probs)
        tape.watch(f)
        log = tf.math.log(f)
        taken = np.take_along_axis(rho, action[..., None], -1)[..., 0]
        first = np.minimum(c, taken) * (target - v) * tf.gather(log, action, batch_dims=2)
        weight = probs * np.maximum(0, 1 - c / rho) * (q - v[..., None])
        surrogate = tf.reduce_sum(first) + tf.reduce_sum(weight * log)
    found = losses.acer_gradient_categorical(probs, behaviour, action, q, target, v, c)
    np.testing.assert_allclose(found, tape.gradient(surrogate, f), rtol=1e-9, atol=1e-12)


def test_the_categorical_gradient_is_finite_where_probabilities_vanish():
    probs = np.array([[0.0, 1.0]], np.float32)
    behaviour = np.array([[0.5, 0.5]], np.float32)
    for c in (1.0, math.inf):
        for action in (0, 1):
            g = losses.acer_gradient_categorical(
                probs, behaviour, [action], np.ones((1, 2), np.float32), [2.0], [0.0], c
            )
            k = losses.kl_gradient_categorical(behaviour, probs)
            assert np.isfinite(losses.trust_region(g, k, 1.0)).all()
    certain = np.array([[0.0, 1.0]], np.float32)
    g = losses.acer_gradient_categorical(behaviour, certain, [1], np.ones((1, 2), np.float32), [2.0], [0.0], math.inf)
    np.testing.assert_allclose(g, [[0.0, 2.0]])


def test_gaussian_numbers_by_hand():
    on_loc, on_scale = losses.acer_gradient_gaussian(
        [1.0], [2.0], 8.0, [3.0], 4.0, 1.0, 10.0, [-1.0], 2.0, 5.0
    )  # min(5, 8) (4 - 1) = 15; (1 - 5/10) (2 - 1) = 0.5
    np.testing.assert_allclose(on_loc, [15 * 2 / 4 + 0.5 * -2 / 4])
    np.testing.assert_allclose(on_scale, [15 * (1 - 1) / 2 + 0.5 * (1 - 1) / 2], atol=1e-12)
    _, on_scale = losses.acer_gradient_gaussian([0.0], [1.0], 0.5, [3.0], 4.0, 1.0, 1.0, [0.0], 2.0, 5.0)
    np.testing.assert_allclose(on_scale, [0.5 * 3 * (9 - 1)])


@pytest.mark.parametrize("c", [0.5, 5.0, math.inf])
def test_the_gaussian_gradient_is_that_of_log_densities(c):
    shape = (4, 5)
    dims = (4, 5, 3)
    loc, action, action_prime = RNG.normal(size=(3, *dims))
    scale = RNG.uniform(0.5, 2, dims)
    target, v, q = RNG.normal(size=(3, *shape))
    rho, rho_prime = np.exp(RNG.normal(size=(2, *shape)))
    with tf.GradientTape() as tape:
        f = [tf.constant(loc), tf.constant(scale)]
        tape.watch(f)
        density = tfd.MultivariateNormalDiag(*f)
        surrogate = tf.reduce_sum(np.minimum(c, rho) * (target - v) * density.log_prob(action))
        correction = np.maximum(0, 1 - c / rho_prime) * (q - v)
        surrogate += tf.reduce_sum(correction * density.log_prob(action_prime))
    arguments = loc, scale, rho, action, target, v, rho_prime, action_prime, q, c
    for found, expected in zip(losses.acer_gradient_gaussian(*arguments), tape.gradient(surrogate, f), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_value_targets_by_hand():
    found = losses.acer_v_target([0.5, 3.0], [4.0, 4.0], [1.0, 1.0], [2.0, 2.0])
    np.testing.assert_allclose(found, [0.5 * 3 + 2, 3 + 2])


def test_the_trust_region_by_hand():
    g = [[3.0, 4.0], [3.0, 4.0], [-3.0, -4.0], [3.0, 4.0]]
    k = [[1.0, 1.0], [0.1, 0.1], [1.0, 1.0], [0.0, 0.0]]
    found = losses.trust_region(g, k, 1.0)
    np.testing.assert_allclose(found, [[3 - 3, 4 - 3], [3, 4], [-3, -4], [3, 4]], atol=1e-6)
    np.testing.assert_array_equal(losses.trust_region(g, k, math.inf), g)


@pytest.mark.parametrize("delta", [0.0, 0.3, 2.0])
def test_the_trust_region_is_the_closest_direction_that_is_allowed(delta):
    from scipy.optimize import minimize

    for _ in range(5):
        g, k = RNG.normal(size=(2, 4))
        allowed = {"type": "ineq", "fun": lambda z, k=k: delta - k @ z}
        closest = minimize(lambda z, g=g: ((g - z) ** 2).sum(), np.zeros(4), constraints=allowed, tol=1e-12)
        np.testing.assert_allclose(losses.trust_region(g, k, delta), closest.x, atol=1e-5)


def test_divergences_and_entropies_have_these_gradients():
    average = probabilities(6, 4)
    probs = probabilities(6, 4)
    with tf.GradientTape(persistent=True) as tape:
        f = tf.constant(probs)
        tape.watch(f)
        divergence = tf.reduce_sum(average * (np.log(average) - tf.math.log(f)))
        entropy = -tf.reduce_sum(f * tf.math.log(f))
    np.testing.assert_allclose(losses.kl_gradient_categorical(average, probs), tape.gradient(divergence, f))
    np.testing.assert_allclose(losses.entropy_gradient_categorical(probs), tape.gradient(entropy, f))
    loc, average_loc = RNG.normal(size=(2, 6, 2))
    scale, average_scale = RNG.uniform(0.5, 2, (2, 6, 2))
    with tf.GradientTape(persistent=True) as tape:
        f = [tf.constant(loc), tf.constant(scale)]
        tape.watch(f)
        density = tfd.MultivariateNormalDiag(*f)
        divergence = tfd.MultivariateNormalDiag(average_loc, average_scale).kl_divergence(density)
        entropy = density.entropy()
    found = losses.kl_gradient_gaussian(average_loc, average_scale, loc, scale)
    for ours, theirs in zip(found, tape.gradient(divergence, f), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(losses.entropy_gradient_gaussian(scale), tape.gradient(entropy, f)[1])


def test_truncation_with_correction_has_less_bias_than_none_and_less_variance_than_plain_weights():
    """What makes ACER: on one state with a behaviour far from the policy, and critics that are off by a little."""
    probs = np.array([0.7, 0.2, 0.1])
    behaviour = np.array([0.02, 0.38, 0.6])
    returns = np.array([3.0, 1.0, -1.0])
    samples = 200_000
    q = returns + np.array([0.1, -0.1, 0.05])
    v = probs @ q
    action = RNG.choice(3, samples, p=behaviour)
    target = returns[action] + RNG.normal(size=samples)

    def directions(c, mu):
        many = [np.broadcast_to(x, (samples, 3)) for x in (probs, mu, q)]
        g = losses.acer_gradient_categorical(many[0], many[1], action, many[2], target, np.full(samples, v), c).numpy()
        return g - g.mean(axis=1, keepdims=True)  # the part along the simplex

    exact = returns - v
    exact -= exact.mean()
    acer = directions(10.0, behaviour)
    plain = directions(math.inf, behaviour)
    naive = directions(math.inf, probs)
    bias = {name: np.linalg.norm(g.mean(axis=0) - exact) for name, g in (("acer", acer), ("naive", naive))}
    spread = {name: g.var(axis=0).sum() for name, g in (("acer", acer), ("plain", plain))}
    assert bias["acer"] < 0.2 * bias["naive"]
    assert spread["acer"] < 0.5 * spread["plain"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_types_are_kept_and_no_gradient_flows(dtype):
    f = tf.constant(probabilities(2, 3).astype(dtype))
    x = tf.constant(RNG.uniform(0.5, 1, 2).astype(dtype))
    with tf.GradientTape() as tape:
        tape.watch([f, x])
        found = [
            losses.acer_gradient_categorical(f, f, [0, 1], f, x, x, 10.0),
            *losses.acer_gradient_gaussian(f, f, x, f, x, x, x, f, x, 5.0),
            losses.acer_v_target(x, x, x, x),
            losses.trust_region(f, f, 0.1),
            losses.kl_gradient_categorical(f, f),
            *losses.kl_gradient_gaussian(f, f, f, f),
            losses.entropy_gradient_categorical(f),
            losses.entropy_gradient_gaussian(f),
        ]
    assert {value.dtype for value in found} == {tf.as_dtype(dtype)}
    assert tape.gradient(found, [f, x]) == [None, None]


def test_shapes_that_differ_are_refused():
    f = np.ones((2, 3))
    x = np.ones(2)
    for call in (
        lambda: losses.acer_gradient_categorical(f, f, [0, 1], f, x[:, None], x, 1.0),
        lambda: losses.acer_gradient_categorical(f, f[:, :2], [0, 1], f, x, x, 1.0),
        lambda: losses.acer_gradient_gaussian(f, f, x, f, x, x, x[:, None], f, x, 1.0),
        lambda: losses.acer_v_target(x, x, x, x[:, None]),
        lambda: losses.trust_region(f, f[0], 1.0),
    ):
        with pytest.raises(ValueError, match="same shape"):
            call()
