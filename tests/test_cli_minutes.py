"""`tfdpg train --minutes`: a run has a time budget, of which a resumed run gets what is left."""

import csv
import json
import re

import pytest

import tfdpg
from tests.agents.roster import brief
from tests.commands import QUIET, TINY
from tfdpg import cli, export
from tfdpg.training.callbacks import read_step_file, step_line

pytestmark = brief

COUNTER = ["ddpg", "--env", "tests.environments:tfdpg-test/Counter-v0", *TINY, *QUIET, "--verbose", "0"]
COUNTER += ["--steps-per-epoch", "30", "--validation-episodes", "1"]


def newest(run):
    return export.versions(run / "checkpoints")[-1]


def epochs_of(run):
    with open(run / "progress.csv") as file:
        return [int(row["epoch"]) for row in csv.DictReader(file)]


@pytest.mark.filterwarnings("ignore:Sub-environment 0 is not deterministic")  # if the clock ends training in an episode
@pytest.mark.slow
def test_a_run_ends_on_time_and_is_continued_with_more_minutes(tmp_path, capsys):
    run = tmp_path / "seed-0"
    resume = ["train", "--resume", str(run), "--trusted"]
    assert cli.main(["train", *COUNTER, "--minutes", "0.02", "--run-dir", str(tmp_path)]) == 0
    assert f"exported {run}/export/1; the best policy is in {run}/best" in capsys.readouterr().out
    assert tfdpg.load(run / "best").metadata["scores"]["val_return"] == 15
    used = read_step_file(run / "trained.txt")[1]
    assert used >= 1.2
    steps = newest(run)
    assert tfdpg.load(run / "export").metadata["env_steps"] == steps > 0

    for changes, kept in (([], ""), (["--epochs", "100000"], "; nothing was changed")):
        assert cli.main([*resume, *changes]) == 0
        assert f"epochs{kept}. To continue: --minutes {int(used / 60) + 1} or more." in capsys.readouterr().out
    assert newest(run) == steps

    assert cli.main([*resume, "--minutes", f"{used / 60 + 0.01}"]) == 0
    assert newest(run) > steps and read_step_file(run / "trained.txt")[1] >= used + 0.5
    assert epochs_of(run) == list(range(len(epochs_of(run))))
    assert json.loads((run / "run.json").read_text())["options"]["minutes"] == used / 60 + 0.01


@pytest.mark.slow
def test_a_resumed_run_has_the_minutes_that_are_left(tmp_path, capsys):
    run = tmp_path / "seed-0"
    resume = ["train", "--resume", str(run), "--trusted"]
    assert cli.main(["train", *COUNTER, "--epochs", "1", "--minutes", "100", "--run-dir", str(tmp_path)]) == 0
    assert epochs_of(run) == [0] and 0 < read_step_file(run / "trained.txt")[1] < 6000
    assert cli.main(resume) == 0
    assert "is complete: 1 epochs. To continue: --epochs 2 or more." in capsys.readouterr().out
    (run / "trained.txt").write_text(step_line(30, 5999.9))
    assert cli.main([*resume, "--epochs", "100000"]) == 0
    assert read_step_file(run / "trained.txt")[1] >= 6000 and len(epochs_of(run)) > 1
    assert cli.main([*resume, "--epochs", "1"]) == 0
    assert re.search(r"To continue: --epochs \d+ and --minutes \d+ or more\.", capsys.readouterr().out)


@pytest.mark.parametrize("minutes", ["0", "-1", "inf"])
def test_minutes_are_checked_before_anything_is_written(tmp_path, capsys, minutes):
    assert cli.main(["train", *COUNTER, "--minutes", minutes, "--run-dir", str(tmp_path / "new")]) == 1
    assert "tfdpg: `minutes` must be a number above 0 or None. Received: minutes=" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_each_of_several_runs_has_its_own_minutes(tmp_path):
    for jobs in ("1", "2"):
        parent = tmp_path / jobs
        options = ["--minutes", "0.02", "--seeds", "0", "1", "--jobs", jobs, "--run-dir", str(parent)]
        assert cli.main(["train", *COUNTER, *options]) == 0
        for seed in range(2):
            run = parent / f"seed-{seed}"
            assert read_step_file(run / "trained.txt")[1] >= 1.2 and newest(run) > 0 and (run / "best").exists()
