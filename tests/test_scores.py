"""Scores, compared with numbers computed by hand and by SciPy."""

import numpy as np
import pytest
import scipy.stats

from tfdpg.plotting import scores


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end(rng):
    values = np.array([100.0, 2.0, 3.0, -50.0, 4.0, 1.0, 5.0, 6.0])
    assert scores.interquartile_mean(values) == (2 + 3 + 4 + 5) / 4
    assert scores.interquartile_mean(np.array([1.0, 2.0, 9.0])) == 4  # three quarters of a run are none
    for runs in range(1, 12):
        values = rng.normal(size=(runs, 3))
        expected = scipy.stats.trim_mean(values, 0.25, axis=0)  # as rliable has it
        np.testing.assert_allclose(scores.interquartile_mean(values), expected)


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_the_interval_of_a_mean_covers_it_as_often_as_it_says(seeds, rng):
    values = rng.normal(3.0, 2.0, (seeds, 1500))  # 1,500 configurations
    low, high = scores.mean_interval(values)
    assert 0.935 < np.mean((low < 3.0) & (high > 3.0)) < 0.965
    for end, expected in zip(
        (low, high),
        scipy.stats.t.interval(0.95, seeds - 1, values.mean(axis=0), scipy.stats.sem(values)),
        strict=True,
    ):
        np.testing.assert_allclose(end, expected)


@pytest.mark.parametrize("seeds", [3, 10])
def test_the_bootstrap_interval_covers_the_pooled_mean_with_few_seeds_too(seeds, rng):
    centres = np.linspace(0.6, 1.6, 5)
    spreads = np.linspace(0.3, 0.1, 5)
    drawn = [rng.normal(centre, spread, (20_000, 1)) for centre, spread in zip(centres, spreads, strict=True)]
    true = scores.interquartile_mean(np.concatenate(drawn))
    values = np.concatenate([rng.normal(*pair, (seeds, 1500)) for pair in zip(centres, spreads, strict=True)])
    tasks = np.repeat(range(5), seeds)
    low, high = scores.bootstrap_interval(values, tasks, scores.interquartile_mean, resamples=300)
    assert 0.9 < np.mean((low < true) & (high > true)) < 0.97
    np.testing.assert_array_equal(low, scores.bootstrap_interval(values, tasks, scores.interquartile_mean, 300)[0])


def test_the_bootstrap_draws_within_each_task():
    tasks = ["a", "b", "a", "b", "b"]
    alike = np.array([[0.0], [7.0], [0.0], [7.0], [7.0]])  # no seed differs from another of its task
    low, high = scores.bootstrap_interval(alike, tasks, scores.mean)
    assert low == high == 21 / 5
    seen = []
    values = np.arange(5.0)
    scores.bootstrap_interval(values, tasks, lambda drawn: seen.append(sorted(drawn)) or drawn.mean(), 500)
    assert seen.pop() == sorted(values)  # the statistic itself
    assert {sum(value in (0, 2) for value in drawn) for drawn in seen} == {2}
    assert len({tuple(drawn) for drawn in seen}) == 3 * 10  # two of two and three of three, with repetition


def test_a_score_is_the_mean_of_the_last_three_evaluations():
    x = np.arange(1.0, 101.0) * 10_000
    assert scores.score(x, x, 100_000) == 90_000  # of 80,000, 90,000 and 100,000
    assert scores.score(x, x, 309_999) == 290_000
    assert scores.score(x, x, 10_000) == 10_000
    assert scores.score(x, x, 1_000_000) == 990_000
    assert scores.score(x, x, 1_000_001) is None
    assert scores.score(np.array([200.0]), np.ones(1), 100) is None  # none was made until then


def test_what_is_0_and_1():
    assert scores.ranges_of(["Ant-v5", "Ant-v4"], {}) == dict.fromkeys(["Ant-v4", "Ant-v5"], (-70, 3942))
    assert scores.ranges_of(["Ant-v5"], {"Ant-v5": (0.0, 1.0)}) == {"Ant-v5": (0, 1)}
    assert scores.ranges_of(["dm_control/walker-walk-v0"], {}) == {}
    with pytest.raises(ValueError, match="--normalize .*/walker-walk-v0=LOW:HIGH"):
        scores.ranges_of(["dm_control/walker-walk-v0", "Ant-v5"], {})
    assert scores.parse_ranges(["Hopper-v5=-1.5:3e3"]) == {"Hopper-v5": (-1.5, 3000)}
