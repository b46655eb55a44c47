"""REST and gRPC in one event loop, and a thread that polls for new versions."""

import asyncio
import contextlib
import math
import select
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from tfdpg.serve.limits import BACKLOG, Limits
from tfdpg.serve.model_store import ModelStore
from tfdpg.serve.rest import RestServer
from tfdpg.serve.rpc import GrpcServer

POLL_INTERVAL = 1.0
"""Seconds between two polls of the model directory, as in TensorFlow Serving."""
SHUTDOWN_SECONDS = 10.0
"""Seconds within which the process ends."""
REQUEST_SECONDS = 6.0
"""How many of them requests under way may take. The rest is for closing connections and for Python and TensorFlow."""
REPETITION_INTERVAL = 60.0
"""Seconds in which a repeated line is printed once."""


class Ports(NamedTuple):
    """The ports of a server."""

    rest: int
    grpc: int


def address(host: str, port: int) -> str:
    """Return a host and a port in the form of a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextlib.asynccontextmanager
async def running_server(
    model_store: ModelStore, host: str, ports: Ports, limits: Limits, report: Callable[[str], None]
) -> AsyncIterator[Ports]:
    """Serve a model and poll for new versions. At the end, requests under way are answered.

    Args:
        model_store: the model.
        host: the address to listen on.
        ports: the ports; 0 uses a free one.
        limits: the limits of the server.
        report: receives a line for each change, and for each error; a repeated error only once a minute.

    Yields:
        The ports that are in use.

    Raises:
        OSError: a port is in use.
    """
    loop = asyncio.get_running_loop()
    log = _without_repetition(report)
    loop.set_exception_handler(lambda _, context: log(_error_text(context)))
    rest_server = RestServer(model_store, limits, log)
    grpc_server = GrpcServer(model_store, limits, log)
    listening = await loop.create_server(rest_server, host, ports.rest, backlog=BACKLOG)
    try:
        grpc_port = await grpc_server.start(address(host, ports.grpc))
        polling = asyncio.create_task(_poll(model_store, report, log))
        try:
            yield Ports(listening.sockets[0].getsockname()[1], grpc_port)
        finally:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
            deadline = loop.time() + REQUEST_SECONDS
            await asyncio.gather(grpc_server.end(deadline), _stop_listening(listening, rest_server, deadline))
    finally:
        listening.close()


async def _stop_listening(listening: asyncio.Server, rest_server: RestServer, deadline: float) -> None:
    """Stop listening after every connection that clients have made is accepted, and end the server."""
    loop = asyncio.get_running_loop()
    poll = select.poll()
    for each in listening.sockets:
        poll.register(each.fileno(), select.POLLIN)
    until = loop.time() + 0.5
    while poll.poll(0) and loop.time() < until:
        await asyncio.sleep(0)
    listening.close()
    await rest_server.end(deadline)


def _error_text(context: dict[str, Any]) -> str:
    error = context.get("exception")
    return f"{context['message']}: {error}" if error else context["message"]


def _without_repetition(report: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that reports a line unless it has reported the same line within the last minute."""
    last_reported: dict[str, float] = {}

    def report_once(line: str) -> None:
        now = time.monotonic()
        if now - last_reported.get(line, -math.inf) < REPETITION_INTERVAL:
            return
        if len(last_reported) >= 1000:
            last_reported.clear()
        last_reported[line] = now
        report(line)

    return report_once


async def _poll(model_store: ModelStore, report: Callable[[str], None], log: Callable[[str], None]) -> None:
    while True:
        await asyncio.sleep(POLL_INTERVAL)
        try:
            for line in await asyncio.to_thread(model_store.poll):
                report(line)
        except Exception as error:  # the loaded versions are still served
            log(f"the directory cannot be read: {error}")
