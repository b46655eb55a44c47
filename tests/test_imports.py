"""The command line imports users' modules from the working directory, and nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tests.environments  # noqa: F401 (registers an environment)
import tfdpg
from tests.agents.roster import brief
from tests.commands import EAGER, QUIET, SHORT, TINY, train
from tfdpg import cli
from tfdpg.imports import import_user_module, user_modules

pytestmark = brief

STRANGERS = "numpy h5py keras tensorflow gymnasium matplotlib tyro tensorboard mujoco contextlib pickle".split()
INSTALLED = "import sys; del sys.path[0]; from tfdpg.cli import main; sys.exit(main())"
"""What the program `tfdpg` does: the working directory is not on the path."""
PROGRAMS = {"tfdpg": ("-c", INSTALLED), "python -m tfdpg": ("-m", "tfdpg")}
ENV = """\
import gymnasium
import {helper}
from tests.environments import Counter

class Env(Counter):
    def __init__(self, **kwargs):
        import {late_helper}
        super().__init__(**kwargs)

def make(**kwargs):
    return Env(**kwargs)

gymnasium.register("mine/" + __name__ + "-v0", Env, max_episode_steps=4)

def networks(spec):
    import {late_helper}
    import keras

    @keras.saving.register_keras_serializable("mine")
    class Twice(keras.layers.Layer):
        def call(self, x):
            return 2 * x

    inputs = keras.Input((2,))
    outputs = keras.layers.Dense(1, "tanh")(Twice()(inputs))
    return dict(pi=keras.Model(inputs, outputs))
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The name of a module in the working directory that imports others from there, at once and later."""
    name = f"mine_{tmp_path.name.replace('-', '_')}"  # modules are imported once in a process
    names = {"helper": f"{name}_helper", "late_helper": f"{name}_late_helper"}
    for helper in names.values():
        (tmp_path / f"{helper}.py").touch()
    (tmp_path / f"{name}.py").write_text(ENV.format(**names))
    monkeypatch.chdir(tmp_path)
    return name


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """A stranger's run, whose directory contains files with the names of libraries."""
    directory = tmp_path_factory.mktemp("foreign")
    assert train("--run-dir", directory, *EAGER, "--max-ep-len", "5", env="Pendulum-v1") == 0
    for name in STRANGERS:
        (directory / f"seed-0/{name}.py").write_text(f"open({str(directory / 'ran')!r}, 'a').write('{name} ')")
    return directory / "seed-0"


def run(program, directory, *words):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, *PROGRAMS[program], *map(str, words)]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)


def check_no_stranger_runs(program, foreign, *words):
    ended = run(program, foreign, *words)
    assert not (foreign.parent / "ran").exists(), (foreign.parent / "ran").read_text()
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("program", ["tfdpg", pytest.param("python -m tfdpg", marks=pytest.mark.slow)])
def test_no_file_of_a_strangers_directory_runs(program, foreign, tmp_path):
    check_no_stranger_runs(program, foreign, "plot", ".", "--out", tmp_path / "x.png")


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        *(
            "evaluate . --episodes 1",
            "evaluate . --episodes 1 --video {}.gif",
            "inspect best",
            "diagnose . --episodes 1",
        ),
        *("export . {}", "train --resume ."),
    ],
)
def test_no_file_of_a_strangers_directory_runs_in_any_command(command, foreign, tmp_path):
    check_no_stranger_runs("tfdpg", foreign, *command.format(tmp_path / "out").split())


@pytest.mark.slow
def test_no_file_of_a_strangers_directory_runs_with_python_m(foreign):
    check_no_stranger_runs("python -m tfdpg", foreign, "evaluate", ".", "--episodes", "1")


def test_modules_of_the_working_directory_are_imported_last_and_only_on_demand(mine, capsys):
    before = list(sys.path)
    assert cli.main(["check", f"{mine}:Env", "--steps", "20"]) in (0, 1)
    assert "cannot be made" not in capsys.readouterr().err and sys.path == before
    assert cli.main(["check", f"{mine}:make", "--steps", "20"]) in (0, 1)
    with pytest.raises(ModuleNotFoundError):
        __import__(f"{mine}_never_imported")
    Path("json.py").write_text("raise ValueError")
    assert import_user_module("json") is json and sys.path == before


def test_a_module_may_change_the_path(mine):
    Path("path_setter.py").write_text("import os, sys\nsys.path.append(os.getcwd())")
    before = list(sys.path)
    with user_modules():
        import_user_module("path_setter")
    assert sys.path == [*before, os.getcwd()]
    sys.path[:] = before


def test_an_installed_module_of_the_same_name_is_named(mine, capsys):
    Path("colorsys.py").write_text(Path(f"{mine}.py").read_text())
    assert cli.main(["check", "colorsys:Env"]) == 1
    shown = capsys.readouterr().err
    assert f"/colorsys.py was imported, and not {os.getcwd()}/colorsys.py: rename your module" in shown
    assert train("--networks", "colorsys:networks", "--run-dir", "runs") == 1
    assert f"and not {os.getcwd()}/colorsys.py: rename your module" in capsys.readouterr().err


def test_own_environment_and_networks_are_trained_evaluated_and_exported(mine):
    before = list(sys.path)
    assert train("--run-dir", "runs", *QUIET, "--networks", f"{mine}:networks", env=f"{mine}:make") == 0
    for command in ("evaluate runs/seed-0 --episodes 1", "export runs/seed-0 model --checkpoint latest"):
        assert cli.main([*command.split(), "--trusted"]) == 0
    assert sys.path == before


EVALUATE = """
import json, sys
from tfdpg.cli import main
del sys.path[0]
MODELS = "runs/seed-0/best", "runs/seed-0/export", "model"
for flags, status in (([], 1), (["--trusted"], 0)):
    assert [main(["evaluate", model, "--episodes", "1", *flags]) for model in MODELS] == [status] * 3
"""


@pytest.mark.slow
def test_an_export_names_the_module_that_registers_its_environment(mine, tmp_path):
    env = f"{mine}:mine/{mine}-v0"
    assert train("--run-dir", "runs", *QUIET, "--env-kwargs", "length=9", "max_episode_steps=3", env=env) == 0
    assert cli.main(["train", "--resume", "runs/seed-0", "--epochs", "3", "--trusted"]) == 0
    assert cli.main(["export", "runs/seed-0", "model", "--checkpoint", "latest", "--trusted"]) == 0
    for model in ("runs/seed-0/best", "runs/seed-0/export", "model"):
        expected = {"id": env, "kwargs": {"length": 9, "max_episode_steps": 3}}
        assert tfdpg.load(model).metadata["environment"] == expected

    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", EVALUATE], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("length 3, truncated\n") == 3, done.stderr
    assert done.stderr.count(f"imports, or follows, {env!r}") == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        "--seeds 0 1 --jobs 2",
        "--num-envs 2 --vectorization async",
        pytest.param("--actors 1", marks=pytest.mark.hours),
    ],
)
def test_processes_find_own_modules_and_no_strangers_file(more, mine, tmp_path):
    (tmp_path / "numpy.py").write_text("open('ran', 'w')")
    arguments = [*TINY, *SHORT, "--env", f"{mine}:make", "--networks", f"{mine}:networks", *more.split()]
    if "--actors" in arguments:
        arguments += ["--worker-backend", "tensorflow"]
    ended = run("tfdpg", tmp_path, "train", "ddpg", *arguments, "--run-dir", "runs")
    assert ended.returncode == 0 and (tmp_path / "runs/seed-0/export/1").exists(), ended.stderr
    assert not (tmp_path / "ran").exists()
