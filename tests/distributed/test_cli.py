"""`tfdpg train --actors`, and resuming a run that was killed."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tests.environments  # noqa: F401 (registers an environment)
import tfdpg
from tests.agents.roster import brief
from tests.commands import QUIET, SHORT, TINY
from tfdpg import cli
from tfdpg.cli import runs

pytestmark = brief

ENV = "tests.environments:tfdpg-test/Counter-v0"


def train(*arguments):
    return cli.main(["train", "ddpg", "--env", ENV, *TINY, *SHORT, *map(str, arguments)])


def test_an_unreachable_ray_leaves_nothing_behind(tmp_path, capsys):
    """This test is the first, because an existing connection to Ray would be used."""
    run = tmp_path / "new"
    options = ["--actors", "2", "--ray-address", "127.0.0.1:1"]
    assert train("--run-dir", run, *options) == 1
    assert (
        "tfdpg: `ray_address` must be the address of a Ray cluster. Received: '127.0.0.1:1'" in capsys.readouterr().err
    )
    assert not run.exists()


@pytest.mark.slow
def test_a_distributed_run_and_its_resumption(local_ray, tmp_path, capsys):
    options = ["--actors", "2", "--chunk", "10", "--noise-levels", "0.1", "0.3", "--env-kwargs", "length=3"]
    assert train("--run-dir", tmp_path, *options) == 0
    run = tmp_path / "seed-0"
    kept = json.loads((run / "run.json").read_text())["distributed"]
    assert (kept["actors"], kept["chunk"], kept["noise_levels"]) == (2, 10, [0.1, 0.3])
    assert cli.main(["train", "--resume", str(run), "--epochs", "3"]) == 0
    assert "are lost" not in capsys.readouterr().out
    with open(run / "progress.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 and float(rows[-1]["val_return"]) == 6 and rows[-1]["worker_restarts"] == "0.0"
    agent = tfdpg.load_agent(max((run / "checkpoints").iterdir(), key=lambda path: int(path.name)))
    assert agent.epoch == 3 and agent.env_steps == runs.read_step_file(run / "trained.txt")[0] >= 90
    assert len(agent.data.collector.episodes) == 2


def test_incompatible_options(tmp_path, capsys):
    for options, message in (
        (["--chunk", "10"], "`--chunk` needs `--actors`"),
        (["--actors", "2", "--num-envs", "2"], "`--num-envs` and `--actors` exclude each other"),
        (["--actors", "2", "--chunk", "0"], "`chunk` must be a positive integer"),
        (["--actors", "2", "--noise-levels", "1.0"], "`noise_levels` must be 2 numbers"),
    ):
        assert train("--run-dir", tmp_path / "bad", *options) == 1
        assert message in capsys.readouterr().err and not (tmp_path / "bad").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This training ends at .* it makes no update")
def test_a_run_without_distributed_options_can_be_resumed(tmp_path):
    assert train("--run-dir", tmp_path, *QUIET) == 0
    config = json.loads((tmp_path / "seed-0/run.json").read_text())
    assert config.pop("distributed") is None
    (tmp_path / "seed-0/run.json").write_text(json.dumps(config))
    (tmp_path / "seed-0/trained.txt").unlink()
    assert cli.main(["train", "--resume", str(tmp_path / "seed-0"), "--epochs", "3", "--trusted"]) == 0


@pytest.mark.hours
def test_a_killed_learner_reports_the_lost_steps(tmp_path):
    code = "import sys; from tfdpg.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "train"]
    options = ["--steps-per-epoch", "100", "--epochs", "100000", "--save-every", "1000000", "--verbose", "0"]
    options += ["--validation-episodes", "1", "--actors", "2", "--chunk", "10", "--run-dir", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0"}

    process = subprocess.Popen([*command, "td3", "--env", ENV, *TINY, *options], env=environment)
    run = tmp_path / "seed-0"
    wait_until(lambda: runs.read_step_file(run / "trained.txt")[0] > 300, process)
    process.send_signal(signal.SIGINT)  # leaves a checkpoint
    assert process.wait(200) == 130
    saved = max(int(path.name) for path in (run / "checkpoints").iterdir())

    process = subprocess.Popen([*command, "--resume", str(run)], env=environment)
    wait_until(lambda: runs.read_step_file(run / "trained.txt")[0] > saved + 100, process)
    process.kill()
    process.wait(60)
    arrived = runs.read_step_file(run / "trained.txt")[0]

    last = [
        *command,
        "--resume",
        str(run),
        "--trusted",
        "--epochs",
        str(tfdpg.load_agent(run / "checkpoints" / str(saved)).epoch + 2),
    ]
    shown = subprocess.check_output(last, env=environment, text=True)
    expected = f"resumed at step {saved}; {arrived - saved} steps after the checkpoint are lost"
    assert expected in shown


def wait_until(condition, process):
    deadline = time.time() + 300
    while not condition() and time.time() < deadline:
        time.sleep(0.1)
        assert process.poll() is None
    assert condition()
