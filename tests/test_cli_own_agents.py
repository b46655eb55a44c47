"""The command line trains algorithms in users' own files, and every other command takes their runs."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from examples import conservative_td3, sac
from tests.agents.roster import brief
from tests.commands import EAGER, SHORT, TINY
from tfdpg import cli
from tfdpg.cli import parsing
from tfdpg.cli.run_options import training_flags
from tfdpg.plotting import curves
from tfdpg.tuning.command import parse_tune_flags
from tfdpg.tuning.space import dimensions

pytestmark = brief

MARK = """
import pathlib
with open(pathlib.Path(__file__).with_name("imported"), "a") as file:
    file.write("x")
"""
FAST = [*TINY, *SHORT, *EAGER]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A directory with the file of a user, which leaves a mark when it is imported."""
    directory = tmp_path_factory.mktemp("home")
    (directory / "own_file.py").write_text(Path(conservative_td3.__file__).read_text() + MARK)
    return directory


@pytest.fixture(scope="module")
def trained(home):
    """The run directory of a run of the class, which tests leave as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        words = ["train", "own_file:ConservativeTD3", "--env", "tfdpg-test/Counter-v0", "--conservatism", "0.5", *FAST]
        assert cli.main(words) == 0
    return home / "runs/conservativetd3-tfdpg-test-Counter-v0/seed-0"


@pytest.fixture
def at_home(home, monkeypatch):
    """The user is in the directory, and the file is not imported yet."""
    monkeypatch.chdir(home)
    monkeypatch.delitem(sys.modules, "own_file", raising=False)
    (home / "imported").unlink(missing_ok=True)


COMMANDS = {
    "evaluate": ["evaluate", "RUN", "--episodes", "1"],
    "evaluate best": ["evaluate", "RUN", "--checkpoint", "best", "--episodes", "1"],
    "diagnose": ["diagnose", "RUN", "--episodes", "1"],
    "export": ["export", "RUN", "NEW", "--checkpoint", "latest"],
    "resume": ["train", "--resume", "RUN"],
}


def run_command(name, run, new):
    return cli.main([word.replace("RUN", str(run)).replace("NEW", str(new)) for word in COMMANDS[name]])


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_imports_the_class_of_one_s_own_run_and_asks_for_a_flag_for_others(
    name, trained, home, at_home, tmp_path, capsys
):
    shutil.copytree(trained, tmp_path / "copy")
    assert run_command(name, tmp_path / "copy", tmp_path / "new") == 1
    shown = capsys.readouterr().err
    assert "run.json imports, or follows, 'own_file:ConservativeTD3'" in shown and shown.count("\n") == 1
    assert not (home / "imported").exists() and not (tmp_path / "new").exists()
    assert run_command(name, trained, tmp_path / "new") in (0, 1 if name == "diagnose" else 0)
    assert capsys.readouterr().err == "" and (home / "imported").exists()


def test_a_file_of_the_same_name_in_another_directory_is_not_imported(trained, at_home, tmp_path, monkeypatch, capsys):
    (tmp_path / "own_file.py").write_text(MARK)
    monkeypatch.chdir(tmp_path)
    assert run_command("evaluate", trained, tmp_path / "new") == 1
    assert "pass --trusted" in capsys.readouterr().err and not (tmp_path / "imported").exists()


def test_an_export_names_the_command_and_options_change_when_a_run_is_resumed(trained, at_home, tmp_path):
    assert run_command("export", trained, tmp_path / "model") == 0
    command = json.loads((tmp_path / "model/1/tfdpg.json").read_text())["command"]
    assert command.startswith("tfdpg train own_file:ConservativeTD3 --env tfdpg-test/Counter-v0 --conservatism 0.5 ")
    shutil.copytree(trained, tmp_path / "copy")
    more = ["--trusted", "--epochs", "3", "--conservatism", "0.25", "--verbose", "0"]
    assert cli.main(["train", "--resume", str(tmp_path / "copy"), *more]) == 0
    saved = json.loads((tmp_path / "copy/checkpoints/90/checkpoint.json").read_text())
    assert saved["agent"] == "own_file:ConservativeTD3" and saved["arguments"]["conservatism"] == 0.25


def test_plot_imports_nothing_and_has_the_name_of_the_class(trained, home, at_home, tmp_path):
    assert cli.main(["plot", str(trained), "--out", str(tmp_path / "x.png")]) == 0
    labels = curves.label_runs([curves.read(trained, "env_steps", "val_return", 1)], separate=False)
    assert list(labels) == ["ConservativeTD3, tfdpg-test/Counter-v0"] and not (home / "imported").exists()


def test_a_file_is_named_by_its_path_from_anywhere(home, at_home, tmp_path, monkeypatch, capsys):
    (home / "sub").mkdir(exist_ok=True)
    (home / "sub/file_in_sub.py").write_text(Path(conservative_td3.__file__).read_text())
    words = ["--env", "tfdpg-test/Counter-v0", "--run-dir", str(tmp_path), *FAST]
    assert cli.main(["train", "sub/file_in_sub.py:ConservativeTD3", *words]) == 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "file_in_sub")
    assert cli.main(["evaluate", "seed-0", "--episodes", "1"]) == 0 and "file_in_sub" in sys.modules
    (home / "sub/json.py").write_text("")
    assert cli.main(["train", f"{home}/sub/json.py:X", "--env", "x"]) == 1
    assert "Rename the file." in capsys.readouterr().err


def test_help_and_search_have_the_options_of_the_class(at_home, capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "own_file:ConservativeTD3", "--help"])
    shown = capsys.readouterr().out
    assert "Train ConservativeTD3 on an environment." in shown
    assert "--conservatism FLOAT" in shown and "weight of mean(Q(s, pi(s)) - Q(s, a)) in the loss" in shown
    search, config = parse_tune_flags("own_file:ConservativeTD3", ["--env", "X", "--search", "gamma", "pi-lr"])
    assert [each.name for each in dimensions(config, search.search)] == ["gamma", "pi_lr"]
    assert cli.main(["train", "own_file:ConservativeTD3", "--env", "Pendulum-v1", "--conservatism", "-1"]) == 1
    assert "`conservatism` must be a finite number of at least 0" in capsys.readouterr().err
    assert cli.main(["train", "own_file:ConservativeTD3", "--env", "Pendulum-v1", "--recipe", "lean"]) == 2
    assert "--recipe lean is for TD7, not for ConservativeTD3." in capsys.readouterr().err


BAD = """
import tfdpg
from tfdpg.agents.options import TD3Options
from tfdpg.options import takes_options

class NoOptions(tfdpg.Agent):
    def __init__(self, env): ...

class Options(TD3Options, group="2 of my own"):
    jobs: int = 3
    "an option with the name of a flag."

class Repeats(tfdpg.Agent):
    @takes_options(Options)
    def __init__(self, env, options): ...
"""
MISTAKES = {
    "no_such_file:X": (1, "No module named 'no_such_file'. Modules are looked for in the working directory"),
    "bad_file:X": (1, "bad_file has no class 'X'. Its agents: NoOptions, Repeats."),
    "bad_file:tfdpg": (1, "'bad_file:tfdpg' must be a subclass of tfdpg.Agent. Received: <module"),
    "bad_file:NoOptions": (1, "'bad_file:NoOptions' must take its options with the decorator"),
    "bad_file:Repeats": (1, "The command line has a flag `jobs` already: rename the option"),
    "bad_file.py:X": (1, "/bad_file.py:X' cannot be imported: bad_file has no class 'X'"),
    "nowhere/bad_file.py:X": (1, "there is no file"),
    "raises:X": (1, "cannot be imported: it raised ZeroDivisionError: division by zero ("),
    "exits:X": (1, "cannot be imported: it raised SystemExit: 3 ("),
    "needs_other:X": (1, "it raised ModuleNotFoundError: No module named 'no_such_library' ("),
    "wrong_syntax:X": (1, "cannot be imported: it raised SyntaxError: '(' was never closed (wrong_syntax.py, line 1)"),
    "bad_file.X": (2, "there is no agent 'bad_file.X'."),
}


@pytest.mark.parametrize("command", ["train", "tune"])
def test_mistakes_are_one_line_before_anything_is_written(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    files = {
        "bad_file": BAD,
        "raises": "1 / 0",
        "exits": "raise SystemExit(3)",
        "needs_other": "import no_such_library",
    }
    for name, content in (files | {"wrong_syntax": "print("}).items():
        Path(f"{name}.py").write_text(content)
    monkeypatch.delitem(sys.modules, "bad_file", raising=False)
    for name, (status, message) in MISTAKES.items():
        assert cli.main([command, name, "--env", "Pendulum-v1"]) == status, name
        shown = capsys.readouterr().err
        assert message in shown.splitlines()[0] and len(shown.splitlines()) == status, shown
    assert not Path("runs").exists()
    with pytest.raises(ValueError, match="was not imported. Known: DDPG"):
        training_flags("never_imported:X")


def test_groups_of_options_have_any_title_and_annotations_may_be_texts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("grouped_file.py").write_text("from __future__ import annotations" + BAD.replace("jobs", "sharpness"))
    assert cli.main(["train", "grouped_file:Repeats", "--env", "No-v0"]) == 1
    assert "sharpness" in parsing.flags_of(training_flags("grouped_file:Repeats"))
    assert cli.main(["train", "grouped_file:Repeats", "--env", "No-v0", "--sharpness", "high"]) == 2
    assert "--sharpness must be an integer. Received: high" in capsys.readouterr().err


def environment():
    """The variables of a process whose path has tfdpg, but not the working directory."""
    return os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "RAY_USAGE_STATS_ENABLED": "0"}


def start(directory, *words):
    command = [sys.executable, "-P", "-m", "tfdpg", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=directory, env=environment(), **pipes)


def finish(process):
    shown, errors = process.communicate()
    assert process.returncode == 0, errors
    return shown


@pytest.mark.hours
def test_processes_train_search_and_resume_an_own_class(home, tmp_path):
    shutil.copy(home / "own_file.py", tmp_path)
    run_dir = tmp_path / "runs/conservativetd3-Pendulum-v1"
    options = [*TINY, "--steps-per-epoch", "300", "--validation-episodes", "1", "--env", "Pendulum-v1"]
    jobs = ["--seeds", "0", "1", "--jobs", "2"]
    killed = start(tmp_path, "train", "own_file:ConservativeTD3", *options, *jobs, "--epochs", "100")
    while not all(list(run_dir.glob(f"seed-{seed}/checkpoints/*00")) for seed in (0, 1)):
        time.sleep(0.1)
        assert killed.poll() is None
    for lock in run_dir.glob("seed-*/lock"):
        os.kill(json.loads(lock.read_text())["process"], signal.SIGKILL)
    killed.communicate()
    finish(start(tmp_path, "train", "--resume", run_dir, "--epochs", "2", "--jobs", "2", "--verbose", "0"))
    run = run_dir / "seed-1"
    assert "return: mean" in finish(start(tmp_path, "evaluate", run, "--episodes", "1"))
    finish(start(tmp_path, "export", run, tmp_path / "model", "--checkpoint", "latest", "--format", "c"))
    assert "ConservativeTD3 on Pendulum-v1" in start(tmp_path, "diagnose", run, "--episodes", "1").communicate()[0]
    finish(start(tmp_path, "plot", run_dir, "--out", "curves.png"))
    search = ["--trials", "2", "--confirm", "0", "--search", "gamma", "--epochs", "1"]
    shown = finish(start(tmp_path, "tune", "own_file:ConservativeTD3", *options, *search))
    assert "tfdpg train own_file:ConservativeTD3 --env Pendulum-v1" in shown


@pytest.mark.hours
@pytest.mark.parametrize("name", ["own_sac:SAC", "sub/own_sac.py:SAC"])
def test_workers_of_ray_import_the_exploration_of_an_own_class(tmp_path, name):
    file = tmp_path / ("sub/own_sac.py" if "sub" in name else "own_sac.py")
    file.parent.mkdir(exist_ok=True)
    shutil.copy(sac.__file__, file)
    options = "--epochs 1 --steps-per-epoch 60 --validation-episodes 1 --verbose 0".split()
    finish(start(tmp_path, "train", name, "--env", "Pendulum-v1", *TINY, *options, "--actors", "1", "--chunk", "10"))
    resumed = ["--epochs", "2"]
    finish(start(tmp_path, "train", "--resume", tmp_path / "runs/sac-Pendulum-v1/seed-0", *resumed))
