"""Which versions of a model directory a server takes: labels such as `stable` and `canary`, and how many are kept."""

import re
from collections.abc import Mapping
from pathlib import Path

from tfdpg import files
from tfdpg.arguments import natural, reject
from tfdpg.exported import metadata, versions

CONFIG = "models.config"
"""The file of a model directory that TensorFlow Serving takes as its `--model_config_file`."""
LABEL = re.compile(r'version_labels\s*:?\s*{\s*key:\s*["\']([^"\']+)["\'][\s,;]*value:\s*([0-9]+)')


def write_labels(directory: str | Path, labels: Mapping[str, int], base_path: str | None = None) -> Path:
    """Writes `models.config`, with which TensorFlow Serving and `tfdpg serve` serve the versions that have labels.

    Clients then ask for a label, and a version is tried out, promoted or taken back by writing the file again.

    Args:
        directory: the model directory, whose name is the model's.
        labels: the version of each label, such as `{"stable": 3, "canary": 4}`.
        base_path: where the server finds the model directory; the default is `/models/<name>`.

    Returns:
        The file, in the model directory.

    Raises:
        FileNotFoundError: there is no exported model.
        ExportError: one of the versions is damaged.
        ValueError: a label is no plain word, there is no such version, or there are no labels.
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
    for version in set(labels.values()):
        metadata(directory / str(version))
    served = "".join(f"        versions: {version}\n" for version in sorted(set(labels.values())))
    named = "".join(
        f'    version_labels {{\n      key: "{label}"\n      value: {version}\n    }}\n'
        for label, version in labels.items()
    )
    name = directory.resolve().name
    files.write_text(
        directory / CONFIG,
        f'model_config_list {{\n  config {{\n    name: "{name}"\n    base_path: "{base_path or f"/models/{name}"}"\n'
        f'    model_platform: "tensorflow"\n    model_version_policy {{\n      specific {{\n{served}      }}\n    }}\n'
        f"{named}  }}\n}}\n",
    )
    return directory / CONFIG


def read_labels(directory: str | Path) -> dict[str, int]:
    """The version of each label, as `write_labels` wrote them; empty if the model directory has no `models.config`."""
    try:
        path = Path(directory) / CONFIG
        if path.exists() and not path.is_file():  # to open a named pipe would wait for its writer
            raise OSError(f"{path} is not a regular file")
        text = path.read_text()
    except FileNotFoundError:
        return {}
    return {label: int(version) for label, version in LABEL.findall(text) if files.is_version(version)}


def keep_newest(directory: str | Path, count: int) -> None:
    """Removes the versions of a model directory but the newest `count`, and those that have labels.

    What a server finds under a version's name is the whole version, to the last.
    """
    directory, labelled = Path(directory), read_labels(directory).values()
    for version in versions(directory)[:-count]:
        if version not in labelled:
            files.remove(directory / str(version))
