"""Write files and directories so that they survive a crash or a power cut, and detect damage.

A file or directory appears under its name only when it is complete and on the disk. A directory contains a manifest: a
JSON file with the SHA-256 checksum of every other file and, as its last member, the checksum of all bytes before it.
The checksums reveal damage and mixed-up files, but not a deliberate change, because anyone can compute them.
"""

import contextlib
import csv
import errno
import fcntl
import hashlib
import json
import os
import re
import resource
import shutil
import stat
import tempfile
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Literal

SCRATCH = ".tfdpg-scratch-"
"""The prefix of the names of directories that are being written."""
CHECKPOINT = "checkpoint.json"
"""The name of the file of a checkpoint with all of its state that is not an array."""
LABELS = "labels.json"
"""The name of the file beside `progress.csv` that contains the labels of metrics in plots, by the metrics' names."""
OLD_SUFFIX = ".tfdpg-old"
"""The suffix of the hidden name of a directory that is being replaced."""


class CheckpointError(RuntimeError):
    """A checkpoint is damaged, incomplete, or of another version of the format. `tfdpg.load_agent` raises it."""


class DamagedError(ValueError):
    """A file does not match the manifest of its directory: it is damaged, missing, or of another save.

    `ReplayBuffer.load` raises it.
    """


class DiskFullError(OSError):
    """A file could not be written: the disk is full, or the user or the process has reached a limit.

    Functions that save, export or record raise it.
    """


class UnsafeFileError(ValueError):
    """A directory contains a symbolic link, or something that is neither a regular file nor a directory.

    The commands that read a run directory report it, unless the flag `--trusted` allows links. Functions that read data
    and weights raise it.
    """


@contextlib.contextmanager
def writing(path: str | Path, takes: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Raise an error that names `path` if the disk is full or a file is larger than the process may write.

    Args:
        path: the file or directory that is written.
        takes: returns the minimum number of bytes to write, or 0 if it is unknown. Called only if the disk is full.

    Raises:
        DiskFullError: replaces the error of the code that writes, including NumPy and TensorFlow.
    """
    try:
        yield
    except Exception as error:
        path = Path(path).absolute()
        if _is(error, errno.EFBIG):
            limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
            reason = f"This process may write files of up to {limit:,} bytes (`ulimit -f`)."
            if limit == resource.RLIM_INFINITY:
                reason = "The file system does not allow larger files."
            raise DiskFullError(f"{path} could not be written: a file is too large. {reason}") from error
        if not _is(error, errno.ENOSPC, errno.EDQUOT):
            raise
        free = shutil.disk_usage(next(each for each in (path, *path.parents) if each.exists())).free
        needed = f" takes {takes():,} bytes or more, and" if takes() else " could not be written:"
        raise DiskFullError(f"The disk is full: {path}{needed} {free:,} bytes are free.") from error


def _is(error: Exception, *numbers: int) -> bool:
    """Return whether an error has one of these errno values. TensorFlow's errors contain only the system's text."""
    return getattr(error, "errno", None) in numbers or any(os.strerror(number) in str(error) for number in numbers)


@contextlib.contextmanager
def content_errors(path: str | Path) -> Iterator[None]:
    """Raise a `ValueError` that names `path` if what it contains is not text in UTF-8, or not what is expected."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: byte {error.start} is not text in UTF-8") from error
    except (ValueError, TypeError, csv.Error) as error:
        raise ValueError(f"{path} is damaged: {str(error).strip()}") from error


def read_text(path: Path) -> str:
    """Return the content of a text file; see `content_errors`."""
    with content_errors(path):
        return path.read_text(encoding="utf-8")


def read_numbers(path: Path) -> dict[str, list[float]]:
    """Return the columns of a CSV file by name; a number that is missing is NaN. Without a file, there are none.

    A last line without a newline is ignored, since it may end within a number.

    Raises:
        ValueError: the file contains something else. The message names it.
    """
    if not path.exists():
        return {}
    text = read_text(path)
    with content_errors(path):
        rows = list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))
        return {name: [float(row[name] or "nan") for row in rows] for name in (rows[0] if rows else ())}


def check_kind(name: str, path: str | Path, kind: Literal["file", "directory"]) -> None:
    """Check an argument that names a file or a directory to write, which need not exist.

    Args:
        name: the name of the argument.
        path: its value.
        kind: what it must be.

    Raises:
        ValueError: it is of the other kind, or below a file, or this user may not write there.
    """
    path = Path(path)
    existing = next(each for each in (path, *path.absolute().parents) if each.exists())
    must_be_directory = kind == "directory" or existing != path
    if existing.is_dir() != must_be_directory:
        found = "a directory" if existing.is_dir() else "a file"
        where = f"{path}" if existing == path else f"{path}, and {existing} is {found}"
        raise ValueError(f"`{name}` must be a {kind} to write to. Received{f' {found}' * (existing == path)}: {where}")
    if not os.access(existing, os.W_OK):
        raise ValueError(f"`{name}` must be a {kind} that you may write to. Received: {path} (see `ls -ld {existing}`)")


def check_tree(directory: str | Path, trusted: bool = False) -> None:
    """Check that everything below a directory is a directory or a regular file, without opening any of it.

    The author of a directory chooses the targets of its links, so reading or writing through a link could reach any
    file of the user. The directory itself may be a link, because the user named it.

    Args:
        directory: a run directory or a checkpoint.
        trusted: whether symbolic links are allowed. Named pipes, sockets and devices are never allowed, because opening
            one may wait forever.

    Raises:
        UnsafeFileError: something is neither. The message names it.
    """
    pending = [Path(directory)]
    while pending:
        try:
            entries = [*os.scandir(pending.pop())]
        except FileNotFoundError:  # another process has renamed or removed this directory
            continue
        for entry in entries:
            check_entry(Path(entry.path), trusted)
            if entry.is_dir(follow_symlinks=False):
                pending.append(Path(entry.path))


def check_entry(path: Path, trusted: bool = False) -> None:
    """Check one path as `check_tree` does. It need not exist."""
    try:
        mode = (path.stat() if trusted else path.lstat()).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise UnsafeFileError(
            f"{path} is a symbolic link to {os.readlink(path)}, which is not followed: a run or a checkpoint must not "
            "contain links. Replace the link by its target or, if you trust these files, pass --trusted (in Python: "
            "trusted=True)."
        )
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UnsafeFileError(
            f"{path} must be a regular file or a directory, and is a named pipe, a socket or a device. Remove it."
        )


def check_data(path: str | Path, is_named: bool) -> None:
    """Check a file of data before it is opened.

    Args:
        path: the file. It need not exist.
        is_named: whether the user named it. It may then be a link. The links in a directory that a user named are
            refused, because somebody else may have chosen their targets.

    Raises:
        UnsafeFileError: it is a link, or neither a regular file nor a directory. The message names it.
    """
    path = Path(path)
    if path.is_symlink() and not is_named:
        raise UnsafeFileError(
            f"{path} is a symbolic link to {os.readlink(path)}, which is not followed: a directory of data must not "
            "contain links. Replace the link by its target, or pass the target itself."
        )
    check_entry(path, trusted=True)


@contextlib.contextmanager
def scratch_directory(parent: Path) -> Iterator[Path]:
    """Make a hidden directory in `parent`, which `move` or `replace` renames, and remove it at the end otherwise.

    Also remove those that killed processes left in `parent`. A directory that is being written is locked, and the lock
    ends with its process. (On file systems without locks, nothing is removed.)
    """
    with contextlib.ExitStack() as held:
        with _locked(parent):
            _remove_leftovers(parent)
            scratch = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=parent))
            held.callback(shutil.rmtree, scratch, ignore_errors=True)
            held.enter_context(_locked(scratch))
        yield scratch


def _remove_leftovers(parent: Path) -> None:
    for leftover in parent.glob(f"{SCRATCH}*"):
        if leftover.is_symlink() or not leftover.is_dir():
            continue  # `scratch_directory` did not make it, and opening a named pipe would wait
        with contextlib.suppress(OSError), _locked(leftover, wait=False) as is_locked:
            if is_locked:
                shutil.rmtree(leftover, ignore_errors=True)
    for old in parent.glob(f".*{OLD_SUFFIX}"):
        if (parent / old.name[1 : -len(OLD_SUFFIX)]).exists():
            shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _locked(directory: Path, wait: bool = True) -> Iterator[bool]:
    """Lock a directory. Yield False if the file system has no locks, or another process has this one and not `wait`."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            is_locked = True
        except OSError:
            is_locked = False
        yield is_locked
    finally:
        os.close(descriptor)


def make_directory(directory: Path) -> list[Path]:
    """Make a directory and its missing parents, and flush them to the disk. Return those made, the innermost first."""
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in made:
        flush(path.parent)
    return made


def flush(path: Path) -> None:
    """Wait until the content of a file, or the list of names of a directory, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def move(source: Path, target: Path) -> None:
    """Flush a directory to the disk, then rename it to a name in the same parent directory.

    Raises:
        OSError: the name exists.
    """
    _flush_tree(source)
    source.rename(target)
    flush(target.parent)


def replace(source: Path, target: Path, flushed: Container[str] = ()) -> None:
    """Replace `target` by `source`. At any moment, `current_path(target)` is the old or the new directory.

    Args:
        source: the new directory, in the same parent directory.
        target: its name, which may exist.
        flushed: the names of files in `source` that are hard links to files already on the disk.
    """
    old = _old_path(target)
    _flush_tree(source, flushed)
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    try:
        source.rename(target)
    except BaseException:
        if old.exists():
            old.rename(target)
        raise
    flush(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _flush_tree(directory: Path, flushed: Container[str] = ()) -> None:
    """Flush a directory and everything below it. Make it readable for others, which `tempfile` does not."""
    directory.chmod(0o755)
    for path in directory.rglob("*"):
        if path.name not in flushed:
            flush(path)
    flush(directory)


def remove(directory: Path) -> None:
    """Remove a directory if it exists. It keeps its name as long as it is complete."""
    with scratch_directory(directory.parent) as scratch, contextlib.suppress(FileNotFoundError):
        directory.rename(scratch / "removed")  # unless another process removed it


def current_path(target: Path) -> Path:
    """Return the path of the directory `target`: its old name if a process was killed while it replaced `target`."""
    old = _old_path(target)
    return old if not target.exists() and old.exists() and not old.is_symlink() else target


def _old_path(target: Path) -> Path:
    return target.with_name(f".{target.name}{OLD_SUFFIX}")


def is_version(name: str) -> bool:
    """Return whether a name is a nonnegative int64 in decimal without leading zeros, as the names of versions are."""
    return re.fullmatch("0|[1-9][0-9]{0,18}", name) is not None and int(name) < 2**63


def write_text(path: Path, text: str) -> None:
    """Write a text file. After a power cut it contains the old text or the new text."""
    _write(path, text.encode())


def _write(path: Path, content: bytes) -> None:
    with writing(path, lambda: len(content)), replacing(path) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file for writing and reading, which replaces the file at `path` at the end.

    It never writes through a link: whatever has the temporary name is removed first, and other hard links of the old
    file keep their content.
    """
    scratch = path.with_name(f".{path.name}.part")
    scratch.unlink(missing_ok=True)
    try:
        with open(scratch, "x+b") as file:  # fails if another process has just created the name
            yield file
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise
    flush(path.parent)


def break_hard_links(path: Path) -> None:
    """Replace a file that has other hard links by a copy, so that writing to it does not change them.

    `cp -al` and some backup programs make such links.
    """
    if path.exists() and path.stat().st_nlink > 1:
        _write(path, path.read_bytes())


def write_manifest(
    directory: Path, name: str, description: Mapping[str, Any], known: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """Write the manifest of a directory that contains all other files, and return their checksums by name.

    Args:
        directory: the directory.
        name: the name of the manifest.
        description: the other members of the manifest. They must include `format`.
        known: checksums that need not be computed again.
    """
    paths = {path.relative_to(directory).as_posix(): path for path in directory.rglob("*") if path.is_file()}
    checksums = {file: known.get(file) or _checksum(path) for file, path in sorted(paths.items())}
    text = json.dumps({**description, "files": checksums}, indent=2)
    (directory / name).write_bytes(_with_checksum(f"{text[:-2]},\n  ".encode()))
    return checksums


def read_manifest(directory: Path, name: str, version: int) -> dict[str, Any]:
    """Return the manifest of a directory, after checking all of its files.

    Args:
        directory: the directory.
        name: the name of the manifest.
        version: the required value of `format`.

    Raises:
        DamagedError: a file is missing or has changed, or the format is not `version`. The message names the file.
    """
    description = _read_intact(directory / name, version)
    checksums = description.get("files")
    if "format" not in description or not isinstance(checksums, dict):
        raise DamagedError(f"{directory / name} must have format {version} and checksums of its files")
    for file, expected in checksums.items():
        path = directory / file
        if not path.is_file() or ".." in Path(file).parts or Path(file).is_absolute():
            raise DamagedError(f"{path} is {'a directory' if path.is_dir() else 'missing'}")
        if _checksum(path) != expected:
            raise DamagedError(f"{path} is damaged, or belongs to another than {directory / name}")
    return description


def _read_intact(manifest: Path, version: int) -> dict[str, Any]:
    """Return a manifest, after checking its format and its own checksum."""
    if not manifest.is_file():  # opening a named pipe would wait
        raise DamagedError(f"{manifest} is not a regular file")
    content = manifest.read_bytes()
    description: Any = None
    problem = None
    found = version
    try:
        description = json.loads(content)
        found = description.get("format", version)
    except (ValueError, AttributeError, RecursionError) as error:
        problem = error
    if found != version:
        origin = ""
        if isinstance(found, int):
            origin = f". It was written by {'an older' if found < version else 'a newer'} version"
        raise DamagedError(
            f"{manifest.parent} has format {found}; this version of tfdpg reads format {version} only{origin}"
        )
    if content != _with_checksum(content[: -len(_with_checksum(b""))]):
        raise DamagedError(f"{manifest} is damaged, or was changed")
    if problem is not None:
        raise DamagedError(f"{manifest} cannot be read: {problem}") from problem
    return description


def _checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _with_checksum(content: bytes) -> bytes:
    """Complete the start of a JSON object by its own checksum as the last member."""
    return content + f'"sha256": "{hashlib.sha256(content).hexdigest()}"\n}}\n'.encode()
