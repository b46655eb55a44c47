"""Chunks of rows from elsewhere, against adding them one by one."""

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdpg import Spec
from tfdpg.replay import Recorder, ReplayBuffer, TimeSteps
from tfdpg.replay.buffer import NONE
from tfdpg.replay.sequences import previous_rows

REAL = spaces.Box(-np.inf, np.inf, (2,))
IMAGE = spaces.Box(0, 255, (2, 3), np.uint8)
ACTION = spaces.Box(-1, 1, (1,))
SPECS = {
    "real": Spec(REAL, ACTION),
    "image": Spec(IMAGE, ACTION),
    "both": Spec(spaces.Dict(camera=IMAGE, position=REAL), ACTION),
}


def rows_of(spec, first, rng):
    n = len(first)
    return TimeSteps(
        tuple(rng.integers(0, 255, (n, w)).astype(g) for g, w in zip(spec.groups, spec.widths, strict=True)),
        rng.normal(size=(n, 1)).astype(np.float32),
        rng.normal(size=n).astype(np.float32),
        rng.random(n) < 0.3,
        np.array(first, bool),
    )


def one_by_one(buffer, env_index, rows):
    env_indices = np.array([env_index])
    for i, opens in enumerate(rows.is_first):
        row = rows.part(slice(i, i + 1))
        if opens or env_index >= len(buffer.current) or buffer.current[env_index] == NONE:
            buffer.begin(env_indices, row.observation)
        else:
            buffer.add(env_indices, row.action, row.reward, row.terminated, row.observation)


chunks = st.lists(st.tuples(st.integers(0, 2), st.lists(st.booleans(), min_size=1, max_size=12)), max_size=12)


@settings(max_examples=100, deadline=None)
@given(chunks, st.integers(6, 40), st.sampled_from(list(SPECS)), st.integers(0, 5))
def test_a_chunk_is_its_rows_one_by_one(history, size, kind, closing):
    spec = SPECS[kind]
    rng = np.random.default_rng(size)
    buffer = ReplayBuffer(spec, size, has_predecessors=True)
    reference = ReplayBuffer(spec, size, has_predecessors=True)
    for i, (env_index, first) in enumerate(history):
        rows = rows_of(spec, first, rng)
        buffer.extend(env_index, rows)
        one_by_one(reference, env_index, rows)
        if i == closing:  # what comes next does not follow
            buffer.end(np.array([env_index]))
            reference.end(np.array([env_index]))
    assert buffer.added == reference.added
    if not buffer.added:
        return
    np.testing.assert_array_equal(buffer.current, reference.current)
    held = slice(0, buffer.size)
    np.testing.assert_array_equal(buffer.successor[held], reference.successor[held])
    np.testing.assert_array_equal(*(previous_rows(one, np.arange(buffer.size)) for one in (buffer, reference)))
    follows = np.flatnonzero(buffer.successor[held] != NONE)
    np.testing.assert_array_equal(buffer.rows[follows], reference.rows[follows])
    np.testing.assert_array_equal(buffer.terminated[follows], reference.terminated[follows])
    everything = np.arange(buffer.size)
    for part, other in zip(buffer.observation(everything), reference.observation(everything), strict=True):
        np.testing.assert_array_equal(part, other)


def test_a_step_whose_predecessor_never_came_is_not_kept(rng):
    buffer = ReplayBuffer(SPECS["real"], 50)
    spec = SPECS["real"]
    buffer.extend(0, rows_of(spec, [True, False, False], rng))
    buffer.end(np.array([0]))
    buffer.extend(0, rows_of(spec, [False, False], rng))
    assert buffer.added == 5 and buffer.successor[:5].tolist() == [1, 2, NONE, 4, NONE]


@pytest.mark.parametrize("size", [10, 100])
def test_a_chunk_may_be_longer_than_the_ring(size, rng):
    spec = SPECS["real"]
    buffer = ReplayBuffer(spec, size)
    reference = ReplayBuffer(spec, size)
    rows = rows_of(spec, [True] + [False] * 36, rng)
    buffer.extend(0, rows)
    one_by_one(reference, 0, rows)
    np.testing.assert_array_equal(buffer.successor[: buffer.size], reference.successor[: buffer.size])


def test_a_recorder_takes_the_same_transitions(tmp_path, rng):
    spec = SPECS["real"]
    recorder = Recorder(tmp_path, spec)
    first = rows_of(spec, [True, False, False], rng)
    second = rows_of(spec, [False, True, False], rng)
    recorder.extend(0, first._replace(terminated=np.zeros(3, bool)))
    recorder.extend(0, second._replace(terminated=np.array([True, False, False])))
    recorder.end(np.array([0]))
    recorder.flush()
    with np.load(tmp_path / "000000.npz") as file:
        np.testing.assert_array_equal(file["rewards"], [*first.reward[1:], second.reward[0], second.reward[2]])
        assert file["terminations"].tolist() == [False, False, True, False]
        assert file["truncations"].tolist() == [False, False, False, True]
        np.testing.assert_array_equal(file["next_observations"][2], second.observation[0][0])
        np.testing.assert_array_equal(file["observations"][3], second.observation[0][1])


def test_a_recorder_takes_the_action_alone_of_what_is_stored_with_a_step(tmp_path, rng):
    spec = SPECS["real"]
    recorder = Recorder(tmp_path, spec)
    rows = rows_of(spec, [True, False, False], rng)
    stored = rows._replace(action=np.concatenate([rows.action, rng.normal(size=(3, 4))], axis=1))
    recorder.extend(0, stored.part(slice(0, 2)))
    last = stored.part(slice(2, 3))
    recorder.add(np.array([0]), last.action, last.reward, last.terminated, last.observation)
    recorder.flush()
    with np.load(tmp_path / "000000.npz") as file:
        np.testing.assert_array_equal(file["actions"], rows.action[1:])
