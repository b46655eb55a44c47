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

PAUSE = 2.0
"""Seconds between two looks, and that a connection may take."""


def patience() -> float:
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
        self._address, self._target, self._seconds = address, (host.strip("[]"), int(port)), seconds
        self._answered, self._ends = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tfdpg-control-store", daemon=True)

    def __enter__(self) -> "ControlStore":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Ends the thread."""
        self._ends.set()
        self._thread.join()

    def check(self) -> None:
        """Raises `ConnectionError` if it has not answered for half of the time, so that a checkpoint can be written."""
        if self._missed > self._seconds / 2:
            raise ConnectionError(f"{self._fault} Training ends here. Start the cluster again, and resume.")

    @property
    def is_answering(self) -> bool:
        """Whether it answered lately."""
        return self._missed < 2 * PAUSE + 1

    @property
    def _missed(self) -> float:
        """Seconds since it answered."""
        return time.monotonic() - self._answered

    @property
    def _fault(self) -> str:
        return (
            f"The control store of the Ray cluster at {self._address} has not answered for {self._missed:.0f} seconds."
        )

    def _watch(self) -> None:
        has_told = False
        while not self._ends.wait(min(PAUSE, self._seconds / 10)):
            try:
                socket.create_connection(self._target, timeout=PAUSE).close()
                self._answered, has_told = time.monotonic(), False
            except OSError:
                if self._missed > 0.8 * self._seconds and not has_told:
                    has_told = True
                    print(f"tfdpg: {self._fault} Ray will end this process at once.", file=sys.stderr, flush=True)


@contextlib.contextmanager
def watched_control_store() -> Iterator[ControlStore | None]:
    """Watches the control store of the Ray that this process is connected to; None where its address is unknown."""
    context: Any = ray.get_runtime_context()
    address = None
    with contextlib.suppress(Exception):  # a Ray client knows none
        address = context.gcs_address
    if not address:
        yield None
        return
    with ControlStore(address, patience()) as store:
        yield store
