"""Ctrl-C and SIGTERM: training ends between two steps, and leaves a checkpoint."""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

SAME_SIGNAL_SECONDS = 0.5
"""Seconds within which signals are one."""


class Interrupt:
    """Whether a signal asked to end: Ctrl-C (SIGINT), or SIGTERM, as schedulers and `kill` send it.

    Attributes:
        is_repeated: whether a second signal came, which is not deferred.
    """

    def __init__(self) -> None:
        self._signal: int | None = None
        self._since = -math.inf
        self.is_repeated = False

    def is_set(self) -> bool:
        """Whether one came."""
        return self._signal is not None

    def handle(self, signum: int, frame: Any) -> None:
        """Handles a signal: the first is remembered, the second ends at once.

        What comes with the first, since a scheduler sends it to all processes and a parent passes it on, is the first.
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
        """What the signal raises where it is not deferred; None if none came."""
        match self._signal:
            case signal.SIGINT:
                return KeyboardInterrupt("Training was interrupted, and ended between two steps.")
            case signal.SIGTERM:
                return SystemExit(128 + signal.SIGTERM)
        return None


@contextlib.contextmanager
def deferred_signals() -> Iterator[Interrupt]:
    """Defers the first Ctrl-C or SIGTERM that comes, in the main thread; Python knows no signals in others."""
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
