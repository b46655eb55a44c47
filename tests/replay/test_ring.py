"""The ring against a slow obvious reference: any sequence of episodes, any n, any number of lanes."""

import gc

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdpg import Spec
from tfdpg.replay import Layout, Ring, draw_transitions, uniform_rows
from tfdpg.replay.ring import NONE
from tfdpg.replay.segments import whole

SPEC = Spec(spaces.Box(-np.inf, np.inf, (1,)), spaces.Box(-1, 1, (1,)))
LAYOUT = Layout.of(SPEC)
GAMMA = 0.9


class Reference:
    """Every lane's episodes as plain lists; the newest `size` observations are the ones held."""

    def __init__(self, size):
        self.size, self.added = size, 0
        self.episodes = []  # of dicts: number of each observation, observation, rewards, terminated
        self.open = {}

    def begin(self, lane, observation):
        self.open[lane] = {"numbers": [self.added], "observations": [observation], "rewards": [], "terminated": False}
        self.episodes.append(self.open[lane])
        self.added += 1

    def add(self, lane, reward, terminated, observation):
        episode = self.open[lane]
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
    lanes = draw(st.integers(1, 3))
    steps = draw(st.lists(st.tuples(st.sets(st.integers(0, lanes - 1), min_size=1), st.integers(0, 9)), max_size=40))
    return lanes, steps, draw(st.integers(2 * lanes, 30)), draw(st.integers(1, 4))


def is_open(ring, lanes):
    return np.array([lane < len(ring.current) and ring.current[lane] != NONE for lane in lanes])


def play(ring, reference, steps, step_of=lambda observation: [0.0]):
    """Takes the steps of a history: lanes at unequal speed; some episodes end, terminated or truncated."""
    value = iter(np.arange(1 + 3 * reference.added, 10_000, dtype=np.float32))  # others than before, where it goes on
    ends = np.random.default_rng(len(steps))
    for moving, code in steps:
        moving = np.array(sorted(moving))
        for lane in moving[~is_open(ring, moving)]:
            observation = next(value)
            ring.begin(np.array([lane]), (np.array([[observation]], np.float32),))
            reference.begin(lane, observation)
        overwritten = ring.current[moving] < ring.added + len(moving) - ring.replay_size
        observations = np.array([next(value) for _ in moving], np.float32)
        rewards = np.array([next(value) for _ in moving], np.float32)
        terminated = ends.random(len(moving)) < 0.2
        truncated = (ends.random(len(moving)) < 0.2) & (code > 4)
        taken = np.array([step_of(reference.open[lane]["observations"][-1]) for lane in moving], np.float32)
        ring.add(moving, taken, rewards, terminated, (observations[:, None],))
        for i, lane in enumerate(moving):
            if overwritten[i]:  # so slow a lane that its last observation is gone: the step is lost
                number = reference.added
                reference.begin(lane, observations[i])
                assert reference.open[lane]["numbers"] == [number]
            else:
                reference.add(lane, rewards[i], bool(terminated[i]), observations[i])
        ring.end(moving[terminated | truncated])


@settings(max_examples=300, deadline=None)
@given(histories())
def test_transitions_are_the_reference_s(history):
    lanes, steps, size, n = history
    ring, reference = Ring(SPEC, size), Reference(size)
    play(ring, reference, steps)
    expected = reference.transitions(n)
    slots = np.flatnonzero(ring.successor[: ring.size] != NONE) if ring.added else np.empty(0, int)
    assert set(slots) == set(expected)
    if len(slots):
        (packed,) = draw_transitions(ring, slots, n, GAMMA)
        found = packed[:, [LAYOUT.observation.start, LAYOUT.reward, LAYOUT.discount, LAYOUT.next_observation.start]]
        np.testing.assert_allclose(found, [expected[slot] for slot in slots], rtol=1e-5)


def fill(ring, steps, lanes=1, length=5, rng=None):
    rng = rng or np.random.default_rng(0)
    all_lanes = np.arange(lanes)
    for t in range(steps):
        closed = ~is_open(ring, all_lanes)
        if closed.any():
            count = closed.sum()
            ring.begin(all_lanes[closed], tuple(part[:count] for part in sample(ring.spec, lanes, rng)))
        ends = np.full(lanes, (t + 1) % length == 0)
        ring.add(
            all_lanes,
            rng.normal(size=(lanes, ring.step_width)),
            rng.normal(size=lanes),
            ends,
            sample(ring.spec, lanes, rng),
        )
        ring.end(all_lanes[ends])
    return ring


def sample(spec, count, rng):
    return tuple(
        rng.integers(0, 255, (count, width)).astype(group)
        for group, width in zip(spec.groups, spec.widths, strict=True)
    )


def test_images_are_stored_as_bytes_and_drawn_in_place():
    space = spaces.Dict(picture=spaces.Box(0, 255, (2, 2), np.uint8), position=spaces.Box(-1, 1, (3,)))
    spec = Spec(space, spaces.Box(-1, 1, (2,)))
    ring = fill(Ring(spec, 50), 30)
    assert ring.images.dtype == np.uint8
    real, image = draw_transitions(ring, np.array([[0, 1], [6, 7]]), 1, 0.9)
    layout = Layout.of(spec)
    assert real.shape == (2, 2, layout.width) and image.shape == (2, 2, 8) and image.dtype == np.uint8
    np.testing.assert_array_equal(image[0, 0, 4:], ring.images[1])
    np.testing.assert_array_equal(image[0, 0, :4], ring.images[0])
    np.testing.assert_array_equal(real[1, 0, layout.next_observation], ring.rows[7, :3])


def test_an_observation_is_stored_once():
    ring = fill(Ring(SPEC, 100), 20, length=5)
    assert ring.size == 20 + 4  # a row for each step, and one for each final observation
    halfcheetah = Spec(spaces.Box(-np.inf, np.inf, (17,)), spaces.Box(-1, 1, (6,)))
    assert Ring(halfcheetah, 1_000_000).nbytes <= 105e6


def test_uniform_draws_every_transition_equally_often_and_nothing_else():
    ring = fill(Ring(SPEC, 64), 200, length=4)
    rows = uniform_rows(ring, seed=1, update=0, minibatches=400, batch_size=64)
    drawable = np.flatnonzero(ring.successor != NONE)
    counts = np.bincount(rows.ravel(), minlength=64)
    assert set(np.flatnonzero(counts)) == set(drawable)
    expected = rows.size / len(drawable)
    chi_square = ((counts[drawable] - expected) ** 2 / expected).sum()
    assert chi_square < len(drawable) + 4 * np.sqrt(2 * len(drawable))


def test_a_minibatch_depends_on_seed_and_counter_alone():
    ring = fill(Ring(SPEC, 64), 200, length=3)
    together = uniform_rows(ring, 3, 10, 7, 30)
    one_by_one = [uniform_rows(ring, 3, 10 + i, 1, 30)[0] for i in range(7)]
    np.testing.assert_array_equal(together, one_by_one)
    assert len(np.unique(together, axis=0)) == 7
    assert not np.array_equal(together, uniform_rows(ring, 4, 10, 7, 30))


def test_drawing_from_nothing_says_so():
    ring = Ring(SPEC, 10)
    ring.begin(np.array([0]), (np.zeros((1, 1), np.float32),))
    with pytest.raises(ValueError, match="no transition"):
        uniform_rows(ring, 0, 0, 1, 4)


def test_an_observation_that_is_not_the_head_does_not_continue_its_episode():
    ring, lanes = Ring(SPEC, 20), np.arange(2)
    first, second = (np.array([[1.0], [2.0]], np.float32),), (np.array([[3.0], [4.0]], np.float32),)
    assert ring.continues(lanes, first).tolist() == [False, False]
    ring.begin(lanes, first)
    assert ring.continues(lanes, first).tolist() == [True, True]
    ring.add(lanes, np.zeros((2, 1)), np.zeros(2), np.zeros(2, bool), second)
    assert ring.continues(lanes, (np.array([[3.0], [9.0]], np.float32),)).tolist() == [True, False]
    ring.end(lanes[:1])
    assert ring.continues(lanes, second).tolist() == [False, True]


def test_a_ring_takes_two_rows_for_each_lane():
    with pytest.raises(ValueError, match="two rows for each of the 3 lanes"):
        Ring(SPEC, 5).begin(np.arange(3), (np.zeros((3, 1), np.float32),))


def test_state_round_trip_moves_to_a_new_ring():
    ring = fill(Ring(SPEC, 32), 100, lanes=2)
    again = Ring(SPEC, 32)
    again.restore(ring.state(), [whole(ring)])
    slots = uniform_rows(ring, 0, 0, 4, 16)
    np.testing.assert_array_equal(slots, uniform_rows(again, 0, 0, 4, 16))
    np.testing.assert_array_equal(*(draw_transitions(r, slots, 3, 0.9)[0] for r in (ring, again)))
    fill(again, 10, lanes=2)


@pytest.mark.parametrize("name", ["heads", "newest", "opened"])
@pytest.mark.parametrize("change", [lambda a: a + 1e3, lambda a: a + 1000, lambda a: a[None], lambda a: a[:1]])
def test_lanes_are_at_rows_that_there_are(name, change):
    ring = fill(Ring(SPEC, 32), 101, lanes=2)
    state = ring.state()
    with pytest.raises(ValueError, match="lanes at rows that there are not"):
        Ring(SPEC, 32).restore(state | {name: change(state[name])}, [whole(ring)])


@pytest.mark.parametrize("name", ["successor_after", "onward_after"])
@pytest.mark.parametrize("after", [-1, 32, 31, 64])
def test_no_way_through_stored_rows_goes_back(name, after):
    ring = fill(Ring(SPEC, 32, has_windows=True), 100, lanes=2)
    segment = whole(ring)
    segment[name][10] = after
    with pytest.raises(ValueError, match="rows that lead to older ones, or to none"):
        Ring(SPEC, 32, has_windows=True).restore(ring.state(), [segment])


def test_a_ring_larger_than_memory_is_refused_with_the_figure():
    ring = Ring(SPEC, 2**31 - 1)
    wide = Spec(spaces.Box(0, 255, (256, 256, 64), np.uint8), spaces.Box(-1, 1, (1,)))
    huge = Ring(wide, 10_000_000)
    with pytest.raises(ValueError, match=r"`replay_size`.*takes 4194\d+\.\d+ GB"):
        huge.allocate()
    assert ring.nbytes == (2**31 - 1) * (4 * 3 + 1 + 4)


def test_a_ring_in_files_holds_the_same_and_leaves_nothing(tmp_path):
    spec = Spec(spaces.Dict(a_=SPEC.observation_space, b=spaces.Box(0, 255, (2, 2), np.uint8)), SPEC.action_space)
    rings = Ring(spec, 32), Ring(spec, 32, tmp_path / "new" / "place")
    for ring in rings:
        ring.begin(np.array([0]), (np.zeros((1, 1)), np.zeros((1, 4))))
        for i in range(50):
            ring.add(np.array([0]), [[0.5]], [i], [False], (np.full((1, 1), i), np.full((1, 4), i)))
    slots = uniform_rows(rings[0], 0, 0, 4, 16)
    for plain, mapped in zip(*(draw_transitions(ring, slots, 3, 0.9) for ring in rings), strict=True):
        np.testing.assert_array_equal(plain, mapped)
    files = list((tmp_path / "new" / "place").iterdir())
    assert sorted(file.stat().st_size for file in files) == [32 * 4, 32 * 4 * 3]
    del ring, rings
    gc.collect()
    assert not any(file.exists() for file in files)


def test_a_ring_larger_than_the_disk_is_refused_with_the_figure(tmp_path):
    wide = Spec(spaces.Box(0, 255, (256, 256, 64), np.uint8), spaces.Box(-1, 1, (1,)))
    with pytest.raises(ValueError, match=r"`replay_size` must fit in what the disk .* takes 4194\d+\.\d+ GB"):
        Ring(wide, 10_000_000, tmp_path).allocate()


def test_a_million_halfcheetah_rows_take_at_most_105_mb():
    spec = Spec(spaces.Box(-np.inf, np.inf, (17,), np.float64), spaces.Box(-1, 1, (6,)))
    ring = Ring(spec, 1_000_000)
    ring.allocate()
    arrays = (ring.rows, ring.terminated, ring.successor)
    assert sum(array.nbytes for array in arrays) == ring.nbytes == 101_000_000
