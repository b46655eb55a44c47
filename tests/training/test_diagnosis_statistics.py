"""The arithmetic of the diagnosis, against numbers computed by hand."""

import tracemalloc

import numpy as np
import pytest

from tfdpg.diagnosis import statistics


def test_discounted_returns():
    rewards = np.array([1.0, 2.0, 4.0])
    np.testing.assert_allclose(statistics.discounted_returns(rewards, 0.5), [3.0, 4.0, 4.0])
    np.testing.assert_allclose(statistics.discounted_returns(rewards, 0.5, 8.0), [4.0, 6.0, 8.0])


def test_overestimation_of_a_terminated_episode_is_the_mean_difference():
    values = np.array([4.0, 4.0, 7.0])  # the returns are 3, 4, 4
    assert statistics.overestimation(values, np.array([1.0, 2.0, 4.0]), 0.5, True) == pytest.approx(4 / 3)


@pytest.mark.parametrize("error", (0.0, 5.0, -3.0))
def test_a_constant_error_is_found_although_the_end_of_the_episode_is_not_known(error):
    gamma = 0.9
    rewards = np.ones(50)
    values = np.full(50, 1 / (1 - gamma)) + error  # the value of a reward of 1 forever
    assert statistics.overestimation(values, rewards, gamma, False) == pytest.approx(error)


def test_a_short_truncated_episode_says_nothing():
    assert statistics.overestimation(np.ones(10), np.ones(10), 0.99, False) is None


def test_dormant_units_are_far_below_the_mean_of_their_layer():
    activations = np.array([[1.0, 0.0, 0.01, 2.0], [1.0, 0.0, 0.01, -2.0]])  # mean sizes 1, 0, 0.01, 2: mean 0.7525
    assert statistics.dormant_share(activations) == 0.5  # 0 and 0.01 are at most 0.025 · 0.7525 = 0.0188
    assert statistics.dormant_share(np.zeros((3, 4))) == 1.0


@pytest.mark.parametrize(("singular", "rank"), (((1, 0, 0), 1), ((1, 1, 1), 3), ((98, 1, 1), 2), ((100, 0.5, 0.4), 1)))
def test_effective_rank_counts_the_singular_values_that_make_99_percent(singular, rank):
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((5, 5)))[0]
    assert statistics.effective_rank(rotation[:, :3] @ np.diag(singular)) == rank
    assert statistics.effective_rank(np.zeros((4, 2))) == 0


def test_correlation_time():
    square = np.tile(np.repeat([1.0, -1.0], 8), 20)
    assert statistics.correlation_time([square, square]) == 3  # the correlation at lag k is 1 − k / 4: above ½ until 2
    assert statistics.correlation_time([np.tile([1.0, -1.0], 20)]) == 1
    assert statistics.correlation_time([np.ones(7)]) == 0


def test_mean_interval():
    mean, error = statistics.mean_interval([1.0, 3.0, 5.0])
    assert (mean, error) == pytest.approx((3.0, 2 / np.sqrt(3)))
    assert statistics.mean_interval([2.0]) == (2.0, np.inf)


def test_standardized_columns():
    columns = statistics.standardized(np.array([[1.0, 7.0], [3.0, 7.0]]))
    np.testing.assert_allclose(columns, [[-1, 0], [1, 0]])


def test_unexplained_share():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3000, 2))
    noise = rng.standard_normal(3000)
    targets = np.stack([np.sin(x[:, 0]) * x[:, 1], noise, x[:, 0] + noise, np.ones(3000)], axis=1)
    share = statistics.unexplained_share(x, targets)
    assert share[0] < 0.01 and 0.9 < share[1] <= 1 and 0.45 < share[2] < 0.65 and np.isnan(share[3])
    x[2001, 0] = 1e6  # a fit that an extreme row misleads tells nothing
    assert statistics.unexplained_share(x, x[:, :1] ** 2).tolist() == [1.0]


def test_partial_slopes_are_those_of_least_squares():
    rng = np.random.default_rng(0)
    basis = np.concatenate([np.ones((500, 1)), rng.standard_normal((500, 2))], axis=1)
    columns = rng.standard_normal((500, 2)) + basis[:, 1:]
    targets = columns @ [[2.0], [-1.0]] + basis @ [[1.0], [3.0], [0.0]] + 0.1 * rng.standard_normal((500, 1))
    found = statistics.partial_slopes(basis, columns, targets)
    expected = np.linalg.lstsq(np.concatenate([columns, basis], axis=1), targets, rcond=None)[0][:2]
    np.testing.assert_allclose(found.values, expected, rtol=1e-4)
    np.testing.assert_allclose(found.errors, 0.1 / np.sqrt(500), rtol=0.2)


@pytest.mark.parametrize("bound", (0.1, 0.3, 0.7))
def test_clipping_is_found_at_its_bound(bound):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2000, 2))
    action = rng.uniform(-1, 1, (2000, 2))
    targets = np.stack([np.clip(action[:, 0], -bound, bound), action[:, 1]], axis=1) + np.sin(x)
    basis = statistics.smooth_basis(x)
    found = statistics.find_clipping(basis, action[:, 0], action[:, 1:], targets)
    assert found is not None and found.bound == bound
    assert found.inside == pytest.approx(1, rel=0.05) and abs(found.outside) < 0.05
    assert statistics.find_clipping(basis, action[:, 1], action[:, :1], targets) is None


def test_nearest():
    points = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    indices, distances = statistics.nearest(points, np.array([[0.0, 0.0], [3.0, 4.0]]), 1)
    assert indices.tolist() == [[0], [2]] and distances.tolist() == [[0.0], [3.0]]


@pytest.mark.parametrize("slope", (0.01, -0.01))
def test_a_local_slope_is_exact_although_the_target_is_not_smooth(slope):
    rng = np.random.default_rng(0)
    angle = rng.uniform(-np.pi, np.pi, 3000)
    action = rng.uniform(-1, 1, (3000, 1))
    size = action[:, 0] ** 2
    target = angle**2 + slope * size  # it has a kink at ±π
    found, ratio = statistics.local_slope(np.stack([np.cos(angle), np.sin(angle)], axis=1), action, size, target)
    assert found == pytest.approx(slope, rel=0.2) and abs(ratio) > 5 and np.sign(ratio) == np.sign(slope)


def test_local_slopes_of_many_features_need_little_memory():
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((3000, 40))
    action = rng.uniform(-1, 1, (3000, 1))
    size = action[:, 0] ** 2
    tracemalloc.start()
    found, _ = statistics.local_slope(inputs, action, size, inputs @ np.ones(40) + 0.5 * size)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == pytest.approx(0.5, rel=1e-3)
    assert peak < 3000 * statistics.local_rows(42) * 42 * 8  # the size of the functions of all neighbours
