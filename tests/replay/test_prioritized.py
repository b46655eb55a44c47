"""Prioritised draws against their definition."""

import numpy as np
import pytest
from gymnasium import spaces

from tfdpg import Spec
from tfdpg.replay import ReplayBuffer
from tfdpg.replay.buffer import NONE
from tfdpg.replay.samplers import BLOCK, PrioritizedSampler, lap_priority, make_sampler

SPEC = Spec(spaces.Box(-np.inf, np.inf, (1,)), spaces.Box(-1, 1, (1,)))


def filled(size, steps, length=7, num_envs=2):
    buffer = ReplayBuffer(SPEC, size)
    env_indices = np.arange(num_envs)
    for step in range(steps):
        if step % length == 0:
            buffer.begin(env_indices, (np.zeros((num_envs, 1)),))
        buffer.add(
            env_indices,
            np.zeros((num_envs, 1)),
            np.zeros(num_envs),
            np.zeros(num_envs, bool),
            (np.zeros((num_envs, 1)),),
        )
    return buffer


def sampler(buffer, batch_size=64, **changes):
    return PrioritizedSampler(buffer, 3, batch_size, **{"alpha": 0.6, "beta": 0.4, "beta_steps": None} | changes)


def with_successor(buffer):
    return np.flatnonzero(buffer.successor[: buffer.size] != NONE)


@pytest.mark.parametrize("size", [100, 3 * BLOCK + 17])
def test_rows_are_drawn_by_their_priorities_and_weighted(size):
    buffer = filled(size, size)
    draws = sampler(buffer, alpha=0.5, beta=0.8)
    rows = with_successor(buffer)
    draws.sample(0, 1)
    errors = np.random.default_rng(0).exponential(size=len(rows)) * (np.arange(len(rows)) % 3 > 0)
    draws.update_priorities(rows, errors)
    probability = (errors + 1e-6) ** 0.5 / ((errors + 1e-6) ** 0.5).sum()
    slots, weights = draws.sample(1, 2000)
    found = np.bincount(slots.ravel(), minlength=size)[rows] / slots.size
    assert set(np.unique(slots)) <= set(rows)
    np.testing.assert_allclose(found, probability, atol=6 * np.sqrt(probability.max() / slots.size))
    expected = (len(rows) * probability[np.searchsorted(rows, slots)]) ** -0.8
    np.testing.assert_allclose(weights, expected / expected.max(axis=1, keepdims=True), rtol=1e-3)


def test_a_minibatch_is_stratified():
    buffer = filled(200, 90)
    rows = with_successor(buffer)
    slots, weights = sampler(buffer, batch_size=len(rows)).sample(0, 5)  # all priorities are equal
    for minibatch in slots:
        np.testing.assert_array_equal(minibatch, rows)
    np.testing.assert_array_equal(weights, 1)


def test_new_rows_get_the_largest_priority_and_overwritten_ones_lose_theirs():
    buffer = filled(50, 10, num_envs=1)
    draws = sampler(buffer, alpha=1.0)
    rows = with_successor(buffer)
    draws.sample(0, 1)
    draws.update_priorities(rows, np.where(rows == rows[3], 9.0, 1.0))
    buffer.add(np.array([0]), np.zeros((1, 1)), np.zeros(1), np.zeros(1, bool), (np.zeros((1, 1)),))
    (new,) = set(with_successor(buffer)) - set(rows)
    found = np.bincount(draws.sample(1, 4000)[0].ravel(), minlength=50)
    assert found[new] / found[rows[3]] == pytest.approx(1, rel=0.05)
    assert found[rows[3]] / found[rows[4]] == pytest.approx(9, rel=0.1)
    for _ in range(12):  # the ring goes round
        buffer.begin(np.array([0]), (np.zeros((1, 1)),))
        for _ in range(6):
            buffer.add(np.array([0]), np.zeros((1, 1)), np.zeros(1), np.zeros(1, bool), (np.zeros((1, 1)),))
        slots, _ = draws.sample(2, 50)
        assert set(np.unique(slots)) <= set(with_successor(buffer))


def test_alpha_0_is_uniform_and_beta_goes_to_1():
    buffer = filled(100, 40)
    draws = sampler(buffer, alpha=0.0, beta=0.2, beta_steps=100)
    rows = with_successor(buffer)
    draws.sample(0, 1)
    draws.update_priorities(rows, np.arange(len(rows)))
    found = np.bincount(draws.sample(0, 1000)[0].ravel())[rows]
    assert found.std() / found.mean() < 0.05
    assert [draws.beta(update) for update in (0, 50, 100, 500)] == pytest.approx([0.2, 0.6, 1.0, 1.0])


def test_a_minibatch_depends_on_seed_and_counter_alone():
    buffer = filled(100, 40)
    together = sampler(buffer).sample(5, 4)[0]
    np.testing.assert_array_equal(together, [sampler(buffer).sample(5 + i, 1)[0][0] for i in range(4)])
    assert not np.array_equal(together[0], together[1])


def test_all_rows_of_a_buffer_that_was_cleared_are_new():
    buffer = filled(100, 40)
    draws = sampler(buffer)
    draws.sample(0, 1)
    draws.update_priorities(with_successor(buffer)[:5], np.full(5, 100.0))
    buffer.clear()
    other = filled(100, 40)
    buffer.restore(other.state(), [other.segment(0, other.added)])
    np.testing.assert_array_equal(draws.sample(1, 10)[0], sampler(buffer).sample(1, 10)[0])


def test_an_empty_ring_says_so():
    buffer = ReplayBuffer(SPEC, 10)
    with pytest.raises(ValueError, match="no transition"):
        sampler(buffer).sample(0, 1)


def lap_sampler(buffer, **changes):
    options = {"alpha": None, "beta": None, "beta_steps": None, "epochs_per_round": None}
    return make_sampler(
        buffer, seed=3, batch_size=64, replay="lap", max_minibatches_per_round=None, **options | changes
    )


def test_lap_does_not_tell_small_errors_apart_and_has_no_weights():
    np.testing.assert_allclose(lap_priority(np.array([-0.3, 0.0, 1.0, -32.0]), 0.4), [1, 1, 1, 4])
    buffer = filled(100, 40, num_envs=1)
    draws = lap_sampler(buffer)
    rows = with_successor(buffer)
    draws.sample(0, 1)
    draws.update_priorities(rows, np.where(rows % 2, 0.01, 32.0))
    slots, weights = draws.sample(1, 2000)
    assert (weights == 1).all()
    found = np.bincount(slots.ravel(), minlength=100)[rows]
    assert found[rows % 2 == 0].mean() / found[rows % 2 == 1].mean() == pytest.approx(4, rel=0.05)


def largest(draws):
    return draws.state()["largest_priority"]


def test_lap_computes_the_largest_priority_again_after_each_period():
    buffer = filled(100, 20, num_envs=1)
    draws = lap_sampler(buffer, alpha=1.0, max_priority_period=10)
    rows = with_successor(buffer)
    draws.sample(0, 1)
    draws.update_priorities(rows, np.full(len(rows), 9.0))
    draws.update_priorities(rows, np.full(len(rows), 2.0))
    draws.sample(9, 1)
    assert largest(draws) == 9
    other = lap_sampler(buffer, alpha=1.0, max_priority_period=10)
    other.restore(draws.state())
    for each in (draws, other):
        each.sample(10, 1)
        assert largest(each) == 2
        each.update_priorities(rows[:1], np.array([7.0]))
        each.update_priorities(rows[:1], np.array([2.0]))
        again = lap_sampler(buffer, alpha=1.0, max_priority_period=10)
        again.restore(each.state())
        again.sample(19, 1)
        assert largest(again) == 7
        again.sample(20, 1)
        assert largest(again) == 2


def test_lap_can_begin_late():
    """Updates may have been made before on other rows: on given minibatches, or with a uniform sampler."""
    draws = lap_sampler(filled(100, 20, num_envs=1))
    draws.sample(1000, 1)
    assert largest(draws) == 1
    draws.restore({})
    draws.sample(2000, 1)
    assert largest(draws) == 1
