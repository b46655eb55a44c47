"""TensorFlow Serving's gRPC services: PredictionService and ModelService."""
# pyright: reportAttributeAccessIssue=false
# Protocol buffer modules create their classes when they are imported.

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
from tfdpg.serve.model import RequestError
from tfdpg.serve.model_store import ModelStore

MAX_AGE_TIMEOUTS = 10
"""The age, in timeouts, at which a connection is closed."""


class GrpcServer(prediction_service_pb2_grpc.PredictionServiceServicer, model_service_pb2_grpc.ModelServiceServicer):
    """Answers requests, each in its own thread.

    Args:
        model_store: the model.
        limits: the limits of the server.
        log: receives a line for each error that is not due to a request.
    """

    def __init__(self, model_store: ModelStore, limits: Limits, log: Callable[[str], None]):
        self._model_store = model_store
        self._limits = limits
        self._log = log
        timeout = round(limits.timeout * 1000)
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", limits.request_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                ("grpc.server_handshake_timeout_ms", timeout),
                ("grpc.max_connection_idle_ms", timeout),
                # gRPC has no timeout for a message that is half sent; clients connect again without an error
                ("grpc.max_connection_age_ms", MAX_AGE_TIMEOUTS * timeout),
                ("grpc.max_connection_age_grace_ms", timeout),
            ]
        )
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(self, self._server)
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(self, self._server)

    async def start(self, where: str) -> int:
        """Listen at an address, and return the port.

        Raises:
            OSError: the port is in use.
        """
        try:
            port = self._server.add_insecure_port(where)
        except RuntimeError as error:
            raise OSError(f"gRPC cannot listen on {where}: the address is in use, or not here") from error
        await self._server.start()
        return port

    async def shutdown(self, seconds: float) -> None:
        """Stop listening, answer the requests under way within this time, and close all connections."""
        await self._server.stop(seconds)

    async def Predict(self, request: Any, context: grpc.aio.ServicerContext) -> Any:  # noqa: N802
        """Compute the outputs of a signature."""
        return await self._answer(context, self._predict, request)

    async def GetModelMetadata(self, request: Any, context: grpc.aio.ServicerContext) -> Any:  # noqa: N802
        """Return the signatures of the model."""
        return await self._answer(context, self._metadata, request)

    async def GetModelStatus(self, request: Any, context: grpc.aio.ServicerContext) -> Any:  # noqa: N802
        """Return the state of the versions."""
        return await self._answer(context, self._status, request)

    async def _answer(self, context: grpc.aio.ServicerContext, answer: Callable[[Any], Any], request: Any) -> Any:
        """Answer a call in its own thread."""
        try:
            return await asyncio.to_thread(answer, request)
        except RequestError as error:
            code = error.code
            message = str(error)
        except Exception as error:
            code = "INTERNAL"
            message = f"Internal error: {type(error).__name__}: {error}"
            self._log(f"gRPC: a request failed: {type(error).__name__}: {error}")
        return await context.abort(grpc.StatusCode[code], message)

    def _predict(self, request: Any) -> Any:
        model = self._model_store.find(**_requested_model(request))
        signature = model.signature(request.model_spec.signature_name)
        wanted = list(request.output_filter) or signature.outputs
        if unknown := [name for name in wanted if name not in signature.outputs]:
            raise RequestError(
                f"output tensor alias not found in signature: {unknown[0]} "
                f"Outputs expected to be in the set {{{','.join(sorted(signature.outputs))}}}."
            )
        signature.check_names(request.inputs)
        inputs = {
            name: tensors.from_proto(name, request.inputs[name], expected, self._limits.request_bytes)
            for name, expected in signature.inputs.items()
        }
        outputs = signature(inputs, self._limits)
        response = predict_pb2.PredictResponse()
        response.model_spec.name = request.model_spec.name
        response.model_spec.version.value = model.version
        response.model_spec.signature_name = signature.name
        for name in wanted:
            response.outputs[name].CopyFrom(tensors.to_proto(outputs[name]))
        return response

    def _metadata(self, request: Any) -> Any:
        return self._model_store.metadata(**_requested_model(request), fields=request.metadata_field)

    def _status(self, request: Any) -> Any:
        return self._model_store.status(**_requested_model(request))


def _requested_model(request: Any) -> dict[str, Any]:
    """Return the name, version and label of the model that a request names."""
    if not request.HasField("model_spec"):
        raise RequestError("Missing ModelSpec")
    spec = request.model_spec
    version = spec.version.value if spec.HasField("version") else None
    return {"name": spec.name, "version": version, "label": spec.version_label}
