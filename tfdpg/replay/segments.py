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
    from tfdpg.replay.ring import Ring

BYTES, ROWS = 2**20, 512
"""What a segment has at least. Longer ones are fewer links, and more to be written again for a row that changed."""
LINKS = "successor_after", "onward_after"
"""The arrays of a segment that say how many rows later another one came; 0 is none."""
PREFIX = "rows-"
DESCRIPTION, FORMAT = "replay.json", 1
"""The file that describes a replay buffer that is saved alone, and the version of its format."""

Identity = tuple[int, ...]
"""What tells a file from another that took its name."""


class Filed(NamedTuple):
    """What of a ring is in files: its rows as they were once.

    Attributes:
        directory: where.
        length: the rows of a segment.
        added: the number of rows that had ever been added.
        newest: what `Ring.newest` was.
        files: by the segments' numbers the sums of their files, and which files these are.
    """

    directory: Path
    length: int
    added: int
    newest: np.ndarray
    files: dict[int, tuple[str, Identity]]

    def unchanged(self, ring: "Ring") -> dict[int, tuple[str, Identity]]:
        """The files of segments that are still what they were."""
        if self.length != segment_length(ring):
            return {}
        left = self.newest != ring.newest[: len(self.newest)]
        changed = {*(self.newest[left] // self.length).tolist()}
        if ring.added > self.added:
            changed.add(self.added // self.length)  # it was not full
        return {number: file for number, file in self.files.items() if number not in changed}


def segment_length(ring: "Ring") -> int:
    """The rows of a segment."""
    return max(ROWS, BYTES * ring.replay_size // ring.nbytes)


def state(ring: "Ring") -> dict[str, Any]:
    """What the segments of a ring need, to be a ring again."""
    return ring.state() | {"segment_length": np.int64(segment_length(ring))}


def numbers(ring: "Ring") -> Iterator[tuple[int, int, int]]:
    """The segments of a ring, an empty one of none: each one's number, and those of its first row and of the next."""
    length, oldest = segment_length(ring), ring.added - ring.size
    for number in range(oldest // length, max(1, -(-ring.added // length))):
        yield number, max(number * length, oldest), min((number + 1) * length, ring.added)


def unwritten_bytes(ring: "Ring") -> int:
    """The bytes of the rows that `write` writes, which has links for the others."""
    linked = ring.filed.unchanged(ring) if ring.filed else {}
    rows = sum(stop - first for number, first, stop in numbers(ring) if number not in linked)
    return ring.nbytes * rows // ring.replay_size


def of(ring: "Ring") -> Iterator[dict[str, Any]]:
    """All segments of a ring, as views where that is possible."""
    for _, first, stop in numbers(ring):
        yield ring.segment(first, stop)


def write(ring: "Ring", directory: Path) -> dict[str, str]:
    """Writes the rows of a ring, or links to the files where they are already; returns the sums of the linked ones.

    Where there can be no link, the rows are written.
    """
    unchanged, sums = ring.filed.unchanged(ring) if ring.filed else {}, {}
    for number, first, stop in numbers(ring):
        path = directory / f"{PREFIX}{number}.npz"
        if ring.filed and number in unchanged:
            sum_of_file, identity = unchanged[number]
            if _link(ring.filed.directory / path.name, path, identity):
                sums[path.name] = sum_of_file
                continue
        np.savez(path, **ring.segment(first, stop))
    return sums


def _link(source: Path, target: Path, identity: Identity) -> bool:
    """Links to a file; False where that is not possible, or it is another by now."""
    try:
        os.link(source, target)
    except OSError:
        return False
    if _identity(target) == identity:
        return True
    target.unlink()
    return False


def _identity(path: Path) -> Identity:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def save(ring: "Ring", directory: Path, overwrite: bool = True) -> None:
    """Write a ring as a directory of its own; see `Ring.save`."""
    if directory.exists():
        if not overwrite:
            raise FileExistsError(f"{directory} exists. Pass overwrite=True to replace it.")
        if not is_saved(directory):
            raise FileExistsError(f"{directory} exists and is not a saved replay buffer, so it is not replaced.")
    with files.writing(directory, lambda: unwritten_bytes(ring)):
        files.make_directory(directory.parent)
        with files.scratch_directory(directory.parent) as scratch:
            linked = write(ring, scratch)
            description = {"format": FORMAT, **ring.spec.to_json(), **_layout(ring), "rows": ring.size}
            files.seal(scratch, DESCRIPTION, description, linked)
            files.replace(scratch, directory, linked)


def load(ring: "Ring", directory: Path) -> None:
    """Append what `save` wrote to a ring, or nothing if a file is damaged; see `Ring.load`."""
    description, paths = saved(directory)
    _check_layout(ring, description, directory)
    rows_left = description["rows"]
    for path in paths:
        rows_left = _check_segment(ring, path, rows_left)
    if rows_left != 0:
        raise files.DamagedError(f"{directory / DESCRIPTION} must count the rows of all files; {rows_left} are missing")
    for path in paths:
        ring.append(_read(path))


def saved(directory: Path) -> tuple[dict[str, Any], list[Path]]:
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
    directory = files.present(directory)
    description = files.unseal(directory, DESCRIPTION, FORMAT)
    return description, [directory / name for name in numbered(description["files"]).values()]


def _layout(ring: "Ring") -> dict[str, Any]:
    """What of a row must be the same for rows to go from one ring to another, beside the spaces."""
    return {"step_width": ring.step_width, "state_width": ring.state_width, "has_windows": ring.has_windows}


def _check_layout(ring: "Ring", description: Mapping[str, Any], directory: Path) -> None:
    spec = Spec.from_json(description)
    for kind in ("observation_space", "action_space"):
        expected, received = getattr(ring.spec, kind), getattr(spec, kind)
        if received != expected:
            raise ValueError(f"The {kind} of {directory} must be the agent's, {expected}. Received: {received}")
    if (received := {name: description[name] for name in _layout(ring)}) != _layout(ring):
        raise ValueError(
            f"{directory} must hold the steps of an agent of the same kind (its algorithm and its recurrent state), "
            f"with {_layout(ring)}. Received: {received}. agent.fit_offline takes transitions of other agents"
        )


def _read(path: Path) -> dict[str, np.ndarray]:
    with open(path, "rb") as stream, np.load(stream) as arrays:
        return dict(arrays)


def _check_segment(ring: "Ring", path: Path, rows_left: int) -> int:
    """Check a segment before it is appended; return how many rows are left after it.

    Args:
        ring: the ring that it goes to.
        path: its file.
        rows_left: the rows from its first one to the last one of all.

    Raises:
        tfdpg.files.DamagedError: it has other arrays, or links to rows that do not exist.
    """
    segment = _read(path)
    count = len(segment.get("rows", ()))
    expected: dict[str, tuple[Any, tuple[int, ...]]] = {
        "rows": (np.float32, (count, ring.obs_width + ring.step_width + 1)),
        "terminated": (np.bool_, (count,)),
        **dict.fromkeys(LINKS if ring.has_windows else LINKS[:1], (np.int32, (count,))),
    }
    if ring.image_width:
        expected["images"] = (np.uint8, (count, ring.image_width))
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
    return (files.present(directory) / DESCRIPTION).exists()


def numbered(names: Iterable[str], prefix: str = PREFIX) -> dict[int, str]:
    """The files of segments among others, by their numbers, in their order."""
    return dict(sorted((int(Path(name).stem.removeprefix(prefix)), name) for name in names if name.startswith(prefix)))


def filed(directory: Path, state: Mapping[str, Any], sums: Mapping[str, str]) -> Filed:
    """What is in the files of a directory.

    Args:
        directory: the directory.
        state: the ring's, when they were written.
        sums: of all files of the directory, by their names.
    """
    files = {number: (sums[name], _identity(directory / name)) for number, name in numbered(sums).items()}
    facts = int(state["segment_length"]), int(state["added"]), np.array(state["newest"])
    return Filed(directory.absolute(), *facts, files)


def whole(ring: "Ring") -> dict[str, Any]:
    """All rows of a ring as one segment."""
    return ring.segment(ring.added - ring.size, ring.added)


def check(ring: "Ring") -> None:
    """Checks what a ring was restored from, so that every way through its rows has an end.

    Raises:
        ValueError: a lane is at a row that there is not, or a row leads to one that is not newer.
    """
    for lanes in (ring.current, ring.newest, ring.opened):
        known = lanes.shape == ring.current.shape == (len(lanes),) and lanes.dtype == np.int64
        if not known or not ((lanes >= -1) & (lanes < ring.added)).all():
            raise ValueError("The stored replay has lanes at rows that there are not")
    slots, left = np.arange(ring.added - ring.size, ring.added) % ring.replay_size, np.arange(ring.size, 0, -1)
    for links in (ring.successor, ring.onward) if ring.size else ():
        if links is not None:
            after = (links[slots] - slots) % ring.replay_size
            if ((links[slots] >= 0) & ((after == 0) | (after >= left))).any():
                raise ValueError("The stored replay has rows that lead to older ones, or to none")


def alone(segment: Mapping[str, Any]) -> dict[str, Any]:
    """A segment without what leads to rows after it."""
    rows_after = np.arange(len(segment["rows"]))[::-1]
    within = {name: np.where(segment[name] <= rows_after, segment[name], 0) for name in LINKS if name in segment}
    return {**segment, **within}
