"""Checkpoints that share files: each stays complete when others are changed or removed."""

import copy
import itertools
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tfdpg
from tests.agents.roster import SMALL, fit_briefly
from tests.environments import Counter
from tests.training.saving import digest
from tfdpg import export
from tfdpg.replay import ReplayBuffer, segments
from tfdpg.training.data.datasets import load_into


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Segments of ten rows."""
    monkeypatch.setattr(segments, "MIN_ROWS", 10)
    monkeypatch.setattr(segments, "MIN_BYTES", 0)


@pytest.fixture
def agent():
    """One with prioritised replay, which holds 60 steps and 12 final observations, and does not learn."""
    agent = tfdpg.TD3(Counter(), **SMALL | {"replay": "prioritized", "update_after": 1000})
    fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=60)
    _, rows = agent.data.minibatch_builder(0, 3)
    agent.data.minibatch_builder.update_priorities(rows, np.random.default_rng(0).normal(size=rows.shape))
    return agent


def inodes(directory):
    return {path.name: path.stat().st_ino for path in directory.glob("rows-*.npz")}


def shared(one, other):
    """The names of the files with rows that two checkpoints share."""
    return {name for name, inode in inodes(one).items() if inodes(other).get(name) == inode}


def test_checkpoints_share_what_did_not_change_and_outlive_each_other(agent, tmp_path):
    kept = tmp_path / "kept"
    held = {}

    class Digest(tfdpg.callbacks.Checkpoint):
        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)
            held[self.agent.env_steps] = digest(self.agent)

    fit_briefly(agent, Counter(), epochs=5, initial_epoch=1, steps_per_epoch=20, callbacks=[Digest(kept)])
    assert [path.name for path in sorted(kept.iterdir())] == ["120", "140"]
    assert shared(kept / "120", kept / "140") == {f"rows-{i}.npz" for i in range(14)}  # of 144 rows, and of 168
    assert len(inodes(kept / "140")) == 17
    assert (kept / "140/rows-0.npz").stat().st_nlink == 2  # those of 80 and 100 are gone
    for steps in (120, 140):
        assert digest(tfdpg.load_agent(kept / str(steps))) == held[steps]


def test_a_loaded_agent_and_one_that_is_saved_over_go_on_with_the_files(agent, tmp_path):
    agent.save(tmp_path / "a")
    again = tfdpg.load_agent(tmp_path / "a")
    again.save(tmp_path / "b")
    assert len(shared(tmp_path / "a", tmp_path / "b")) == len(inodes(tmp_path / "a")) == 8
    fit_briefly(again, Counter(), epochs=1, steps_per_epoch=20)
    again.save(tmp_path / "b")
    assert shared(tmp_path / "a", tmp_path / "b") == {f"rows-{i}.npz" for i in range(7)}
    assert digest(tfdpg.load_agent(tmp_path / "b")) == digest(again)
    assert digest(tfdpg.load_agent(tmp_path / "a")) == digest(agent)


@pytest.mark.slow
@pytest.mark.parametrize("size", [500, 40, 1000])
def test_a_replay_of_another_size_goes_on_with_the_files(agent, tmp_path, size):
    agent.save(tmp_path / "a")
    again = tfdpg.load_agent(tmp_path / "a", replay_size=size)
    again.save(tmp_path / "b")
    assert shared(tmp_path / "a", tmp_path / "b") == set(inodes(tmp_path / "b"))
    assert digest(tfdpg.load_agent(tmp_path / "b")) == digest(again)
    larger = tfdpg.load_agent(tmp_path / "b", replay_size=300)
    larger.save(tmp_path / "c")
    is_renumbered = size == 40  # 40 rows, in slots from the first one on
    assert bool(shared(tmp_path / "b", tmp_path / "c")) != is_renumbered
    assert digest(tfdpg.load_agent(tmp_path / "c")) == digest(larger)


def test_a_kill_while_an_old_checkpoint_is_removed_leaves_no_half_of_it(agent, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(directory, **options):
        if Path(directory).exists():
            next(path for path in Path(directory).rglob("*") if path.is_file()).unlink()
            raise Killed

    kept = [tfdpg.callbacks.Checkpoint(tmp_path / "kept", keep=1)]
    fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=10, callbacks=kept)
    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(Killed):
        fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=10, callbacks=kept)
    monkeypatch.undo()
    assert export.versions(tmp_path / "kept") == [80]
    assert digest(tfdpg.load_agent(tmp_path / "kept/80")) == digest(agent)
    agent.save(tmp_path / "kept/90")
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"80", "90"}


def test_a_copy_writes_files_of_its_own(agent, tmp_path):
    agent.save(tmp_path / "a")
    other = copy.deepcopy(agent)
    other.save(tmp_path / "b")
    assert not shared(tmp_path / "a", tmp_path / "b") and digest(other) == digest(agent)


def test_transitions_from_one_file_to_the_next_are_data(agent, tmp_path):
    agent.save(tmp_path / "agent")
    for data in (tmp_path / "agent", tmp_path / "agent/replay.npz"):
        buffer = ReplayBuffer(agent.spec, 100)
        load_into(buffer, data)
        assert len(buffer) == 60
    buffer = ReplayBuffer(agent.spec, 100)
    load_into(buffer, tmp_path / "agent/rows-1.npz")
    ended = buffer.transitions()["terminations"] | buffer.transitions()["truncations"]
    assert buffer.size == 10 and ended.tolist() == [True, False, False, False, False, True, True]


KILLS = [pytest.param(3, marks=pytest.mark.slow), pytest.param(100, marks=pytest.mark.hours)]


@pytest.mark.parametrize("kills", KILLS)
def test_whenever_it_is_killed_every_checkpoint_is_what_was_saved(agent, tmp_path, kills):
    directory = tmp_path / "checkpoints"
    expected = {}
    agent.save(directory / str(agent.env_steps))
    expected[agent.env_steps] = digest(agent)
    newest = 60
    for _ in range(kills):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.training.saving", str(directory)], stdout=subprocess.PIPE, text=True
        )
        printed = list(itertools.islice(process.stdout, 2))
        time.sleep(random.expovariate(3))
        process.kill()
        for word, steps, *checksums in map(str.split, [*printed, *process.communicate()[0].splitlines(keepends=True)]):
            newest, expected[int(steps)] = (
                (int(steps), expected[int(steps)]) if word == "saved" else (newest, *checksums)
            )
        found = export.versions(directory)
        assert found and found[-1] >= newest and len(found) <= 3
        for steps in found:
            assert digest(tfdpg.load_agent(directory / str(steps))) == expected[steps]
    last = tfdpg.load_agent(directory / str(found[-1]))
    last.save(directory / str(found[-1]))
    assert all(path.name.isdigit() for path in directory.iterdir())
