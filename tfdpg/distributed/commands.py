"""Run commands of tfdpg as tasks on a Ray cluster."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayTaskError, TaskCancelledError, WorkerCrashedError

from tfdpg.distributed.processes import ACTOR_ENV_VARS, PROCESS_LOST_ERRORS

WAKE_UP = 0.2
"""Seconds after which a task looks whether it was cancelled."""
CANCEL_AGAIN = 5.0
"""Seconds after which a task that still runs is cancelled again, because Ray's interrupt can be lost."""


class RayLauncher:
    """Starts commands of tfdpg on the cluster to which this process is connected, one for each CPU."""

    def capacity(self) -> int:
        """Return the number of CPUs of the cluster."""
        return max(1, int(ray.cluster_resources().get("CPU", 0)))

    def start(self, arguments: list[str], log: Path) -> "RayCommand":
        """Start tfdpg with these arguments, and append its output to a file.

        Args:
            arguments: the arguments after `tfdpg`.
            log: the file, which all machines must be able to write.
        """
        return RayCommand(arguments, log)


class RayCommand:
    """A command that runs as a Ray task, with the methods of `subprocess.Popen` that a search needs."""

    def __init__(self, arguments: list[str], log: Path):
        remote: Any = ray.remote(
            num_cpus=1, max_retries=0, scheduling_strategy="SPREAD", runtime_env={"env_vars": ACTOR_ENV_VARS}
        )(_run)
        self._task = remote.remote(arguments, str(log), os.getcwd())
        self._cancelled_at: float | None = None

    def poll(self) -> int | None:
        """Return the exit status of the command, or None while it runs or waits for a CPU.

        Raises:
            ProcessLookupError: its process or its node was lost.
        """
        return self.wait() if self._has_ended(0) else None

    def send_signal(self, number: int) -> None:
        """Interrupt the command as Ctrl-C does, whatever the number of the signal."""
        ray.cancel(self._task, recursive=False)
        self._cancelled_at = time.monotonic()

    def _has_ended(self, timeout: float) -> bool:
        """Wait for the end of the task for some seconds; cancel it again if it was cancelled long ago."""
        has_ended = bool(ray.wait([self._task], timeout=timeout)[0])
        if not has_ended and self._cancelled_at is not None and time.monotonic() > self._cancelled_at + CANCEL_AGAIN:
            self.send_signal(signal.SIGINT)
        return has_ended

    def wait(self) -> int:
        """Wait until the command has ended, and return its exit status."""
        while not self._has_ended(CANCEL_AGAIN):
            pass
        try:
            return ray.get(self._task)
        except TaskCancelledError:
            return 128 + signal.SIGINT
        except (WorkerCrashedError, *PROCESS_LOST_ERRORS) as error:
            raise ProcessLookupError(str(error)) from error
        except RayTaskError as error:
            raise RuntimeError(f"A Ray task failed: {str(error).strip().splitlines()[-1]}") from error


def _run(arguments: list[str], log: str, directory: str) -> int:
    """Run a command of tfdpg in a directory and return its exit status; if this task is cancelled, interrupt it."""
    command = [sys.executable, "-P", "-m", "tfdpg", *arguments]
    interrupts: list[int] = []
    # A shell ignores SIGINT in what it runs in the background; Ray interrupts a task only if Python handles the signal.
    signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    # Ray blocks SIGINT in its workers, and a process inherits that
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    try:
        with open(log, "ab") as file:
            process = subprocess.Popen(
                command, cwd=directory, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    is_interrupted = False
    while (status := process.poll()) is None:
        if interrupts and not is_interrupted:  # the command would end at once after a second one
            process.send_signal(signal.SIGINT)
            is_interrupted = True
        time.sleep(WAKE_UP)
    if interrupts:
        raise KeyboardInterrupt
    return status
