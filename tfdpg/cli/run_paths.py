"""What a path holds: a run, runs, a checkpoint, an exported model; and what is said where it is not what is wanted."""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from tfdpg.cli import run_lock
from tfdpg.files import is_version


def is_run(path: Path) -> bool:
    """Whether a directory is a run's."""
    return (path / "run.json").exists()


def is_model(path: Path) -> bool:
    """Whether a directory is that of an exported model, or of a version of one."""
    return (path / "saved_model.pb").exists() or any(
        is_version(file.parent.name) for file in path.glob("*/saved_model.pb")
    )


def runs_below(path: Path, *patterns: str) -> list[Path]:
    """The runs whose `run.json` matches a pattern, seeds in their order."""
    found = {file.parent for pattern in patterns for file in path.glob(pattern)}
    shown = [run for run in found if not run.relative_to(path).as_posix().startswith(".")]
    return sorted(
        shown, key=lambda run: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(run))]
    )


def check_run(path: Path) -> None:
    """Raises `FileNotFoundError`, which says what there is, where there is no run."""
    if not is_run(path):
        raise FileNotFoundError(f"No run in {path}: {describe_contents(path) or 'there is no run.json'}")


def runs_at(path: Path) -> list[Path]:
    """The run, or the runs of a directory.

    Raises:
        FileNotFoundError: there is none; it says what there is, and which directories would do.
    """
    if runs := [path] if is_run(path) else runs_below(path, "*/run.json"):
        return runs
    parents = list(dict.fromkeys(str(run.parent) for run in runs_below(path, "*/*/run.json")))[:3]
    all_of = f", or {' or '.join(parents)} for all of its runs" if parents else ""
    raise FileNotFoundError(f"No run in {path}: {describe_contents(path) or 'there is no run.json'}{all_of}")


def check_model(path: Path) -> None:
    """Raises `FileNotFoundError`, which says what there is, where there is no exported model."""
    if not is_model(path):
        expected = f"expected {path}/<integer version>/saved_model.pb"
        raise FileNotFoundError(f"No exported model in {path}: {describe_contents(path) or expected}")


def check_policy(path: Path) -> None:
    """Raises `FileNotFoundError`, which says what there is, where there is neither a run nor an exported model."""
    if not (is_run(path) or is_model(path)):
        expected = "there is no run.json and no <integer version>/saved_model.pb"
        raise FileNotFoundError(f"No run and no exported model in {path}: {describe_contents(path) or expected}")


def describe_contents(path: Path) -> str | None:
    """What a path holds, and which path may have been meant; None where it is nothing of tfdpg's."""
    if not path.is_dir():
        return "it is a file" if path.exists() else "there is no such directory"
    if is_run(path):
        exports = [str(path / name) for name in ("best", "export") if is_model(path / name)]
        return f"it is a run; its exported models are {' and '.join(exports) or 'not written yet'}"
    if is_model(path):
        return "it is an exported model"
    if (path / "tfdpg.json").exists():
        return "it is one in another format, for another runtime"
    if (path / "agent.json").exists() and is_run(run := path.parent.parent):
        return f"it is a checkpoint; its run is {run}"
    if (path / "agent.json").is_file() and not (path / "agent.json").is_symlink():
        return _foreign_class(path) or "it is a saved agent, for tfdpg.load_agent"
    runs = [str(run) for run in runs_below(path, "*/run.json", "*/*/run.json")]
    more = f" and {len(runs) - 10} more" if len(runs) > 10 else ""
    return f"it holds the runs {', '.join(runs[:10])}{more}; name one" if runs else None


def check_built_in(checkpoint: Path) -> None:
    """Raise `ValueError` if a saved agent is of a class outside tfdpg, which the command line does not serve."""
    if (checkpoint / "agent.json").is_file() and (foreign := _foreign_class(checkpoint)):
        raise ValueError(f"{checkpoint} cannot be used: {foreign}")


def _foreign_class(saved: Path) -> str | None:
    """What to do with a saved agent of a class outside tfdpg; None if it is an agent of tfdpg, or damaged."""
    try:
        name = json.loads((saved / "agent.json").read_bytes())["agent"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    if not isinstance(name, str) or ":" not in name:
        return None
    return (
        f"it is a saved agent of the class {name!r}, which is not part of tfdpg. The command line serves tfdpg's own "
        "agents only; in Python, tfdpg.load_agent(directory, agent_class=...) loads it"
    )


def parent_of(agent: str, env_id: str) -> Path:
    """Where the runs of an agent on an environment go."""
    return Path("runs") / f"{agent.lower()}-{re.sub(r'[/:]', '-', env_id)}"


def check_free(directory: Path, overwrite: bool = False) -> None:
    """Raises an error if there is anything where a new run is to go, unless it is a run to be replaced.

    Raises:
        FileExistsError: there is.
        tfdpg.cli.run_lock.RunLockedError: it is a run, and a process trains it.
    """
    if is_run(directory):
        from tfdpg.cli.run_options import read_config, resume_command

        config = read_config(directory)  # which refuses a run.json that is none of tfdpg's
        run_lock.check(directory)
        if overwrite:
            return
        raise FileExistsError(
            f"{directory} already holds a run. Go on with it: {resume_command(directory, config)}; "
            "replace it: --overwrite; or take the next free directory: --run-dir auto."
        )
    if directory.exists() and not (
        directory.is_dir() and {each.name for each in directory.iterdir()} <= {run_lock.LOCK}
    ):
        raise FileExistsError(f"{directory} exists, is not empty, and is no run. Choose another --run-dir, or `auto`.")


@contextlib.contextmanager
def next_free(parent: Path) -> Iterator[Path]:
    """Makes `parent`, `parent-2`, ..., whichever is the first that there is not; it goes again if it stays empty."""
    parent.parent.mkdir(parents=True, exist_ok=True)
    number = 1
    directory = parent
    while True:
        try:
            directory.mkdir()
            break
        except FileExistsError:
            number += 1
            directory = parent.with_name(f"{parent.name}-{number}")
    try:
        yield directory
    finally:
        with contextlib.suppress(OSError):
            directory.rmdir()
