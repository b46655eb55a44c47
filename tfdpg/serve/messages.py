"""What both of TensorFlow Serving's protocols tell of a model, as protocol buffers."""
# pyright: reportAttributeAccessIssue=false
# Modules of protocol buffers make their classes when they are imported.

from collections.abc import Sequence
from typing import Any

from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2

from tfdpg.serve.model import RequestError
from tfdpg.serve.model_store import ModelStore

AVAILABLE = get_model_status_pb2.ModelVersionStatus.AVAILABLE
END = get_model_status_pb2.ModelVersionStatus.END
DATA_LOSS = 15
"""The code of a model that is damaged."""


def status_response(model_store: ModelStore, name: str, version: int | None = None, label: str = "") -> Any:
    """The state of one version, or of all that are served or should be.

    Raises:
        RequestError: there is no such model or version.
    """
    if name != model_store.name:
        raise RequestError(f"Could not find any versions of model {name}", "NOT_FOUND")
    if label:
        version = model_store.find(name, label=label).version
    response = get_model_status_pb2.GetModelStatusResponse()
    served = model_store.served.models
    failed = model_store.failed
    for number in sorted({*served, *failed}, reverse=True):
        if version in (None, number):
            state = AVAILABLE if number in served else END
            status = response.model_version_status.add(version=number, state=state)
            status.status.SetInParent()
            if number not in served:
                status.status.error_code = DATA_LOSS
                status.status.error_message = failed[number]
    if not response.model_version_status:
        raise RequestError(f"Could not find version {version} of model {name}", "NOT_FOUND")
    return response


def metadata_response(
    model_store: ModelStore, name: str, version: int | None = None, label: str = "", fields: Sequence[str] = ()
) -> Any:
    """The signatures of a model.

    Raises:
        RequestError: there is no such model, or another field than `signature_def` is wanted.
    """
    if not fields:
        raise RequestError("GetModelMetadataRequest must specify at least one metadata_field")
    if unknown := [field for field in fields if field != "signature_def"]:
        raise RequestError(f"Metadata field {unknown[0]} is not supported")
    model = model_store.find(name, version, label)
    response = get_model_metadata_pb2.GetModelMetadataResponse()
    response.model_spec.name = name
    response.model_spec.version.value = model.version
    signatures = get_model_metadata_pb2.SignatureDefMap()
    for key, definition in model.definitions.items():
        signatures.signature_def[key].CopyFrom(definition)
    response.metadata["signature_def"].Pack(signatures)
    return response
