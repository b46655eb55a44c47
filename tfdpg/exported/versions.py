"""The integer versions of a model directory, as TensorFlow Serving reads them."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tfdpg import files

METADATA = "tfdpg.json"
FORMAT = 2
LOADED = ("saved_model.", "variables/")
"""What a loader may take from a version's directory: how the paths begin."""


class ExportError(RuntimeError):
    """An exported model does not load, is damaged, or does not compute what the agent does."""


def versions(directory: str | Path) -> list[int]:
    """The versions in a model directory, ascending; empty if there is no such directory."""
    directory = Path(directory)
    if not directory.is_dir():
        return []
    return sorted(int(path.name) for path in directory.iterdir() if files.is_version(path.name) and path.is_dir())


def latest_version(directory: str | Path) -> Path:
    """The directory of the newest version.

    Args:
        directory: a model directory, or already a version's.

    Raises:
        FileNotFoundError: there is no exported model.
    """
    directory = Path(directory)
    if (directory / "saved_model.pb").exists():
        return directory
    found = versions(directory)
    if not found:
        why = f"expected {directory}/<integer version>/saved_model.pb"
        if (directory / "agent.json").exists():
            why = "it is a saved agent, for tfdpg.load_agent"
        elif (directory / METADATA).exists():
            why = "it is one in another format, for another runtime"
        elif others := versions(directory.parent):
            why = f"there are the versions {others}"
        raise FileNotFoundError(f"No exported model in {directory}: {why}")
    return directory / str(found[-1])


def metadata(version: Path) -> dict[str, Any]:
    """What `tfdpg.json` says of an exported model, whose files are all as they were when it was written.

    Raises:
        FileNotFoundError: tfdpg did not export it.
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


def move_to_next_version(source: Path, directory: Path) -> Path:
    """Moves `source`, a directory inside `directory`, to the next free version; returns the new path."""
    number = max(versions(directory), default=0) + 1
    while True:
        try:
            files.move(source, directory / str(number))
            return directory / str(number)
        except OSError:  # someone else took the number meanwhile
            if not (directory / str(number)).exists():
                raise
            number += 1


def copy(version: Path, directory: str | Path, facts: Mapping[str, Any] = MappingProxyType({})) -> Path:
    """Copies an exported model as the next version of another model directory; returns the new path.

    Args:
        version: a version's directory.
        directory: the other model directory.
        facts: what its `tfdpg.json` says besides, or instead.

    Raises:
        NotADirectoryError: `directory` is a file.
        ExportError: the exported model is damaged.
    """
    directory = Path(directory)
    description = metadata(version)
    check_directory(directory)
    files.make_directory(directory)
    with files.writing(directory), files.scratch_directory(directory) as scratch:
        for name in description["files"]:
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(version / name, scratch / name)
        inherited = {key: value for key, value in description.items() if key not in ("files", "sha256")}
        files.write_manifest(scratch, METADATA, inherited | dict(facts))
        return move_to_next_version(scratch, directory)


def check_directory(directory: Path) -> None:
    """Raises `NotADirectoryError` if a model directory's path is a file's."""
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(f"`directory` must be a directory to export to. Received a file: {directory}")
