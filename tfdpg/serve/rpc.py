"""TensorFlow Serving's gRPC: PredictionService and ModelService."""
# pyright: reportAttributeAccessIssue=false
# Modules of protocol buffers make their classes when they are imported.

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
from tensorflow_serving.apis import (
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from tfdpg.serve import tensors
from tfdpg.serve.limits import Limits
from tfdpg.serve.messages import metadata_response, status_response
from tfdpg.serve.model import RequestError
from tfdpg.serve.shelf import Shelf

AGE = 10
"""The age, in timeouts, at which a connection is closed."""


def server(shelf: Shelf, limits: Limits, log: Callable[[str], None]) -> grpc.aio.Server:
    """Answers requests, each in a thread of its own.

    Args:
        shelf: the model.
        limits: what is accepted. Connections above their limit are closed.
        log: receives a line for each error that no request explains.
    """
    timeout = round(limits.timeout * 1000)
    made = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", limits.request_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
            ("grpc.max_allowed_incoming_connections", limits.connections),
            ("grpc.server_handshake_timeout_ms", timeout),
            ("grpc.max_connection_idle_ms", timeout),
            # gRPC has no timeout for a message that is half sent; clients connect again without an error
            ("grpc.max_connection_age_ms", AGE * timeout),
            ("grpc.max_connection_age_grace_ms", timeout),
        ]
    )
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(_Prediction(shelf, limits, log), made)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(_Model(shelf, log), made)
    return made


class _Prediction(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, shelf: Shelf, limits: Limits, log: Callable[[str], None]):
        self._shelf, self._limits, self._log = shelf, limits, log

    async def Predict(self, request: Any, context: grpc.aio.ServicerContext) -> Any:  # noqa: N802
        return await _answered(context, self._log, self._predict, request)

    async def GetModelMetadata(self, request: Any, context: grpc.aio.ServicerContext) -> Any:  # noqa: N802
        return await _answered(context, self._log, self._metadata, request)

    def _predict(self, request: Any) -> Any:
        model = self._shelf.find(**_where(request))
        signature = model.signature(request.model_spec.signature_name)
        wanted = list(request.output_filter) or signature.outputs
        if unknown := [name for name in wanted if name not in signature.outputs]:
            raise RequestError(
                f"output tensor alias not found in signature: {unknown[0]} "
                f"Outputs expected to be in the set {{{','.join(sorted(signature.outputs))}}}."
            )
        signature.check(request.inputs)
        inputs = {
            name: tensors.from_proto(name, request.inputs[name], expected, self._limits.request_bytes)
            for name, expected in signature.inputs.items()
        }
        signature.check_size(inputs, self._limits)
        outputs = signature(inputs)
        response = predict_pb2.PredictResponse()
        spec = response.model_spec
        spec.name, spec.version.value, spec.signature_name = request.model_spec.name, model.version, signature.name
        for name in wanted:
            response.outputs[name].CopyFrom(tensors.to_proto(outputs[name]))
        return response

    def _metadata(self, request: Any) -> Any:
        return metadata_response(self._shelf, **_where(request), fields=request.metadata_field)


class _Model(model_service_pb2_grpc.ModelServiceServicer):
    def __init__(self, shelf: Shelf, log: Callable[[str], None]):
        self._shelf, self._log = shelf, log

    async def GetModelStatus(self, request: Any, context: grpc.aio.ServicerContext) -> Any:  # noqa: N802
        return await _answered(
            context, self._log, lambda request: status_response(self._shelf, **_where(request)), request
        )


async def _answered(
    context: grpc.aio.ServicerContext, log: Callable[[str], None], answer: Callable[[Any], Any], request: Any
) -> Any:
    try:
        return await asyncio.to_thread(answer, request)
    except RequestError as error:
        code, message = error.code, str(error)
    except Exception as error:
        code, message = "INTERNAL", f"Internal error: {type(error).__name__}: {error}"
        log(f"gRPC: a request failed: {type(error).__name__}: {error}")
    await context.abort(grpc.StatusCode[code], message)


def _where(request: Any) -> dict[str, Any]:
    """The model that a request names."""
    if not request.HasField("model_spec"):
        raise RequestError("Missing ModelSpec")
    spec = request.model_spec
    version = spec.version.value if spec.HasField("version") else None
    return {"name": spec.name, "version": version, "label": spec.version_label}
