"""Detects processes that do not reply, and a Ray cluster that is gone."""

import contextlib
import os
import socket
import sys
import threading
import time
import warnings
from typing import Any

import ray

from tfdpg.training.interrupt import Interrupt

CONTROL_STORE_POLL_INTERVAL = 2.0
"""Seconds between two connections to the control store, and the timeout of each."""
REPLY_POLL_INTERVAL = 0.2
"""Seconds between two checks for a signal while waiting for a reply."""


class ControlStore:
    """Monitors the control store of a Ray cluster, which runs on its head node, in a thread.

    If the control store does not answer for a minute, Ray's C++ core ends this process with exit code 1. No Python code
    runs then: no exception, no checkpoint, no `atexit` handler. `check` raises an exception before that.

    Args:
        address: `host:port`; None if it is unknown, as for a Ray client. Then nothing is monitored.
        timeout: seconds without an answer after which Ray ends the process.
    """

    def __init__(self, address: str | None, timeout: float):
        self._address = address
        self._timeout = timeout
        self._last_answer = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tfdpg-control-store", daemon=True)

    @classmethod
    def of_this_cluster(cls) -> "ControlStore":
        """Return the control store of the cluster that this process is connected to."""
        context: Any = ray.get_runtime_context()
        address = None
        with contextlib.suppress(Exception):  # a Ray client does not know the address
            address = context.gcs_address
        timeout = 60.0
        with contextlib.suppress(ValueError):
            timeout = float(os.environ.get("RAY_gcs_rpc_server_reconnect_timeout_s", timeout))
        return cls(address or None, timeout)

    def __enter__(self) -> "ControlStore":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop monitoring."""
        self._stop.set()
        self._thread.join()

    def check(self) -> None:
        """Raise `ConnectionError` after half of the timeout, early enough to write a checkpoint."""
        if self._seconds_without_answer > self._timeout / 2:
            raise ConnectionError(f"{self._error_text} Training ends here. Start the cluster again, and resume.")

    @property
    def is_answering(self) -> bool:
        """Whether the last connection succeeded."""
        return self._seconds_without_answer < 2 * CONTROL_STORE_POLL_INTERVAL + 1

    @property
    def _seconds_without_answer(self) -> float:
        return 0.0 if self._address is None else time.monotonic() - self._last_answer

    @property
    def _error_text(self) -> str:
        seconds = f"{self._seconds_without_answer:.0f} seconds"
        return f"The control store of the Ray cluster at {self._address} has not answered for {seconds}."

    def _watch(self) -> None:
        if self._address is None:
            return
        host, _, port = self._address.rpartition(":")
        has_warned = False
        while not self._stop.wait(min(CONTROL_STORE_POLL_INTERVAL, self._timeout / 10)):
            try:
                address = (host.strip("[]"), int(port))
                socket.create_connection(address, timeout=CONTROL_STORE_POLL_INTERVAL).close()
                self._last_answer = time.monotonic()
                has_warned = False
            except OSError:
                if self._seconds_without_answer > 0.8 * self._timeout and not has_warned:
                    has_warned = True
                    print(f"tfdpg: {self._error_text} Ray will end this process at once.", file=sys.stderr, flush=True)


class LivenessMonitor:
    """Warns while processes do not reply, less and less often, and ends training if a limit on waiting is set.

    Args:
        cpus: the logical CPUs that the training run needs, one for each worker and replay shard.
        step_timeout: see `tfdpg.distributed.fit`; None waits without limit.
        interrupted: whether Ctrl-C or SIGTERM was received.
        control_store: the control store of the cluster.
    """

    def __init__(self, cpus: int, step_timeout: float | None, interrupted: Interrupt, control_store: ControlStore):
        self.step_timeout = step_timeout
        self.control_store = control_store
        self._cpus = cpus
        self._interrupted = interrupted
        self._next_warning = 0.0

    def check(self, processes: str, waited: float, allowed: float, error: Exception | None = None) -> None:
        """Raise an error or warn if processes have not replied for longer than allowed.

        Without a `step_timeout`, warn after `allowed` seconds and whenever the time has doubled.

        Args:
            processes: names the processes.
            waited: seconds for which they have not replied; 0 if all reply.
            allowed: seconds in which they must reply.
            error: the error of their last lost call.

        Raises:
            TimeoutError: there is a `step_timeout`.
        """
        if waited < allowed:
            self._next_warning = allowed
        elif self.step_timeout is not None:
            raise TimeoutError(
                f"{processes} did not reply within {allowed:g} seconds. {self._reason(error)} Find out why, or raise "
                f"`step_timeout`. Received: step_timeout={self.step_timeout:g}"
            )
        elif waited >= self._next_warning:
            self._next_warning = 2 * waited
            warnings.warn(f"{processes} have not replied for {waited:.0f} seconds. {self._reason(error)}", stacklevel=3)

    @property
    def lacks_cpus(self) -> bool:
        """Whether the cluster has fewer CPUs than the training run needs."""
        return self.control_store.is_answering and self._cpus > ray.cluster_resources().get("CPU", 0)

    def _reason(self, error: Exception | None) -> str:
        """Describe why processes may not reply: CPUs that the cluster lacks, or the error of the last lost call."""
        last_error = "" if error is None else f" The last error: {' '.join(str(error).split())}"
        if not self.control_store.is_answering:
            return f"The control store of the Ray cluster does not answer.{last_error}"
        found = ray.cluster_resources().get("CPU", 0)
        nodes = sum(node["Alive"] for node in ray.nodes())
        text = (
            f"{self._cpus} CPUs are required, one for each worker and replay shard; the Ray cluster has {found:g} on "
            f"{nodes} node{'s' * (nodes != 1)}, of which {ray.available_resources().get('CPU', 0):g} are free."
        )
        if found >= self._cpus:
            return text + last_error
        return (
            f"{text} {self._cpus - found:g} are missing: nodes were lost or have not joined yet. Start them "
            "(`ray start --address=...`), or use fewer `actors`."
        )

    def wait_for_reply(self, reference: Any, process: str, allowed: float) -> Any:
        """Return the reply of a process that may still have to start.

        Args:
            reference: the object reference of the call.
            process: names the process.
            allowed: seconds until the first warning, or until an error if there is a `step_timeout`.

        Raises:
            TimeoutError: there is a `step_timeout`, and the process did not reply within `allowed` seconds.
            KeyboardInterrupt: Ctrl-C was received.
            SystemExit: SIGTERM was received.
        """
        waited = 0.0
        while not ray.wait([reference], timeout=REPLY_POLL_INTERVAL)[0]:
            waited += REPLY_POLL_INTERVAL
            self.control_store.check()
            if error := self._interrupted.error():
                raise error
            self.check(process, waited, allowed)
        return ray.get(reference)
