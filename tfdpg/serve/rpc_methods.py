"""The methods of TensorFlow Serving's gRPC services."""
# pyright: reportAttributeAccessIssue=false
# Protocol buffer modules create their classes when they are imported.

from typing import Any

from google.protobuf.message import DecodeError
from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2, predict_pb2

from tfdpg.serve import tensors
from tfdpg.serve.errors import RequestError
from tfdpg.serve.model_store import ModelStore
from tfdpg.serve.service import Service

REQUESTS = {
    "Predict": predict_pb2.PredictRequest,
    "GetModelMetadata": get_model_metadata_pb2.GetModelMetadataRequest,
    "GetModelStatus": get_model_status_pb2.GetModelStatusRequest,
}
"""The type of the requests of each method."""


def answer(method: str, content: bytes, store: ModelStore, service: Service, began: float) -> bytes:
    """Answer a call.

    Args:
        method: one of `REQUESTS`.
        content: the encoded request.
        store: the model.
        service: the limits, and what is counted.
        began: when the request arrived, by `time.perf_counter`.

    Raises:
        RequestError: the request cannot be answered.
    """
    try:
        request = REQUESTS[method].FromString(content)
    except DecodeError as error:
        if method == "Predict":
            service.metrics.refused("INVALID_ARGUMENT")
        raise RequestError(f"The request is not a {REQUESTS[method].__name__}: {error}") from error
    if method == "Predict":
        with service.metrics.request(request.model_spec.name, "Predict", "GRPC", began):
            return _predict(request, store, service).SerializeToString()
    requested = _requested_model(request)
    if method == "GetModelMetadata":
        return store.metadata(**requested, fields=request.metadata_field).SerializeToString()
    return store.status(**requested).SerializeToString()


def _predict(request: Any, store: ModelStore, service: Service) -> Any:
    model = store.find(**_requested_model(request))
    signature = model.signature(request.model_spec.signature_name)
    wanted = list(request.output_filter) or signature.outputs
    if unknown := [name for name in wanted if name not in signature.outputs]:
        raise RequestError(
            f"output tensor alias not found in signature: {unknown[0]} "
            f"Outputs expected to be in the set {{{','.join(sorted(signature.outputs))}}}."
        )
    signature.check_names(request.inputs)
    inputs = {
        name: tensors.from_proto(name, request.inputs[name], expected, service.limits.request_bytes)
        for name, expected in signature.inputs.items()
    }
    outputs = signature(inputs, service.limits)
    service.metrics.answered(model.version, signature.name, outputs)
    response = predict_pb2.PredictResponse()
    response.model_spec.name = request.model_spec.name
    response.model_spec.version.value = model.version
    response.model_spec.signature_name = signature.name
    for name in signature.outputs:
        response.outputs[name].CopyFrom(tensors.to_proto(outputs[name]))
    if service.request_log is not None:
        service.request_log.write(request, response)  # with the action, also if the client does not want it
    for name in set(signature.outputs) - set(wanted):
        del response.outputs[name]
    return response


def _requested_model(request: Any) -> dict[str, Any]:
    """Return the name, version and label of the model that a request names."""
    if not request.HasField("model_spec"):
        raise RequestError("Missing ModelSpec")
    spec = request.model_spec
    version = spec.version.value if spec.HasField("version") else None
    return {"name": spec.name, "version": version, "label": spec.version_label}
