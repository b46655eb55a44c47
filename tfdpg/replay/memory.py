"""Memory for large arrays: the memory available to the process, including control groups, and memory-mapped files."""

import contextlib
import math
import mmap
import os
import re
import shutil
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from tfdpg.files import writing

UNLIMITED = 1 << 60
"""Version 1 control groups write a number near 2^63 for "no limit"."""


def check_capacity(nbytes: int, directory: Path | None, argument: str) -> None:
    """Check that memory or disk space for a replay buffer is available.

    Args:
        nbytes: size of the buffer in bytes.
        directory: directory of the files, which is created if it is missing; None for memory.
        argument: the argument that determines the size, such as "replay_size=1000", for the message.

    Raises:
        ValueError: `nbytes` exceeds the memory available to the process, or the free disk space.
    """
    if directory is None:
        available = available_memory()
        place = "the memory available to this process"
        hint = " Set `replay_dir` to store it in files."
    else:
        directory.mkdir(parents=True, exist_ok=True)
        available = shutil.disk_usage(directory).free
        place = f"the free space on the disk of `replay_dir`={directory}"
        hint = ""
    if available is not None and nbytes > available:
        raise ValueError(
            f"`replay_size` must fit in {place}, {available / 1e9:.2f} GB. "
            f"Received: {argument}, which needs {nbytes / 1e9:.2f} GB.{hint}"
        )


def allocate_array(shape: tuple[int, ...], dtype: Any, directory: Path | None) -> np.ndarray:
    """Return an array of zeros: in memory, or mapped to a file in `directory` that is deleted with the array.

    The operating system provides memory when it is first written to, so zeros use none; files use disk space at once.
    """
    if directory is None:
        return np.zeros(shape, dtype)
    file = tempfile.NamedTemporaryFile(prefix="tfdpg-replay-", dir=directory)
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    with writing(directory, lambda: nbytes):
        file.truncate(nbytes)
        if sys.platform != "darwin":  # macOS has no such function
            os.posix_fallocate(file.fileno(), 0, nbytes)  # writing to the mapping on a full disk would kill the process
    memory = mmap.mmap(file.fileno(), 0)
    weakref.finalize(memory, _remove, file)
    return np.frombuffer(memory, dtype).reshape(shape)


def _remove(file: Any) -> None:
    with contextlib.suppress(FileNotFoundError):  # it may have been deleted already
        file.close()


def available_memory(root: str | Path = "/") -> int | None:
    """Return the memory available to this process in bytes, or None if the system does not report it.

    It is the minimum of the machine's available memory and the free memory of each control group of this process.

    Args:
        root: the directory that contains `proc` and `sys`.
    """
    root = Path(root)
    machine = re.search(r"^MemAvailable:\s*(\d+)", _text(root / "proc/meminfo"), re.MULTILINE)
    free = [int(machine[1]) * 1024] if machine else []
    for group, limit, usage in _control_groups(root):
        maximum = _text(group / limit)
        used = _text(group / usage)
        if maximum.isdigit() and int(maximum) < UNLIMITED:
            free.append(max(0, int(maximum) - (int(used) if used.isdigit() else 0)))
    return min(free, default=None)


def _control_groups(root: Path) -> list[tuple[Path, str, str]]:
    """Return the directories of this process' control groups and of their parents, with the names of their files."""
    groups = []
    for entry in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = entry.split(":", 2)
        if controllers == "":
            base = root / "sys/fs/cgroup"
            names = ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        directory = base / path.lstrip("/")
        groups += [(d, *names) for d in [directory, *directory.parents] if d == base or base in d.parents]
    return groups


def _text(file: Path) -> str:
    """Return the text of a file; an empty string if the file cannot be read."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
