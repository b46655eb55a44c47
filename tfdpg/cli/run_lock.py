"""Who trains a run: a lock, which ends with its process, on a file that says whose it is."""

import contextlib
import datetime
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from tfdpg import files

LOCK = "lock"
"""The name of the file. A killed process leaves it, and not the lock."""
TRIES, PAUSE = 3, 0.05
"""How often to try, and the seconds between: whoever only looks holds a lock for a moment, too."""


class RunLockedError(RuntimeError):
    """Another process trains the run."""


@contextlib.contextmanager
def held(run: Path) -> Iterator[None]:
    """Holds the lock of a run's directory; on a file system without locks it only says whose the run is.

    Raises:
        RunLockedError: another process holds it.
    """
    path = run / LOCK
    now = datetime.datetime.now().astimezone()
    descriptor = _acquire(path)
    _held_descriptors.add(descriptor)
    try:
        holder = {"process": os.getpid(), "host": socket.gethostname(), "since": now.isoformat(" ", "seconds")}
        with contextlib.suppress(OSError):  # the disk is full, which others will say
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        yield
    finally:
        if _is_at(path, descriptor):
            path.unlink()
        _held_descriptors.discard(descriptor)
        os.close(descriptor)


def check(run: Path) -> None:
    """Raises `RunLockedError` if a process trains a run."""
    with contextlib.suppress(FileNotFoundError):
        descriptor = _open(run / LOCK, os.O_RDONLY)
        try:
            _lock(descriptor, fcntl.LOCK_SH, run / LOCK)
        finally:
            os.close(descriptor)


def _open(path: Path, flags: int) -> int:
    """Open the file itself: a link could lead to any file, and opening a named pipe could wait for ever."""
    files.check_entry(path)
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)


def _acquire(path: Path) -> int:
    """The file, made if need be, open and locked."""
    may_be_shared = True
    while True:
        descriptor = _open(path, os.O_RDWR | os.O_CREAT)
        try:
            _lock(descriptor, fcntl.LOCK_EX, path)
        except RunLockedError:
            os.close(descriptor)
            raise
        if _is_at(path, descriptor):
            if not may_be_shared or os.fstat(descriptor).st_nlink == 1:
                return descriptor
            path.unlink()  # a copy of the run with hard links (`cp -al`) has the same file, and keeps it
            may_be_shared = False
        os.close(descriptor)  # its holder removed it when it let go


def _lock(descriptor: int, kind: int, path: Path) -> None:
    for _ in range(TRIES):
        try:
            return fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(PAUSE)
        except OSError:  # there are no locks here
            return
    copied = ", or a copy of it with hard links is," if os.fstat(descriptor).st_nlink > 1 else ""
    raise RunLockedError(
        f"{path.parent} is being trained{copied or ','} {_holder(descriptor)}. Wait until it ends, or end it."
    )


def _holder(descriptor: int) -> str:
    try:
        holder = json.loads(os.pread(descriptor, 10_000, 0))
        return f"by process {holder['process']} on {holder['host']} since {holder['since']}"
    except (OSError, ValueError, LookupError, TypeError):
        return "by a process that has just begun or ended"


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file is the one at a path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


_held_descriptors: set[int] = set()


def _close_in_child() -> None:
    """Leaves the locks to the parent: a child would hold them longer than it lives."""
    for descriptor in _held_descriptors:
        os.close(descriptor)
    _held_descriptors.clear()


os.register_at_fork(after_in_child=_close_in_child)
