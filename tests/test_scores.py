"""Scores that can be compared, against numbers computed by hand and by others."""

import numpy as np
import pytest
import scipy.stats

from tfdpg import scores


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end(rng):
    values = np.array([100.0, 2.0, 3.0, -50.0, 4.0, 1.0, 5.0, 6.0])
    assert scores.interquartile_mean(values) == (2 + 3 + 4 + 5) / 4
    assert scores.interquartile_mean(np.array([1.0, 2.0, 9.0])) == 4  # three quarters of a run are none
    for runs in range(1, 12):
        values = rng.normal(size=(runs, 3))
        expected = scipy.stats.trim_mean(values, 0.25, axis=0)  # as rliable has it
        np.testing.assert_allclose(scores.interquartile_mean(values), expected)


def test_the_interval_covers_the_mean_about_as_often_as_it_says(rng):
    values = rng.normal(3.0, 2.0, (20, 2000))  # as if of 2000 configurations with 20 seeds each
    low, high = scores.interval(values, [0] * 20, scores.mean)
    assert 0.9 < np.mean((low < 3.0) & (high > 3.0)) < 0.96
    np.testing.assert_array_equal(low, scores.interval(values, [0] * 20, scores.mean)[0])


def test_the_bootstrap_draws_within_each_task():
    tasks = ["a", "b", "a", "b", "b"]
    alike = np.array([[0.0], [7.0], [0.0], [7.0], [7.0]])  # no seed differs from another of its task
    low, high = scores.interval(alike, tasks, scores.mean)
    assert low == high == 21 / 5
    seen = []
    values = np.arange(5.0)
    scores.interval(values, tasks, lambda drawn: seen.append(sorted(drawn)) or drawn.mean(), resamples=500)
    assert {sum(value in (0, 2) for value in drawn) for drawn in seen} == {2}
    assert len({tuple(drawn) for drawn in seen}) == 3 * 10  # two of two and three of three, with repetition


def test_a_score_is_the_mean_of_the_last_tenth():
    x = np.arange(1.0, 101.0) * 10_000
    assert scores.score(x, x, 100_000) == 100_000  # that at 90,000 is not in it
    assert scores.score(x, x, 300_000) == np.mean([280_000, 290_000, 300_000])
    assert scores.score(x, x, 1_000_000) == 955_000
    assert scores.score(x, x, 1_000_001) is None
    assert scores.score(np.array([10.0, 200.0]), np.ones(2), 100) is None  # none was made there


def test_what_is_0_and_1():
    assert scores.ranges_of(["Ant-v5", "Ant-v4"], {}) == dict.fromkeys(["Ant-v4", "Ant-v5"], (-70, 3942))
    assert scores.ranges_of(["Ant-v5"], {"Ant-v5": (0.0, 1.0)}) == {"Ant-v5": (0, 1)}
    assert scores.ranges_of(["dm_control/walker-walk-v0"], {}) == {}
    with pytest.raises(ValueError, match="--normalize dm_control/walker-walk-v0=LOW:HIGH"):
        scores.ranges_of(["dm_control/walker-walk-v0", "Ant-v5"], {})
    assert scores.parse_ranges(["Hopper-v5=-1.5:3e3"]) == {"Hopper-v5": (-1.5, 3000)}
