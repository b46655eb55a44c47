"""The lock of a run directory, with real processes."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

import tfdpg
from tests.agents.roster import brief
from tests.commands import TINY, train
from tfdpg import cli, export
from tfdpg.cli import run_lock

HOLDS = (
    "import sys, os, time; from pathlib import Path; from tfdpg.cli import run_lock\n"
    "with run_lock.held(Path(sys.argv[1])):\n"
    "    {}\n"
    "    print(os.getpid(), flush=True); sys.stdin.read()"
)


@pytest.fixture
def holder(tmp_path):
    """Return a function that starts a process which holds the lock of `tmp_path` and first runs some code."""
    started = []

    def start(first="pass"):
        command = [sys.executable, "-c", HOLDS.format(first), str(tmp_path)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == f"{process.pid}\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_the_second_is_told_who_holds_it_and_a_process_that_ended_holds_nothing(holder, tmp_path):
    process = holder()
    message = rf"process {process.pid} on {socket.gethostname()} since 2\d{{3}}-\d\d"
    for lock in (lambda: run_lock.held(tmp_path).__enter__(), lambda: run_lock.check(tmp_path)):
        with pytest.raises(run_lock.RunLockedError, match=message):
            lock()
    process.communicate("")
    run_lock.check(tmp_path)
    assert list(tmp_path.iterdir()) == []  # the file went with it
    with run_lock.held(tmp_path), pytest.raises(run_lock.RunLockedError, match=f"process {os.getpid()} on"):
        run_lock.check(tmp_path)


def test_a_killed_process_holds_nothing_even_if_its_child_lives(holder, tmp_path):
    process = holder(
        "child = os.fork()\n"
        "    if not child: os.close(1); time.sleep(60); os._exit(0)\n"
        "    Path(sys.argv[1], 'child').write_text(str(child))"
    )
    child = int((tmp_path / "child").read_text())
    process.kill()
    process.wait()
    try:
        os.kill(child, 0)
        assert json.loads((tmp_path / run_lock.LOCK).read_text())["process"] == process.pid  # which says nothing
        run_lock.check(tmp_path)
        with run_lock.held(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


def test_one_who_waited_at_a_file_that_was_removed_takes_the_new_one(tmp_path, monkeypatch):
    with run_lock.held(tmp_path):
        removed = os.open(tmp_path / run_lock.LOCK, os.O_RDWR)
    opened = iter([removed])
    system = os.open
    monkeypatch.setattr(os, "open", lambda *arguments: next(opened, None) or system(*arguments))
    with run_lock.held(tmp_path), pytest.raises(run_lock.RunLockedError):
        run_lock.check(tmp_path)


def test_without_locks_training_goes_on(tmp_path, monkeypatch):
    def no_locks(*arguments):
        raise OSError("no locks on this file system")

    monkeypatch.setattr(run_lock.fcntl, "flock", no_locks)
    with run_lock.held(tmp_path), run_lock.held(tmp_path):
        run_lock.check(tmp_path)


@brief
@pytest.mark.slow
def test_a_run_that_is_trained_is_neither_resumed_nor_replaced(tmp_path, capsys):
    code = "import sys, tests.environments; from tfdpg.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["train", "ddpg", "--env", "tfdpg-test/Counter-v0", *TINY, "--run-dir", str(tmp_path), "--verbose", "0"]
    words += ["--num-envs", "2", "--vectorization", "async", "--steps-per-epoch", "100", "--epochs", "100000"]
    process = subprocess.Popen([sys.executable, "-c", code, *words], start_new_session=True)
    run = tmp_path / "seed-0"
    try:
        while not export.versions(run / "checkpoints"):
            time.sleep(0.2)
            assert process.poll() is None
        before = (run / "run.json").read_bytes()
        for command in (
            ["train", "--resume", str(run)],
            ["train", "--resume", str(tmp_path)],
            words,
            [*words, "--overwrite"],
        ):
            assert cli.main(command) == 1
            assert f"tfdpg: {run} is being trained, by process {process.pid} on" in capsys.readouterr().err
        assert process.poll() is None and (run / "run.json").read_bytes() == before
    finally:
        process.kill()
        process.wait()
    steps = export.versions(run / "checkpoints")[-1]
    epochs = tfdpg.load_agent(run / f"checkpoints/{steps}").epoch + 1
    assert cli.main(["train", "--resume", str(run), "--epochs", str(epochs)]) == 0
    assert not (run / run_lock.LOCK).exists()
    assert train("--run-dir", tmp_path, "--overwrite", "--epochs", "1", "--verbose", "0") == 0
