"""What commands write, read and import with untrusted run directories and with copies made of hard links."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings

import pytest

import tfdpg
from tests.agents.roster import brief
from tests.commands import QUIET, train
from tfdpg import cli, files

pytestmark = brief

LINKED_FILES = (
    *(".progress.csv.part", "progress.csv", "progress.txt", "trained.txt", ".trained.txt.part", "lock"),
    *("run.json", ".run.json.part", "tensorboard/.cut", "tensorboard/events.out.tfevents.9.x.tfdpg"),
    *("checkpoints/60/checkpoint.json", "checkpoints/60/rows-0.npz", "checkpoints/latest", "best/1/tfdpg.json"),
    *("best/1/policy.npz", "export/1/saved_model.pb", "notes"),
)
LINKED_DIRECTORIES = (
    *("best", "export", "tensorboard", "checkpoints", "checkpoints/60", "checkpoints/90", "checkpoints/.90.tfdpg-old"),
    *(".tfdpg-scratch-1", "checkpoints/.tfdpg-scratch-1", ".best.tfdpg-old", "best/1/variables"),
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    assert train("--run-dir", directory, *QUIET) == 0
    return directory / "seed-0"


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def commands(run, target):
    """Return every kind of command that opens a run."""
    return (
        ["train", "--resume", str(run), "--epochs", "3"],
        ["evaluate", str(run), "--episodes", "1"],
        ["evaluate", str(run), "--episodes", "1", "--checkpoint", "best"],
        ["export", str(run), str(target)],
        ["export", str(run), str(target), "--checkpoint", "latest"],
        ["export", str(run), str(target), "--checkpoint", "latest", "--format", "c"],
    )


def contents(directory):
    """Return the bytes of every file below a directory, and None for everything else, by relative path."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


@contextlib.contextmanager
def at_most(seconds):
    def late(*arguments):
        pytest.fail("The command waits forever.")

    previous = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.parametrize("name", [*LINKED_FILES, *LINKED_DIRECTORIES])
def test_a_run_with_a_link_is_refused_and_what_it_leads_to_stays(run, tmp_path, capsys, name):
    home = tmp_path / "home"
    (home / "tensorboard").mkdir(parents=True)
    (home / "precious").write_text("precious\n")
    if (run / name).is_dir():
        shutil.copytree(run / name, home, dirs_exist_ok=True)  # as good as the run's own
        shutil.rmtree(run / name)
    elif name in LINKED_FILES and (run / name).exists():
        shutil.copy(run / name, home / "precious")
        (run / name).unlink()
    (run / name).symlink_to(home if name in LINKED_DIRECTORIES else home / "precious")
    before = contents(home)
    for command in commands(run, tmp_path / "model"):
        assert cli.main(command) == 1, command
        shown = capsys.readouterr()
        assert f"{run / name} is a symbolic link to {home}" in shown.err and shown.err.count("\n") == 1
        assert "pass --trusted" in shown.err
    assert contents(home) == before and not (tmp_path / "model").exists()


def test_a_link_that_dangles_or_stays_inside_is_refused(run, tmp_path, capsys):
    targets = {"trained.txt": tmp_path / "new", "progress.txt": run / "run.json", "lock": "progress.csv"}
    for name, target in targets.items():
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(target)
        before = (run / "run.json").read_bytes()
        assert cli.main(["train", "--resume", str(run), "--epochs", "3"]) == 1
        assert f"{run / name} is a symbolic link to {target}" in capsys.readouterr().err
        assert not (tmp_path / "new").exists() and (run / "run.json").read_bytes() == before
        (run / name).unlink()


@pytest.mark.parametrize(
    "name", ["run.json", "lock", "progress.csv", "checkpoints/60/checkpoint.json", "best/1/tfdpg.json"]
)
def test_a_named_pipe_is_refused_and_not_opened(run, tmp_path, capsys, name):
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    plot = ["plot", str(run), "--out", str(tmp_path / "x.png")]
    with at_most(30):
        for command in [*commands(run, tmp_path / "model"), *([plot] if name in ("run.json", "progress.csv") else [])]:
            for trusted in ([], ["--trusted"]) if command[0] != "plot" else ([],):
                assert cli.main([*command, *trusted]) == 1, command
                assert f"{run / name} must be a regular file or a directory, and" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["run.json", "progress.csv"])
def test_plot_and_a_new_training_follow_no_link(run, tmp_path, capsys, name):
    shutil.move(run / name, tmp_path / "elsewhere")
    (run / name).symlink_to(tmp_path / "elsewhere")
    for command in (["plot", str(run), "--out", str(tmp_path / "x.png")], ["plot", str(tmp_path)]):
        assert cli.main(command) == 1
        assert f"{run / name} is a symbolic link to {tmp_path}/elsewhere" in capsys.readouterr().err
    shutil.move(run, tmp_path / "seed-0")
    for more in ([], ["--overwrite"]):
        assert train("--run-dir", tmp_path, *more) == 1
        assert f"seed-0/{name} is a symbolic link to" in capsys.readouterr().err
    assert (tmp_path / "seed-0" / name).exists()


def test_a_saved_agent_with_a_link_or_a_pipe_is_refused(run, tmp_path):
    saved = run / "checkpoints/60"
    shutil.move(saved / "rows-0.npz", tmp_path / "rows")
    (saved / "rows-0.npz").symlink_to(tmp_path / "rows")
    agent = tfdpg.load_agent(saved, trusted=True)
    with pytest.raises(RuntimeError, match=f"rows-0.npz is .*link to {tmp_path}/rows"):
        tfdpg.load_agent(saved)
    with pytest.raises(RuntimeError, match=f"rows-0.npz is .*link to {tmp_path}/rows"):
        agent.fit_offline(saved, epochs=1, steps_per_epoch=1)
    os.mkfifo(saved / "notes")
    with at_most(30), pytest.raises(RuntimeError, match=f"{saved}/notes must be a regular file"):
        tfdpg.load_agent(saved, trusted=True)


def test_the_run_directory_may_be_reached_through_a_link(run, tmp_path, capsys):
    (tmp_path / "runs").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "linked").symlink_to(run, target_is_directory=True)
    assert cli.main(["train", "--resume", str(tmp_path / "linked"), "--epochs", "3"]) == 0
    assert cli.main(["evaluate", str(tmp_path / "runs/run"), "--episodes", "1"]) == 0
    assert cli.main(["evaluate", str(tmp_path / "linked"), "--episodes", "1"]) == 0
    assert tfdpg.load_agent(tmp_path / "linked/checkpoints/90").epoch == 3


def killed_in_its_last_epoch(run):
    """Leave the files of a process that was killed while it wrote: longer tables, temporary files and the lock."""
    shutil.rmtree(run / "checkpoints/60")
    for name in (".progress.csv.part", ".progress.txt.part", ".trained.txt.part", "tensorboard/.cut", "lock"):
        (run / name).write_text('{"process": 1, "host": "x", "since": "y"}')
    return run


def test_links_are_followed_if_trusted_and_new_files_still_replace_them(run, tmp_path, capsys):
    killed_in_its_last_epoch(run)
    (tmp_path / "home").mkdir()
    names = ".progress.csv.part", ".progress.txt.part", ".trained.txt.part", "trained.txt", "tensorboard/.cut"
    for number, name in enumerate(names):
        (tmp_path / "home" / str(number)).write_text("precious")
        (run / name).unlink()
        (run / name).symlink_to(tmp_path / "home" / str(number))
    shutil.move(run / "checkpoints", tmp_path / "elsewhere")
    (run / "checkpoints").symlink_to(tmp_path / "elsewhere")
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        assert cli.main(["train", "--resume", str(run), "--epochs", "3", "--trusted"]) == 0
    damaged = f"tfdpg: warning: {run}/trained.txt is damaged: the seconds of training count from 0 again."
    assert capsys.readouterr().err.count(damaged) == 1
    assert set(contents(tmp_path / "home").values()) == {b"precious"}
    assert (tmp_path / "elsewhere/90").is_dir() and (run / "progress.csv").read_text().count("\n") == 4


@pytest.mark.parametrize("was_killed", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_copy_with_hard_links_goes_on_without_changing_the_original(run, tmp_path, was_killed):
    if was_killed:
        killed_in_its_last_epoch(run)
    before = contents(run)
    subprocess.run(["cp", "-al", run, tmp_path / "copy"], check=True)
    assert (run / "progress.csv").stat().st_nlink == 2
    assert cli.main(["train", "--resume", str(tmp_path / "copy"), "--epochs", "3"]) == 0
    assert contents(run) == before
    for name in ("progress.csv", "progress.txt"):
        assert (tmp_path / "copy" / name).read_text().count("\n") == 4
    assert (tmp_path / "copy/trained.txt").read_bytes() != before["trained.txt"]


def test_a_copy_that_begins_again_leaves_the_original_alone(run, tmp_path):
    shutil.rmtree(run / "checkpoints")
    before = contents(run)
    subprocess.run(["cp", "-al", run, tmp_path / "copy"], check=True)
    assert cli.main(["train", "--resume", str(tmp_path / "copy"), "--epochs", "1"]) == 0
    assert contents(run) == before and (tmp_path / "copy/progress.csv").read_text().count("\n") == 2


HARM = "import pathlib; pathlib.Path(__file__).with_name('harm').touch()\n"
NAMED = {
    "environment": {"env": "foreign_code:tfdpg-test/Counter-v0"},
    "class": {"env": "foreign_code:Counter"},
    "wrapped": {"env": "GymV26Environment-v0", "env_kwargs": {"env_id": "foreign_code:Counter-v0"}},
    "file": {"env": "HalfCheetah-v5", "env_kwargs": {"xml_file": "./foreign_code.xml"}},
    "networks": {"networks": "foreign_code:build"},
    "agent": {"agent": "foreign_code:Agent"},
    "replay_dir": {"options": {"replay_dir": "foreign_rows"}},
    "ray_address": {"distributed": {"actors": 1, "ray_address": "foreign_code:6379"}},
}
"""What a run can name. With each, some command would import a module, open a file or directory, or connect."""
QUICK = ("environment",)
COMMANDS = {
    "train": (["train", "--resume", "RUN", "--epochs", "3"], ["train", "--resume", "RUN", "--help"]),
    "tune": (["tune", "ddpg", "--env", "Pendulum-v1", "--run-dir", "RUN"],),
    "check": (["check", "RUN"],),
    "evaluate": (
        *(["evaluate", "RUN", "--episodes", "1", "--checkpoint", which] for which in ("latest", "best", "60")),
        ["evaluate", "RUN", "--episodes", "1", "--video", "x.gif"],
        ["evaluate", "RUN", "--episodes", "1", "--record", "NEW"],
        ["evaluate", "RUN/best", "--episodes", "1"],
        ["evaluate", "RUN/export/1", "--episodes", "1", "--video", "x.gif"],
    ),
    "compare": (
        *(
            ["compare", *paths, "--episodes", "5"]
            for paths in (("RUN", "RUN"), ("RUN/best", "RUN"), ("RUN", "RUN/best"))
        ),
    ),
    "export": (
        *(["export", "RUN", "NEW", "--checkpoint", which] for which in ("latest", "best", "60")),
        *(["export", "RUN", "NEW", "--episodes", "1", "--checkpoint", which] for which in ("latest", "best", "60")),
        ["export", "RUN", "NEW", "--checkpoint", "latest", "--format", "c"],
    ),
    "diagnose": (["diagnose", "RUN", "--episodes", "1"], ["diagnose", "RUN", "--checkpoint", "60", "--episodes", "1"]),
    "convert": (["convert", "RUN", "NEW", "--format", "c"], ["convert", "RUN/best", "NEW", "--format", "c"]),
    "verify": (
        *(["verify", *words] for words in (["RUN"], ["RUN/best"], ["RUN/best", "RUN", "RUN/export/1", "RUN/run.json"])),
    ),
    "inspect": (["inspect", "RUN"], ["inspect", "RUN/best"]),
    "serve": (["serve", "RUN"],),
    "labels": (["labels", "RUN", "stable=1"], ["labels", "RUN/best", "stable=1"]),
    "drift": (
        ["drift", "RUN/best", "RUN"],
        ["drift", "RUN", "RUN"],
        ["drift", "RUN/best", "RUN", "--reference", "RUN"],
    ),
    "plot": (["plot", "RUN", "--out", "x.png"],),
}
"""Every command, with a run or a part of one as each of its paths."""


def test_no_command_is_missing():
    assert set(COMMANDS) == set(re.findall(r"^  (\w+) ", cli.USAGE.partition("commands:")[2], re.MULTILINE))


@pytest.fixture
def foreign(run, tmp_path, monkeypatch):
    """Return a function that changes what a run and its exports name."""
    (tmp_path / "foreign_code.py").write_text(HARM)
    monkeypatch.delitem(sys.modules, "foreign_code", raising=False)  # another test's
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    def name(change):
        config = json.loads((run / "run.json").read_text())
        change = {key: config[key] | value if key == "options" else value for key, value in change.items()}
        (run / "run.json").write_text(json.dumps(config | change))
        if "env" in change:
            for export in (run / "best/1", run / "export/1"):
                description = json.loads((export / "tfdpg.json").read_text())
                description["environment"] = {"id": change["env"], "kwargs": change.get("env_kwargs", {})}
                del description["files"], description["sha256"]
                (export / "tfdpg.json").unlink()
                files.write_manifest(export, "tfdpg.json", description)
        return run

    return name


USES_ENVIRONMENT = {"evaluate", "--episodes"}
"""A command that contains one of these evaluates episodes."""


@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=[pytest.mark.slow] * (name == "export")) for name in COMMANDS]
)
@pytest.mark.parametrize(
    "named", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMED]
)
def test_no_command_imports_or_follows_what_a_run_names(foreign, tmp_path, capsys, named, command):
    run = foreign(NAMED[named])
    for arguments in COMMANDS[command]:
        given = [
            word.replace("RUN", str(run)).replace("NEW", str(tmp_path / f"new-{len(arguments)}")) for word in arguments
        ]
        try:
            status = cli.main(given)
        except SystemExit as end:  # of the help
            status = end.code
        shown = capsys.readouterr().err
        plays = "env" in NAMED[named] and not USES_ENVIRONMENT.isdisjoint(arguments)
        if plays or arguments[:2] == ["train", "--resume"] and "--help" not in arguments:
            assert status == 1 and "imports, or follows," in shown and "pass --trusted" in shown, arguments
        assert not (tmp_path / "harm").exists() and "foreign_code" not in sys.modules, arguments
        assert not (tmp_path / "foreign_rows").exists() and not (tmp_path / "x.gif").exists(), arguments


def test_export_plays_episodes_in_an_environment_of_a_module_only_if_trusted(foreign, tmp_path, capsys):
    run = foreign(NAMED["environment"])
    target = tmp_path / "model"
    for checkpoint in ("best", "latest"):
        command = ["export", str(run), str(target), "--checkpoint", checkpoint, "--episodes", "1"]
        assert cli.main(command) == 1
        assert f"{run}/run.json imports, or follows, 'foreign_code:" in capsys.readouterr().err
        assert not target.exists() and not (tmp_path / "harm").exists()
    assert cli.main(["export", str(run), str(target)]) == 0 and not (tmp_path / "harm").exists()
    assert cli.main([*command, "--trusted"]) == 0
    assert (tmp_path / "harm").exists() and "return" in tfdpg.load(target).metadata["scores"]


@pytest.mark.slow
def test_jobs_do_not_trust_either(foreign, tmp_path, capfd):
    run = foreign(NAMED["environment"])
    for number in range(2):
        shutil.copytree(run, tmp_path / f"runs/seed-{number}")
    assert cli.main(["train", "--resume", str(tmp_path / "runs"), "--epochs", "3", "--jobs", "2"]) == 1
    shown = capfd.readouterr().err
    for number in range(2):
        assert f"seed-{number} | tfdpg: {tmp_path}/runs/seed-{number}/run.json imports, or follows," in shown
    assert not (tmp_path / "harm").exists()
    (tmp_path / "runs/seed-1/lock").symlink_to(tmp_path / "foreign_code.py")
    assert cli.main(["train", "--resume", str(tmp_path / "runs"), "--epochs", "3", "--jobs", "2"]) == 1
    assert f"tfdpg: {tmp_path}/runs/seed-1/lock is a symbolic link to" in capfd.readouterr().err
    assert (tmp_path / "foreign_code.py").read_text() == HARM
