"""The command line with real runs."""

import csv
import dataclasses
import json
import shlex
import shutil
import warnings

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf

import tfdpg
from tests.agents.roster import brief
from tests.commands import EAGER, QUIET, train
from tfdpg import cli, files
from tfdpg.cli.run_options import read_config
from tfdpg.cli.training import parse_training_flags

pytestmark = brief


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "counter"
    assert train("--run-dir", directory, "--env-kwargs", "length=3", "ends=truncated", *EAGER) == 0
    return directory / "seed-0"


def test_a_run_directory_holds_everything(run):
    config = json.loads((run / "run.json").read_text())
    assert config["env_kwargs"] == {"length": 3, "ends": "truncated"} and config["options"]["hidden_units"] == [8]
    with open(run / "progress.csv") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["env_steps"]) for row in rows] == [30, 60] and float(rows[0]["val_return"]) == 6
    assert (run / "progress.txt").read_text().startswith("Epoch\tAverageEpRet")
    assert json.loads((run / "labels.json").read_text())["loss_q"] == "critic loss"
    assert [path.name[:19] for path in (run / "tensorboard").iterdir()] == ["events.out.tfevents"]
    agent = tfdpg.load_agent(run / "checkpoints/60")
    assert (agent.env_steps, agent.epoch, agent.seed) == (60, 2, 0)
    assert tfdpg.load(run / "export").metadata["env_steps"] == 60
    assert tfdpg.load(run / "best").metadata["scores"]["val_return"] == 6


def test_evaluate_prints_each_episode_and_the_summary(run, capsys):
    assert cli.main(["evaluate", str(run), "--episodes", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "episode 1: return 6.000, length 3, truncated" and len(lines) == 3
    assert lines[2].startswith("return: mean 6.000, std 0.000, max 6.000, min 6.000; length: mean 3.0; ")
    assert lines[2].endswith("; terminated 0 %, truncated 100 %")
    for source, options in ((run, ["--checkpoint", "best"]), (run, ["--checkpoint", "60"]), (run / "export", [])):
        assert cli.main(["evaluate", str(source), "--episodes", "1", "--max-ep-len", "2", *options]) == 0
        assert "return 3.000, length 2" in capsys.readouterr().out
    assert cli.main(["evaluate", str(run), "--episodes", "1", "--env", "tfdpg-test/Counter-v0"]) == 0
    assert "return 15.000, length 5" in capsys.readouterr().out


def test_evaluate_prints_the_scores_as_json(run, capsys):
    assert cli.main(["evaluate", str(run), "--episodes", "2", "--json"]) == 0
    scores = {"return": 6.0, "return_std": 0.0, "return_min": 6.0, "return_max": 6.0, "episode_length": 3.0}
    scores |= {"terminated": 0.0, "truncated": 1.0}
    lists = {"returns": [6.0, 6.0], "lengths": [3, 3]}
    assert json.loads(capsys.readouterr().out) == scores | {"episodes": 2} | lists


def test_diagnose_prints_the_findings_as_text_and_as_json(run, tmp_path, capsys):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert cli.main(["diagnose", str(run), "--episodes", "2", "--plot", str(tmp_path / "picture.png")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["DDPG on tfdpg-test/Counter-v0, seed 0", "60 environment steps, 10 updates"]
    assert lines[3].split() == ["greedy", "6", "±", "0"]
    assert "1. return (medium): The policy is not better than random actions." in lines
    assert lines[-1] == f"wrote {tmp_path / 'picture.png'}" and (tmp_path / "picture.png").stat().st_size > 10_000
    assert cli.main(["diagnose", str(run), "--episodes", "1", "--checkpoint", "30", "--json"]) in (0, 1)
    shown = json.loads(capsys.readouterr().out)
    assert shown["env_steps"] == 30 and shown["returns"]["random"] == {"mean": 6.0, "error": None}
    assert all(each.keys() == {"check", "severity", "what", "evidence", "remedy"} for each in shown["findings"])
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    for words, message in (
        (["--episodes", "0"], "`episodes` must be a positive integer"),
        (["--checkpoint", "best"], "`best` has no replay buffer"),
        (["--plot", "picture.txt"], "`plot` must end in one of"),
        (["--env", "NoSuch-v0"], "'NoSuch-v0' cannot be made"),
    ):
        assert cli.main(["diagnose", str(run), *words]) == 1 and message in capsys.readouterr().err


def test_inspect_prints_the_description_of_an_export_as_json(run, capsys):
    assert cli.main(["inspect", str(run / "export"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    kept = tfdpg.load(run / "export").metadata
    assert shown.pop("directory") == str(run / "export/1")
    assert shown == {name: value for name, value in kept.items() if name not in ("files", "sha256")}
    assert set(shown["signatures"]) >= {"pi", "q1", "q2"}


def test_an_export_has_a_score_card(run, tmp_path, capsys):
    assert cli.main(["export", str(run), str(tmp_path / "model"), "--episodes", "2"]) == 0
    facts = tfdpg.load(tmp_path / "model").metadata
    env = gym.make(facts["environment"]["id"], **facts["environment"]["kwargs"])
    found = tfdpg.evaluate(tfdpg.load(tmp_path / "model"), env, 2)
    assert facts["scores"] == pytest.approx(found | {"episodes": 2}, rel=1e-4)
    assert facts["seed"] == read_config(run).seed
    _, _, agent, *words = shlex.split(facts["command"])
    (again,) = parse_training_flags(agent, words)[1]
    saved = json.loads((run / "run.json").read_text())
    saved["options"]["verbose"] = again.options["verbose"]
    assert json.loads(json.dumps(dataclasses.asdict(again))) == saved
    assert cli.main(["export", str(run), str(tmp_path / "c"), "--format", "c", "--episodes", "2"]) == 1
    assert "`--episodes` is for a SavedModel. Received: --format c" in capsys.readouterr().err


def test_export_and_inspect(run, tmp_path, capsys):
    for checkpoint in ("best", "latest", "60"):
        assert cli.main(["export", str(run), str(tmp_path / "model"), "--checkpoint", checkpoint]) == 0
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["1", "2", "3"]
    assert "exported" in capsys.readouterr().out
    observation = np.ones(2, np.float32)
    assert tfdpg.load(tmp_path / "model/2")(observation) == pytest.approx(tfdpg.load(tmp_path / "model/3")(observation))
    assert cli.main(["inspect", str(tmp_path / "model")]) == 0
    assert "q1(x: float32[batch, 2], a: float32[batch, 1]) -> q1: float32[batch]" in capsys.readouterr().out


@pytest.mark.slow
def test_export_and_convert_to_other_formats(run, tmp_path, capsys):
    assert cli.main(["export", str(run), str(tmp_path / "model")]) == 0
    for format, file in (("onnx", "pi.onnx"), ("litert", "model.tflite")):
        options = ["--format", format, "--checkpoint", "latest" if format == "onnx" else "best"]
        assert cli.main(["export", str(run), str(tmp_path / format), *options]) == 0
        opset = ["--opset", "13"] if format == "onnx" else []
        assert cli.main(["convert", str(tmp_path / "model"), str(tmp_path / f"{format}-2"), *options[:2], *opset]) == 0
        assert (tmp_path / format / file).exists() and (tmp_path / f"{format}-2" / file).exists()
        assert f"wrote {tmp_path}/{format}-2" in capsys.readouterr().out
        assert cli.main(["convert", str(tmp_path / "model/1"), str(tmp_path / "model"), *options[:2]]) == 1
        assert "which contains the versions [1] of a SavedModel" in capsys.readouterr().err
    assert (
        cli.main(["convert", str(tmp_path / "model"), str(tmp_path / "x"), "--format", "onnx", "--quantize", "int8"])
        == 1
    )
    assert "`quantize` does nothing where `format` is 'onnx'" in capsys.readouterr().err


def test_export_for_clients_of_tf_agents(run, tmp_path, capsys):
    command = ["export", str(run), str(tmp_path / "model"), "--signatures", "tf-agents"]
    assert cli.main(command) == 1 and "Add --checkpoint latest" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()
    assert cli.main([*command, "--checkpoint", "latest"]) == 0
    assert "action" in tf.saved_model.load(str(tmp_path / "model/1")).signatures


def test_plot(run, tmp_path, capsys):
    assert cli.main(["plot", str(run.parent), "--out", str(tmp_path / "curves.png")]) == 0
    assert (tmp_path / "curves.png").exists() and "wrote" in capsys.readouterr().out


def test_a_run_without_a_checkpoint_begins_again(run, tmp_path):
    (tmp_path / "seed-0").mkdir()
    shutil.copy(run / "run.json", tmp_path / "seed-0")
    assert cli.main(["train", "--resume", str(tmp_path / "seed-0"), *QUIET]) == 0
    assert tfdpg.load_agent(tmp_path / "seed-0/checkpoints/60").epoch == 2
    with pytest.raises(FileNotFoundError, match="It is a run: load .*/checkpoints/<steps>"):
        tfdpg.load_agent(tmp_path / "seed-0")


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"tfdpg {tfdpg.__version__}\n"


def test_errors_are_one_line_that_says_what_to_do(run, tmp_path, capsys):
    def error(*arguments):
        assert cli.main([str(a) for a in arguments]) == 1
        text = capsys.readouterr().err
        assert text.startswith("tfdpg: ") and text.count("\n") == 1
        return text

    assert train("--run-dir", run.parent) == 1
    assert "already holds a run" in capsys.readouterr().err
    (tmp_path / "full").mkdir()
    (tmp_path / "full/seed-0").write_text("precious")
    assert train("--run-dir", tmp_path / "full") == 1
    assert "is not empty" in capsys.readouterr().err
    assert train("--run-dir", tmp_path / "bad", "--gamma", "1.5") == 1
    assert "`gamma` must be a finite number in [0, 1]. Received: gamma=1.5" in capsys.readouterr().err
    assert not (tmp_path / "bad").exists()
    assert train("--run-dir", tmp_path / "bad", env="CartPole-v1") == 1
    assert "Discrete(2) is not supported" in capsys.readouterr().err
    assert train("--run-dir", tmp_path / "bad", "--env-kwargs", "length") == 1
    assert "name=value" in capsys.readouterr().err
    for options, message in (
        (["--env", "NoSuch-v0"], "'NoSuch-v0' cannot be made"),
        (["--env-kwargs", "length={3}"], "`env_kwargs` must be a dict by name of numbers, strings,"),
        (["--env-kwargs", "length={1: 2}"], "Received: env_kwargs={'length': {1: 2}}"),
        (["--env-kwargs", "length=b'3'"], "Received: env_kwargs={'length': b'3'}"),
        (["--env-kwargs", "wings=2"], "unexpected keyword argument 'wings'"),
        (["--num-envs", "0"], "`num_envs` must be a positive integer"),
        (["--networks", "tests.environments:nope"], "has no function 'nope'"),
        (["--steps-per-epoch", "0"], "`steps_per_epoch`"),
        (["--save-every", "0"], "`save_every` must be a positive integer"),
        (["--seeds"], "`--seeds` must be"),
        (["--seeds", "3", "3"], "`--seeds` must be"),
        (["--initial-epoch", "2"], "`initial_epoch` must be less than epochs=2"),
        (["--step-timeout", "9", "--num-envs", "2"], "`--step-timeout` needs environments in their own processes"),
    ):
        assert train("--run-dir", tmp_path / "bad", *options) == 1
        assert message in capsys.readouterr().err
        assert not (tmp_path / "bad").exists()
    damaged = shutil.copytree(run / "export/1", tmp_path / "damaged")
    for file in ("variables/variables.data-00000-of-00001", "tfdpg.json"):
        (damaged / file).write_bytes((damaged / file).read_bytes()[:100])
        assert f"The exported model cannot be loaded: {damaged / file} is damaged" in error("inspect", damaged)
    assert "No run in" in error("train", "--resume", tmp_path)
    assert "latest, best or one of [30, 60]" in error("evaluate", run, "--checkpoint", "61")
    assert "No run and no exported model in" in error("evaluate", tmp_path)
    assert "`--checkpoint` is for run directories" in error("evaluate", run / "export", "--checkpoint", "best")
    assert train("--run-dir", tmp_path / "bad", "--vectorization", "async") == 1
    assert "--num-envs" in capsys.readouterr().err
    assert "exclude each other" in error("evaluate", run, "--render", "--video", tmp_path / "video.mp4")


@pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO")  # of the callbacks before the one that fails
def test_damaged_files_of_a_run_are_named_in_one_line(run, tmp_path, capsys):
    def check(message, *commands):
        for command in commands:
            assert cli.main([str(word) for word in command]) == 1
            text = capsys.readouterr().err
            assert message in text and text.count("\n") == 1, text

    resume = ["train", "--resume", tmp_path / "run", "--epochs", "3"]
    plot = ["plot", tmp_path / "run", "--out", tmp_path / "x.png"]
    diagnose = ["diagnose", tmp_path / "run", "--episodes", "1"]

    def damaged(name, more):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        copy = shutil.copytree(run, tmp_path / "run")
        file = next(copy.glob(name))
        content = file.read_bytes()
        file.unlink()
        file.mkdir() if more is None else file.write_bytes(content + more)
        return file

    latin = "é\n".encode("latin-1")
    file = damaged("progress.csv", b"1," + b"9" * 131_073 + b"\n")
    check(f"{file} is damaged: field larger than field limit (131072)", resume, diagnose)
    file = damaged("progress.csv", b"9" * 5_000 + b"\n")
    check(f"{file} is damaged: Exceeds the limit", resume)
    file = damaged("progress.csv", latin)
    check(f"{file} is damaged: byte {file.stat().st_size - 2} is not text in UTF-8", resume, plot, diagnose)
    file = damaged("progress.txt", latin)
    check(f"{file} is damaged: byte {file.stat().st_size - 2} is not text in UTF-8", resume)
    for name in ("progress.csv", "progress.txt"):
        file = damaged(name, None)
        check(f"`filename` must be a file to write to. Received a directory: {file}", resume)
    file = damaged("tensorboard/*.tfdpg", None)
    check(f"{file} is damaged:", resume)
    file = damaged("tensorboard/*.tfdpg", b"")
    with tf.io.TFRecordWriter(str(file)) as writer:
        writer.write(b"not an event")
    check(f"{file} is damaged: Error parsing message", resume)
    for more in ([], ["--trusted"]):
        assert cli.main(["train", "--resume", str(run), *more, "--env-kwargs", "length=2"]) == 2
        assert capsys.readouterr().err.startswith("tfdpg: --env-kwargs cannot change")
    check("must be latest, best or one of [30, 60]. Received: '²'", ["evaluate", run, "--checkpoint", "²"])


@pytest.mark.parametrize("more", [[], ["--num-envs", "2"]])
def test_an_argument_of_the_environment_of_another_type_is_named_where_it_fails(more, tmp_path, capsys):
    arguments = ["--run-dir", tmp_path, "--env-kwargs", "length=abc", "ends=3", "as_dict=0", *more]
    assert train(*arguments, env="tests.environments:Counter") == 1
    text = capsys.readouterr().err
    remark = "`ends` is 3, and its default is 'terminated'; `length` is 'abc', and its default is 5."
    assert "raised TypeError: '>=' not supported" in text and "tests/environments.py:" in text and remark in text
    assert "Traceback" not in text


def test_arguments_with_the_names_of_parameters_are_arguments_of_the_environment(tmp_path, capsys):
    for name in ("env_id", "id", "function", "num_envs"):
        assert train("--run-dir", tmp_path, "--env-kwargs", f"{name}=3", env="tests.environments:Counter") == 1
        text = capsys.readouterr().err
        assert "cannot be made with" in text and name in text and text.count("\n") == 1


@pytest.mark.slow
def test_a_run_goes_on_without_what_is_damaged_and_not_needed(run, tmp_path, capsys):
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "trained.txt").write_bytes(b"")
    (copy / "checkpoints/60/variables.npz").write_bytes(b"")
    (copy / "best/1/tfdpg.json").write_bytes(b"")
    assert cli.main(["evaluate", str(copy), "--episodes", "1"]) == 0
    damage = f"{copy}/checkpoints/60/variables.npz is damaged, or belongs to another"
    shown = capsys.readouterr()
    assert damage in shown.err and "using the checkpoint of step 30 instead" in shown.err
    assert "episode 1: return 6.000" in shown.out and (copy / "checkpoints/60").exists()
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        assert cli.main(["train", "--resume", str(copy)]) == 0
    assert damage in (shown := capsys.readouterr().err)
    assert "\ntfdpg: warning: The best score so far is unknown" in shown and "UserWarning" not in shown
    (copy / "checkpoints/60/variables.npz").write_bytes(b"")
    assert cli.main(["train", "--resume", str(copy)]) == 0
    assert sorted(path.name for path in (copy / "checkpoints").iterdir()) == [
        "30",
        "60",
        "60.damaged-1",
        "60.damaged-2",
    ]
    assert tfdpg.load_agent(copy / "checkpoints/60").epoch == 2 and tfdpg.load(copy / "best").metadata
    for steps in (30, 60):
        (copy / f"checkpoints/{steps}/replay.npz").unlink()
    for command in (["evaluate", str(copy)], ["train", "--resume", str(copy), "--epochs", "3"]):
        assert cli.main(command) == 1
        assert f"{copy}/checkpoints/60/replay.npz is missing" in capsys.readouterr().err


@pytest.mark.slow
def test_what_files_name_is_imported_only_if_trusted(run, tmp_path, monkeypatch, capsys):
    (tmp_path / "foreign_code.py").write_text("import pathlib; pathlib.Path(__file__).with_name('harm').touch()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    copy = shutil.copytree(run, tmp_path / "run")
    config = json.loads((copy / "run.json").read_text())
    foreign = (
        {"env": "foreign_code:tfdpg-test/Counter-v0"},
        {"networks": "foreign_code:build"},
        {"env": "GymV26Environment-v0", "env_kwargs": {"env_id": "foreign_code:Counter-v0"}},
        {"env": "HalfCheetah-v5", "env_kwargs": {"xml_file": "/foreign_code:cheetah.xml"}},
        {"env_kwargs": {"layout": [{"file": "../foreign_code:map"}]}},
        {"options": config["options"] | {"replay_dir": "foreign_code:rows"}},
        {"distributed": {"actors": 1, "ray_address": "foreign_code:6379"}},
    )
    for change in foreign:
        (copy / "run.json").write_text(json.dumps(config | change))
        commands = [["train", "--resume", str(copy), "--epochs", "3"]]
        commands += [["evaluate", str(copy)]] if "env" in change or "env_kwargs" in change else []
        for command in commands:
            assert cli.main(command) == 1
            shown = capsys.readouterr().err
            assert f"{copy}/run.json imports, or follows," in shown and "foreign_code:" in shown
            assert "pass --trusted" in shown
    for change, message in (
        ({"options": config["options"] | {"recorders": ["foreign"]}}, "`options` has 'recorders', which is no flag"),
        ({"env": ["foreign_code:X"]}, "`env` must be a string. Received: env=['foreign"),
        ({"env_kwargs": None}, "`env_kwargs` must be a dict. Received"),
        ({"options": None}, "`options` must be a dict. Received"),
        ({"distributed": [1]}, "`distributed` must be a dict or None. Received"),
        ({"target_return": "x"}, "`target_return` must be a finite number or None. Received"),
        ({"agent": 3}, "`agent` must be a string. Received"),
    ):
        (copy / "run.json").write_text(json.dumps(config | change))
        assert cli.main(["train", "--resume", str(copy), "--epochs", "3"]) == 1
        assert f"{copy}/run.json is damaged: {message}" in capsys.readouterr().err
    assert not (tmp_path / "foreign").exists()
    for environment, message in (
        ("x", "must be an id and a dict"),
        ({"id": "Pendulum-v1"}, "must be an id and a dict"),
        ({"id": ["foreign_code:X"], "kwargs": {}}, "must be an id and a dict"),
        ({"id": "foreign_code:tfdpg-test/Counter-v0", "kwargs": {}}, "pass --trusted"),
    ):
        description = json.loads((copy / "export/1/tfdpg.json").read_text()) | {"environment": environment}
        del description["files"], description["sha256"]
        (copy / "export/1/tfdpg.json").unlink()
        files.write_manifest(copy / "export/1", "tfdpg.json", description)
        assert cli.main(["evaluate", str(copy / "export")]) == 1 and message in capsys.readouterr().err
    assert not (tmp_path / "harm").exists()
    assert cli.main(["evaluate", str(copy / "export"), "--episodes", "1", "--env", "tfdpg-test/Counter-v0"]) == 0
    assert cli.main(["evaluate", str(copy / "export"), "--episodes", "1", "--trusted"]) == 0
    assert (tmp_path / "harm").exists()
    (copy / "run.json").write_text(json.dumps(config | foreign[0]))
    assert cli.main(["train", "--resume", str(copy), "--epochs", "3", "--trusted"]) == 0
