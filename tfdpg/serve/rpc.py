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
from tfdpg.serve.model_store import ModelStore

MAX_AGE_TIMEOUTS = 10
"""The age, in timeouts, at which a connection is closed."""
QUIET_SECONDS = 0.1
"""Seconds without a new call after which a server that ends stops taking calls."""
MAX_DRAIN_SECONDS = 2.0
"""Seconds after which it stops in any case."""


class GrpcServer:
    """Answers requests, each in a thread of its own.

    Args:
        model_store: the model.
        limits: what is accepted. Connections above their limit are closed.
        log: receives a line for each error that no request explains.
    """

    def __init__(self, model_store: ModelStore, limits: Limits, log: Callable[[str], None]):
        self._log = log
        self._calls = 0
        self._may_respond = asyncio.Event()
        self._may_respond.set()
        timeout = round(limits.timeout * 1000)
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", limits.request_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                ("grpc.max_allowed_incoming_connections", limits.connections),
                ("grpc.server_handshake_timeout_ms", timeout),
                ("grpc.max_connection_idle_ms", timeout),
                # gRPC has no timeout for a message that is half sent; clients connect again without an error
                ("grpc.max_connection_age_ms", MAX_AGE_TIMEOUTS * timeout),
                ("grpc.max_connection_age_grace_ms", timeout),
            ]
        )
        prediction = _Prediction(model_store, limits, self)
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(prediction, self._server)
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(_Model(model_store, self), self._server)

    async def start(self, where: str) -> int:
        """Listen, and return the port.

        Raises:
            OSError: the port is taken.
        """
        try:
            port = self._server.add_insecure_port(where)
        except RuntimeError as error:
            raise OSError(f"gRPC cannot listen on {where}: the address is in use, or not here") from error
        await self._server.start()
        return port

    async def end(self, deadline: float) -> None:
        """Answer the requests that have arrived, then close all connections.

        gRPC cancels calls that have arrived but that it has not yet begun when it is stopped. So responses are held
        back until no more calls arrive, and are sent after clients were told to send no more.

        Args:
            deadline: the time of the event loop at which connections are closed in any case.
        """
        time = asyncio.get_running_loop().time
        self._may_respond.clear()
        until = min(deadline, time() + MAX_DRAIN_SECONDS)
        calls = -1
        while calls != self._calls and time() < until:
            calls = self._calls
            await asyncio.sleep(QUIET_SECONDS)
        stopping = asyncio.create_task(self._server.stop(max(deadline - time(), 0)))
        await asyncio.sleep(QUIET_SECONDS)
        self._may_respond.set()
        await stopping

    async def answer(self, context: grpc.aio.ServicerContext, answer: Callable[[Any], Any], request: Any) -> Any:
        """Answer a call in a thread of its own."""
        self._calls += 1
        response = None
        code = "OK"
        message = ""
        try:
            response = await asyncio.to_thread(answer, request)
        except RequestError as error:
            code = error.code
            message = str(error)
        except Exception as error:
            code = "INTERNAL"
            message = f"Internal error: {type(error).__name__}: {error}"
            self._log(f"gRPC: a request failed: {type(error).__name__}: {error}")
        await self._may_respond.wait()
        if code != "OK":
            await context.abort(grpc.StatusCode[code], message)
        return response


class _Prediction(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, model_store: ModelStore, limits: Limits, server: GrpcServer):
        self._model_store = model_store
        self._limits = limits
        self._server = server

    async def Predict(self, request: Any, context: grpc.aio.ServicerContext) -> Any:  # noqa: N802
        return await self._server.answer(context, self._predict, request)

    async def GetModelMetadata(self, request: Any, context: grpc.aio.ServicerContext) -> Any:  # noqa: N802
        return await self._server.answer(context, self._metadata, request)

    def _predict(self, request: Any) -> Any:
        model = self._model_store.find(**_requested_model(request))
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
        return metadata_response(self._model_store, **_requested_model(request), fields=request.metadata_field)


class _Model(model_service_pb2_grpc.ModelServiceServicer):
    def __init__(self, model_store: ModelStore, server: GrpcServer):
        self._model_store = model_store
        self._server = server

    async def GetModelStatus(self, request: Any, context: grpc.aio.ServicerContext) -> Any:  # noqa: N802
        return await self._server.answer(
            context, lambda request: status_response(self._model_store, **_requested_model(request)), request
        )


def _requested_model(request: Any) -> dict[str, Any]:
    """The model that a request names."""
    if not request.HasField("model_spec"):
        raise RequestError("Missing ModelSpec")
    spec = request.model_spec
    version = spec.version.value if spec.HasField("version") else None
    return {"name": spec.name, "version": version, "label": spec.version_label}
