"""Memory for large arrays: how much this process may still take, control groups counted, or files in its place."""

import contextlib
import math
import mmap
import os
import shutil
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from tfdpg.files import writing

UNLIMITED = 1 << 60  # version 1 control groups write a number near 2^63 for "no limit"


def check_capacity(nbytes: int, directory: Path | None, argument: str) -> None:
    """Raises `ValueError` if `nbytes` are more than this process may still take, or than the disk has free.

    Args:
        nbytes: what is to be taken.
        directory: where files are to be made, and is made if missing; None is for memory.
        argument: what the caller asked for, for the message.
    """
    if directory is None:
        available = available_memory()
        place = "the memory that this process may still take"
        hint = " Give `replay_dir` to keep it in files."
    else:
        directory.mkdir(parents=True, exist_ok=True)
        available = shutil.disk_usage(directory).free
        place = f"what the disk of `replay_dir`={directory} has free"
        hint = ""
    if available is not None and nbytes > available:
        raise ValueError(
            f"`replay_size` must fit in {place}, {available / 1e9:.2f} GB. "
            f"Received: {argument}, which takes {nbytes / 1e9:.2f} GB.{hint}"
        )


def allocate_array(shape: tuple[int, ...], dtype: Any, directory: Path | None) -> np.ndarray:
    """An array of zeros: in memory, or mapped to a file in `directory` that lives as long as the array.

    The system gives memory when it is first written to, so that zeros cost nothing; files have their room at once.
    """
    if directory is None:
        return np.zeros(shape, dtype)
    file = tempfile.NamedTemporaryFile(prefix="tfdpg-replay-", dir=directory)
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    with writing(directory, lambda: nbytes):
        file.truncate(nbytes)
        if sys.platform != "darwin":  # which cannot
            os.posix_fallocate(file.fileno(), 0, nbytes)  # a full disk would kill whoever writes to the mapping
    memory = mmap.mmap(file.fileno(), 0)
    weakref.finalize(memory, _remove, file)
    return np.frombuffer(memory, dtype).reshape(shape)


def _remove(file: Any) -> None:
    with contextlib.suppress(FileNotFoundError):  # somebody did
        file.close()


def available_memory(root: str | Path = "/") -> int | None:
    """Bytes that this process may still take, or None where the system does not say.

    It is the smallest of the machine's available memory and what each control group on the way to this
    process leaves free.

    Args:
        root: the root of the file system, to read `proc` and `sys` below.
    """
    root = Path(root)
    free = [_machine(root)]
    for group, limit, usage in _control_groups(root):
        maximum = _number(group / limit)
        used = _number(group / usage)
        if maximum is not None and maximum < UNLIMITED:
            free.append(max(0, maximum - (used or 0)))
    known = [value for value in free if value is not None]
    return min(known) if known else None


def _machine(root: Path) -> int | None:
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _control_groups(root: Path) -> list[tuple[Path, str, str]]:
    """The directories of this process' control groups and their parents, with their files' names."""
    try:
        entries = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    groups = []
    for entry in entries:
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


def _number(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
