"""Several commands side by side, each a process of its own."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

PROGRAM = (sys.executable, "-m", "tfdpg")
"""What commands are of."""


class Jobs:
    """Runs commands of tfdpg, some at a time. Their lines are printed with their names before them.

    Ctrl-C and SIGTERM are passed on to all of them, once: they have sessions of their own, which a terminal's Ctrl-C
    does not reach. No command begins after that.

    Args:
        max_parallel: how many run at once.

    Attributes:
        failed: the names of those that did not end well.
    """

    def __init__(self, max_parallel: int):
        self._max_parallel = max_parallel
        self._running: set[subprocess.Popen[Any]] = set()
        self._lock = threading.RLock()
        self._signal: int | None = None
        self.failed: list[str] = []

    def run(self, commands: Mapping[str, Sequence[str]]) -> None:
        """Runs commands by their names, whether others fail or not.

        Raises:
            KeyboardInterrupt: once all have ended, if there was a Ctrl-C.
            SystemExit: likewise, if there was a SIGTERM.
            RuntimeError: likewise, if some failed; it names them.
        """
        previous = {number: signal.signal(number, self._pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            with ThreadPoolExecutor(self._max_parallel) as threads:
                statuses = list(threads.map(self._run_one, commands.keys(), commands.values()))
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        ended = list(zip(commands, statuses, strict=True))
        if self._signal is not None:
            is_interrupt = self._signal == signal.SIGINT
            end = KeyboardInterrupt("Training was interrupted.") if is_interrupt else SystemExit(128 + self._signal)
            if left := [name for name, status in ended if status is None]:
                end.add_note(f"Not begun: {', '.join(left)}")
            raise end
        self.failed = [name for name, status in ended if status != 0]
        if failed := [f"{name} (exit status {status})" for name, status in ended if status != 0]:
            raise RuntimeError(f"{len(failed)} of {len(commands)} runs failed: {', '.join(failed)}")

    def _pass_on(self, number: int, frame: Any) -> None:
        with self._lock:
            self._signal = number
            for process in self._running:
                process.send_signal(number)

    def _run_one(self, name: str, words: Sequence[str]) -> int | None:
        """Runs a command to its end; gives its exit status, None if it was not begun."""
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
        with self._lock:
            if self._signal is not None:
                return None
            process = subprocess.Popen([*PROGRAM, *words], env=environment(self._max_parallel), **pipes)
            self._running.add(process)
        with process:
            pairs = (process.stdout, sys.stdout), (process.stderr, sys.stderr)
            pumps = [threading.Thread(target=_pump, args=(name, *pair)) for pair in pairs]
            for pump in pumps:
                pump.start()
            for pump in pumps:
                pump.join()
        with self._lock:
            self._running.remove(process)
        return process.returncode


def _pump(name: str, source: IO[bytes], target: IO[str]) -> None:
    for line in source:
        shown = line.decode(errors="replace").rstrip().rpartition("\r")[2]  # of a progress bar, how it ended
        if shown:
            target.write(f"{name} | {shown}\n")
            target.flush()


def environment(max_parallel: int) -> dict[str, str]:
    """The variables of a process beside others: its part of the cores, and of a GPU only what it needs.

    What is set already stays.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = str(max(1, cores // max_parallel))
    numbers = dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), threads)
    return {**numbers, "TF_FORCE_GPU_ALLOW_GROWTH": "true", "PYTHONUNBUFFERED": "1", **os.environ}
