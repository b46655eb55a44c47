"""The integer versions of a model directory, as TensorFlow Serving reads them."""

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
