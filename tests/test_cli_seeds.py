"""Runs of several seeds: in parallel, replaced, resumed, and the table of their returns."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

import tfdpg
from tests.agents.roster import brief
from tests.commands import QUIET, SHORT, TINY
from tfdpg import cli
from tfdpg.agents import AGENTS
from tfdpg.cli import runs, training
from tfdpg.cli.jobs import environment, run_jobs
from tfdpg.cli.run_options import read_config
from tfdpg.training.checkpoints.checkpoint import saved_options

pytestmark = brief
COUNTER = "tests.environments:tfdpg-test/Counter-v0"
QUICK = [*TINY, "--steps-per-epoch", "6", "--epochs", "1", "--validation-episodes", "1", "--verbose", "2", *QUIET]


def train(*arguments, env="tfdpg-test/Counter-v0"):
    return cli.main(["train", "ddpg", "--env", env, *QUICK, *map(str, arguments)])


@pytest.mark.slow
def test_each_seed_has_a_heading_and_all_have_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert train("--run-dir", "auto", "--seeds", "3", "random", env=COUNTER) == 0
    out = capsys.readouterr().out
    parent = "runs/ddpg-tests.environments-tfdpg-test-Counter-v0"
    drawn = re.search(rf"^seed (\d+) \(2 of 2\): {parent}/seed-\1$", out, re.MULTILINE)[1]
    assert f"seed 3 (1 of 2): {parent}/seed-3\n" in out
    assert tfdpg.load_agent(f"{parent}/seed-{drawn}/checkpoints/6").seed == int(drawn)
    assert [line.split() for line in out.splitlines()[-4:]] == [
        ["evaluation", "return", "final", "best"],
        ["seed-3", "15.00", "15.00"],
        [f"seed-{drawn}", "15.00", "15.00"],
        ["mean", "±", "std", "15.00", "±", "0.00", "15.00", "±", "0.00"],
    ]
    assert train("--run-dir", "auto", "--verbose", "0", env=COUNTER) == 0
    exported = f"exported {parent}-2/seed-0/export/1; the best policy is in {parent}-2/seed-0/best\n"
    assert capsys.readouterr().out == exported


def test_the_table_has_final_and_best_and_what_is_missing(tmp_path):
    for seed, returns in ((0, "1\n5\n2"), (1, "3\n4\n")):
        (tmp_path / str(seed)).mkdir()
        (tmp_path / str(seed) / "progress.csv").write_text(f"val_return\n{returns}\n")
    lines = training.table([(name, tmp_path / name) for name in "012"]).splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "evaluation return final best",
        "0 2.00 5.00",
        "1 4.00 4.00",
        "2 - -",
        "mean ± std of 2 3.00 ± 1.41 4.50 ± 0.71",
    ]
    lines = training.table([(name, tmp_path / name) for name in "012"], failed=["1", "2"]).splitlines()
    assert [" ".join(line.split()) for line in lines[1:]] == ["0 2.00 5.00", "1 (failed) 4.00 4.00", "2 (failed) - -"]


def test_overwrite_replaces_runs_once_the_new_one_is_sure(tmp_path, monkeypatch, capsys):
    for method in ("fit", "export"):
        monkeypatch.setattr(runs.Agent, method, lambda *arguments, **options: None)
    assert train("--run-dir", tmp_path) == 0
    (tmp_path / "seed-0/mine").touch()
    capsys.readouterr()
    assert train("--run-dir", tmp_path) == 1
    shown = capsys.readouterr().err
    assert "--overwrite" in shown and "--run-dir auto" in shown and f"--resume {tmp_path}/seed-0" in shown
    for options, message in (
        (["--gamma", "2"], "`gamma` must be"),
        (["--env", "NoSuch-v0"], "cannot be made"),
        (["--networks", "tests.environments:nope"], "has no function 'nope'"),
    ):
        for overwrite in [], ["--overwrite"]:
            if overwrite or "--networks" not in options:
                assert train("--run-dir", tmp_path, *overwrite, *options) == 1
                assert message in capsys.readouterr().err
    assert (tmp_path / "seed-0/mine").exists()
    assert train("--run-dir", tmp_path, "--overwrite", "--gamma", "0.5", "--seeds", "0", "1") == 0
    assert not (tmp_path / "seed-0/mine").exists() and read_config(tmp_path / "seed-0").options["gamma"] == 0.5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seed-0", "seed-1"]
    (tmp_path / "seed-2").mkdir()
    (tmp_path / "seed-2/precious").touch()
    assert train("--run-dir", tmp_path, "--overwrite", "--seeds", "2") == 1
    assert "is not empty, and is not a run" in capsys.readouterr().err and (tmp_path / "seed-2/precious").exists()


@pytest.mark.slow
def test_resume_changes_what_can_change_and_goes_on_with_all_seeds(tmp_path, monkeypatch, capsys):
    assert train("--run-dir", tmp_path, "--seeds", "0", "1", env="tfdpg-test/Walk-v0") == 0
    command = ["train", "--resume", str(tmp_path), "--epochs", "2"]
    assert cli.main([*command, "--pi-lr", "0.5", "--act-noise", "0.3", "--save-every", "7"]) == 0
    assert "seed 1 (2 of 2)" in capsys.readouterr().out
    for seed in (0, 1):
        agent = tfdpg.load_agent(tmp_path / f"seed-{seed}/checkpoints/12")
        assert (saved_options(agent)["pi_lr"], saved_options(agent)["act_noise"], saved_options(agent)["q_lr"]) == (
            0.5,
            0.3,
            1e-3,
        )
        assert float(agent.optimizers["pi"].learning_rate) == 0.5
        config = read_config(tmp_path / f"seed-{seed}")
        assert (config.options["pi_lr"], config.options["epochs"], config.save_every) == (0.5, 2, 7)
    given = []
    load = runs.load_agent
    monkeypatch.setattr(runs, "load_agent", lambda *args, **changes: given.append(changes) or load(*args, **changes))
    assert cli.main(["train", "--resume", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("is complete: 2 epochs") == 2
    same = {"agent_class": tfdpg.DDPG}
    assert given == [same | {"trusted": True}] * 2  # the runs are the user's own; what the checkpoint has is no change
    config = json.loads((tmp_path / "seed-0/run.json").read_text())
    config["options"]["q_lr"] = 0.25  # as a resume leaves it that is killed before its first checkpoint
    (tmp_path / "seed-0/run.json").write_text(json.dumps(config))
    assert cli.main(["train", "--resume", str(tmp_path / "seed-0"), "--epochs", "3"]) == 0
    assert given[-1] == same | {"trusted": False, "q_lr": 0.25}
    assert cli.main(["train", "--resume", str(tmp_path / "seed-0"), "--epochs", "4", "--gamma", "7"]) == 1
    assert "`gamma` must be a finite number in [0, 1]" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("agent", [name.lower() for name in AGENTS])
def test_a_checkpoint_has_the_options_of_its_run(tmp_path, monkeypatch, agent):
    sizes = ["--hidden-units", "8", "--jit-compile", "False", *SHORT, "--run-dir", str(tmp_path)]
    assert cli.main(["train", agent, "--env", "Pendulum-v1", *sizes]) == 0
    given = []
    load = runs.load_agent
    monkeypatch.setattr(runs, "load_agent", lambda *args, **changes: given.append(changes) or load(*args, **changes))
    assert cli.main(["train", "--resume", str(tmp_path)]) == 0
    assert given == [{"agent_class": getattr(tfdpg, agent.upper()), "trusted": True}]


def test_jobs_go_on_when_one_fails_and_their_lines_have_names(capfd):
    statuses = run_jobs({"a": ["--version"], "b": ["fly"], "c": ["inspect", "nowhere"]}, 2)
    assert statuses == {"a": 0, "b": 2, "c": 1}
    shown = capfd.readouterr()
    assert shown.out == f"a | tfdpg {tfdpg.__version__}\n"
    assert "b | tfdpg: there is no command 'fly'." in shown.err and "c | tfdpg: No exported model" in shown.err


def test_jobs_share_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(12), raising=False)
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert environment(5)["TF_NUM_INTRAOP_THREADS"] == "2" and environment(20)["TF_NUM_INTRAOP_THREADS"] == "1"
    assert environment(5)["OMP_NUM_THREADS"] == "7"


WAITING = """
import signal, sys, time
def end(number, frame):
    print(f"got {signal.Signals(number).name}\\rand ended", flush=True)
    time.sleep(0.5)
    sys.exit(3)
signal.signal(signal.SIGINT, end), signal.signal(signal.SIGTERM, end)
print("began", sys.argv[1], flush=True)
time.sleep(60)
"""
SIDE_BY_SIDE = """
import sys
from tfdpg import cli
from tfdpg.cli import jobs
jobs.PROGRAM = sys.executable, "-c", sys.argv[1]
def train(command, words):
    jobs.run_jobs({name: [name] for name in "abc"}, 2)
cli._train_or_tune = train
sys.exit(cli.main(["train"]))
"""


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_reaches_all_jobs_once_and_no_other_begins(number, status):
    command = [sys.executable, "-c", SIDE_BY_SIDE, WAITING]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, start_new_session=True, **pipes)
    began = sorted(process.stdout.readline() for _ in range(2))
    assert began == ["a | began a\n", "b | began b\n"]
    os.killpg(process.pid, number)  # as a terminal sends it
    out, errors = process.communicate(timeout=100)
    assert process.returncode == status
    assert sorted(out.splitlines()) == ["a | and ended", "b | and ended"]
    assert "tfdpg: " in errors and "Not started: c" in errors and "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.parametrize(
    "number, status", [pytest.param(signal.SIGINT, 130, marks=pytest.mark.hours), (signal.SIGTERM, 143)]
)
def test_a_signal_leaves_a_checkpoint_of_each_job_and_all_go_on(tmp_path, number, status):
    tfdpg_ = [sys.executable, "-m", "tfdpg", "train"]
    new = ["ddpg", "--env", COUNTER, *TINY, "--steps-per-epoch", "100", "--epochs", "100000", "--verbose", "2"]
    new += ["--run-dir", str(tmp_path), "--seeds", "0", "1", "2", "--jobs", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*tfdpg_, *new], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not all((tmp_path / f"seed-{seed}/checkpoints").exists() for seed in (0, 1)):
        time.sleep(0.2)
        assert process.poll() is None
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status and not (tmp_path / "seed-2").exists()
    assert f"Resume all runs with: tfdpg train --resume {tmp_path} --jobs 2" in errors and "Traceback" not in errors
    for seed in (0, 1):
        assert f"seed-{seed} | Resume with: tfdpg train --resume {tmp_path}/seed-{seed}" in errors
        checkpoint = max((tmp_path / f"seed-{seed}/checkpoints").iterdir(), key=lambda path: int(path.name))
        assert tfdpg.load_agent(checkpoint).env_steps == int(checkpoint.name)
    on = [*tfdpg_, "--resume", str(tmp_path), "--jobs", "2", "--epochs", "1"]
    ended = subprocess.run(on, **pipes)
    assert ended.returncode == 0 and ended.stdout.count("is complete") == 2 and "mean ± std" in ended.stdout
