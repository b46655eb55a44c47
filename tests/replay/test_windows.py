"""Windows against a slow obvious reference: the steps of each sub-environment as a plain list."""

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdpg import Spec
from tfdpg.replay import ReplayBuffer, WindowLayout
from tfdpg.replay.segments import as_one_segment
from tfdpg.replay.windows import WindowSampler, gather_windows, newest_starts, window_rows

SPEC = Spec(spaces.Box(-np.inf, np.inf, (1,)), spaces.Box(-1, 1, (1,)))
WIDTH = 3
LAYOUT = WindowLayout.of(SPEC, WIDTH)


def buffer_of(size):
    buffer = ReplayBuffer(SPEC, size, step_width=WIDTH, has_windows=True)
    buffer.allocate()
    buffer.rows[:] = np.nan  # memory that was not written to may hold anything
    return buffer


def column(*values):
    return (np.array(values, np.float32).reshape(-1, 1),)


class SteppedEnvs:
    """Steps sub-environments in lockstep, and keeps for each a list of [number, step or None, terminated]."""

    def __init__(self, buffer, num_envs):
        self.buffer = buffer
        self.seen = [[] for _ in range(num_envs)]
        self.number = 0

    def add(self, env_index, step=None):
        self.seen[env_index].append([self.number, step, False])
        self.number += 1

    def run(self, ends):
        """`ends` has for each step and sub-environment "", "terminated" or "truncated"."""
        opened = [True] * len(self.seen)
        for row in ends:
            begin = np.flatnonzero(opened)
            if len(begin):
                self.buffer.begin(begin, column(*range(self.number, self.number + len(begin))))
                for env_index in begin:
                    self.add(env_index)
            env_indices = np.arange(len(self.seen))
            steps = np.array([[self.number + env_index, 0.5, 2.0] for env_index in env_indices], np.float32)
            following = column(*range(self.number, self.number + len(env_indices)))
            terminated = np.array([end == "terminated" for end in row])
            self.buffer.add(env_indices, steps, steps[:, 0] * 10, terminated, following)
            for env_index in env_indices:
                self.seen[env_index][-1][1:] = steps[env_index].tolist(), row[env_index] == "terminated"
                self.add(env_index)
            opened = [bool(end) for end in row]
            self.buffer.end(np.flatnonzero(opened))

    def window(self, env_index, place, steps):
        """The row numbers of a window that begins with the row at `place`."""
        rows = []
        seen = self.seen[env_index]
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
        envs = SteppedEnvs(buffer_of(size), len(ends[0]))
        envs.run(ends)
        held = envs.number - envs.buffer.size
        for steps in (1, 4):
            for env_index, seen in enumerate(envs.seen):
                for place, (number, step, terminated) in enumerate(seen):
                    if step is None or number < held:
                        continue
                    start = np.array([number % size])
                    rows = window_rows(envs.buffer, start, steps)
                    expected = np.array(envs.window(env_index, place, steps))
                    np.testing.assert_array_equal(rows[0], expected % size)
                    (packed,) = gather_windows(envs.buffer, np.append(rows, -np.ones_like(rows), axis=0), 0.9)
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
    envs = SteppedEnvs(buffer_of(size), len(ends[0]))
    seen = 0
    known = [0] * len(ends[0])
    for count in (len(ends), 1, 5, 2):
        envs.run(ends[:count])
        starts = newest_starts(envs.buffer, steps, seen)
        rows = window_rows(envs.buffer, starts, steps)
        seen = envs.buffer.added
        acted = gather_windows(envs.buffer, rows, 0.9)[0][..., LAYOUT.acted] > 0
        taken = [[number for number, step, _ in env_index if step is not None] for env_index in envs.seen]
        new = [numbers[before:] for numbers, before in zip(taken, known, strict=True)]
        known = [len(numbers) for numbers in taken]
        assert rows[acted].tolist() == [number % size for numbers in new for number in numbers]
        assert acted.any(axis=1).all()
        fewest = sum(-(-len(numbers) // steps) for numbers in new)
        truncations = sum(row[env_index] == "truncated" for row in ends[:count] for env_index in range(len(row)))
        assert fewest <= len(starts) <= fewest + truncations


def test_a_round_begins_with_the_newest_windows_and_goes_on_with_any():
    envs = SteppedEnvs(buffer_of(1000), 3)
    sampler = WindowSampler(envs.buffer, 0, 2, steps=4, newest=True, ratio=3.0, start=20)
    envs.run([["", "", ""]] * 4)
    assert sampler.updates_due(0) == 0
    assert sampler.updates_due(12) == 2  # three sub-environments, two windows in a minibatch; too few rows for more
    rows, weights = sampler.sample(0, 1)
    rows = np.concatenate([rows, sampler.sample(1, 1)[0]])
    assert weights is None and rows.shape == (2, 2, 5)
    np.testing.assert_array_equal(rows[..., -1], [[12, 13], [14, -1]])
    assert (rows[1, 1] == -1).all() and not gather_windows(envs.buffer, rows, 0.9)[0][1, 1, :, LAYOUT.acted].any()
    envs.run([["", "", ""]] * 4)
    due = sampler.updates_due(12)
    assert due >= 2
    again = WindowSampler(envs.buffer, 0, 2, steps=4, newest=True, ratio=3.0, start=20)
    again.restore({"added": np.array(30), "windows_seen": np.array(15)})
    assert again.updates_due(12) == due  # a function of the seed, of what was ever added, and of what rounds have seen
    one_by_one = np.concatenate([again.sample(update, 1)[0] for update in range(5)])
    np.testing.assert_array_equal(sampler.sample(0, 5)[0], one_by_one)


def test_the_number_of_updates_is_poisson():
    envs = SteppedEnvs(buffer_of(100), 1)
    sampler = WindowSampler(envs.buffer, 0, 2, steps=1, newest=False, ratio=4.0, start=0)
    envs.run([[""]])
    counts = []
    for _ in range(2000):
        envs.buffer.added += 1
        counts.append(sampler.updates_due(1))
    assert abs(np.mean(counts) - 4) < 0.15 and abs(np.var(counts) - 4) < 0.4


def test_a_round_is_the_same_after_loading():
    envs = SteppedEnvs(buffer_of(60), 2)
    envs.run([["", ""], ["truncated", ""], ["", "terminated"]] * 8)
    again = buffer_of(60)
    again.restore(envs.buffer.state(), [as_one_segment(envs.buffer)])
    for buffer in (envs.buffer, again):
        buffer.begin(np.arange(2), column(1000, 1001))
    samplers = [
        WindowSampler(buffer, 0, 4, steps=6, newest=True, ratio=2.0, start=0) for buffer in (envs.buffer, again)
    ]
    assert samplers[0].updates_due(6) == samplers[1].updates_due(6)
    np.testing.assert_array_equal(samplers[0].sample(3, 4)[0], samplers[1].sample(3, 4)[0])
