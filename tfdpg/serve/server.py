"""REST and gRPC in one event loop, beside a thread that polls for versions."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from aiohttp import web

from tfdpg.serve import rest, rpc
from tfdpg.serve.shelf import Shelf

POLL = 1.0
"""Seconds between two looks at the directory, as TensorFlow Serving's."""
GRACE = 10.0
"""Seconds that requests under way have when the server ends."""


class Ports(NamedTuple):
    """Where the server listens."""

    rest: int
    grpc: int


def address(host: str, port: int) -> str:
    """A host and a port, as URLs have them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextlib.asynccontextmanager
async def running(
    shelf: Shelf, host: str, ports: Ports, limit: int, tell: Callable[[str], None]
) -> AsyncIterator[Ports]:
    """Serves a model, and polls for versions, until it is left; requests under way are answered then.

    Args:
        shelf: the model.
        host: the address to listen on.
        ports: of REST and gRPC; 0 takes a free one.
        limit: the bytes that a request may have.
        tell: is told of what changes.

    Raises:
        OSError: a port is taken.
    """
    runner = web.AppRunner(rest.application(shelf, limit), access_log=None, shutdown_timeout=GRACE)
    server = rpc.server(shelf, limit)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, ports.rest).start()
        address = f"[{host}]" if ":" in host else host
        try:
            grpc_port = server.add_insecure_port(f"{address}:{ports.grpc}")
        except RuntimeError as error:
            raise OSError(
                f"gRPC cannot listen on {address}:{ports.grpc}: the address is in use, or not here"
            ) from error
        await server.start()
        polling = asyncio.create_task(_poll(shelf, tell))
        try:
            yield Ports(runner.addresses[0][1], grpc_port)
        finally:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
            await server.stop(GRACE)
    finally:
        await runner.cleanup()


async def _poll(shelf: Shelf, tell: Callable[[str], None]) -> None:
    while True:
        await asyncio.sleep(POLL)
        try:
            news = await asyncio.to_thread(shelf.poll)
        except Exception as error:  # what is served goes on, whatever is wrong with the directory
            news = [f"the directory cannot be read: {error}"]
        for line in news:
            tell(line)
