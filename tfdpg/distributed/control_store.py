"""Notices that the control store of a Ray cluster, on its head node, is gone, before Ray ends this process.

A process whose control store does not answer for a minute (RAY_gcs_rpc_server_reconnect_timeout_s) is ended by Ray's
C++ core with exit code 1. No Python code runs then: no exception, no checkpoint, no `atexit` handler.
"""

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import ray

POLL_INTERVAL = 2.0
"""Seconds between two looks, and that a connection may take."""


def reconnect_timeout() -> float:
    """Seconds without a control store after which Ray ends the process."""
    with contextlib.suppress(ValueError):
        return float(os.environ.get("RAY_gcs_rpc_server_reconnect_timeout_s", 60))
    return 60.0


class ControlStore:
    """Connects to a control store again and again, in a thread.

    Args:
        address: its `host:port`.
        seconds: how long Ray waits for it.
    """

    def __init__(self, address: str, seconds: float):
        host, _, port = address.rpartition(":")
        self._address = address
        self._target = (host.strip("[]"), int(port))
        self._timeout = seconds
        self._last_answer = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tfdpg-control-store", daemon=True)

    def __enter__(self) -> "ControlStore":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Ends the thread."""
        self._stop.set()
        self._thread.join()

    def check(self) -> None:
        """Raises `ConnectionError` if it has not answered for half of the time, so that a checkpoint can be written."""
        if self._seconds_without_answer > self._timeout / 2:
            raise ConnectionError(f"{self._error_text} Training ends here. Start the cluster again, and resume.")

    @property
    def is_answering(self) -> bool:
        """Whether it answered lately."""
        return self._seconds_without_answer < 2 * POLL_INTERVAL + 1

    @property
    def _seconds_without_answer(self) -> float:
        """Seconds since it answered."""
        return time.monotonic() - self._last_answer

    @property
    def _error_text(self) -> str:
        seconds = f"{self._seconds_without_answer:.0f} seconds"
        return f"The control store of the Ray cluster at {self._address} has not answered for {seconds}."

    def _watch(self) -> None:
        has_warned = False
        while not self._stop.wait(min(POLL_INTERVAL, self._timeout / 10)):
            try:
                socket.create_connection(self._target, timeout=POLL_INTERVAL).close()
                self._last_answer = time.monotonic()
                has_warned = False
            except OSError:
                if self._seconds_without_answer > 0.8 * self._timeout and not has_warned:
                    has_warned = True
                    print(f"tfdpg: {self._error_text} Ray will end this process at once.", file=sys.stderr, flush=True)


@contextlib.contextmanager
def monitored_control_store() -> Iterator[ControlStore | None]:
    """Watches the control store of the Ray that this process is connected to; None where its address is unknown."""
    context: Any = ray.get_runtime_context()
    address = None
    with contextlib.suppress(Exception):  # a Ray client knows none
        address = context.gcs_address
    if not address:
        yield None
        return
    with ControlStore(address, reconnect_timeout()) as store:
        yield store
