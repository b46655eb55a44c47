"""The user's own runs, which commands trust without `--trusted` until they are moved, copied or changed."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agents.roster import brief
from tests.commands import QUIET, train
from tfdpg import cli, files
from tfdpg.cli import ownership

pytestmark = brief

MODULE = """
import pathlib
from tests.environments import Counter
with open(pathlib.Path(__file__).with_name("imported"), "a") as file:
    file.write("x")
def build(spec):
    return {"act_noise_schedule": half}
def half(step):
    return 0.5
"""
NAMED = ["--networks", "owned_code:build"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A directory with the user's module."""
    directory = tmp_path_factory.mktemp("home")
    (directory / "owned_code.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(directory)
        yield directory


@pytest.fixture(scope="module")
def trained(home):
    """The parent of two runs, which name the module in `run.json` and in their checkpoints."""
    assert train(*NAMED, "--run-dir", home / "runs", "--seeds", "0", "1", *QUIET, env="owned_code:Counter") == 0
    shutil.copytree(home / "runs", home / "kept")
    return home / "runs"


@pytest.fixture
def run(trained, home, monkeypatch):
    """A run that the test may change. The module is not imported yet."""
    monkeypatch.delitem(sys.modules, "owned_code", raising=False)
    yield trained / "seed-0"
    for path in trained.iterdir():
        path.unlink() if path.is_symlink() else shutil.rmtree(path)
    shutil.copytree(home / "kept", trained, dirs_exist_ok=True)


def refused(run, home, capsys):
    """Return whether a command asks for the flag, and imports nothing."""
    sys.modules.pop("owned_code", None)
    (home / "imported").unlink(missing_ok=True)
    status = cli.main(["evaluate", str(run), "--episodes", "1"])
    shown = capsys.readouterr().err
    needs_flag = "pass --trusted" in shown or "only with trusted=True (--trusted)" in shown
    assert status == needs_flag, shown
    assert (home / "imported").exists() != needs_flag and ownership.is_own(run) != needs_flag
    return needs_flag


def test_no_command_asks_for_the_flag(run, home, tmp_path, capsys):
    for command in (
        ["evaluate", str(run), "--episodes", "1", "--checkpoint", "best"],
        ["export", str(run), str(tmp_path / "model"), "--episodes", "1", "--checkpoint", "latest"],
        ["train", "--resume", str(run), "--epochs", "3", "--pi-lr", "1e-4"],
        ["evaluate", str(run), "--episodes", "1"],
    ):
        assert cli.main(command) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert cli.main(["diagnose", str(run), "--episodes", "1"]) == 1  # it found something
    assert capsys.readouterr().err == ""
    assert ownership.is_own(run) and (run / "checkpoints/90").exists()
    assert cli.main(["train", "ddpg", "--env", "owned_code:Counter", "--run-dir", str(run.parent)]) == 1
    assert f"To resume it: tfdpg train --resume {run};" in capsys.readouterr().err


def test_a_link_to_the_run_leads_to_it(run, home, tmp_path, monkeypatch, capsys):
    (tmp_path / "linked").symlink_to(run)
    monkeypatch.chdir(run.parent)
    assert not refused(tmp_path / "linked", home, capsys) and not refused(Path("seed-0"), home, capsys)


def edit(file):
    """Change a description as someone does who can also compute its checksums."""
    description = json.loads(file.read_text())
    if file.name == "run.json":
        return file.write_text(json.dumps(description | {"seed": 7}))
    del description["files"], description["sha256"]
    description["arguments"]["gamma"] = 0.5
    (file.parent / ownership.SIGNATURE).rename(file.parent.parent / "kept")
    file.unlink()
    files.write_manifest(file.parent, file.name, description)
    (file.parent.parent / "kept").rename(file.parent / ownership.SIGNATURE)


def add_checkpoint(run):
    shutil.copytree(run / "checkpoints/60", run / "checkpoints/90")


def exchange(run, *names):
    """Take files of another run of the same user."""
    for name in names:
        shutil.copy(run.with_name("seed-1") / name, run / name)


CHANGES = {
    "run.json": lambda run: edit(run / "run.json"),
    "checkpoint": lambda run: edit(run / "checkpoints/60/checkpoint.json"),
    "signature of another run": lambda run: exchange(run, "signature"),
    "all of another run": lambda run: exchange(run, "signature", "run.json"),
    "signature of a checkpoint": lambda run: shutil.copy(run / "checkpoints/60/signature", run / "signature"),
    "no signature": lambda run: (run / "signature").unlink(),
    "no signature of a checkpoint": lambda run: (run / "checkpoints/30/signature").unlink(),
    "half a signature": lambda run: os.truncate(run / "signature", 30),
    "empty signature": lambda run: os.truncate(run / "checkpoints/60/signature", 0),
    "other checkpoint": add_checkpoint,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_run_is_not_trusted_and_stays_usable(run, home, capsys, change):
    CHANGES[change](run)
    assert refused(run, home, capsys)
    assert cli.main(["train", "--resume", str(run), "--epochs", "3"]) == 1
    assert "pass --trusted. (Only a run that you trained on this machine" in capsys.readouterr().err
    assert not (home / "imported").exists()
    if change == "no signature":
        before = sorted(run.rglob("signature"))
        assert cli.main(["train", "--resume", str(run), "--epochs", "3", "--trusted"]) == 0
        assert set(run.rglob("signature")) < set(before), "trusting a run once must not sign it"


@pytest.mark.parametrize("content", ["[]", "{", "[" * 100_000, "\xff"])
def test_no_content_of_a_description_ends_in_a_traceback(run, home, capsys, content):
    for file in (run / "checkpoints/60/checkpoint.json", run / "run.json"):
        file.write_bytes(content.encode("latin-1"))
        assert not ownership.is_own(run) and cli.main(["evaluate", str(run), "--checkpoint", "60"]) == 1
        assert capsys.readouterr().err.count("\n") == 1


def test_a_copied_or_moved_run_is_not_trusted(run, home, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "copy")
    subprocess.run(["cp", "-al", run, tmp_path / "hard"], check=True)
    assert refused(tmp_path / "copy", home, capsys) and refused(tmp_path / "hard", home, capsys)
    shutil.move(run, run.with_name("renamed"))
    assert refused(run.with_name("renamed"), home, capsys)
    shutil.move(run.with_name("renamed"), run)
    assert not refused(run, home, capsys)


def test_a_run_with_a_link_is_not_trusted(run, tmp_path, capsys):
    shutil.move(run / "checkpoints", tmp_path / "checkpoints")
    (run / "checkpoints").symlink_to(tmp_path / "checkpoints")
    assert not ownership.is_own(run) and cli.main(["evaluate", str(run)]) == 1
    assert "is a symbolic link to" in capsys.readouterr().err


def test_a_module_of_the_same_name_elsewhere_is_not_imported(run, home, tmp_path, monkeypatch, capsys):
    (tmp_path / "owned_code.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert refused(run, home, capsys)


def test_a_changed_module_is_still_the_users(run, home, capsys):
    (home / "owned_code.py").write_text(MODULE + "\n")
    assert not refused(run, home, capsys)


@pytest.fixture
def key(tmp_path, monkeypatch):
    """The path of the key of a user who has none yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config/tfdpg/key"


def test_another_user_does_not_trust_it(run, home, key, capsys):
    assert refused(run, home, capsys) and not key.exists()  # only training makes a key
    ownership.sign(run.with_name("seed-1") / "run.json")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and key.stat().st_size == 32
    assert os.listdir(key.parent) == ["key"]
    assert refused(run, home, capsys)


def group_readable(key):
    key.chmod(0o640)


def link(key):
    key.rename(key.with_name("moved"))
    key.symlink_to("moved")


def pipe(key):
    key.unlink()
    os.mkfifo(key, 0o600)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (group_readable, "must be a file of yours with the mode 0600. Received: -rw-r-----, user"),
        (lambda key: key.chmod(0o602), "Received: -rw-----w-"),
        (pipe, "Received: prw-------"),
        (lambda key: os.truncate(key, 31), "must have 32 bytes. Received: 31"),
        (lambda key: os.truncate(key, 33), "must have 32 bytes. Received: 33"),
        (link, None),
    ],
)
def test_a_key_that_others_may_know_is_refused(run, key, change, message):
    ownership.sign(run / "run.json")
    for number in (30, 60):
        ownership.sign(run / f"checkpoints/{number}/checkpoint.json")
    assert ownership.is_own(run)
    before = (run / "signature").read_bytes()
    change(key)
    assert not ownership.is_own(run)
    if message is None:
        ownership.sign(run / "run.json")
    else:
        with pytest.warns(UserWarning, match="The run is not signed") as warned:
            ownership.sign(run / "run.json")
        assert message in str(warned[0].message)
    assert (run / "signature").read_bytes() == before


def test_the_key_of_another_owner_is_refused(run, monkeypatch):
    assert ownership.is_own(run)
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    assert not ownership.is_own(run)


def test_without_a_place_for_the_key_everything_is_as_before(home, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    monkeypatch.setenv("HOME", "/proc/none")
    assert train(*NAMED, "--run-dir", tmp_path, "--epochs", "1", *QUIET, env="owned_code:Counter") == 0
    assert capsys.readouterr().err == "" and not [*tmp_path.rglob("signature")]
    assert refused(tmp_path / "seed-0", home, capsys)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({"XDG_CONFIG_HOME": "", "HOME": "{}"}, ".config"), ({"XDG_CONFIG_HOME": "relative", "HOME": "{}"}, ".config")],
)
def test_the_key_is_in_the_configuration_directory(run, tmp_path, monkeypatch, variables, expected):
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    ownership.sign(run / "run.json")
    assert (tmp_path / expected / "tfdpg/key").exists()


def test_processes_that_make_the_key_at_the_same_time_agree(run, home, key):
    code = "import sys; from pathlib import Path; from tfdpg.cli import ownership; ownership.sign(Path(sys.argv[1]))"
    command = [sys.executable, "-c", code]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(home), *sys.path])}
    signed = [run / "run.json", *(run / f"checkpoints/{number}/checkpoint.json" for number in (30, 60))]
    processes = [subprocess.Popen([*command, str(file)], env=environment) for file in signed]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert ownership.is_own(run)
