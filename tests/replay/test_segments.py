"""The rows of a ring in files: what is read is what was held, and what did not change is not written again."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.replay.test_storage import SPEC, fill
from tfdpg import Spec
from tfdpg.replay import ReplayBuffer, segments
from tfdpg.replay.buffer import NONE
from tfdpg.replay.segments import as_one_segment, drop_outgoing_links

BOTH = Spec(
    spaces.Dict(camera=spaces.Box(0, 255, (2, 3), np.uint8), place=SPEC.observation_space), spaces.Box(-1, 1, (1,))
)
KINDS = {"plain": (SPEC, {}), "all": (BOTH, {"has_windows": True, "has_predecessors": True, "step_width": 3})}


@pytest.fixture(autouse=True)
def length(monkeypatch):
    """Rows of a segment."""
    monkeypatch.setattr(segments, "MIN_ROWS", 10)
    monkeypatch.setattr(segments, "MIN_BYTES", 0)
    return 10


def save(buffer, directory):
    """Writes the rows as a checkpoint does; returns the names of the files that were neither linked nor copied."""
    directory.mkdir()
    linked = segments.write(segments.snapshot(buffer), directory)
    names = [path.name for path in directory.iterdir()]
    buffer.saved_segments = segments.saved_segments(
        directory, segments.state(buffer), {name: "the sum" for name in names}
    )
    return sorted(set(names) - set(linked), key=lambda name: int(name[5:-4]))


def load(state, directory, buffer):
    """A ring of what was saved."""
    names = segments.segment_files(path.name for path in directory.iterdir()).values()
    buffer.restore(state, (dict(np.load(directory / name)) for name in names))
    return buffer


def contents(buffer):
    """Every bit of what a ring holds."""
    arrays = {name: getattr(buffer, name) for name in ("rows", "images", "terminated", "successor", "next_episode")}
    held = {name: values[: buffer.size].tobytes() for name, values in arrays.items() if values is not None}
    return held | {"added": buffer.added, "current": buffer.current.tolist(), "newest": buffer.newest.tolist()}


def copied(state):
    return {name: np.copy(values) for name, values in state.items()}


moves = st.one_of(st.sampled_from(["save", "load", "end", "append"]), st.integers(1, 30))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(moves, max_size=12), st.integers(6, 50), st.integers(1, 3), st.integers(1, 9), st.sampled_from(list(KINDS))
)
def test_whatever_happens_between_saves_each_one_is_what_the_ring_was(
    tmp_path_factory, history, size, num_envs, n, kind
):
    place = tmp_path_factory.mktemp("saves")
    saves = []
    spec, options = KINDS[kind]
    buffer = ReplayBuffer(spec, size, **options)
    rng = np.random.default_rng(0)
    for move in [*history, "save"]:
        if isinstance(move, int):
            fill(buffer, move, 1 + move % num_envs, n, rng)  # some of the sub-environments
        elif move == "end":
            buffer.end(np.arange(num_envs))
        elif move == "append":
            buffer.append(as_one_segment(fill(ReplayBuffer(spec, 12, **options), 5)))
        elif move == "load" and saves:
            directory, state, _ = saves[-1]
            buffer = load(state, directory, ReplayBuffer(spec, size, **options))
            names = [path.name for path in directory.iterdir()]
            buffer.saved_segments = segments.saved_segments(directory, state, {name: "the sum" for name in names})
        else:
            directory = place / str(len(saves))
            buffer.allocate()
            save(buffer, directory)
            saves.append((directory, copied(segments.state(buffer)), contents(buffer)))
    for directory, state, expected in saves:
        assert contents(load(state, directory, ReplayBuffer(spec, size, **options))) == expected


def test_only_segments_with_rows_that_are_new_or_were_left_are_written(tmp_path):
    buffer = fill(ReplayBuffer(SPEC, 100), 40, length=1000)
    env_index = np.array([0])
    assert save(buffer, tmp_path / "first") == [f"rows-{i}.npz" for i in range(5)]  # of 41 rows
    assert save(buffer, tmp_path / "same") == []
    fill(buffer, 5, length=1000)
    assert save(buffer, tmp_path / "more") == ["rows-4.npz"]
    fill(buffer, 4, length=1000)  # the newest row is the last of a segment, which is full
    assert buffer.added == 50 and save(buffer, tmp_path / "full") == ["rows-4.npz"]
    buffer.begin(np.array([1]), (np.zeros((1, 1), np.float32),))
    assert save(buffer, tmp_path / "another env") == ["rows-5.npz"]  # row 49 has not been left
    buffer.add(env_index, np.zeros((1, 1)), np.ones(1), np.ones(1, bool), (np.zeros((1, 1), np.float32),))
    assert save(buffer, tmp_path / "left") == ["rows-4.npz", "rows-5.npz"]
    fill(buffer, 58, num_envs=1, length=1000)
    assert buffer.added == 110
    written = save(buffer, tmp_path / "full ring")
    assert written == [f"rows-{i}.npz" for i in range(5, 11)]
    assert not (tmp_path / "full ring/rows-0.npz").exists() and (tmp_path / "full ring/rows-1.npz").exists()
    assert os.stat(tmp_path / "full ring/rows-1.npz").st_ino == os.stat(tmp_path / "first/rows-1.npz").st_ino


def test_the_link_to_the_next_episode_is_written_too(tmp_path):
    buffer = ReplayBuffer(SPEC, 100, has_windows=True)
    env_index = np.array([0])
    fill(buffer, 9, length=9)
    save(buffer, tmp_path / "ended")
    buffer.begin(env_index, (np.zeros((1, 1), np.float32),))
    assert buffer.next_episode[9] == 10 and save(buffer, tmp_path / "went on") == ["rows-0.npz", "rows-1.npz"]


def test_a_sub_environment_that_no_longer_acts_costs_nothing(tmp_path):
    buffer = fill(ReplayBuffer(SPEC, 200), 10, num_envs=3, length=1000)
    fill(buffer, 50, num_envs=1, length=1000)  # the others have their newest row among the first 33
    save(buffer, tmp_path / "first")
    fill(buffer, 1, num_envs=1, length=1000)
    assert save(buffer, tmp_path / "second") == ["rows-8.npz"]


def test_a_file_that_is_another_by_now_is_not_linked(tmp_path):
    buffer = fill(ReplayBuffer(SPEC, 100), 40)
    save(buffer, tmp_path / "first")
    before = contents(buffer)
    other = fill(ReplayBuffer(SPEC, 100), 40, rng=np.random.default_rng(1))
    shutil.rmtree(tmp_path / "first")
    save(other, tmp_path / "first")  # by another agent, under the same name
    (tmp_path / "first/rows-1.npz").unlink()
    assert len(save(buffer, tmp_path / "second")) == 5
    assert contents(load(buffer.state(), tmp_path / "second", ReplayBuffer(SPEC, 100))) == before


def test_files_are_copied_where_they_cannot_be_linked(tmp_path):
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    buffer = fill(ReplayBuffer(SPEC, 100), 40)
    other_directory = memory / f"tfdpg-test-{os.getpid()}"
    try:
        save(buffer, other_directory)
        assert save(buffer, tmp_path / "here") == []  # the files are copied
    finally:
        shutil.rmtree(other_directory)
    assert contents(load(buffer.state(), tmp_path / "here", ReplayBuffer(SPEC, 100))) == contents(buffer)


def test_a_ring_that_became_another_has_nothing_in_files(tmp_path, monkeypatch):
    buffer = fill(ReplayBuffer(SPEC, 100), 40)
    save(buffer, tmp_path / "first")
    other = fill(ReplayBuffer(SPEC, 100), 40, rng=np.random.default_rng(1))
    buffer.restore(other.state(), [as_one_segment(other)])
    assert len(save(buffer, tmp_path / "restored")) == 5
    buffer.clear()
    fill(buffer, 40)
    assert len(save(buffer, tmp_path / "cleared")) == 5
    monkeypatch.setattr(segments, "MIN_ROWS", 20)  # by another version
    assert len(save(buffer, tmp_path / "longer")) == 3


@pytest.mark.parametrize("size", [20, 64, 300])
def test_a_ring_of_another_size_takes_the_newest_rows(tmp_path, size):
    buffer = fill(ReplayBuffer(SPEC, 64), 100, num_envs=2, length=7)
    directory = tmp_path / "first"
    state = segments.state(buffer)
    save(buffer, directory)
    again = load(state, directory, ReplayBuffer(SPEC, size))
    kept = min(64, size)
    assert again.size == kept and again.added == (buffer.added if size <= 64 else 64)
    ours, theirs = (np.arange(one.added - kept, one.added) % one.replay_size for one in (buffer, again))
    np.testing.assert_array_equal(buffer.rows[ours], again.rows[theirs])
    place = {slot: i for i, slot in enumerate(ours)} | {NONE: NONE}
    other = {slot: i for i, slot in enumerate(theirs)} | {NONE: NONE}
    assert [place[slot] for slot in buffer.successor[ours]] == [other[slot] for slot in again.successor[theirs]]


def test_missing_rows_are_noticed(tmp_path):
    buffer = fill(ReplayBuffer(SPEC, 64), 100)
    save(buffer, tmp_path / "first")
    (tmp_path / "first/rows-8.npz").unlink()
    with pytest.raises(ValueError, match="must have 64 rows. Received: 54"):
        load(segments.state(buffer), tmp_path / "first", ReplayBuffer(SPEC, 64))


def test_a_segment_alone_leads_nowhere_else():
    buffer = fill(ReplayBuffer(SPEC, 64, has_windows=True), 20, length=4)
    part = buffer.segment(3, 8)
    assert part["successor_after"].tolist() == [1, 0, 1, 1, 1] and part["onward_after"].tolist() == [0, 1, 0, 0, 0]
    assert drop_outgoing_links(part)["successor_after"].tolist() == [1, 0, 1, 1, 0]
    assert drop_outgoing_links(buffer.segment(3, 5))["onward_after"].tolist() == [0, 0]
