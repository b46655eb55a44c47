"""Segments: successive rows of a ring, from one number to another, in files that are written once.

A row changes while it is the newest of its lane, and never after that. So a segment that was full when it was written,
and whose rows had all been left behind, is in every later checkpoint a link to the same file, whose sum is known.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tfdpg import files
from tfdpg.spec import Spec

if TYPE_CHECKING:
    from tfdpg.replay.buffer import ReplayBuffer

MIN_BYTES = 2**20
MIN_ROWS = 512
"""What a segment has at least. Longer ones are fewer links, and more to be written again for a row that changed."""
LINKS = "successor_after", "onward_after"
"""The arrays of a segment that say how many rows later another one came; 0 is none."""
PREFIX = "rows-"
DESCRIPTION, FORMAT = "replay.json", 1
"""The file that describes a replay buffer that is saved alone, and the version of its format."""

FileIdentity = tuple[int, ...]
"""What tells a file from another that took its name."""


class SavedSegments(NamedTuple):
    """What of a ring is in files: its rows as they were once.

    Attributes:
        directory: where.
        length: the rows of a segment.
        added: the number of rows that had ever been added.
        newest: what `ReplayBuffer.newest` was.
        files: by the segments' numbers the sums of their files, and which files these are.
    """

    directory: Path
    length: int
    added: int
    newest: np.ndarray
    files: dict[int, tuple[str, FileIdentity]]

    def unchanged(self, buffer: "ReplayBuffer") -> dict[int, tuple[str, FileIdentity]]:
        """The files of segments that are still what they were."""
        if self.length != segment_length(buffer):
            return {}
        left = self.newest != buffer.newest[: len(self.newest)]
        changed = {*(self.newest[left] // self.length).tolist()}
        if buffer.added > self.added:
            changed.add(self.added // self.length)  # it was not full
        return {number: file for number, file in self.files.items() if number not in changed}


def segment_length(buffer: "ReplayBuffer") -> int:
    """The rows of a segment."""
    return max(MIN_ROWS, MIN_BYTES * buffer.replay_size // buffer.nbytes)


def state(buffer: "ReplayBuffer") -> dict[str, Any]:
    """What the segments of a ring need, to be a ring again."""
    return buffer.state() | {"segment_length": np.int64(segment_length(buffer))}


def segment_ranges(buffer: "ReplayBuffer") -> Iterator[tuple[int, int, int]]:
    """The segments of a ring, an empty one of none: each one's number, and those of its first row and of the next."""
    length = segment_length(buffer)
    oldest = buffer.added - buffer.size
    for number in range(oldest // length, max(1, -(-buffer.added // length))):
        yield number, max(number * length, oldest), min((number + 1) * length, buffer.added)


def unwritten_bytes(buffer: "ReplayBuffer") -> int:
    """The bytes of the rows that `write` writes, which has links for the others."""
    linked = buffer.saved_segments.unchanged(buffer) if buffer.saved_segments else {}
    rows = sum(stop - first for number, first, stop in segment_ranges(buffer) if number not in linked)
    return buffer.nbytes * rows // buffer.replay_size


def iter_segments(buffer: "ReplayBuffer") -> Iterator[dict[str, Any]]:
    """All segments of a ring, as views where that is possible."""
    for _, first, stop in segment_ranges(buffer):
        yield buffer.segment(first, stop)


def write(buffer: "ReplayBuffer", directory: Path) -> dict[str, str]:
    """Writes the rows of a ring, or links to the files where they are already; returns the sums of the linked ones.

    Where there can be no link, the rows are written.
    """
    unchanged = buffer.saved_segments.unchanged(buffer) if buffer.saved_segments else {}
    sums = {}
    for number, first, stop in segment_ranges(buffer):
        path = directory / f"{PREFIX}{number}.npz"
        if buffer.saved_segments and number in unchanged:
            sum_of_file, identity = unchanged[number]
            if _link(buffer.saved_segments.directory / path.name, path, identity):
                sums[path.name] = sum_of_file
                continue
        np.savez(path, **buffer.segment(first, stop))
    return sums


def _link(source: Path, target: Path, identity: FileIdentity) -> bool:
    """Links to a file; False where that is not possible, or it is another by now."""
    try:
        os.link(source, target)
    except OSError:
        return False
    if _identity(target) == identity:
        return True
    target.unlink()
    return False


def _identity(path: Path) -> FileIdentity:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def save(buffer: "ReplayBuffer", directory: Path, overwrite: bool = True) -> None:
    """Write a ring as a directory of its own; see `ReplayBuffer.save`."""
    if directory.exists():
        if not overwrite:
            raise FileExistsError(f"{directory} exists. Pass overwrite=True to replace it.")
        if not is_saved(directory):
            raise FileExistsError(f"{directory} exists and is not a saved replay buffer, so it is not replaced.")
    with files.writing(directory, lambda: unwritten_bytes(buffer)):
        files.make_directory(directory.parent)
        with files.scratch_directory(directory.parent) as scratch:
            linked = write(buffer, scratch)
            description = {"format": FORMAT, **buffer.spec.to_json(), **_layout(buffer), "rows": buffer.size}
            files.write_manifest(scratch, DESCRIPTION, description, linked)
            files.replace(scratch, directory, linked)


def load(buffer: "ReplayBuffer", directory: Path) -> None:
    """Append what `save` wrote to a ring, or nothing if a file is damaged; see `ReplayBuffer.load`."""
    description, paths = verify_saved(directory)
    _check_layout(buffer, description, directory)
    rows_left = description["rows"]
    for path in paths:
        rows_left = _check_segment(buffer, path, rows_left)
    if rows_left != 0:
        raise files.DamagedError(f"{directory / DESCRIPTION} must count the rows of all files; {rows_left} are missing")
    for path in paths:
        buffer.append(_read(path))


def verify_saved(directory: Path) -> tuple[dict[str, Any], list[Path]]:
    """What is known of a saved replay buffer, and the files of its segments in order, once all checksums are checked.

    Raises:
        FileNotFoundError: there is none.
        tfdpg.files.DamagedError: a file is damaged, missing or from another save.
    """
    if not is_saved(directory):
        raise FileNotFoundError(
            f"There is no saved replay buffer in {directory}: it has no {DESCRIPTION}. tfdpg.load_agent loads a saved "
            "agent with its replay buffer, and agent.fit_offline takes its transitions."
        )
    directory = files.current_path(directory)
    description = files.read_manifest(directory, DESCRIPTION, FORMAT)
    return description, [directory / name for name in segment_files(description["files"]).values()]


def _layout(buffer: "ReplayBuffer") -> dict[str, Any]:
    """What of a row must be the same for rows to go from one ring to another, beside the spaces."""
    return {"step_width": buffer.step_width, "state_width": buffer.state_width, "has_windows": buffer.has_windows}


def _check_layout(buffer: "ReplayBuffer", description: Mapping[str, Any], directory: Path) -> None:
    spec = Spec.from_json(description)
    for kind in ("observation_space", "action_space"):
        expected = getattr(buffer.spec, kind)
        received = getattr(spec, kind)
        if received != expected:
            raise ValueError(f"The {kind} of {directory} must be the agent's, {expected}. Received: {received}")
    if (received := {name: description[name] for name in _layout(buffer)}) != _layout(buffer):
        raise ValueError(
            f"{directory} must hold the steps of an agent of the same kind (its algorithm and its recurrent state), "
            f"with {_layout(buffer)}. Received: {received}. agent.fit_offline takes transitions of other agents"
        )


def _read(path: Path) -> dict[str, np.ndarray]:
    with open(path, "rb") as stream, np.load(stream) as arrays:
        return dict(arrays)


def _check_segment(buffer: "ReplayBuffer", path: Path, rows_left: int) -> int:
    """Check a segment before it is appended; return how many rows are left after it.

    Args:
        buffer: the ring that it goes to.
        path: its file.
        rows_left: the rows from its first one to the last one of all.

    Raises:
        tfdpg.files.DamagedError: it has other arrays, or links to rows that do not exist.
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
    """Whether a directory is a saved replay buffer, damaged or not."""
    return (files.current_path(directory) / DESCRIPTION).exists()


def segment_files(names: Iterable[str], prefix: str = PREFIX) -> dict[int, str]:
    """The files of segments among others, by their numbers, in their order."""
    return dict(sorted((int(Path(name).stem.removeprefix(prefix)), name) for name in names if name.startswith(prefix)))


def saved_segments(directory: Path, state: Mapping[str, Any], sums: Mapping[str, str]) -> SavedSegments:
    """What is in the files of a directory.

    Args:
        directory: the directory.
        state: the ring's, when they were written.
        sums: of all files of the directory, by their names.
    """
    files = {number: (sums[name], _identity(directory / name)) for number, name in segment_files(sums).items()}
    facts = int(state["segment_length"]), int(state["added"]), np.array(state["newest"])
    return SavedSegments(directory.absolute(), *facts, files)


def as_one_segment(buffer: "ReplayBuffer") -> dict[str, Any]:
    """All rows of a ring as one segment."""
    return buffer.segment(buffer.added - buffer.size, buffer.added)


def check_links(buffer: "ReplayBuffer") -> None:
    """Checks what a ring was restored from, so that every way through its rows has an end.

    Raises:
        ValueError: a lane is at a row that there is not, or a row leads to one that is not newer.
    """
    for row_numbers in (buffer.current, buffer.newest, buffer.episode_start):
        known = row_numbers.shape == buffer.current.shape == (len(row_numbers),) and row_numbers.dtype == np.int64
        if not known or not ((row_numbers >= -1) & (row_numbers < buffer.added)).all():
            raise ValueError("The stored replay has lanes at rows that there are not")
    slots = np.arange(buffer.added - buffer.size, buffer.added) % buffer.replay_size
    left = np.arange(buffer.size, 0, -1)
    for links in (buffer.successor, buffer.next_episode) if buffer.size else ():
        if links is not None:
            after = (links[slots] - slots) % buffer.replay_size
            if ((links[slots] >= 0) & ((after == 0) | (after >= left))).any():
                raise ValueError("The stored replay has rows that lead to older ones, or to none")


def drop_outgoing_links(segment: Mapping[str, Any]) -> dict[str, Any]:
    """A segment without what leads to rows after it."""
    rows_after = np.arange(len(segment["rows"]))[::-1]
    within = {name: np.where(segment[name] <= rows_after, segment[name], 0) for name in LINKS if name in segment}
    return {**segment, **within}
