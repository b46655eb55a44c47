"""Searches whose trials are Ray tasks."""

import time
from pathlib import Path

import optuna
import pytest

import tfdpg
from tests.agents.roster import brief
from tests.commands import TINY
from tfdpg import cli
from tfdpg.distributed import commands

pytestmark = brief
ENV = "tests.environments:tfdpg-test/Counter-v0"


@pytest.mark.slow
def test_each_trial_is_a_task(local_ray, tmp_path, capsys):
    words = ["--env", ENV, *TINY, "--epochs", "2", "--steps-per-epoch", "30", "--validation-episodes", "1"]
    words += ["--search", "pi_lr", "--trials", "3", "--confirm", "1", "--run-dir", str(tmp_path)]
    assert cli.main(["tune", "ddpg", *words, "--ray-address", "auto"]) == 0
    assert "Training the best settings and the initial one again" in capsys.readouterr().out
    study = optuna.load_study(study_name="tfdpg", storage=f"sqlite:///{tmp_path}/study.db")
    assert [trial.value for trial in study.trials] == [15.0] * 3
    overlaps = study.trials[1].datetime_start < study.trials[0].datetime_complete
    assert overlaps and "Epoch 2/2" in (tmp_path / "trials/2/seed-0.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1], ids=["at once", "again"])
def test_a_cancelled_task_saves_a_checkpoint(local_ray, tmp_path, monkeypatch, lost):
    cancelled = []

    def cancel(*arguments, **options):
        cancelled.append(arguments)
        if len(cancelled) > lost:
            original(*arguments, **options)

    original = commands.ray.cancel
    monkeypatch.setattr(commands.ray, "cancel", cancel)
    words = ["train", "ddpg", "--env", ENV, *TINY, "--epochs", "100000", "--steps-per-epoch", "50", "--verbose", "2"]
    command = commands.RayLauncher().start([*words, "--run-dir", str(tmp_path)], tmp_path / "output.txt")
    while not (tmp_path / "seed-0/checkpoints").exists():
        assert command.poll() is None
        time.sleep(0.1)
    command.send_signal(2)
    assert command.wait() == 130 and command.poll() == 130 and len(cancelled) > lost
    assert "Resume with: tfdpg train --resume" in (tmp_path / "output.txt").read_text()
    checkpoint = max((tmp_path / "seed-0/checkpoints").iterdir(), key=lambda path: int(path.name))
    assert tfdpg.load_agent(checkpoint).env_steps == int(checkpoint.name)


@pytest.mark.hours
def test_the_status_of_a_task_and_what_is_lost(local_ray, tmp_path):
    launcher = commands.RayLauncher()
    assert launcher.capacity() == 4
    assert launcher.start(["--version"], tmp_path / "a").wait() == 0
    assert (tmp_path / "a").read_text() == f"tfdpg {tfdpg.__version__}\n"
    assert launcher.start(["fly"], tmp_path / "b").wait() == 2
    killing = commands.RayCommand.__new__(commands.RayCommand)
    killing._cancelled_at = None
    killing._task = local_ray.remote(max_retries=0)(_end).remote()
    with pytest.raises(ProcessLookupError):
        killing.wait()
    with pytest.raises(RuntimeError, match="A Ray task failed: .*No such file"):
        launcher.start(["--version"], Path("/nowhere/c")).wait()


def _end():
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)
