import numpy as np
import pytest
import tensorflow as tf

from tfdpg.losses import retrace

RNG = np.random.default_rng(0)


def slow(q, v, r, discount, c):
    """Munos et al. 2016 for one window, a step at a time, from the sum of corrected TD errors."""
    steps = len(q)
    targets = np.empty(steps)
    for t in range(steps):
        targets[t] = q[t]
        weight = 1.0
        for s in range(t, steps):
            targets[t] += weight * (r[s] + discount[s] * v[s] - q[s])
            weight *= discount[s] * c[s]
    return targets


def test_numbers_by_hand():
    q = [1.0, 2.0, 3.0]
    v = [4.0, 5.0, 6.0]
    r = [0.5, -1.0, 2.0]
    discount = [0.9, 0.5, 0.8]  # the last trace is of no step
    c = [0.5, 1.0, 7.0]
    third = 2 + 0.8 * 6  # 6.8
    second = -1 + 0.5 * (5 + third - 3)  # 3.4
    first = 0.5 + 0.9 * (4 + 0.5 * (second - 2))  # 4.73
    np.testing.assert_allclose(retrace(q, v, r, discount, c), [first, second, third], rtol=1e-6)
    assert first == pytest.approx(4.73)


@pytest.mark.parametrize("shape", [(1,), (2, 1), (3, 7), (2, 3, 16), (4, 50)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_sum_of_corrected_errors(shape, dtype):
    q, v, r = RNG.normal(size=(3, *shape)).astype(dtype)
    discount = (0.97 * RNG.integers(0, 2, shape)).astype(dtype)
    c = np.where(RNG.random(shape) < 0.2, 0, RNG.uniform(0, 1.5, shape)).astype(dtype)
    found = retrace(q, v, r, discount, c)
    flat = [x.reshape(-1, shape[-1]).astype(np.float64) for x in (q, v, r, discount, c)]
    expected = np.stack([slow(*window) for window in zip(*flat, strict=True)]).reshape(shape)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=1e-4 if dtype == np.float32 else 1e-10, atol=1e-5)


def test_nothing_flows_over_an_end():
    """Step 1 ends an episode, terminated in one window and cut in the other; what comes after is of no matter."""
    q = np.ones((2, 4))
    r = np.arange(8.0).reshape(2, 4)
    v = np.full((2, 4), 3.0)
    discount = np.array([[0.9, 0.0, 0.9, 0.9], [0.9, 0.9, 0.9, 0.9]])
    c = np.array([[1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0]])
    first = retrace(q, v, r, discount, c).numpy()
    for changed in (q, v, r):
        changed[:, 2:] += 100.0
    np.testing.assert_array_equal(retrace(q, v, r, discount, c).numpy()[:, :2], first[:, :2])
    np.testing.assert_allclose(first[:, 1], [1.0, 5 + 0.9 * 3])


def test_it_has_no_gradient_and_compiles():
    q = tf.Variable(RNG.normal(size=(2, 5)).astype(np.float32))
    others = [tf.constant(RNG.uniform(size=(2, 5)).astype(np.float32)) for _ in range(4)]
    with tf.GradientTape() as tape:
        targets = retrace(q, *others)
    assert tape.gradient(targets, q) is None
    compiled = tf.function(retrace, jit_compile=True)
    np.testing.assert_allclose(compiled(q, *others), targets, rtol=1e-5)


def test_shapes_that_differ_are_refused():
    x = np.ones((2, 3))
    with pytest.raises(ValueError, match="same shape"):
        retrace(x, x, x, x, np.ones((2, 4)))
