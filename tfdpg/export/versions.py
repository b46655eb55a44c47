"""The integer versions of a model directory, as TensorFlow Serving reads them."""

import shutil
import tempfile
from pathlib import Path


def versions(directory: str | Path) -> list[int]:
    """The versions in a model directory, ascending; empty if there is no such directory."""
    directory = Path(directory)
    if not directory.is_dir():
        return []
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit() and path.is_dir())


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
        raise FileNotFoundError(
            f"No exported model in {directory}: expected {directory}/<integer version>/saved_model.pb"
        )
    return directory / str(found[-1])


def move_to_next_version(source: Path, directory: Path) -> Path:
    """Renames `source`, a directory inside `directory`, to the next free version; returns the new path."""
    number = max(versions(directory), default=0) + 1
    while True:
        try:
            return source.rename(directory / str(number))
        except OSError:  # someone else took the number meanwhile
            if not (directory / str(number)).exists():
                raise
            number += 1


def copy(version: Path, directory: str | Path) -> Path:
    """Copies an exported model as the next version of another model directory; returns the new path.

    Raises:
        NotADirectoryError: `directory` is a file.
    """
    directory = Path(directory)
    check_directory(directory)
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tfdpg-copy-", dir=directory) as scratch:
        copied = shutil.copytree(version, Path(scratch) / "model")
        return move_to_next_version(copied, directory)


def check_directory(directory: Path) -> None:
    """Raises `NotADirectoryError` if a model directory's path is a file's."""
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(f"`directory` must be a directory to export to. Received a file: {directory}")
