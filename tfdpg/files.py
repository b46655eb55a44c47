"""Directories that are written as a whole, outlive a power cut, and show damage.

What is written appears under its name only when it is complete and on the disk. One JSON file in it, the description,
holds the SHA-256 of every other file, and as its last member that of all bytes before it. Damage and mixed files show;
an intention does not, since whoever writes the files can compute the sums.
"""

import contextlib
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
from typing import IO, Any

SCRATCH = ".tfdpg-scratch-"
"""How the names of directories begin that are being written."""
OLD_SUFFIX = ".tfdpg-old"
"""How the hidden name of a directory ends that is being replaced."""


class DamagedError(ValueError):
    """A file is not what its description says."""


class DiskFullError(OSError):
    """There is no room for what was to be written: the disk is full, or a limit of its user or process is reached."""


class UnsafeFileError(ValueError):
    """A directory holds a symbolic link, or something that is neither a regular file nor a directory."""


@contextlib.contextmanager
def writing(path: str | Path, takes: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Names what is being written where the disk is full or a file is larger than the process may write.

    Args:
        path: where it goes.
        takes: the bytes that it takes at least, if that is known; asked when the disk is full.

    Raises:
        DiskFullError: in place of the error of whoever wrote, NumPy's and TensorFlow's too.
    """
    try:
        yield
    except Exception as error:
        path = Path(path).absolute()
        if _is(error, errno.EFBIG):
            raise DiskFullError(f"{path} could not be written: a file is too large.{_size_limit()}") from error
        if not _is(error, errno.ENOSPC, errno.EDQUOT):
            raise
        free = shutil.disk_usage(next(each for each in (path, *path.parents) if each.exists())).free
        needed = f" takes {takes():,} bytes or more, and" if takes() else " could not be written:"
        raise DiskFullError(f"The disk is full: {path}{needed} {free:,} bytes are free.") from error


def _is(error: Exception, *numbers: int) -> bool:
    """Whether an error is one of the operating system's. TensorFlow only quotes the system's words."""
    return getattr(error, "errno", None) in numbers or any(os.strerror(number) in str(error) for number in numbers)


def _size_limit() -> str:
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit == resource.RLIM_INFINITY:
        return " The file system allows no larger one."
    return f" This process may write files of up to {limit:,} bytes (`ulimit -f`)."


def check_tree(directory: str | Path, trusted: bool = False) -> None:
    """Check that everything below a directory is a directory or a regular file, without opening any of it.

    Whoever made the directory chose where its links lead, so that reading or writing through one could reach any file
    of the user's. The directory itself may be a link, since whoever named it chose it.

    Args:
        directory: a run directory or a saved agent.
        trusted: whether symbolic links are allowed. Named pipes, sockets and devices never are: opening one may wait
            for ever.

    Raises:
        UnsafeFileError: something is neither; the message names it.
    """
    pending = [Path(directory)]
    while pending:
        try:
            entries = [*os.scandir(pending.pop())]
        except FileNotFoundError:  # another process writes to the directory, and has renamed or removed this one
            continue
        for entry in entries:
            check_entry(Path(entry.path), trusted)
            if entry.is_dir(follow_symlinks=False):
                pending.append(Path(entry.path))


def check_entry(path: Path, trusted: bool = False) -> None:
    """Check a single path, which need not exist, as `check_tree` does."""
    try:
        mode = (path.stat() if trusted else path.lstat()).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise UnsafeFileError(
            f"{path} is a symbolic link to {os.readlink(path)}, which is not followed: the files of a run or a saved "
            "agent must be its own. Replace the link by what it leads to; or, if you trust these files, pass --trusted "
            "(in Python: trusted=True)."
        )
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UnsafeFileError(
            f"{path} must be a regular file or a directory, and is a named pipe, a socket or a device. Remove it."
        )


@contextlib.contextmanager
def scratch_directory(parent: Path) -> Iterator[Path]:
    """A hidden directory in `parent` to write in, for `move` to rename; removed at the end if it is still there.

    Those that killed processes left in `parent` are removed; locks, which end with their process, tell them from those
    that are written to now. (On file systems without locks they stay.)
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
        if leftover.is_symlink() or not leftover.is_dir():  # not made by `scratch_directory`; opening a pipe would wait
            continue
        with contextlib.suppress(OSError), _locked(leftover, wait=False) as is_locked:
            if is_locked:
                shutil.rmtree(leftover, ignore_errors=True)
    for old in parent.glob(f".*{OLD_SUFFIX}"):
        if (parent / old.name[1 : -len(OLD_SUFFIX)]).exists():
            shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _locked(directory: Path, wait: bool = True) -> Iterator[bool]:
    """Holds the lock of a directory; gives False where its file system has none, or it is taken and not waited for."""
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
    """Makes a directory and its missing parents, on the disk; returns those that were made, the innermost first."""
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in made:
        flush(path.parent)
    return made


def flush(path: Path) -> None:
    """Waits until a file's content, or a directory's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def move(source: Path, target: Path) -> None:
    """Renames a directory to a free name beside it, once everything in it is on the disk.

    Raises:
        OSError: the name is taken.
    """
    _flush_tree(source)
    source.rename(target)
    flush(target.parent)


def replace(source: Path, target: Path, flushed: Container[str] = ()) -> None:
    """As `move`, to a name that may be taken: at any moment the old or the new one is at `current_path(target)`.

    Args:
        source: the directory.
        target: its name from then on.
        flushed: the names of files in it that are on the disk, since they are links to such.
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
    """Lets others read a directory that `tempfile` made, and flushes it with everything below it."""
    directory.chmod(0o755)
    for path in directory.rglob("*"):
        if path.name not in flushed:
            flush(path)
    flush(directory)


def remove(directory: Path) -> None:
    """Removes a directory, if it is there: under its name there is all of it, to the last."""
    with scratch_directory(directory.parent) as scratch, contextlib.suppress(FileNotFoundError):
        directory.rename(scratch / "removed")  # unless someone else removed it


def current_path(target: Path) -> Path:
    """Where what was written to `target` is: there, or set aside by a process that was killed while it replaced it."""
    old = _old_path(target)
    return old if not target.exists() and old.exists() and not old.is_symlink() else target


def _old_path(target: Path) -> Path:
    return target.with_name(f".{target.name}{OLD_SUFFIX}")


def is_version(name: str) -> bool:
    """Whether a directory's name is that of a version: a decimal int64 without leading zeros, as str() writes it."""
    return re.fullmatch("0|[1-9][0-9]{0,18}", name) is not None and int(name) < 2**63


def write_text(path: Path, text: str) -> None:
    """Writes a file as a whole: after a power cut it holds the old text or the new one."""
    content = text.encode()
    with writing(path, lambda: len(content)), replacing(path) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new file beside `path`, open for writing and reading, that takes its place at the end.

    Nothing is written through a link: what had the name of the new file is removed, and other hard links of the file at
    `path` keep their content.
    """
    scratch = path.with_name(f".{path.name}.part")
    scratch.unlink(missing_ok=True)
    try:
        with open(scratch, "x+b") as file:  # which fails if anything has taken the name meanwhile
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
    """Replace a file that has further hard links by a copy, so that writing to it does not change theirs.

    `cp -al` makes such links, and so do programs that make backups.
    """
    if path.exists() and path.stat().st_nlink > 1:
        content = path.read_bytes()
        with writing(path, lambda: len(content)), replacing(path) as file:
            file.write(content)


def write_manifest(
    directory: Path, name: str, description: Mapping[str, Any], known: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """Writes the description of a directory whose other files are all there: JSON, with the sums of the files.

    Args:
        directory: the directory.
        name: the name of the description.
        description: what it says.
        known: the sums that are known already.

    Returns:
        The sums of all files.
    """
    paths = {path.relative_to(directory).as_posix(): path for path in directory.rglob("*") if path.is_file()}
    checksums = {file: known.get(file) or _checksum(path) for file, path in sorted(paths.items())}
    text = json.dumps({**description, "files": checksums}, indent=2)
    (directory / name).write_bytes(_with_checksum(f"{text[:-2]},\n  ".encode()))
    return checksums


def read_manifest(directory: Path, name: str, version: int) -> dict[str, Any]:
    """The description of a directory, whose files are all as they were when it was sealed.

    Args:
        directory: the directory.
        name: the name of the description.
        version: what its `format` must be.

    Raises:
        DamagedError: a file is missing or another; the message names it. Or the format is another one.
    """
    if not (directory / name).is_file():  # to open a named pipe would wait for its writer
        raise DamagedError(f"{directory / name} is not a regular file")
    content = (directory / name).read_bytes()
    _refuse_other_format(content, directory, version)
    if content != _with_checksum(content[: -len(_with_checksum(b""))]):
        raise DamagedError(f"{directory / name} is damaged, or was changed")
    try:
        description = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{directory / name} cannot be read: {error}") from error
    checksums = description.get("files")
    if description.get("format") != version or not isinstance(checksums, dict):
        raise DamagedError(f"{directory / name} must have format {version} and sums, which its maker left out")
    for file, expected in checksums.items():
        path = directory / file
        if not path.is_file() or ".." in Path(file).parts or Path(file).is_absolute():
            raise DamagedError(f"{path} is {'a directory' if path.is_dir() else 'missing'}")
        if _checksum(path) != expected:
            raise DamagedError(f"{path} is damaged, or belongs to another than {directory / name}")
    return description


def _refuse_other_format(content: bytes, directory: Path, version: int) -> None:
    try:
        found = json.loads(content)["format"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    if found != version:
        maker = ""
        if isinstance(found, int):
            maker = f". It was written by {'an older' if found < version else 'a newer'} version"
        raise DamagedError(f"{directory} has format {found}; this version of tfdpg reads format {version} only{maker}")


def _checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _with_checksum(content: bytes) -> bytes:
    """The beginning of a JSON object with its own sum as the last member."""
    return content + f'"sha256": "{hashlib.sha256(content).hexdigest()}"\n}}\n'.encode()
