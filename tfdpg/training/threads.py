"""How threads of a process share a core."""

import contextlib
import gc
import os
import pathlib
import sys
import threading
import time
from collections.abc import Iterator

SWITCH_INTERVAL = 2e-4
"""Seconds after which a thread that runs Python code lets another one run. Python's default of 5 ms would delay each
action by as much."""
NICENESS = 10
"""How much lower the priority of the learner's thread is, if the control loop has no real-time priority."""
TIMES = 11, 12
PROCESSOR = 36
"""The fields of `/proc/.../stat` with the processor time in user and in system mode, and with the core of a thread,
counted from the one after the name of the program."""


@contextlib.contextmanager
def short_switch_interval() -> Iterator[None]:
    """Let Python's threads take turns often inside the context; after it, garbage is searched in all objects again."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(before)


def freeze_objects() -> None:
    """Let Python look for garbage only among objects that are made later, which takes less time."""
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def real_time_priority() -> Iterator[bool]:
    """Run the calling thread before all others inside the context, if the process may do so; yield whether it may.

    Otherwise, Linux sometimes runs another thread of this process for 4 ms first, whatever its priority. A thread that
    has real-time priority already keeps it. Threads that it makes have the usual priority.
    """
    if sys.platform != "linux":
        yield False
        return
    thread = threading.get_native_id()
    policy, priority = os.sched_getscheduler(thread) & ~os.SCHED_RESET_ON_FORK, os.sched_getparam(thread)
    is_allowed = policy in (os.SCHED_FIFO, os.SCHED_RR)
    wanted = (policy, priority) if is_allowed else (os.SCHED_FIFO, os.sched_param(1))
    with contextlib.suppress(OSError):
        os.sched_setscheduler(thread, wanted[0] | os.SCHED_RESET_ON_FORK, wanted[1])
        is_allowed = True
    try:
        yield is_allowed
    finally:
        if is_allowed:  # only privileged processes may clear the flag
            os.sched_setscheduler(thread, policy | os.SCHED_RESET_ON_FORK, priority)


def lower_priority() -> None:
    """Lower the priority of the calling thread, on systems where threads have one."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + NICENESS))


def let_python_run_first() -> None:
    """On a single core, let other threads than Python's run only when Python's wait.

    XLA passes parts of an update to a thread of TensorFlow. On a single core, this thread would interrupt the caller
    each time, although both have work to do, so that an update of small networks takes 12 % longer. Threads of Linux'
    policy SCHED_BATCH do not interrupt others.
    """
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) > 1:
        return
    python = {thread.native_id for thread in threading.enumerate()}
    for thread in {int(name) for name in os.listdir("/proc/self/task")} - python:
        with contextlib.suppress(OSError):  # the thread has ended, or the system does not allow it
            if os.sched_getscheduler(thread) == os.SCHED_OTHER:
                os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


class Follower:
    """Keeps the calling thread on the core of another thread that sleeps most of the time, on Linux.

    On a core of its own, the calling thread takes Python's lock each time that the other thread calls NumPy, which then
    waits to have it back. On the core of a thread with real-time priority, it does not run in the meantime. If the
    other thread sleeps less, the calling thread may run on all cores, or it would hardly run at all.

    Threads and programs that the calling thread starts inherit its core.

    Args:
        thread: the number of the other thread, from `threading.get_native_id`.
    """

    def __init__(self, thread: int):
        self._file = pathlib.Path(f"/proc/self/task/{thread}/stat")
        self._cores = os.sched_getaffinity(0)
        self._sleeps = False
        self._last: tuple[float, float] | None = None  # the time and the processor time at the last measurement

    def follow(self) -> None:
        """Go to the core of the other thread, or away from it; once a second, measure how much it sleeps."""
        with contextlib.suppress(OSError):  # no /proc, or a core that this process may not use any more
            fields = self._file.read_text().rpartition(")")[2].split()
            now, busy = time.monotonic(), sum(int(fields[i]) for i in TIMES) / os.sysconf("SC_CLK_TCK")
            if self._last is None:
                self._last = now, busy
            elif now - self._last[0] >= 1:
                self._sleeps = busy - self._last[1] < (now - self._last[0]) / 2
                self._last = now, busy
            os.sched_setaffinity(0, {int(fields[PROCESSOR])} if self._sleeps else self._cores)
