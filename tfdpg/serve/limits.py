"""Limits on what a server accepts, so that no client can stop it."""

import dataclasses
import resource

BACKLOG = 64
"""Connections that wait to be accepted, and that each iteration of the event loop accepts at most."""
RESERVED = 32 + 3 * BACKLOG
"""File descriptors for everything else: libraries, models that are being loaded, listening sockets, and connections of
the three iterations of the event loop between accepting a connection and closing the idle one that it replaces."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a server.

    Attributes:
        request_bytes: the size of a request; for a compressed body, both before and after it is decompressed.
        response_bytes: the size of the outputs of a request.
        rows: the rows of a request: the batch size, or the batch size times the number of time steps.
        connections: the open connections of each protocol.
        timeout: seconds in which a header, a body or the next request must arrive, and a response must be read.
    """

    request_bytes: int = 32 << 20
    response_bytes: int = 32 << 20
    rows: int = 1 << 16
    connections: int = 256
    timeout: float = 75.0

    def within_descriptors(self) -> "Limits":
        """Return these limits with no more connections than the process may open file descriptors for.

        Raises:
            ValueError: the process may open too few file descriptors for a single connection.
        """
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        possible = (soft - RESERVED) // 2 if soft != resource.RLIM_INFINITY else self.connections
        if possible < 1:
            raise ValueError(
                f"The process may open {soft} files, and the server needs at least {RESERVED + 2}: raise `ulimit -n`"
            )
        return dataclasses.replace(self, connections=min(self.connections, possible))
