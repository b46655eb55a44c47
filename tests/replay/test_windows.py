"""Windows against a slow obvious reference: lanes as plain lists of what they saw and did."""

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdpg import Spec
from tfdpg.replay import Ring, WindowLayout, Windows, draw_windows
from tfdpg.replay.segments import whole
from tfdpg.replay.windows import newest_starts, window_rows

SPEC = Spec(spaces.Box(-np.inf, np.inf, (1,)), spaces.Box(-1, 1, (1,)))
WIDTH = 3
LAYOUT = WindowLayout.of(SPEC, WIDTH)


def ring_of(size):
    ring = Ring(SPEC, size, step_width=WIDTH, has_windows=True)
    ring.allocate()
    ring.rows[:] = np.nan  # memory that was not written to may hold anything
    return ring


def column(*values):
    return (np.array(values, np.float32).reshape(-1, 1),)


class Lanes:
    """Steps lanes of a ring in lockstep, and keeps for each a list of [number, step or None, terminated]."""

    def __init__(self, ring, lanes):
        self.ring, self.seen = ring, [[] for _ in range(lanes)]
        self.number = 0

    def add(self, lane, step=None):
        self.seen[lane].append([self.number, step, False])
        self.number += 1

    def run(self, ends):
        """`ends` has for each step and lane "", "terminated" or "truncated"."""
        opened = [True] * len(self.seen)
        for row in ends:
            begin = np.flatnonzero(opened)
            if len(begin):
                self.ring.begin(begin, column(*range(self.number, self.number + len(begin))))
                for lane in begin:
                    self.add(lane)
            lanes = np.arange(len(self.seen))
            steps = np.array([[self.number + lane, 0.5, 2.0] for lane in lanes], np.float32)
            following = column(*range(self.number, self.number + len(lanes)))
            terminated = np.array([end == "terminated" for end in row])
            self.ring.add(lanes, steps, steps[:, 0] * 10, terminated, following)
            for lane in lanes:
                self.seen[lane][-1][1:] = steps[lane].tolist(), row[lane] == "terminated"
                self.add(lane)
            opened = [bool(end) for end in row]
            self.ring.end(np.flatnonzero(opened))

    def window(self, lane, place, steps):
        """The row numbers of a window that begins with the lane's row at `place`."""
        rows, seen = [], self.seen[lane]
        while len(rows) < steps + 1 and place < len(seen):
            rows.append(seen[place][0])
            skips = seen[place][2] and place + 2 < len(seen)  # the last observation of an episode that terminated
            place += 2 if skips else 1
        return rows + [rows[-1]] * (steps + 1 - len(rows))


ENDS = st.sampled_from(["", "", "", "terminated", "truncated"])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3).flatmap(lambda n: st.lists(st.lists(ENDS, min_size=n, max_size=n), min_size=1, max_size=12)))
def test_windows_are_the_reference_s(ends):
    for size in (1000, 8 * len(ends[0])):
        lanes = Lanes(ring_of(size), len(ends[0]))
        lanes.run(ends)
        held = lanes.number - lanes.ring.size
        for steps in (1, 4):
            for lane, seen in enumerate(lanes.seen):
                for place, (number, step, terminated) in enumerate(seen):
                    if step is None or number < held:
                        continue
                    start = np.array([number % size])
                    rows = window_rows(lanes.ring, start, steps)
                    expected = np.array(lanes.window(lane, place, steps))
                    np.testing.assert_array_equal(rows[0], expected % size)
                    (packed,) = draw_windows(lanes.ring, np.append(rows, -np.ones_like(rows), axis=0), 0.9)
                    assert np.isfinite(packed).all()
                    by_number = {s[0]: s for s in seen}
                    for t in range(steps):
                        _, step, terminated = by_number[expected[t]]
                        assert packed[0, t, 0] == expected[t] and packed[0, t, LAYOUT.acted] == (step is not None)
                        np.testing.assert_array_equal(packed[0, t, LAYOUT.step], step or [1, 1, 1])
                        assert packed[0, t, LAYOUT.reward] == (step[0] * 10 if step else 0)
                        if step:
                            np.testing.assert_allclose(packed[0, t, LAYOUT.discount], 0 if terminated else 0.9)
                    assert packed[0, steps, LAYOUT.acted] == 0


@pytest.mark.parametrize("size", [1000, 100])
@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 3).flatmap(lambda n: st.lists(st.lists(ENDS, min_size=n, max_size=n), min_size=5, max_size=9)),
    st.integers(1, 6),
)
def test_the_newest_windows_have_each_step_since_the_last_round_once(size, ends, steps):
    lanes, seen, known = Lanes(ring_of(size), len(ends[0])), 0, [0] * len(ends[0])
    for count in (len(ends), 1, 5, 2):
        lanes.run(ends[:count])
        starts = newest_starts(lanes.ring, steps, seen)
        rows, seen = window_rows(lanes.ring, starts, steps), lanes.ring.added
        acted = draw_windows(lanes.ring, rows, 0.9)[0][..., LAYOUT.acted] > 0
        taken = [[number for number, step, _ in lane if step is not None] for lane in lanes.seen]
        new = [numbers[before:] for numbers, before in zip(taken, known, strict=True)]
        known = [len(numbers) for numbers in taken]
        assert rows[acted].tolist() == [number % size for numbers in new for number in numbers]
        assert acted.any(axis=1).all()
        fewest = sum(-(-len(numbers) // steps) for numbers in new)
        cuts = sum(row[lane] == "truncated" for row in ends[:count] for lane in range(len(row)))
        assert fewest <= len(starts) <= fewest + cuts


def test_a_round_begins_with_the_newest_windows_and_goes_on_with_any():
    lanes = Lanes(ring_of(1000), 3)
    sampler = Windows(lanes.ring, 0, 2, steps=4, newest=True, ratio=3.0, start=20)
    lanes.run([["", "", ""]] * 4)
    assert sampler.updates_due(0) == 0
    assert sampler.updates_due(12) == 2  # three lanes, two windows in a minibatch; too few rows for more
    rows, weights = sampler.draw(0, 1)
    rows = np.concatenate([rows, sampler.draw(1, 1)[0]])
    assert weights is None and rows.shape == (2, 2, 5)
    np.testing.assert_array_equal(rows[..., -1], [[12, 13], [14, -1]])
    assert (rows[1, 1] == -1).all() and not draw_windows(lanes.ring, rows, 0.9)[0][1, 1, :, LAYOUT.acted].any()
    lanes.run([["", "", ""]] * 4)
    due = sampler.updates_due(12)
    assert due >= 2
    again = Windows(lanes.ring, 0, 2, steps=4, newest=True, ratio=3.0, start=20)
    again.restore({"added": np.array(30), "windows_seen": np.array(15)})
    assert again.updates_due(12) == due  # a function of the seed, of what was ever added, and of what rounds have seen
    one_by_one = np.concatenate([again.draw(update, 1)[0] for update in range(5)])
    np.testing.assert_array_equal(sampler.draw(0, 5)[0], one_by_one)


def test_the_number_of_updates_is_poisson():
    lanes = Lanes(ring_of(100), 1)
    sampler = Windows(lanes.ring, 0, 2, steps=1, newest=False, ratio=4.0, start=0)
    lanes.run([[""]])
    counts = []
    for _ in range(2000):
        lanes.ring.added += 1
        counts.append(sampler.updates_due(1))
    assert abs(np.mean(counts) - 4) < 0.15 and abs(np.var(counts) - 4) < 0.4


def test_a_round_is_the_same_after_loading():
    lanes = Lanes(ring_of(60), 2)
    lanes.run([["", ""], ["truncated", ""], ["", "terminated"]] * 8)
    again = ring_of(60)
    again.restore(lanes.ring.state(), [whole(lanes.ring)])
    for ring in (lanes.ring, again):
        ring.begin(np.arange(2), column(1000, 1001))
    rounds = [Windows(ring, 0, 4, steps=6, newest=True, ratio=2.0, start=0) for ring in (lanes.ring, again)]
    assert rounds[0].updates_due(6) == rounds[1].updates_due(6)
    np.testing.assert_array_equal(rounds[0].draw(3, 4)[0], rounds[1].draw(3, 4)[0])
