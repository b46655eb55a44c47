"""What a case may end with."""

import contextlib
import signal
import traceback
import warnings
from pathlib import Path

import tfdpg

PACKAGE = str(Path(tfdpg.__file__).parent)
SECONDS = 300


class Hangs(BaseException):
    """A case takes longer than any should."""


def check_ours(error, path=None):
    """Fails unless an error was raised by a `raise` of tfdpg, with a message that names the path."""
    where, message = traceback.extract_tb(error.__traceback__)[-1], str(error)
    found = f"{type(error).__name__} of {where.filename}:{where.lineno}: {message[:500]}"
    assert where.filename.startswith(PACKAGE) and where.line.startswith("raise "), found
    assert path is None or str(path) in message or "Give it again" in message, found
    assert 0 < len(message) < 3_000, found


@contextlib.contextmanager
def within_bounds():
    """Without warnings, and not for ever."""

    def stop(number, frame):
        raise Hangs

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
