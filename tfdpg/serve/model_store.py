"""The versions of a model directory that are served at a time, and how they change."""

from pathlib import Path
from typing import Any, NamedTuple

from tfdpg import export
from tfdpg.serve.model import Model, RequestError


class ServedModels(NamedTuple):
    """What is served: models by version, ascending, and the version of each label."""

    models: dict[int, Model]
    labels: dict[str, int]


class ModelStore:
    """Serves the newest version of a model directory, or those that its `models.config` has labels for.

    Args:
        directory: the model directory, whose name is the model's.
        trusted: whether to load versions whatever their operations do.

    Attributes:
        name: the model's.
        served: replaced as a whole when versions change; a request under way keeps the model that it has.
        failed: why versions that should be served are not, by version.

    Raises:
        FileNotFoundError: there is no exported model.
        ExportError: no version can be loaded.
    """

    def __init__(self, directory: Path, trusted: bool = False):
        if not export.versions(directory):
            raise FileNotFoundError(f"No exported model in {directory}: expected {directory}/<integer version>")
        self.directory = directory
        self.trusted = trusted
        self.name = directory.resolve().name
        self.served = ServedModels({}, {})
        self.failed = dict[int, str]()
        self._tried_signatures: dict[int, list[tuple[Any, ...]]] = {}
        self.poll()
        if not self.served.models:
            raise export.ExportError("; ".join(self.failed.values()))

    def poll(self) -> list[str]:
        """Loads the versions that should be served by now, and then drops others; returns what has changed, in words.

        Without labels that is the newest version that loads. A version that does not load is not served, and what it
        was to replace goes on; so does a label that was to move to it. It is tried again when its files change.
        """
        available = export.versions(self.directory)
        labels = export.read_labels(self.directory)
        labelled = sorted({version for version in labels.values() if version in available})
        previous = self.served
        models = dict(self.served.models)
        changes = []
        wanted = []
        for version in labelled or reversed(available):
            wanted.append(version)
            if version not in models:
                changes += self._load(version, models)
            if version in models and not labelled:
                break
        self.failed = {version: reason for version, reason in self.failed.items() if version in wanted}
        label_versions = {
            label: version if version in models else previous.labels.get(label, version)
            for label, version in labels.items()
        }
        kept_versions = {version for version in (*wanted, *label_versions.values()) if version in models}
        if kept_versions:
            self.served = ServedModels({version: models[version] for version in sorted(kept_versions)}, label_versions)
        return changes + [
            f"version {version} is no longer served"
            for version in previous.models.keys() - kept_versions
            if kept_versions
        ]

    def find(self, name: str, version: int | None = None, label: str = "") -> Model:
        """The model that a request asks for: a version, that of a label, or the newest one.

        Raises:
            RequestError: there is none.
        """
        served = self.served
        if name == self.name and label:
            if label not in served.labels:
                raise RequestError(f"Unrecognized servable version label: {label}")
            version = served.labels[label]
        if name == self.name and version is None:
            version = max(served.models)
        if name != self.name or version not in served.models:
            which = f"Latest({name})" if version is None else f"Specific({name}, {version})"
            raise RequestError(f"Servable not found for request: {which}", "NOT_FOUND")
        return served.models[version]

    def _load(self, version: int, models: dict[int, Model]) -> list[str]:
        directory = self.directory / str(version)
        try:
            signature = _file_signature(directory)
            if version in self.failed and signature == self._tried_signatures.get(version):
                return []
            self._tried_signatures[version] = signature
            models[version] = Model(directory, self.trusted)
        except Exception as error:  # whatever is wrong with one version, the others are served
            text = str(error) if isinstance(error, export.ExportError | OSError) else f"{type(error).__name__}: {error}"
            last_failure = self.failed.get(version)
            self.failed[version] = text
            return [f"version {version} is not served: {text}"] if last_failure != text else []
        self.failed.pop(version, None)
        return [f"version {version} is served"]


def _file_signature(directory: Path) -> list[tuple[Any, ...]]:
    """What changes when a file below a directory changes."""
    found = []
    for path in sorted([directory, *directory.rglob("*")]):
        about = path.lstat()
        found.append((str(path), about.st_mode, about.st_size, about.st_mtime_ns, about.st_ino))
    return found
