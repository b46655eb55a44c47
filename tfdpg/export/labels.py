"""Labels such as `stable` and `canary` for the versions that a server loads, and removal of old versions."""

import re
from collections.abc import Mapping
from pathlib import Path

from tfdpg import files
from tfdpg.arguments import natural, reject
from tfdpg.exported import metadata, versions

CONFIG = "models.config"
"""The file in a model directory that is the `--model_config_file` of TensorFlow Serving."""
LABEL = re.compile(r'version_labels\s*:?\s*{\s*key:\s*["\']([^"\']+)["\'][\s,;]*value:\s*([0-9]+)')


def write_labels(directory: str | Path, labels: Mapping[str, int], base_path: str | None = None) -> Path:
    """Write `models.config`, with which TensorFlow Serving and `tfdpg serve` serve the versions that have labels.

    Clients request a label instead of a version. To try out, promote or withdraw a version, write the file again.

    Args:
        directory: the model directory, whose name is the model's.
        labels: the version of each label, such as `{"stable": 3, "canary": 4}`.
        base_path: the path of the model directory on the server; the default is `/models/<name>`.

    Returns:
        The file, in the model directory.

    Raises:
        FileNotFoundError: there is no exported model.
        ExportError: one of the versions is damaged.
        ValueError: a label contains other characters than letters, digits, `_`, `.` and `-`, a version does not exist,
            or there are no labels.
    """
    directory = Path(directory)
    existing = versions(directory)
    if not existing:
        raise FileNotFoundError(f"No exported model in {directory}: expected {directory}/<integer version>")
    if not labels:
        raise reject("labels", "a version for each label, such as stable=1", labels)
    for label, version in labels.items():
        if not re.fullmatch(r"[\w.-]+", label, re.ASCII):
            raise reject("labels", "of letters, digits, `_`, `.` and `-`", label)
        if natural(label, version) not in existing:
            raise reject(label, f"one of the versions {existing}", version)
    served = sorted(set(labels.values()))
    for version in served:
        metadata(directory / str(version))
    name = directory.resolve().name
    lines = [
        "model_config_list {",
        "  config {",
        f'    name: "{name}"',
        f'    base_path: "{base_path or f"/models/{name}"}"',
        '    model_platform: "tensorflow"',
        "    model_version_policy {",
        "      specific {",
        *(f"        versions: {version}" for version in served),
        "      }",
        "    }",
    ]
    for label, version in labels.items():
        lines += ["    version_labels {", f'      key: "{label}"', f"      value: {version}", "    }"]
    files.write_text(directory / CONFIG, "\n".join([*lines, "  }", "}", ""]))
    return directory / CONFIG


def read_labels(directory: str | Path) -> dict[str, int]:
    """Return the version of each label in `models.config`; empty if the model directory has no such file.

    Args:
        directory: the model directory.
    """
    try:
        path = Path(directory) / CONFIG
        if path.exists() and not path.is_file():  # opening a named pipe would block
            raise OSError(f"{path} is not a regular file")
        text = path.read_text()
    except FileNotFoundError:
        return {}
    return {label: int(version) for label, version in LABEL.findall(text) if files.is_version(version)}


def keep_newest(directory: str | Path, count: int) -> None:
    """Remove all versions of a model directory except the newest `count` and those that have labels.

    A server never finds an incomplete version while versions are removed.

    Args:
        directory: the model directory.
        count: the number of newest versions to keep, at least 1.
    """
    directory = Path(directory)
    labelled = read_labels(directory).values()
    for version in versions(directory)[:-count]:
        if version not in labelled:
            files.remove(directory / str(version))
