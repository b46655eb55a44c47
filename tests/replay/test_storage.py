"""The replay buffer against a slow obvious reference: any episodes, any n, any number of sub-environments."""

import gc
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdpg import Spec
from tfdpg.replay import ReplayBuffer, TransitionLayout
from tfdpg.replay.buffer import NONE
from tfdpg.replay.segments import as_one_segment
from tfdpg.replay.transitions import gather_transitions
from tfdpg.replay.uniform import random_words, uniform_rows

SPEC = Spec(spaces.Box(-np.inf, np.inf, (1,)), spaces.Box(-1, 1, (1,)))
LAYOUT = TransitionLayout.of(SPEC)
GAMMA = 0.9


class Reference:
    """The episodes of each sub-environment as plain lists; the newest `size` observations are the ones held."""

    def __init__(self, size):
        self.size = size
        self.added = 0
        self.episodes = []  # of dicts: number of each observation, observation, rewards, terminated
        self.open = {}

    def begin(self, env_index, observation):
        self.open[env_index] = {
            "numbers": [self.added],
            "observations": [observation],
            "rewards": [],
            "terminated": False,
        }
        self.episodes.append(self.open[env_index])
        self.added += 1

    def add(self, env_index, reward, terminated, observation):
        episode = self.open[env_index]
        episode["rewards"].append(reward)
        episode["numbers"].append(self.added)
        episode["observations"].append(observation)
        episode["terminated"] |= terminated
        self.added += 1

    def transitions(self, n):
        found = {}
        for e in self.episodes:
            for t, number in enumerate(e["numbers"][: len(e["rewards"])]):
                if number < self.added - self.size:
                    continue
                m = min(n, len(e["rewards"]) - t)
                ended = e["terminated"] and t + m == len(e["rewards"])
                found[number % self.size] = (
                    e["observations"][t],
                    sum(GAMMA**k * e["rewards"][t + k] for k in range(m)),
                    0.0 if ended else GAMMA**m,
                    e["observations"][t + m],
                )
        return found


@st.composite
def histories(draw):
    num_envs = draw(st.integers(1, 3))
    steps = draw(st.lists(st.tuples(st.sets(st.integers(0, num_envs - 1), min_size=1), st.integers(0, 9)), max_size=40))
    return num_envs, steps, draw(st.integers(2 * num_envs, 30)), draw(st.integers(1, 4))


def is_open(buffer, env_indices):
    return np.array(
        [env_index < len(buffer.current) and buffer.current[env_index] != NONE for env_index in env_indices]
    )


def play(buffer, reference, steps, step_of=lambda observation: [0.0]):
    """Store the steps of a history: sub-environments at unequal speed; some episodes end, terminated or truncated."""
    value = iter(np.arange(1 + 3 * reference.added, 10_000, dtype=np.float32))  # others than before, where it goes on
    ends = np.random.default_rng(len(steps))
    for moving, code in steps:
        moving = np.array(sorted(moving))
        for env_index in moving[~is_open(buffer, moving)]:
            observation = next(value)
            buffer.begin(np.array([env_index]), (np.array([[observation]], np.float32),))
            reference.begin(env_index, observation)
        overwritten = buffer.current[moving] < buffer.added + len(moving) - buffer.replay_size
        observations = np.array([next(value) for _ in moving], np.float32)
        rewards = np.array([next(value) for _ in moving], np.float32)
        terminated = ends.random(len(moving)) < 0.2
        truncated = (ends.random(len(moving)) < 0.2) & (code > 4)
        taken = np.array([step_of(reference.open[env_index]["observations"][-1]) for env_index in moving], np.float32)
        buffer.add(moving, taken, rewards, terminated, (observations[:, None],))
        for i, env_index in enumerate(moving):
            if overwritten[i]:  # a slow sub-environment whose last observation was overwritten: the step is lost
                number = reference.added
                reference.begin(env_index, observations[i])
                assert reference.open[env_index]["numbers"] == [number]
            else:
                reference.add(env_index, rewards[i], bool(terminated[i]), observations[i])
        buffer.end(moving[terminated | truncated])


@settings(max_examples=100, deadline=None)
@given(histories())
def test_transitions_are_the_reference_s(history):
    num_envs, steps, size, n = history
    buffer = ReplayBuffer(SPEC, size)
    reference = Reference(size)
    play(buffer, reference, steps)
    expected = reference.transitions(n)
    slots = np.flatnonzero(buffer.successor[: buffer.size] != NONE) if buffer.added else np.empty(0, int)
    assert set(slots) == set(expected)
    if len(slots):
        (packed,) = gather_transitions(buffer, slots, n, GAMMA)
        found = packed[:, [LAYOUT.observation.start, LAYOUT.reward, LAYOUT.discount, LAYOUT.next_observation.start]]
        np.testing.assert_allclose(found, [expected[slot] for slot in slots], rtol=1e-5)


def fill(buffer, steps, num_envs=1, length=5, rng=None):
    rng = rng or np.random.default_rng(0)
    env_indices = np.arange(num_envs)
    for t in range(steps):
        closed = ~is_open(buffer, env_indices)
        if closed.any():
            count = closed.sum()
            buffer.begin(env_indices[closed], tuple(part[:count] for part in sample(buffer.spec, num_envs, rng)))
        ends = np.full(num_envs, (t + 1) % length == 0)
        buffer.add(
            env_indices,
            rng.normal(size=(num_envs, buffer.step_width)),
            rng.normal(size=num_envs),
            ends,
            sample(buffer.spec, num_envs, rng),
        )
        buffer.end(env_indices[ends])
    return buffer


def sample(spec, count, rng):
    return tuple(
        rng.integers(0, 255, (count, width)).astype(group)
        for group, width in zip(spec.groups, spec.widths, strict=True)
    )


def test_images_are_stored_as_bytes_and_drawn_in_place():
    space = spaces.Dict(picture=spaces.Box(0, 255, (2, 2), np.uint8), position=spaces.Box(-1, 1, (3,)))
    spec = Spec(space, spaces.Box(-1, 1, (2,)))
    buffer = fill(ReplayBuffer(spec, 50), 30)
    assert buffer.images.dtype == np.uint8
    real, image = gather_transitions(buffer, np.array([[0, 1], [6, 7]]), 1, 0.9)
    layout = TransitionLayout.of(spec)
    assert real.shape == (2, 2, layout.width) and image.shape == (2, 2, 8) and image.dtype == np.uint8
    np.testing.assert_array_equal(image[0, 0, 4:], buffer.images[1])
    np.testing.assert_array_equal(image[0, 0, :4], buffer.images[0])
    np.testing.assert_array_equal(real[1, 0, layout.next_observation], buffer.rows[7, :3])


def test_an_observation_is_stored_once():
    buffer = fill(ReplayBuffer(SPEC, 100), 20, length=5)
    assert buffer.size == 20 + 4  # a row for each step, and one for each final observation
    halfcheetah = Spec(spaces.Box(-np.inf, np.inf, (17,)), spaces.Box(-1, 1, (6,)))
    assert ReplayBuffer(halfcheetah, 1_000_000).nbytes <= 105e6


def test_uniform_draws_every_transition_equally_often_and_nothing_else():
    buffer = fill(ReplayBuffer(SPEC, 64), 200, length=4)
    rows = uniform_rows(buffer, seed=1, update=0, minibatches=400, batch_size=64)
    with_successor = np.flatnonzero(buffer.successor != NONE)
    counts = np.bincount(rows.ravel(), minlength=64)
    assert set(np.flatnonzero(counts)) == set(with_successor)
    expected = rows.size / len(with_successor)
    chi_square = ((counts[with_successor] - expected) ** 2 / expected).sum()
    assert chi_square < len(with_successor) + 4 * np.sqrt(2 * len(with_successor))


def test_a_minibatch_depends_on_seed_and_counter_alone():
    buffer = fill(ReplayBuffer(SPEC, 64), 200, length=3)
    together = uniform_rows(buffer, 3, 10, 70, 30)
    assert uniform_rows(buffer, 3, 10, 0, 30).shape == (0, 30)
    one_by_one = [uniform_rows(buffer, 3, 10 + i, 1, 30)[0] for i in range(70)]
    in_turns = np.concatenate([uniform_rows(buffer, 3, 10 + i, 14, 30) for i in range(0, 70, 14)])
    np.testing.assert_array_equal(together, one_by_one)
    np.testing.assert_array_equal(together, in_turns)
    assert len(np.unique(together, axis=0)) == 70
    assert not np.array_equal(together, uniform_rows(buffer, 4, 10, 70, 30))


@pytest.mark.parametrize("width", [30, 1024, 1025])
def test_random_words_are_those_of_the_update_in_calls_of_any_number_of_updates(width):
    together = random_words((3, 1), 10, (70, width))
    one_by_one = [random_words((3, 1), 10 + i, (1, width))[0] for i in range(70)]
    np.testing.assert_array_equal(together, one_by_one)
    assert len(np.unique(together)) == together.size


def test_drawing_from_nothing_says_so():
    buffer = ReplayBuffer(SPEC, 10)
    buffer.begin(np.array([0]), (np.zeros((1, 1), np.float32),))
    with pytest.raises(ValueError, match="no transition"):
        uniform_rows(buffer, 0, 0, 1, 4)


def test_an_observation_that_is_not_the_head_does_not_continue_its_episode():
    buffer = ReplayBuffer(SPEC, 20)
    env_indices = np.arange(2)
    first = (np.array([[1.0], [2.0]], np.float32),)
    second = (np.array([[3.0], [4.0]], np.float32),)
    assert buffer.continues(env_indices, first).tolist() == [False, False]
    buffer.begin(env_indices, first)
    assert buffer.continues(env_indices, first).tolist() == [True, True]
    buffer.add(env_indices, np.zeros((2, 1)), np.zeros(2), np.zeros(2, bool), second)
    assert buffer.continues(env_indices, (np.array([[3.0], [9.0]], np.float32),)).tolist() == [True, False]
    buffer.end(env_indices[:1])
    assert buffer.continues(env_indices, second).tolist() == [False, True]


def test_the_buffer_must_have_two_rows_for_each_sub_environment():
    with pytest.raises(ValueError, match="two rows for each of the 3 sub-env"):
        ReplayBuffer(SPEC, 5).begin(np.arange(3), (np.zeros((3, 1), np.float32),))


def test_state_round_trip_moves_to_a_new_ring():
    buffer = fill(ReplayBuffer(SPEC, 32), 100, num_envs=2)
    again = ReplayBuffer(SPEC, 32)
    again.restore(buffer.state(), [as_one_segment(buffer)])
    slots = uniform_rows(buffer, 0, 0, 4, 16)
    np.testing.assert_array_equal(slots, uniform_rows(again, 0, 0, 4, 16))
    np.testing.assert_array_equal(*(gather_transitions(r, slots, 3, 0.9)[0] for r in (buffer, again)))
    fill(again, 10, num_envs=2)


@pytest.mark.parametrize("name", ["heads", "newest", "opened"])
@pytest.mark.parametrize("change", [lambda a: a + 1e3, lambda a: a + 1000, lambda a: a[None], lambda a: a[:1]])
def test_positions_must_be_existing_rows(name, change):
    buffer = fill(ReplayBuffer(SPEC, 32), 101, num_envs=2)
    state = buffer.state()
    with pytest.raises(ValueError, match="at rows that do not exist"):
        ReplayBuffer(SPEC, 32).restore(state | {name: change(state[name])}, [as_one_segment(buffer)])


@pytest.mark.parametrize("name", ["successor_after", "onward_after"])
@pytest.mark.parametrize("after", [-1, 32, 31, 64])
def test_stored_links_must_lead_to_newer_rows(name, after):
    buffer = fill(ReplayBuffer(SPEC, 32, has_windows=True), 100, num_envs=2)
    segment = as_one_segment(buffer)
    segment[name][10] = after
    with pytest.raises(ValueError, match="links to older rows"):
        ReplayBuffer(SPEC, 32, has_windows=True).restore(buffer.state(), [segment])


def test_a_ring_larger_than_memory_is_refused_with_the_figure():
    buffer = ReplayBuffer(SPEC, 2**31 - 1)
    wide = Spec(spaces.Box(0, 255, (256, 256, 64), np.uint8), spaces.Box(-1, 1, (1,)))
    huge = ReplayBuffer(wide, 10_000_000)
    with pytest.raises(ValueError, match=r"`replay_size`.*needs 4194\d+\.\d+ GB"):
        huge.allocate()
    assert buffer.nbytes == (2**31 - 1) * (4 * 3 + 1 + 4)


def test_a_ring_in_files_holds_the_same_and_leaves_nothing(tmp_path):
    spec = Spec(spaces.Dict(a_=SPEC.observation_space, b=spaces.Box(0, 255, (2, 2), np.uint8)), SPEC.action_space)
    rings = ReplayBuffer(spec, 32), ReplayBuffer(spec, 32, tmp_path / "new" / "place")
    for buffer in rings:
        buffer.begin(np.array([0]), (np.zeros((1, 1)), np.zeros((1, 4))))
        for i in range(50):
            buffer.add(np.array([0]), [[0.5]], [i], [False], (np.full((1, 1), i), np.full((1, 4), i)))
    slots = uniform_rows(rings[0], 0, 0, 4, 16)
    for plain, mapped in zip(*(gather_transitions(buffer, slots, 3, 0.9) for buffer in rings), strict=True):
        np.testing.assert_array_equal(plain, mapped)
    files = list((tmp_path / "new" / "place").iterdir())
    assert sorted(file.stat().st_size for file in files) == [32 * 4, 32 * 4 * 3]
    del buffer, rings
    gc.collect()
    assert not any(file.exists() for file in files)


def test_a_ring_larger_than_the_disk_is_refused_with_the_figure(tmp_path):
    wide = Spec(spaces.Box(0, 255, (256, 256, 64), np.uint8), spaces.Box(-1, 1, (1,)))
    with pytest.raises(ValueError, match=r"`replay_size` .*free .* 4194\d+\.\d+ GB"):
        ReplayBuffer(wide, 10_000_000, tmp_path).allocate()


def test_a_million_halfcheetah_rows_take_at_most_105_mb():
    spec = Spec(spaces.Box(-np.inf, np.inf, (17,), np.float64), spaces.Box(-1, 1, (6,)))
    buffer = ReplayBuffer(spec, 1_000_000)
    buffer.allocate()
    arrays = (buffer.rows, buffer.terminated, buffer.successor)
    assert sum(array.nbytes for array in arrays) == buffer.nbytes == 101_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_touching_provides_the_memory_of_the_next_rows_and_changes_none():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    buffer = ReplayBuffer(Spec(spaces.Box(-1, 1, (1000,)), SPEC.action_space), 20_000)
    buffer.begin(np.array([0]), (np.ones((1, 1000)),))
    buffer.add(np.array([0]), [[0.5]], [2.0], [True], (np.ones((1, 1000)),))
    before = resident()
    buffer.touch(10_000)
    assert 36e6 < resident() - before < 48e6
    buffer.touch(np.inf)
    assert 76e6 < resident() - before < 88e6
    assert (buffer.rows[:2, :1000] == 1).all() and buffer.rows[0, -1] == 2 and buffer.terminated[0]
