"""Errors of requests, and how messages show what a request contains."""


class RequestError(ValueError):
    """A request cannot be answered.

    Attributes:
        code: the name of a gRPC status.
    """

    def __init__(self, message: str, code: str = "INVALID_ARGUMENT"):
        super().__init__(message)
        self.code = code


def abbreviate(string: str) -> str:
    """Return a string for a message, at most one line long."""
    return string if len(string) <= 120 else f"{string[:117]}..."
