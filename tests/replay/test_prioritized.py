"""Prioritised draws against their definition."""

import numpy as np
import pytest
from gymnasium import spaces

from tfdpg import Spec
from tfdpg.replay import Ring
from tfdpg.replay.prioritized import BLOCK, Prioritized
from tfdpg.replay.ring import NONE

SPEC = Spec(spaces.Box(-np.inf, np.inf, (1,)), spaces.Box(-1, 1, (1,)))


def filled(size, steps, length=7, lanes=2):
    ring, all_lanes = Ring(SPEC, size), np.arange(lanes)
    for step in range(steps):
        if step % length == 0:
            ring.begin(all_lanes, (np.zeros((lanes, 1)),))
        ring.add(all_lanes, np.zeros((lanes, 1)), np.zeros(lanes), np.zeros(lanes, bool), (np.zeros((lanes, 1)),))
    return ring


def sampler(ring, batch_size=64, **changes):
    return Prioritized(ring, 3, batch_size, **{"alpha": 0.6, "beta": 0.4, "beta_steps": None} | changes)


def drawable(ring):
    return np.flatnonzero(ring.successor[: ring.size] != NONE)


@pytest.mark.parametrize("size", [100, 3 * BLOCK + 17])
def test_rows_are_drawn_by_their_priorities_and_weighted(size):
    ring = filled(size, size)
    draws = sampler(ring, alpha=0.5, beta=0.8)
    rows = drawable(ring)
    draws.draw(0, 1)
    errors = np.random.default_rng(0).exponential(size=len(rows)) * (np.arange(len(rows)) % 3 > 0)
    draws.refresh(rows, errors)
    probability = (errors + 1e-6) ** 0.5 / ((errors + 1e-6) ** 0.5).sum()
    slots, weights = draws.draw(1, 2000)
    found = np.bincount(slots.ravel(), minlength=size)[rows] / slots.size
    assert set(np.unique(slots)) <= set(rows)
    np.testing.assert_allclose(found, probability, atol=6 * np.sqrt(probability.max() / slots.size))
    expected = (len(rows) * probability[np.searchsorted(rows, slots)]) ** -0.8
    np.testing.assert_allclose(weights, expected / expected.max(axis=1, keepdims=True), rtol=1e-3)


def test_a_minibatch_is_stratified():
    ring = filled(200, 90)
    rows = drawable(ring)
    slots, weights = sampler(ring, batch_size=len(rows)).draw(0, 5)  # all priorities are equal
    for minibatch in slots:
        np.testing.assert_array_equal(minibatch, rows)
    np.testing.assert_array_equal(weights, 1)


def test_new_rows_get_the_largest_priority_and_overwritten_ones_lose_theirs():
    ring = filled(50, 10, lanes=1)
    draws = sampler(ring, alpha=1.0)
    rows = drawable(ring)
    draws.draw(0, 1)
    draws.refresh(rows, np.where(rows == rows[3], 9.0, 1.0))
    ring.add(np.array([0]), np.zeros((1, 1)), np.zeros(1), np.zeros(1, bool), (np.zeros((1, 1)),))
    (new,) = set(drawable(ring)) - set(rows)
    found = np.bincount(draws.draw(1, 4000)[0].ravel(), minlength=50)
    assert found[new] / found[rows[3]] == pytest.approx(1, rel=0.05)
    assert found[rows[3]] / found[rows[4]] == pytest.approx(9, rel=0.1)
    for _ in range(12):  # the ring goes round
        ring.begin(np.array([0]), (np.zeros((1, 1)),))
        for _ in range(6):
            ring.add(np.array([0]), np.zeros((1, 1)), np.zeros(1), np.zeros(1, bool), (np.zeros((1, 1)),))
        slots, _ = draws.draw(2, 50)
        assert set(np.unique(slots)) <= set(drawable(ring))


def test_alpha_0_is_uniform_and_beta_goes_to_1():
    ring = filled(100, 40)
    draws = sampler(ring, alpha=0.0, beta=0.2, beta_steps=100)
    rows = drawable(ring)
    draws.draw(0, 1)
    draws.refresh(rows, np.arange(len(rows)))
    found = np.bincount(draws.draw(0, 1000)[0].ravel())[rows]
    assert found.std() / found.mean() < 0.05
    assert [draws.beta(update) for update in (0, 50, 100, 500)] == pytest.approx([0.2, 0.6, 1.0, 1.0])


def test_a_minibatch_depends_on_seed_and_counter_alone():
    ring = filled(100, 40)
    together = sampler(ring).draw(5, 4)[0]
    np.testing.assert_array_equal(together, [sampler(ring).draw(5 + i, 1)[0][0] for i in range(4)])
    assert not np.array_equal(together[0], together[1])


def test_an_empty_ring_says_so():
    ring = Ring(SPEC, 10)
    with pytest.raises(ValueError, match="no transition"):
        sampler(ring).draw(0, 1)
