import numpy as np
import pytest
import tensorflow as tf

from tfdpg import losses


def test_td_target_by_hand():
    target = losses.td_target(
        tf.constant([1.0, 2.0, 3.0]), tf.constant([0.9, 0.0, 0.81]), tf.constant([10.0, 10.0, -2.0])
    )
    np.testing.assert_allclose(target, [10.0, 2.0, 1.38], rtol=1e-6)


def test_td_target_stops_gradients():
    value = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        target = tf.reduce_sum(losses.td_target(tf.ones(2), tf.ones(2), value * 2.0))
    assert tape.gradient(target, value) is None


def test_td_loss_by_hand_has_no_half():
    loss = losses.td_loss(tf.constant([1.0, -1.0]), tf.constant([3.0, 2.0]))
    np.testing.assert_allclose(loss, [4.0, 9.0])


def test_td_loss_gradient_points_to_the_target():
    q = tf.Variable([1.0])
    with tf.GradientTape() as tape:
        loss = losses.td_loss(q, tf.constant([3.0]))
    np.testing.assert_allclose(tape.gradient(loss, q), [-4.0])


def test_huber_td_loss_by_hand_is_quadratic_below_1_and_linear_above():
    loss = losses.huber_td_loss(tf.constant([1.0, -1.0, 2.0]), tf.constant([1.5, 2.0, 1.0]))
    np.testing.assert_allclose(loss, [0.125, 2.5, 0.5])


def test_huber_td_loss_equals_keras(rng):
    q, target = rng.normal(0, 2, (2, 100))
    expected = [tf.keras.losses.huber(target[i : i + 1], q[i : i + 1]) for i in range(100)]
    np.testing.assert_allclose(losses.huber_td_loss(q, target), expected, rtol=1e-6)


def test_td7_policy_loss_by_hand():
    q = tf.Variable([[2.0, 4.0], [-1.0, -3.0]])
    action, data_action = tf.constant([[0.5, 0.0], [1.0, 1.0]]), tf.constant([[0.0, 0.0], [1.0, 0.0]])
    with tf.GradientTape() as tape:
        loss = losses.td7_policy_loss(q, action, data_action, 0.1)
    # mean |q| is 2.5; the mean squared distances are 0.125 and 0.5
    np.testing.assert_allclose(loss, [0.1 * 2.5 * 0.125 - 3, 0.1 * 2.5 * 0.5 + 2], rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(loss, q), np.full((2, 2), -0.5))  # none through mean |q|


def test_smooth_action_by_hand():
    action = tf.constant([[0.0, 0.9], [0.5, -1.9]])
    noise = tf.constant([[0.7, 0.05], [-0.2, -0.4]])
    smoothed = losses.smooth_action(action, noise, 0.5, tf.constant([-1.0, -2.0]), tf.constant([1.0, 1.0]))
    np.testing.assert_allclose(smoothed, [[0.5, 0.95], [0.3, -2.0]], rtol=1e-6)


def test_smooth_action_clips_noise_per_dimension():
    smoothed = losses.smooth_action(
        tf.zeros((1, 2)),
        tf.constant([[5.0, -5.0]]),
        tf.constant([0.5, 2.0]),
        tf.constant([-9.0, -9.0]),
        tf.constant([9.0, 9.0]),
    )
    np.testing.assert_allclose(smoothed, [[0.5, -2.0]])


def test_smoothness_loss_by_hand():
    action = tf.Variable([[0.5, 0.0], [1.0, -1.0]])
    next_action, near_action = tf.constant([[0.0, 0.0], [1.0, -0.5]]), tf.constant([[0.5, 0.2], [1.0, -1.0]])
    with tf.GradientTape() as tape:
        loss = losses.smoothness_loss(action, next_action, near_action)
    np.testing.assert_allclose(loss, [0.25 / 2 + 5 * 0.04 / 2, 0.25 / 2], rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(loss, action), [[0.5, -5 * 0.2], [0, -0.5]], rtol=1e-6)


def test_equal_actions_are_smooth_and_have_a_gradient_of_zero():
    action = tf.Variable([[0.3, -0.7]])
    with tf.GradientTape() as tape:
        loss = losses.smoothness_loss(action, action + 0.0, action + 0.0)
    assert float(loss[0]) == 0
    np.testing.assert_array_equal(tape.gradient(loss, action), [[0, 0]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_against_numpy_on_any_leading_shape(rng, dtype):
    shape = (3, 4, 5)
    r, d, v, q = (rng.normal(size=shape).astype(dtype) for _ in range(4))
    target = losses.td_target(r, d, v)
    assert target.dtype == dtype
    np.testing.assert_allclose(target, r + d * v, rtol=1e-6)
    np.testing.assert_allclose(losses.td_loss(q, target), (r + d * v - q) ** 2, rtol=1e-5)
    a = rng.normal(size=(*shape, 2)).astype(dtype)
    e = rng.normal(size=(*shape, 2)).astype(dtype)
    low = np.array([-1, -0.5], dtype)
    high = np.array([0.5, 1], dtype)
    smoothed = losses.smooth_action(a, e, 0.3, low, high)
    assert smoothed.dtype == dtype
    np.testing.assert_allclose(smoothed, np.minimum(np.maximum(a + np.clip(e, -0.3, 0.3), low), high), rtol=1e-6)
    near = (a + 0.1 * e).astype(dtype)
    loss = losses.smoothness_loss(a, e, near)
    assert loss.dtype == dtype
    distances = [np.linalg.norm(a - other, axis=-1) for other in (e, near)]
    np.testing.assert_allclose(loss, (distances[0] ** 2 + 5 * distances[1] ** 2) / 2, rtol=1e-5)


def test_shapes_that_would_broadcast_are_refused():
    column = tf.zeros((4, 1))
    row = tf.zeros(4)
    with pytest.raises(ValueError, match=r"q_tm1: \(4, 1\), target: \(4,\)"):
        losses.td_loss(column, row)
    with pytest.raises(ValueError, match="discount_t"):
        losses.td_target(row, column, row)
    with pytest.raises(ValueError, match="noise"):
        losses.smooth_action(tf.zeros((4, 2)), tf.zeros((1, 2)), 0.5, tf.zeros(2), tf.ones(2))
    with pytest.raises(ValueError, match="next_action"):
        losses.smoothness_loss(tf.zeros((4, 1)), tf.zeros((1, 1)), tf.zeros((4, 1)))


def test_bc_loss_by_hand_and_without_gradient_through_its_scale():
    q = tf.Variable([1.0, -3.0])
    action = tf.constant([[0.5, 0.0], [1.0, 1.0]])
    data = tf.constant([[0.0, 0.0], [1.0, -1.0]])
    with tf.GradientTape() as tape:
        loss = losses.bc_loss(q, action, data, 0.4)
    np.testing.assert_allclose(loss, [0.4 * 0.125 - 1 / 2, 0.4 * 2 + 3 / 2], rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(loss, q), [-0.5, -0.5])
    with pytest.raises(ValueError, match="same shape"):
        losses.bc_loss(q, action, data[:, :1], 0.4)
