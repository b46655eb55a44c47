"""The rate limiter, simulated with a learner and workers of various speeds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdpg.distributed.rates import RateLimiter, proportional_updates, scheduled_rate, scheduled_updates
from tfdpg.training.environment.schedule import Schedule


def schedule(**changes):
    return Schedule(**{"start_steps": 0, "update_after": 10, "update_every": 5, "gradient_steps": None} | changes)


class Credit:
    """A sampler that makes as many updates as the schedule says."""

    def updates_due(self, credit):
        return credit


@settings(max_examples=200, deadline=None)
@given(
    chunk=st.integers(1, 200),
    actors=st.integers(1, 9),
    rate=st.sampled_from([0.003, 0.1, 1.0, 7.0]),
    tolerance=st.floats(0, 2),
    learner_is_faster=st.booleans(),
)
def test_neither_side_runs_away_and_nothing_stops(chunk, actors, rate, tolerance, learner_is_faster):
    in_flight = 2 * actors * chunk
    ahead = tolerance * 100 * rate
    behind = rate * max(tolerance * 100, in_flight)
    limit = RateLimiter(ahead, behind)
    steps = updates = requested = 0
    for turn in range(2000):
        moved = 0
        if limit.may_collect:
            moved += in_flight - requested
            requested = in_flight
        if requested and not (learner_is_faster and turn % 7 and limit.due):
            steps = steps + chunk
            requested = requested - chunk
            moved = moved + 1
            limit.earn(rate * chunk)
        if limit.due and (learner_is_faster or turn % 7 == 0):
            made = min(limit.due, 50)
            updates = updates + made
            moved = moved + 1
            limit.spend(made)
        assert moved or limit.due, "deadlock"
        assert -ahead - 1e-6 <= rate * steps - updates <= behind + rate * in_flight + 1 + 1e-6
    assert steps >= 1000 * min(1, rate) or updates >= 100


def test_nothing_is_due_before_it_is_earned():
    limit = RateLimiter(ahead=10, behind=5)
    assert limit.due == limit.owed == 0 and limit.may_collect
    limit.earn(0)
    assert limit.due == 0
    limit.earn(6.5)
    assert (limit.due, limit.owed, limit.may_collect) == (16, 6, False)
    limit.spend(16)
    assert (limit.due, limit.owed, limit.may_collect) == (0, 0, True)


@pytest.mark.parametrize("changes", [{}, {"update_every": 1}, {"gradient_steps": 3}, {"update_every": "episode"}])
def test_a_chunk_earns_what_its_steps_earn_one_by_one(changes, rng):
    ended = rng.random(300) < 0.1
    whole = schedule(**changes)
    single = schedule(**changes)
    earned = sum(scheduled_updates(whole, Credit(), part) for part in np.split(ended, [7, 8, 100, 199]))
    one_by_one = 0
    for end in ended:
        single.count(1, bool(end))
        one_by_one += single.begin_update_phase()
    assert earned == one_by_one > 0
    assert (whole.env_steps, whole.last_update_phase) == (single.env_steps, single.last_update_phase)


def test_proportional_updates_begin_after_update_after():
    one = schedule()
    assert proportional_updates(one, 0.5, np.zeros(8, bool)) == 0
    assert proportional_updates(one, 0.5, np.zeros(8, bool)) == 3
    assert proportional_updates(one, 0.5, np.zeros(8, bool)) == 4 and one.env_steps == 24


def test_usual_rates():
    assert scheduled_rate(schedule()) == 1 and scheduled_rate(schedule(gradient_steps=1)) == 0.2
    assert scheduled_rate(schedule(update_every="episode")) == 0
