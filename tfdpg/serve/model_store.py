"""The versions of a model that are served, and how they change."""
# pyright: reportAttributeAccessIssue=false
# Protocol buffer modules create their classes when they are imported.

import operator
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2

from tfdpg import export
from tfdpg.serve.errors import RequestError
from tfdpg.serve.metrics import Metrics
from tfdpg.serve.model import Model

DATA_LOSS = 15
"""The gRPC status of a version that is damaged."""


class ServedModels(NamedTuple):
    """The models by version, in ascending order, and the version of each label."""

    models: dict[int, Model]
    labels: dict[str, int]


class ModelStore:
    """Serves the newest version of a model directory, or the versions that have labels in its `models.config`.

    Args:
        directory: the model directory. Its name is the name of the model.
        trusted: whether to load versions even if their operations have side effects.
        metrics: counts the attempts to load versions; None counts nothing.

    Attributes:
        name: the name of the model.
        served: the served versions. This object is replaced when they change; a request under way keeps its model.
        failed: for each version that should be served and cannot be, the reason.

    Raises:
        FileNotFoundError: the directory has no exported model.
        ExportError: no version can be loaded.
    """

    def __init__(self, directory: Path, trusted: bool = False, metrics: Metrics | None = None):
        if not export.versions(directory):
            raise FileNotFoundError(f"No exported model in {directory}: expected {directory}/<integer version>")
        self._directory = directory
        self._trusted = trusted
        self._metrics = metrics
        self.name = directory.resolve().name
        self.served = ServedModels({}, {})
        self.failed = dict[int, str]()
        self._tried_signatures: dict[int, list[tuple[Any, ...]]] = {}
        self.poll()
        if not self.served.models:
            raise export.ExportError("; ".join(self.failed.values()))

    def poll(self) -> list[str]:
        """Load the versions that should be served now, and drop the others. Return the changes as text.

        Without labels, this is the newest version that loads. If a version does not load, the version that it should
        replace stays, and so does a label that should move to it. It is tried again when its files change.
        """
        available = export.versions(self._directory)
        labels = export.read_labels(self._directory)
        labelled = sorted({version for version in labels.values() if version in available})
        previous = self.served
        models = dict(previous.models)
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
        kept = sorted({version for version in (*wanted, *label_versions.values()) if version in models})
        if kept:
            self.served = ServedModels({version: models[version] for version in kept}, label_versions)
            changes += [f"version {version} is no longer served" for version in previous.models if version not in kept]
        return changes

    def _load(self, version: int, models: dict[int, Model]) -> list[str]:
        directory = self._directory / str(version)
        try:
            signature = _file_signature(directory)
            if version in self.failed and signature == self._tried_signatures.get(version):
                return []
            self._tried_signatures[version] = signature
            models[version] = self._loaded(directory)
        except Exception as error:  # an error of one version must not affect the others
            text = str(error) if isinstance(error, export.ExportError | OSError) else f"{type(error).__name__}: {error}"
            last_failure = self.failed.get(version)
            self.failed[version] = text
            return [f"version {version} is not served: {text}"] if last_failure != text else []
        self.failed.pop(version, None)
        return [f"version {version} is served"]

    def _loaded(self, directory: Path) -> Model:
        """Load a version, and count the attempt."""
        began = time.perf_counter()
        is_success = False
        try:
            model = Model(directory, self._trusted)
            is_success = True
            return model
        finally:
            if self._metrics is not None:
                self._metrics.loaded(str(directory), is_success, time.perf_counter() - began)

    def find(self, name: str, version: int | None = None, label: str = "") -> Model:
        """Return the model with this version or label, or the newest version.

        Raises:
            RequestError: there is none.
        """
        models, labels = self.served
        if name == self.name:
            if label and label not in labels:
                raise RequestError(f"Unrecognized servable version label: {label}")
            if label:
                version = labels[label]
            elif version is None:
                version = max(models)
            if version in models:
                return models[version]
        which = f"Latest({name})" if version is None else f"Specific({name}, {version})"
        raise RequestError(f"Servable not found for request: {which}", "NOT_FOUND")

    def status(self, name: str, version: int | None = None, label: str = "") -> Any:
        """Return a `GetModelStatusResponse` for one version, or for all versions that are served or should be.

        Raises:
            RequestError: there is no such model or version.
        """
        if name != self.name:
            raise RequestError(f"Could not find any versions of model {name}", "NOT_FOUND")
        if label:
            version = self.find(name, label=label).version
        response = get_model_status_pb2.GetModelStatusResponse()
        served = self.served.models
        failed = self.failed
        for number in sorted({*served, *failed}, reverse=True):
            if version in (None, number):
                state = "AVAILABLE" if number in served else "END"
                status = response.model_version_status.add(version=number, state=state)
                status.status.SetInParent()
                if number not in served:
                    status.status.error_code = DATA_LOSS
                    status.status.error_message = failed[number]
        if not response.model_version_status:
            raise RequestError(f"Could not find version {version} of model {name}", "NOT_FOUND")
        return response

    def metadata(
        self,
        name: str,
        version: int | None = None,
        label: str = "",
        fields: Sequence[str] = ("signature_def",),
    ) -> Any:
        """Return a `GetModelMetadataResponse` with the signatures of a model.

        Raises:
            RequestError: there is no such model, or `fields` contains another field than `signature_def`.
        """
        if not fields:
            raise RequestError("GetModelMetadataRequest must specify at least one metadata_field")
        if unknown := [field for field in fields if field != "signature_def"]:
            raise RequestError(f"Metadata field {unknown[0]} is not supported")
        model = self.find(name, version, label)
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        response.model_spec.name = name
        response.model_spec.version.value = model.version
        signatures = get_model_metadata_pb2.SignatureDefMap()
        for key, definition in model.definitions.items():
            signatures.signature_def[key].CopyFrom(definition)
        response.metadata["signature_def"].Pack(signatures)
        return response


def _file_signature(directory: Path) -> list[tuple[Any, ...]]:
    """Return a value that changes when a file below a directory changes."""
    values = operator.attrgetter("st_mode", "st_size", "st_mtime_ns", "st_ino")
    return [(path, *values(path.lstat())) for path in sorted([directory, *directory.rglob("*")])]
