"""Find runs, checkpoints and exported models below a path, and explain what a path contains instead."""

import contextlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tfdpg.agents.classes import display_name
from tfdpg.cli import run_lock
from tfdpg.files import CHECKPOINT, is_version

INITIAL = "initial"
"""The name of the copy of the exported model that the agent of a run was made from, in the run's directory."""
SWEEP = "sweep.txt"
"""The name of the file in the directory of a sweep. Each line is the command of a sweep in this directory."""


def is_run(path: Path) -> bool:
    """Return whether a directory is a run directory."""
    return (path / "run.json").exists()


def is_model(path: Path) -> bool:
    """Return whether a directory contains an exported model, or is a version of one."""
    versions = (file.parent.name for file in path.glob("*/saved_model.pb"))
    return (path / "saved_model.pb").exists() or any(map(is_version, versions))


def runs_below(path: Path, *patterns: str) -> list[Path]:
    """Return the runs whose `run.json` matches a pattern, sorted by name with seeds in numerical order."""
    found = {file.parent for pattern in patterns for file in path.glob(pattern)}
    shown = [run for run in found if not run.relative_to(path).as_posix().startswith(".")]
    return sorted(
        shown, key=lambda run: [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", str(run))]
    )


def is_sweep(path: Path) -> bool:
    """Return whether a directory contains the runs of a sweep, in a directory for each setting."""
    return (path / SWEEP).is_file()


def runs_in(path: Path) -> list[Path]:
    """Return the run at a path, or the runs in the directory; those of a sweep are one level deeper."""
    return [path] if is_run(path) else runs_below(path, "*/run.json", *["*/*/run.json"] * is_sweep(path))


def check_run(path: Path) -> None:
    """Raise `FileNotFoundError` if a path is not a run directory. The message says what it is instead."""
    if not is_run(path):
        raise _not_found("run", path, "there is no run.json")


def runs_at(path: Path) -> list[Path]:
    """Return the run at a path, or the runs in the directory.

    Raises:
        FileNotFoundError: there is none. The message says what the path is instead, and where runs are.
    """
    if runs := runs_in(path):
        return runs
    sweeps = [run.parent.parent for run in runs_below(path, "*/*/*/run.json") if is_sweep(run.parent.parent)]
    others = [run.parent for run in runs_below(path, "*/*/run.json")]
    parents = list(dict.fromkeys(map(str, others + sweeps)))[:3]
    all_of = f", or {' or '.join(parents)} for all of its runs" if parents else ""
    raise _not_found("run", path, "there is no run.json", all_of)


def check_model(path: Path) -> None:
    """Raise `FileNotFoundError` if a path is not an exported model. The message says what it is instead."""
    if not is_model(path):
        raise _not_found("exported model", path, f"expected {path}/<integer version>/saved_model.pb")


def check_policy(path: Path) -> None:
    """Raise `FileNotFoundError` if a path is neither a run nor an exported model. The message says what it is."""
    if not (is_run(path) or is_model(path)):
        expected = "there is no run.json and no <integer version>/saved_model.pb"
        raise _not_found("run and no exported model", path, expected)


def _not_found(wanted: str, path: Path, expected: str, more: str = "") -> FileNotFoundError:
    return FileNotFoundError(f"No {wanted} in {path}: {describe_contents(path) or expected}{more}")


def describe_contents(path: Path) -> str | None:
    """Return a clause, such as "it is a checkpoint; its run is PATH", that says what a path is.

    It is None for a directory without anything that tfdpg writes.
    """
    if not path.is_dir():
        return "it is a file" if path.exists() else "there is no such directory"
    if is_run(path):
        exports = [str(path / name) for name in ("best", "export") if is_model(path / name)]
        return f"it is a run; its exported models are {' and '.join(exports) or 'not written yet'}"
    if is_model(path):
        return "it is an exported model"
    if (path / "tfdpg.json").exists():
        return "it is an exported model in another format"
    if (path / CHECKPOINT).exists() and is_run(run := path.parent.parent):
        return f"it is a checkpoint; its run is {run}"
    if (path / CHECKPOINT).is_file() and not (path / CHECKPOINT).is_symlink():
        return f"it is a saved agent, for tfdpg.load_agent{_class_of(path)}"
    runs = [str(run) for run in runs_below(path, "*/run.json", "*/*/run.json", "*/*/*/run.json")]
    more = f" and {len(runs) - 10} more" if len(runs) > 10 else ""
    return f"it holds the runs {', '.join(runs[:10])}{more}; name one" if runs else None


def _class_of(saved: Path) -> str:
    """Return how `load_agent` finds the class of a saved agent, for a class in a user's own file; "" for others."""
    try:
        name = json.loads((saved / CHECKPOINT).read_bytes())["agent"]
        module, is_own, qualified_name = name.rpartition(":")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ""  # a damaged file
    if not is_own:
        return ""
    if module:
        return f"(directory, trusted=True), which imports its class {name!r}"
    return (
        f"(directory, agent_class={qualified_name}): the class {qualified_name!r} was defined in a script, so no "
        f"command can import it. `tfdpg train module:{qualified_name}` trains it in a run directory"
    )


def parent_of(agent: str, env_id: str, swept: Iterable[str] = ()) -> Path:
    """Return the default directory for the runs of an agent on an environment, with these swept options if any."""
    return Path("runs") / "-".join([display_name(agent).lower(), re.sub(r"[/:]", "-", env_id), *swept])


def check_free(directory: Path, overwrite: bool = False) -> None:
    """Check that a new run can be written to a directory.

    Args:
        directory: the directory. It must not exist, or be empty apart from the lock file of an earlier run.
        overwrite: whether the new run may replace an existing run.

    Raises:
        FileExistsError: it is a file, a directory with other files, or a run that may not be replaced.
        tfdpg.cli.run_lock.RunLockedError: the directory is a run that another process trains.
    """
    if is_run(directory):
        from tfdpg.cli.run_options import read_config, resume_command

        config = read_config(directory)  # rejects a run.json that tfdpg did not write
        run_lock.check(directory)
        if overwrite:
            return
        raise FileExistsError(
            f"{directory} already holds a run. To resume it: {resume_command(directory, config)}; "
            "to replace it: --overwrite; to use the next free directory: --run-dir auto."
        )
    if directory.exists() and not (
        directory.is_dir() and {each.name for each in directory.iterdir()} <= {run_lock.LOCK}
    ):
        raise FileExistsError(
            f"{directory} exists, is not empty, and is not a run. Choose another --run-dir, or `auto`."
        )


@contextlib.contextmanager
def next_free(parent: Path) -> Iterator[Path]:
    """Make the first of `parent`, `parent-2`, ... that does not exist. Remove it at the end if it is still empty."""
    parent.parent.mkdir(parents=True, exist_ok=True)
    numbers = itertools.count(2)
    directory = parent
    while True:
        try:
            directory.mkdir()
            break
        except FileExistsError:
            directory = parent.with_name(f"{parent.name}-{next(numbers)}")
    try:
        yield directory
    finally:
        with contextlib.suppress(OSError):
            directory.rmdir()
