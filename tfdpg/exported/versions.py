"""The integer versions of a model directory, as TensorFlow Serving reads them."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tfdpg import files

METADATA = "tfdpg.json"
AGENT_WEIGHTS = "agent.npz"
"""The file with the weights of the agent's networks, from which `Agent.from_export` makes an agent."""
AGENT_FACTS = "options", "own_networks", "newer_for_critics"
"""The entries of `tfdpg.json` that belong to this file."""
FORMAT = 2
LOADED = ("saved_model.", "variables/")
"""The prefixes of the paths that a loader may read in the directory of a version."""


class ExportError(RuntimeError):
    """An exported model does not load, is damaged, or does not compute what the agent computes.

    `Agent.export`, `tfdpg.load`, `tfdpg.export.convert` and the methods of `Policy` raise it.
    """


def versions(directory: str | Path) -> list[int]:
    """Return the versions in a model directory.

    Args:
        directory: a model directory.

    Returns:
        The versions in ascending order; an empty list if the directory does not exist.
    """
    directory = Path(directory)
    if not directory.is_dir():
        return []
    return sorted(int(path.name) for path in directory.iterdir() if files.is_version(path.name) and path.is_dir())


def latest_version(directory: str | Path) -> Path:
    """Return the directory of the newest version.

    Args:
        directory: a model directory, or the directory of a version, which is returned.

    Raises:
        FileNotFoundError: there is no exported model.
    """
    directory = Path(directory)
    if (directory / "saved_model.pb").exists():
        return directory
    found = versions(directory)
    if not found:
        why = f"expected {directory}/<integer version>/saved_model.pb"
        if (directory / files.CHECKPOINT).exists():
            why = "it is a saved agent, for tfdpg.load_agent"
        elif (directory / METADATA).exists():
            why = "it is an exported model in another format"
        elif others := versions(directory.parent):
            why = f"there are the versions {others}"
        raise FileNotFoundError(f"No exported model in {directory}: {why}")
    return directory / str(found[-1])


def metadata(version: Path) -> dict[str, Any]:
    """Read `tfdpg.json` of an exported model, and check that all files are unchanged since the export.

    Args:
        version: the directory of a version.

    Returns:
        The content of `tfdpg.json`, such as the agent, the spaces, the scores and the versions of libraries.

    Raises:
        FileNotFoundError: there is no `tfdpg.json`, so tfdpg did not export the model.
        ExportError: a file is damaged, missing, changed, or of another export; the message names it.
    """
    if not os.path.lexists(version / METADATA):
        raise FileNotFoundError(f"{version / METADATA} is missing: the SavedModel was not exported by tfdpg")
    try:
        description = files.read_manifest(version, METADATA, FORMAT)
        paths = [path for path in version.rglob("*") if not path.is_dir()]
        if special := sorted(path for path in paths if not path.is_file()):
            raise files.DamagedError(f"{special[0]} is not a regular file")
        present = {path.relative_to(version).as_posix() for path in paths}
        if foreign := sorted(name for name in present - set(description["files"]) if name.startswith(LOADED)):
            raise files.DamagedError(f"{version / foreign[0]} does not belong to it")
    except (OSError, ValueError, RecursionError) as error:
        raise ExportError(f"The exported model cannot be loaded: {error}") from error
    return description


@contextlib.contextmanager
def new_directory(
    parent: Path, target: Path | None = None, required_bytes: Callable[[], int] = lambda: 0
) -> Iterator[Path]:
    """Create a scratch directory inside `parent`, for `files.move` to rename when its content is complete.

    If an exception is raised, the scratch directory and the directories that were created for it are removed.

    Args:
        parent: created if it does not exist.
        target: the path that error messages name; the default is `parent`.
        required_bytes: returns the least number of bytes that will be written, for the message if the disk is full.

    Raises:
        tfdpg.files.DiskFullError: the disk is full.
    """
    made = files.make_directory(parent)
    try:
        with files.writing(target or parent, required_bytes), files.scratch_directory(parent) as scratch:
            yield scratch
    except BaseException:
        with contextlib.suppress(OSError):  # another process uses the directory now
            for path in made:
                path.rmdir()
        raise


def move_to_next_version(source: Path, directory: Path) -> Path:
    """Rename `source`, a directory inside `directory`, to the next free version, and return the new path."""
    number = max(versions(directory), default=0) + 1
    while True:
        try:
            files.move(source, directory / str(number))
            return directory / str(number)
        except OSError:  # another process created this version in the meantime
            if not (directory / str(number)).exists():
                raise
            number += 1


def copy(version: Path, directory: str | Path, facts: Mapping[str, Any] = MappingProxyType({})) -> Path:
    """Copy an exported model to the next version of another model directory, and return the new path.

    Args:
        version: the directory of a version.
        directory: the other model directory.
        facts: entries that are added to the copy's `tfdpg.json` or replace entries of it.

    Raises:
        NotADirectoryError: `directory` is a file.
        ExportError: the exported model is damaged.
    """
    directory = Path(directory)
    description = metadata(version)
    check_directory(directory)
    with new_directory(directory) as scratch:
        for name in description["files"]:
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(version / name, scratch / name)
        inherited = {key: value for key, value in description.items() if key not in ("files", "sha256")}
        files.write_manifest(scratch, METADATA, inherited | dict(facts))
        return move_to_next_version(scratch, directory)


def check_directory(directory: Path) -> None:
    """Raise `NotADirectoryError` if the path of a model directory is a file."""
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(f"`directory` must be a directory to export to. Received a file: {directory}")
