"""Limits on what a server accepts, so that no client can stop it."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a server.

    Attributes:
        request_bytes: the size of a request; for a compressed body, both before and after it is decompressed.
        response_bytes: the size of the outputs of a request.
        rows: the rows of a request: the batch size, or the batch size times the number of time steps.
        timeout: seconds in which a header, a body or the next request must arrive, and a response must be read.
    """

    request_bytes: int = 32 << 20
    response_bytes: int = 32 << 20
    rows: int = 1 << 16
    timeout: float = 75.0
