"""Sweeps: the settings and their directories, the table, and how a sweep is interrupted, resumed and plotted."""

import signal
import subprocess
import sys
import time

import pytest

from tests.agents.roster import brief
from tests.commands import QUIET, TINY
from tfdpg import cli
from tfdpg.cli import sweeps, training
from tfdpg.cli.run_options import read_config
from tfdpg.cli.run_paths import runs_at
from tfdpg.cli.training import parse_training_flags
from tfdpg.plotting import curves

pytestmark = brief
COUNTER = "tests.environments:tfdpg-test/Counter-v0"


def test_all_combinations_are_trained_with_each_seed():
    words = ["--env", "Pendulum-v1", "--seeds", "7", "8", "--recipe", "normalized", "--sweep"]
    words += ["hidden-units=64 64,32", "update_every=1,episode", "n_step=1,3", "clip_norm=none,.50"]
    _, configs = parse_training_flags("td3", words)
    swept = sweeps.swept_options(configs)
    assert swept == "update_every n_step hidden_units clip_norm".split()  # the order of the help
    assert [config.seed for config in configs] == [7, 8] * 16
    settings = [tuple(config.options[name] for name in swept) for config in configs[::2]]
    assert settings[:3] == [(1, 1, [64, 64], None), (1, 1, [64, 64], 0.5), (1, 1, [32], None)]
    assert settings[-1] == ("episode", 3, [32], 0.5) and len(set(map(str, settings))) == 16
    (alone,) = parse_training_flags("td3", words[: words.index("--sweep")] + ["--seeds", "0"])[1]
    assert {name for name, value in alone.options.items() if configs[0].options[name] != value} <= set(swept)


def test_a_directory_is_named_by_what_differs():
    assert sweeps.directory_name({"n_step": 3, "gamma": 0.98}) == "n_step-3_gamma-0.98"
    assert sweeps.directory_name({"hidden_units": (64, 64), "pi_lr": 1e-05, "alpha": None}) == (
        "hidden_units-64-64_pi_lr-1e-05_alpha-None"
    )
    assert sweeps.directory_name({"activation": "my/own:one"}) == "activation-my%2Fown%3Aone"


def test_the_table_has_a_line_for_each_setting(tmp_path):
    names = [f"{setting}/seed-{seed}" for setting in ("gamma-0.9", "gamma-0.99", "gamma-1.0") for seed in (0, 1, 2)]
    for name, returns in zip(names, ("1\n5\n2", "3\n4", "9\n6", "7\n5", "8\n8", "7\n7"), strict=False):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "progress.csv").write_text(f"val_return\n{returns}\n")
    lines = training.sweep_table([(name, tmp_path / name) for name in names], failed=names[4:6]).splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "evaluation return seeds final best",
        "gamma-0.9 3 4.00 ± 2.00 6.00 ± 2.65",
        "gamma-0.99 1 of 3 5.00 7.00",
        "gamma-1.0 0 of 3 - -",
    ]


@pytest.mark.slow
def test_an_interrupted_sweep_is_resumed_as_a_whole_and_plotted_by_setting(tmp_path, capsys):
    words = ["--env", COUNTER, *TINY, "--steps-per-epoch", "50", "--epochs", "100000", "--validation-episodes", "1"]
    words += ["--verbose", "2", *QUIET, "--run-dir", str(tmp_path), "--seeds", "0", "1", "--sweep"]
    command = [sys.executable, "-m", "tfdpg", "train", "ddpg", *words, "gamma=.9,.99"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first = tmp_path / "gamma-0.9/seed-0"
    progress = first / "progress.csv"
    while not progress.exists() or len(progress.read_text().splitlines()) < 4:  # a header and three epochs
        time.sleep(0.2)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and f"seed 0 (1 of 4): {first}\n" in out and "Traceback" not in errors
    assert f"Resume all runs with: tfdpg train --resume {tmp_path}\n" in errors
    runs = [tmp_path / f"gamma-{gamma}/seed-{seed}" for gamma in ("0.9", "0.99") for seed in (0, 1)]
    assert runs_at(tmp_path) == runs
    assert [read_config(run).options["gamma"] for run in runs] == [0.9, 0.9, 0.99, 0.99]

    assert cli.main(["train", "--resume", str(tmp_path), "--epochs", "1", "--gamma", ".5"]) == 2
    assert "--gamma cannot change, because the runs of the sweep differ in it." in capsys.readouterr().err
    assert cli.main(["train", "--resume", str(tmp_path), "--epochs", "1"]) == 0
    out = capsys.readouterr().out
    assert out.count("is complete") == 1 and out.count("Epoch 1/1") == 3
    assert [" ".join(line.split()) for line in out.splitlines()[-3:]] == [
        "evaluation return seeds final best",
        "gamma-0.9 2 15.00 ± 0.00 15.00 ± 0.00",
        "gamma-0.99 2 15.00 ± 0.00 15.00 ± 0.00",
    ]
    read = [curves.read(run, "env_steps", "val_return", 1) for run in curves.find_runs([tmp_path])]
    labelled = curves.label_runs(read, separate=False)
    assert {label: len(group) for label, group in labelled.items()} == {"gamma=0.9": 2, "gamma=0.99": 2}

    # another sweep in the same directory; and a run that fails does not stop the others
    words[words.index("100000")] = "1"
    assert cli.main(["train", "ddpg", *words, "gamma=.8,.9"]) == 1
    assert f"To resume the sweep: tfdpg train --resume {tmp_path}" in capsys.readouterr().err
    assert not (tmp_path / "gamma-0.8").exists()
    assert cli.main(["train", "ddpg", *words, "gamma=.8,.7", "--jobs", "2"]) == 0
    assert "gamma-0.7/seed-1 | Epoch 1/1" in capsys.readouterr().out
    assert len((tmp_path / "sweep.txt").read_text().splitlines()) == 2 and len(runs_at(tmp_path)) == 8
    (checkpoint,) = (tmp_path / "gamma-0.7/seed-0/checkpoints").iterdir()
    (checkpoint / "checkpoint.json").write_text("{")
    assert cli.main(["train", "--resume", str(tmp_path), "--epochs", "2", "--trusted"]) == 1
    shown = capsys.readouterr()
    assert f"{checkpoint}/checkpoint.json is damaged" in shown.err
    assert "1 of 8 runs failed: gamma-0.7/seed-0 (exit status 1)" in shown.err
    assert " ".join(shown.out.splitlines()[-4].split()) == "gamma-0.7 1 of 2 15.00 15.00"
    assert sorted(shown.out.splitlines()[-4:]) == shown.out.splitlines()[-4:] and shown.out.count("Epoch 2/2") == 6
