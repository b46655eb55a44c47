"""Ctrl-C and SIGTERM: end training between two steps, so that a checkpoint can be written."""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

SAME_SIGNAL_SECONDS = 0.5
"""Seconds within which several signals count as one."""


class Interrupt:
    """Records that training should end because of Ctrl-C (SIGINT) or SIGTERM, which schedulers and `kill` send.

    Attributes:
        is_repeated: whether there was a second signal, which is not deferred.
    """

    def __init__(self) -> None:
        self._signal: int | None = None
        self._since = -math.inf
        self.is_repeated = False

    def is_set(self) -> bool:
        """Return whether there was a signal."""
        return self._signal is not None

    def handle(self, signum: int, frame: Any) -> None:
        """Handle a signal: the first is recorded, the second raises its error at once.

        A scheduler may send a signal to all processes while a parent process passes it on, so signals that follow the
        first one immediately are ignored.
        """
        now = time.monotonic()
        if self.is_set() and now - self._since < SAME_SIGNAL_SECONDS:
            return
        self.is_repeated = self.is_set()
        self._signal = signum
        self._since = now
        if self.is_repeated and (error := self.error()):
            raise error

    def error(self) -> BaseException | None:
        """Return the exception that the signal usually raises; None if there was no signal."""
        match self._signal:
            case signal.SIGINT:
                return KeyboardInterrupt("Training was interrupted, and ended between two steps.")
            case signal.SIGTERM:
                return SystemExit(128 + signal.SIGTERM)
        return None


@contextlib.contextmanager
def deferred_signals() -> Iterator[Interrupt]:
    """Defer the first Ctrl-C or SIGTERM in the main thread; Python delivers no signals to other threads."""
    interrupted = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    previous = {number: signal.signal(number, interrupted.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupted
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler or signal.SIG_DFL)
