"""Run several commands of tfdpg at the same time, each in its own process."""

import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

PROGRAM = (sys.executable, "-P", "-m", "tfdpg")
"""The arguments that start tfdpg, whatever modules the working directory contains."""


def run_jobs(commands: Mapping[str, Sequence[str]], max_parallel: int) -> dict[str, int | None]:
    """Run commands of tfdpg and print each line of their output after the name of the command.

    Each command runs in its own session, which the Ctrl-C of a terminal does not reach. SIGINT and SIGTERM are passed
    to all running commands, and no command starts after that.

    Args:
        commands: the arguments after `tfdpg` of each command, by its name.
        max_parallel: the maximum number of commands that run at the same time.

    Returns:
        The exit status of each command by its name.

    Raises:
        KeyboardInterrupt: there was a SIGINT, and all commands have ended.
        SystemExit: there was a SIGTERM, and all commands have ended.
    """
    running: set[subprocess.Popen[Any]] = set()
    received: list[int] = []
    lock = threading.RLock()

    def pass_on(number: int, frame: Any) -> None:
        with lock:
            received.append(number)
            for process in running:
                process.send_signal(number)

    def run_one(name: str, arguments: Sequence[str]) -> int | None:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
        with lock:
            if received:
                return None
            process = subprocess.Popen([*PROGRAM, *arguments], env=environment(max_parallel), **pipes)
            running.add(process)
        with process, ThreadPoolExecutor(2) as threads:
            copy_lines = functools.partial(_copy_lines, name)
            list(threads.map(copy_lines, (process.stdout, process.stderr), (sys.stdout, sys.stderr)))
        with lock:
            running.remove(process)
        return process.returncode

    previous = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with ThreadPoolExecutor(max_parallel) as threads:
            statuses = dict(zip(commands, threads.map(run_one, commands, commands.values()), strict=True))
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if received:
        is_interrupt = received[-1] == signal.SIGINT
        end = KeyboardInterrupt("Training was interrupted.") if is_interrupt else SystemExit(128 + received[-1])
        if not_started := [name for name, status in statuses.items() if status is None]:
            end.add_note(f"Not started: {', '.join(not_started)}")
        raise end
    return statuses


def _copy_lines(name: str, source: IO[bytes], target: IO[str]) -> None:
    for line in source:
        shown = line.decode(errors="replace").rstrip().rpartition("\r")[2]  # the final state of a progress bar
        if shown:
            target.write(f"{name} | {shown}\n")
            target.flush()


def environment(max_parallel: int) -> dict[str, str]:
    """Return the environment variables of one of several processes that share the cores and the GPU.

    Each process gets an equal share of the cores, and GPU memory only as it needs it. Variables that are already set
    keep their values.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = str(max(1, cores // max_parallel))
    numbers = dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), threads)
    return {**numbers, "TF_FORCE_GPU_ALLOW_GROWTH": "true", "PYTHONUNBUFFERED": "1", **os.environ}
