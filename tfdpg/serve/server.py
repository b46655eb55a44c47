"""REST and gRPC in one event loop, and a thread that polls for new versions."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from tfdpg.serve.rest import RestServer
from tfdpg.serve.rpc import GrpcServer
from tfdpg.serve.service import Service

POLL_INTERVAL = 1.0
"""Seconds between two polls of the model directory, as in TensorFlow Serving."""
SHUTDOWN_SECONDS = 10.0
"""Seconds within which the process ends."""
REQUEST_SECONDS = 4.0
"""How many of them requests under way may take. The rest is for closing connections and for Python and TensorFlow."""


class Ports(NamedTuple):
    """The ports of a server."""

    rest: int
    grpc: int


def address(host: str, port: int) -> str:
    """Return a host and a port in the form of a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextlib.asynccontextmanager
async def running_server(service: Service, host: str, ports: Ports) -> AsyncIterator[Ports]:
    """Serve a model and poll for new versions. At the end, requests under way are answered.

    Args:
        service: the models, the limits, and what is counted.
        host: the address to listen on.
        ports: the ports; 0 uses a free one.

    Yields:
        The ports that are in use.

    Raises:
        OSError: a port is in use.
    """
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: service.report(_error_text(context)))
    rest_server = RestServer(service)
    grpc_server = GrpcServer(service)
    listening = await loop.create_server(rest_server, host, ports.rest)
    try:
        grpc_port = await grpc_server.start(address(host, ports.grpc))
        polling = asyncio.create_task(_poll(service))
        try:
            yield Ports(listening.sockets[0].getsockname()[1], grpc_port)
        finally:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
            listening.close()
            await asyncio.gather(grpc_server.shutdown(REQUEST_SECONDS), rest_server.finish(REQUEST_SECONDS))
    finally:
        listening.close()


def _error_text(context: dict[str, Any]) -> str:
    error = context.get("exception")
    return f"{context['message']}: {error}" if error else context["message"]


async def _poll(service: Service) -> None:
    last_error = ""
    while True:
        await asyncio.sleep(POLL_INTERVAL)
        try:
            for line in await asyncio.to_thread(service.store.poll):
                service.report(line)
            last_error = ""
        except Exception as error:  # the loaded versions are still served
            if str(error) != last_error:
                service.report(f"the directory cannot be read: {error}")
            last_error = str(error)
