"""The lock of a run directory, so that only one process at a time trains the run.

The lock is on a file in the directory that names the process which holds it. The operating system releases the lock
when the process ends; a killed process leaves the file but not the lock. The lock is not on the directory itself,
because NFS does not lock directories.
"""

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
"""The name of the file."""
TRIES = 3
PAUSE = 0.05
"""How often to try to lock, and the seconds between two tries: `check` holds a lock for a moment, too."""


class RunLockedError(RuntimeError):
    """Another process trains the run."""


@contextlib.contextmanager
def held(run: Path) -> Iterator[None]:
    """Hold the lock of a run directory. On a file system without locks, only write the file.

    Raises:
        RunLockedError: another process holds the lock.
    """
    path = run / LOCK
    descriptor = _acquire(path)
    _held_descriptors.add(descriptor)
    try:
        now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
        holder = json.dumps({"process": os.getpid(), "host": socket.gethostname(), "since": now})
        with contextlib.suppress(OSError):  # the disk is full, which later writes report
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, holder.encode(), 0)
        yield
    finally:
        if _is_at(path, descriptor):
            path.unlink()
        _held_descriptors.discard(descriptor)
        os.close(descriptor)


def check(run: Path) -> None:
    """Raise `RunLockedError` if another process trains a run."""
    with contextlib.suppress(FileNotFoundError):
        descriptor = _open(run / LOCK, os.O_RDONLY)
        try:
            _lock(descriptor, fcntl.LOCK_SH, run / LOCK)
        finally:
            os.close(descriptor)


def _open(path: Path, flags: int) -> int:
    """Open the lock file, but not through a link, and without waiting for the writer of a named pipe."""
    files.check_entry(path)
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)


def _acquire(path: Path) -> int:
    """Open and lock the file, creating it if it does not exist, and return its descriptor."""
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
            path.unlink()  # `cp -al` makes a copy of the run that shares this file: leave it to the copy, make another
            may_be_shared = False
        os.close(descriptor)  # no longer the file at this path: it was removed above, or by its previous holder


def _lock(descriptor: int, kind: int, path: Path) -> None:
    """Lock an open file, unless the file system has no locks; raise `RunLockedError` if another process holds it."""
    for _ in range(TRIES):
        try:
            return fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(PAUSE)
        except OSError:  # the file system has no locks
            return
    copied = ", or a copy of it with hard links is," if os.fstat(descriptor).st_nlink > 1 else ","
    try:
        holder = json.loads(os.pread(descriptor, 10_000, 0))
        process = f"process {holder['process']} on {holder['host']} since {holder['since']}"
    except (OSError, ValueError, LookupError, TypeError):
        process = "a process that has just started or ended"
    raise RunLockedError(f"{path.parent} is being trained{copied} by {process}. Wait until it ends, or end it.")


def _is_at(path: Path, descriptor: int) -> bool:
    """Return whether an open file is the file at a path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


_held_descriptors: set[int] = set()


def _close_in_child() -> None:
    """Close the locks in a forked child, which would otherwise hold them after the parent has ended."""
    for descriptor in _held_descriptors:
        os.close(descriptor)
    _held_descriptors.clear()


os.register_at_fork(after_in_child=_close_in_child)
