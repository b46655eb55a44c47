"""Segments: files with successive rows of a replay buffer, which several checkpoints share.

A row changes only while it is the newest of its sub-environment. A segment that was full when it was written, and none
of whose rows was the newest of a sub-environment, therefore never changes. Later checkpoints contain a hard link to its
file, and reuse its checksum.
"""

import contextlib
import functools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tfdpg import files
from tfdpg.arguments import warn
from tfdpg.spec import Spec

if TYPE_CHECKING:
    from tfdpg.replay.buffer import ReplayBuffer

MIN_BYTES = 2**20
MIN_ROWS = 512
"""Minimum size of a segment. Longer segments need fewer links, but rewrite more rows if one row changed."""
LINKS = "successor_after", "onward_after"
"""The arrays of a segment with the distance, in rows, from each row to its successor and to the next episode."""
PREFIX = "rows-"
DESCRIPTION = "replay.json"
"""The file that describes a replay buffer that is saved alone."""
FORMAT = 1
"""The version of the format of such a replay buffer."""

ReadRows = Callable[[], dict[str, Any]]
FileIdentity = tuple[int, ...]
"""Distinguishes a file from another file that has replaced it."""


class LinkedFile(NamedTuple):
    """The file of a segment that has not changed since it was written."""

    path: Path
    checksum: str
    identity: FileIdentity


Snapshot = dict[int, tuple[LinkedFile | None, ReadRows]]
"""All segments, by their numbers: the file that has the rows or None, and a function that returns them."""


class SavedSegments(NamedTuple):
    """The segments of a replay buffer that are in the files of a checkpoint.

    Attributes:
        length: number of rows of a segment.
        added: `ReplayBuffer.added` when the files were written.
        newest: `ReplayBuffer.newest` when the files were written.
        files: the files, by the number of the segment; or copies in memory.
    """

    length: int
    added: int
    newest: np.ndarray
    files: dict[int, Any]


def unchanged_segments(buffer: "ReplayBuffer", saved: SavedSegments | None) -> dict[int, Any]:
    """Return the files or copies of segments that have not changed since, by the number of the segment."""
    if saved is None or saved.length != segment_length(buffer):
        return {}
    is_older = saved.newest != buffer.newest[: len(saved.newest)]
    changed = {*(saved.newest[is_older] // saved.length).tolist()}
    if buffer.added > saved.added:
        changed.add(saved.added // saved.length)  # the last segment was not full
    return {number: file for number, file in saved.files.items() if number not in changed}


def segment_length(buffer: "ReplayBuffer") -> int:
    """Return the number of rows of a segment."""
    return max(MIN_ROWS, MIN_BYTES * buffer.replay_size // buffer.nbytes)


def state(buffer: "ReplayBuffer") -> dict[str, Any]:
    """Return the arrays that `ReplayBuffer.restore` needs, and the number of rows of a segment."""
    return buffer.state() | {"segment_length": np.int64(segment_length(buffer))}


def segment_ranges(buffer: "ReplayBuffer") -> Iterator[tuple[int, int, int]]:
    """Yield the number, the first row and the end of each segment; one segment without rows if the buffer is empty."""
    length = segment_length(buffer)
    for number in range(buffer.oldest // length, max(1, -(-buffer.added // length))):
        yield number, max(number * length, buffer.oldest), min((number + 1) * length, buffer.added)


def unwritten_bytes(buffer: "ReplayBuffer") -> int:
    """Return the size in bytes of the rows that `write` has to write, because it cannot link to a file."""
    linked = unchanged_segments(buffer, buffer.saved_segments)
    rows = sum(stop - first for number, first, stop in segment_ranges(buffer) if number not in linked)
    return buffer.nbytes * rows // buffer.replay_size


def iter_segments(buffer: "ReplayBuffer") -> Iterator[dict[str, Any]]:
    """Yield all segments, as views of the buffer where that is possible."""
    for _, first, stop in segment_ranges(buffer):
        yield buffer.segment(first, stop)


def copied_segments(buffer: "ReplayBuffer", lock: contextlib.AbstractContextManager[Any]) -> SavedSegments:
    """Copy the segments that no file has, one after the other, while another thread may store rows between them.

    Args:
        buffer: the replay buffer.
        lock: held while the buffer is read.
    """
    with lock:
        known = unchanged_segments(buffer, buffer.saved_segments)
        ranges = [each for each in segment_ranges(buffer) if each[0] not in known]
        copied = SavedSegments(segment_length(buffer), buffer.added, buffer.newest.copy(), {})
    for number, first, stop in ranges:
        with lock:
            if first >= buffer.oldest:
                copied.files[number] = first, stop, _copied(buffer, first, stop)
    return copied


def _copied(buffer: "ReplayBuffer", first: int, stop: int) -> dict[str, np.ndarray]:
    return {name: np.array(values) for name, values in buffer.segment(first, stop).items()}


def snapshot(buffer: "ReplayBuffer", copied: SavedSegments | None = None) -> Snapshot:
    """Return all segments, for `write`.

    Args:
        buffer: the replay buffer.
        copied: the result of `copied_segments`, if the buffer may change before the rows are written: then those that
            have changed since are copied now.
    """
    unchanged = unchanged_segments(buffer, buffer.saved_segments)
    copies = unchanged_segments(buffer, copied)
    segments: Snapshot = {}
    for number, first, stop in segment_ranges(buffer):
        read = functools.partial(buffer.segment, first, stop)
        if copied is not None and number not in unchanged:
            *rows, arrays = copies.get(number, (None, None, None))
            read = functools.partial(dict, arrays if rows == [first, stop] else _copied(buffer, first, stop))
        segments[number] = unchanged.get(number), read
    return segments


def write(segments: Snapshot, directory: Path) -> dict[str, str]:
    """Write a `snapshot` to a directory, or link to existing files of unchanged segments.

    Segments are copied, or written, if a link is not possible. Returns the checksums of the linked files, by file name.
    """
    checksums = {}
    for number, (file, read) in segments.items():
        path = directory / f"{PREFIX}{number}.npz"
        if file is not None and (_link(file.path, path, file.identity) or _copy(file.path, path, file.identity)):
            checksums[path.name] = file.checksum
        else:
            np.savez(path, **read())
    return checksums


def _link(source: Path, target: Path, identity: FileIdentity) -> bool:
    """Create a hard link; returns False if that is not possible, or if the file was replaced by another one."""
    try:
        os.link(source, target)
    except OSError:
        return False
    if _identity(target) == identity:
        return True
    target.unlink()
    return False


def _copy(source: Path, target: Path, identity: FileIdentity) -> bool:
    """Copy a file where links are not possible; returns False if that fails, or if it was replaced by another one."""
    try:
        shutil.copyfile(source, target)
        return _identity(source) == identity
    except OSError:
        return False


def _identity(path: Path) -> FileIdentity:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def save(buffer: "ReplayBuffer", directory: Path, overwrite: bool = True) -> None:
    """Save a replay buffer alone; see `ReplayBuffer.save`."""
    if directory.exists():
        if not overwrite:
            raise FileExistsError(f"{directory} exists. Pass overwrite=True to replace it.")
        if not is_saved(directory):
            raise FileExistsError(f"{directory} exists and is not a saved replay buffer, so it is not replaced.")
    with files.writing(directory, lambda: unwritten_bytes(buffer)):
        files.make_directory(directory.parent)
        with files.scratch_directory(directory.parent) as scratch:
            linked = write(snapshot(buffer), scratch)
            description = {"format": FORMAT, **buffer.spec.to_json(), **_layout(buffer), "rows": buffer.size}
            files.write_manifest(scratch, DESCRIPTION, description, linked)
            files.replace(scratch, directory, linked)


def load(buffer: "ReplayBuffer", directory: Path) -> None:
    """Append the rows that `save` wrote, or none if a file is damaged; see `ReplayBuffer.load`."""
    description, paths = verify_saved(directory)
    _check_layout(buffer, description, directory)
    rows_left = description["rows"]
    if rows_left > buffer.replay_size:
        warn(
            f"The saved replay buffer {directory} has {rows_left:,} rows, and `replay_size` is {buffer.replay_size:,}, "
            "so only its newest rows are kept. Raise `replay_size` to keep all of them."
        )
    for path in paths:
        rows_left = _check_segment(buffer, path, rows_left)
    if rows_left != 0:
        raise files.DamagedError(f"{directory / DESCRIPTION} must count the rows of all files; {rows_left} are missing")
    for path in paths:
        buffer.append(_read(path))


def verify_saved(directory: Path) -> tuple[dict[str, Any], list[Path]]:
    """Verify the checksums of a saved replay buffer; return its description and the files of its segments in order.

    Raises:
        FileNotFoundError: The directory is not a saved replay buffer.
        tfdpg.files.DamagedError: A file is damaged, missing or from another save.
        tfdpg.files.UnsafeFileError: The directory contains a link, or something that is not a regular file.
    """
    if not is_saved(directory):
        raise FileNotFoundError(
            f"There is no saved replay buffer in {directory}: it has no {DESCRIPTION}. tfdpg.load_agent loads a saved "
            "agent with its replay buffer, and agent.fit_offline takes its transitions."
        )
    directory = files.current_path(directory)
    for path in sorted(directory.iterdir()):
        files.check_data(path, is_named=False)
    description = files.read_manifest(directory, DESCRIPTION, FORMAT)
    return description, [directory / name for name in segment_files(description["files"]).values()]


def _layout(buffer: "ReplayBuffer") -> dict[str, Any]:
    """Return what must be equal, in addition to the spaces, to append the rows of another replay buffer."""
    return {"step_width": buffer.step_width, "state_width": buffer.state_width, "has_windows": buffer.has_windows}


def _check_layout(buffer: "ReplayBuffer", description: Mapping[str, Any], directory: Path) -> None:
    buffer.spec.check(Spec.from_json(description), str(directory))
    if (received := {name: description[name] for name in _layout(buffer)}) != _layout(buffer):
        raise ValueError(
            f"{directory} must hold the steps of an agent of the same kind (with the same algorithm and recurrent "
            f"state), {_layout(buffer)}. Received: {received}. agent.fit_offline takes transitions of other agents"
        )


def _read(path: Path) -> dict[str, np.ndarray]:
    with open(path, "rb") as stream, np.load(stream) as arrays:
        return dict(arrays)


def _check_segment(buffer: "ReplayBuffer", path: Path, rows_left: int) -> int:
    """Check a segment before it is appended; return the number of rows after it.

    Args:
        buffer: the replay buffer to which it is appended.
        path: file of the segment.
        rows_left: number of rows in this segment and all later ones.

    Raises:
        tfdpg.files.DamagedError: The segment has other arrays, or links to rows that do not exist.
    """
    segment = _read(path)
    count = len(segment.get("rows", ()))
    expected: dict[str, tuple[Any, tuple[int, ...]]] = {
        "rows": (np.float32, (count, buffer.obs_width + buffer.step_width + 1)),
        "terminated": (np.bool_, (count,)),
        **dict.fromkeys(LINKS if buffer.has_windows else LINKS[:1], (np.int32, (count,))),
    }
    if buffer.image_width:
        expected["images"] = (np.uint8, (count, buffer.image_width))
    for name, (dtype, shape) in expected.items():
        array = segment.get(name)
        if array is None or array.dtype != dtype or array.shape != shape:
            raise files.DamagedError(f"{path} must have an array {name!r} of {np.dtype(dtype)} {shape}")
    rows_after = rows_left - 1 - np.arange(count)
    if any(((segment[name] < 0) | (segment[name] > rows_after)).any() for name in LINKS if name in expected):
        raise files.DamagedError(f"{path} has rows whose next row does not exist")
    return rows_left - count


def is_saved(directory: Path) -> bool:
    """Return whether a directory is a saved replay buffer, damaged or not."""
    return (files.current_path(directory) / DESCRIPTION).exists()


def segment_files(names: Iterable[str], prefix: str = PREFIX) -> dict[int, str]:
    """Select the files of segments, by the number of the segment, in ascending order."""
    return dict(sorted((int(Path(name).stem.removeprefix(prefix)), name) for name in names if name.startswith(prefix)))


def saved_segments(directory: Path, state: Mapping[str, Any], sums: Mapping[str, str]) -> SavedSegments:
    """Describe the segments in the files of a checkpoint.

    Args:
        directory: directory of the checkpoint.
        state: the result of `state` when the files were written.
        sums: checksums of all files of the directory, by file name.
    """
    directory = directory.absolute()
    linked = {
        number: LinkedFile(directory / name, sums[name], _identity(directory / name))
        for number, name in segment_files(sums).items()
    }
    return SavedSegments(int(state["segment_length"]), int(state["added"]), np.array(state["newest"]), linked)


def as_one_segment(buffer: "ReplayBuffer") -> dict[str, Any]:
    """Return all rows of a replay buffer as one segment."""
    return buffer.segment(buffer.oldest, buffer.added)


def check_links(buffer: "ReplayBuffer") -> None:
    """Check the links and positions of a restored replay buffer, so that following its links always ends.

    Raises:
        ValueError: A sub-environment is at a row that does not exist, or a row is linked to one that is not newer.
    """
    for row_numbers in (buffer.current, buffer.newest, buffer.episode_start):
        known = row_numbers.shape == buffer.current.shape == (len(row_numbers),) and row_numbers.dtype == np.int64
        if not known or not ((row_numbers >= -1) & (row_numbers < buffer.added)).all():
            raise ValueError("The stored replay buffer has sub-environments at rows that do not exist")
    slots = np.arange(buffer.oldest, buffer.added) % buffer.replay_size
    left = np.arange(buffer.size, 0, -1)
    for links in buffer.links.values():
        after = (links[slots] - slots) % buffer.replay_size
        if ((links[slots] >= 0) & ((after == 0) | (after >= left))).any():
            raise ValueError("The stored replay buffer has links to older rows, or to rows that do not exist")


def drop_outgoing_links(segment: Mapping[str, Any]) -> dict[str, Any]:
    """Return a segment without its links to rows after it."""
    rows_after = np.arange(len(segment["rows"]))[::-1]
    within = {name: np.where(segment[name] <= rows_after, segment[name], 0) for name in LINKS if name in segment}
    return {**segment, **within}
