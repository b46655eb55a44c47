"""`tfdpg train AGENT --from MODEL`: a run whose agent begins with the networks of an exported model."""

import csv
import json
import shutil

import numpy as np
import pytest

import tfdpg
from tests.agents.roster import brief
from tests.commands import EAGER, QUIET, train
from tfdpg import cli
from tfdpg.cli import ownership
from tfdpg.cli.run_options import read_config, train_command
from tfdpg.cli.training import parse_training_flags

pytestmark = brief

ENV = "Pendulum-v1"
SCHEDULE = "--steps-per-epoch 30 --validation-episodes 1 --max-ep-len 20 --verbose 0".split()
SCHEDULE += "--update-after 10 --warm-up-updates 4".split()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The last policy of a run."""
    directory = tmp_path_factory.mktemp("runs")
    assert train("--run-dir", directory, *QUIET, "--gamma", "0.9", "--max-ep-len", "20", env=ENV) == 0
    return directory / "seed-0/export"


def fine_tune(model, *arguments):
    return cli.main(["train", "ddpg", "--env", ENV, "--from", str(model), *SCHEDULE, *map(str, arguments)])


def weights(run):
    (newest,) = sorted((run / "checkpoints").iterdir(), key=lambda path: int(path.name))[-1:]
    return tfdpg.load_agent(newest).get_weights()


@pytest.mark.slow
def test_a_resumed_run_needs_no_export_and_equals_an_uninterrupted_one(model, tmp_path):
    copied = shutil.copytree(model, tmp_path / "model")
    options = "--jit-compile", "False"
    assert fine_tune(copied, "--run-dir", tmp_path / "one", "--epochs", 1, *options) == 0
    assert fine_tune(copied, "--run-dir", tmp_path / "other", "--epochs", 2, *options) == 0
    shutil.rmtree(copied)
    run = tmp_path / "one/seed-0"
    assert ownership.is_own(run)
    assert cli.main(["train", "--resume", str(run), "--epochs", "2"]) == 0
    for one, other in zip(weights(run), weights(tmp_path / "other/seed-0"), strict=True):
        np.testing.assert_array_equal(one, other)
    shutil.rmtree(run / "checkpoints")  # as if it had been killed before the first one
    assert cli.main(["train", "--resume", str(run), "--epochs", "2"]) == 0
    for one, other in zip(weights(run), weights(tmp_path / "other/seed-0"), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_the_run_records_the_version_and_the_options_of_the_export(model, tmp_path):
    assert fine_tune(model, "--run-dir", tmp_path, "--epochs", 1, *EAGER, "--seeds", 0, 1, "--pi-lr", "1e-5") == 0
    for seed in (0, 1):
        run = tmp_path / f"seed-{seed}"
        config = json.loads((run / "run.json").read_text())
        options = config["options"]
        assert config["from_"] == str(model / "1") and (run / "initial/1/agent.npz").exists()
        assert (options["gamma"], options["hidden_units"], options["start_steps"]) == (0.9, [8], 0)
        assert (options["pi_lr"], options["warm_up_updates"], config["seed"]) == (1e-5, 4, seed)
        with open(run / "progress.csv") as file:
            assert [row["env_steps"] for row in csv.DictReader(file)] == ["30.0"]
    command = train_command(read_config(tmp_path / "seed-1")).split()
    assert command[:2] == ["tfdpg", "train"] and command[command.index("--from") + 1] == str(model / "1")
    _, (again,) = parse_training_flags(command[2], command[3:])
    before = read_config(tmp_path / "seed-1")
    assert (again.from_, json.loads(json.dumps(again.agent_options))) == (before.from_, before.agent_options)


def test_a_run_does_not_replace_the_one_that_its_model_is_in(model, capsys):
    parent = model.parent.parent
    assert fine_tune(model, "--run-dir", parent, "--epochs", 1, *EAGER, "--overwrite") == 1
    assert "`--from` must not be a model in the run that is replaced" in capsys.readouterr().err
    assert (model / "1/agent.npz").exists() and list((parent / "seed-0/checkpoints").iterdir())


def test_a_sweep_begins_with_the_same_model(model):
    words = ["--from", str(model), "--env", ENV]
    _, configs = parse_training_flags("ddpg", [*words, "--sweep", "gamma=.9,.8"])
    assert [(config.options["gamma"], config.from_) for config in configs] == [
        (0.9, str(model / "1")),
        (0.8, str(model / "1")),
    ]
    with pytest.raises(ValueError, match="`alpha` does nothing where `replay` is 'uniform'"):
        parse_training_flags("ddpg", [*words, "--sweep", "alpha=.4,.8"])
    with pytest.raises(ValueError, match="`hidden_units` must be that of the exported agent"):
        parse_training_flags("ddpg", [*words, "--sweep", "hidden_units=8,16"])


def test_flags_replace_the_options_of_the_export(model):
    _, (config,) = parse_training_flags(
        "ddpg", ["--from", str(model), "--env", ENV, "--gamma", "0.8", "--start-steps", "7"]
    )
    assert (config.options["gamma"], config.options["start_steps"], config.options["batch_size"]) == (0.8, 7, 8)


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["ddpg", "--hidden-units", "4"], 1, "`hidden_units` must be that of the exported agent in"),
        (["td3"], 1, "The exported model must be one of TD3. Received: "),
        (["ddpg", "--env", "tfdpg-test/Counter-v0"], 1, "The observation_space of `env` must be the agent's"),
        (["ddpg", "--recipe", "lean"], 2, "--recipe and --from exclude each other"),
        (["ddpg", "--from", "nothing"], 1, "No exported model in nothing: there is no such directory"),
        (["ddpg", "--from"], 2, "--from must be a string or None. Received: no value"),
        (["ddpg", "--from", "exported_models/ddpg-pendulum"], 1, "because an older version of tfdpg wrote it"),
    ],
)
def test_a_wrong_command_is_explained_in_one_line_and_makes_no_run(model, tmp_path, capsys, words, status, message):
    name, *others = words
    arguments = ["train", name, "--env", ENV, "--from", str(model), "--run-dir", str(tmp_path / "runs"), *others]
    assert cli.main(arguments) == status
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tfdpg:")]
    assert len(lines) == 1 and message in lines[0] and not (tmp_path / "runs").exists()


def test_a_run_directory_is_no_model(model, capsys):
    assert fine_tune(model.parent, "--epochs", 1) == 1
    assert f"it is a run; its exported models are {model.parent / 'best'} and {model}" in capsys.readouterr().err
