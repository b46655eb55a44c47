"""TensorFlow Serving's gRPC services: PredictionService and ModelService.

This module does not import TensorFlow, so that a server can listen before it is imported.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from tfdpg.serve.errors import RequestError
from tfdpg.serve.service import Service

MAX_AGE_TIMEOUTS = 10
"""The age, in timeouts, at which a connection is closed."""
METHODS = {
    "/tensorflow.serving.PredictionService/Predict": "Predict",
    "/tensorflow.serving.PredictionService/GetModelMetadata": "GetModelMetadata",
    "/tensorflow.serving.ModelService/GetModelStatus": "GetModelStatus",
}
"""The methods in `rpc_methods`, by their paths."""


class GrpcServer(grpc.GenericRpcHandler):
    """Answers requests, each in its own thread.

    Args:
        service: the models, the limits, and what is counted. Its `report` receives a line for each error that is not
            due to a request.
    """

    def __init__(self, service: Service):
        self._service = service
        timeout = round(service.limits.timeout * 1000)
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", service.limits.request_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                ("grpc.server_handshake_timeout_ms", timeout),
                ("grpc.max_connection_idle_ms", timeout),
                # gRPC has no timeout for a message that is half sent; clients connect again without an error
                ("grpc.max_connection_age_ms", MAX_AGE_TIMEOUTS * timeout),
                ("grpc.max_connection_age_grace_ms", timeout),
            ]
        )
        self._server.add_generic_rpc_handlers([self])

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

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Return the function that answers a call; None for a method that does not exist."""
        method = METHODS.get(handler_call_details.method)
        return None if method is None else grpc.unary_unary_rpc_method_handler(self._answering(method))

    def _answering(self, method: str) -> Callable[[bytes, Any], Awaitable[bytes]]:
        """Return a function that answers a call of a method in its own thread. Requests and responses are encoded."""

        async def answer(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
            began = time.perf_counter()
            try:
                if method == "Predict" and not self._service.is_loaded:
                    self._service.metrics.refused("UNAVAILABLE")
                store = self._service.loaded_store
                from tfdpg.serve import rpc_methods  # imports TensorFlow

                return await asyncio.to_thread(rpc_methods.answer, method, request, store, self._service, began)
            except RequestError as error:
                code = error.code
                message = str(error)
            except Exception as error:
                code = "INTERNAL"
                message = f"Internal error: {type(error).__name__}: {error}"
                self._service.report(f"gRPC: a request failed: {type(error).__name__}: {error}")
            return await context.abort(grpc.StatusCode[code], message)

        return answer
