"""A part of the replay in a process of its own. NumPy only."""

import collections
import itertools
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tfdpg.acting import Moments
from tfdpg.distributed.chunks import Chunk, Links, Summary
from tfdpg.replay import MakeDraw, Ring, return_range
from tfdpg.replay.segments import LINKS, alone, whole
from tfdpg.replay.uniform import drawable
from tfdpg.spec import Packed, Spec

KEPT = 4
"""Draws whose TD errors may still come."""
UNREPORTED = 100
"""Chunks of each sub-environment whose rows the shard can still identify. The learner has counted older ones."""


class Receipt(NamedTuple):
    """What a shard holds.

    Attributes:
        incarnation: the shard's process.
        steps: the steps that this process stored of the lane in question, ever.
        rows: the rows it holds.
    """

    incarnation: int
    steps: int
    rows: int


class _StoredChunk(NamedTuple):
    """The rows of one chunk: the steps stored of its sub-environment after it, and the numbers of its rows."""

    steps: int
    first: int
    stop: int


class Stored(NamedTuple):
    """What a worker reports once its shard has stored its rows."""

    summary: Summary
    receipt: Receipt


class Drawn(NamedTuple):
    """Minibatches.

    Attributes:
        packed: the minibatches, each array `[count, batch, width]`.
        ticket: names the draw, for `refresh`.
        receipt: what the shard holds; its `steps` mean nothing.
        moments: the statistics of the observations that this process stored, where they are kept.
    """

    packed: Packed
    ticket: int
    receipt: Receipt
    moments: dict[str, np.ndarray] | None


class Shard:
    """Stores the chunks of some lanes, and draws minibatches of them.

    Args:
        spec: the spaces.
        ring: size, directory and what else its ring takes.
        make_draw: makes what draws from it, as the agent would.
        keeps_moments: whether to keep statistics of observations.
    """

    def __init__(self, spec: Spec, ring: tuple[Any, ...], make_draw: MakeDraw, keeps_moments: bool):
        self._ring = Ring(spec, *ring)
        self._draw = make_draw(self._ring)
        self._moments = Moments(spec) if keeps_moments else None
        self._links, self._steps = Links(), {}
        self._incarnation, self._tickets = secrets.randbits(62), 0
        self._drawn: dict[int, np.ndarray] = {}
        self._chunks: dict[int, collections.deque[_StoredChunk]] = {}

    def store(self, lane: int, chunk: Chunk) -> Receipt:
        """Stores a chunk of a lane; one that comes again because the answer was lost is not stored again."""
        if self._links.has(lane, chunk):
            return self._receipt(self._steps[lane])
        goes_on, ended = self._links.follow(lane, chunk)
        if not goes_on:
            self._ring.end(np.array([lane]))
        first = self._ring.added
        self._ring.extend(lane, chunk.rows)
        if self._moments is not None:
            self._moments.update(chunk.rows.observation)
        self._steps[lane] = self._steps.get(lane, 0) + len(ended)
        chunks = self._chunks.setdefault(lane, collections.deque(maxlen=UNREPORTED))
        chunks.append(_StoredChunk(self._steps[lane], first, self._ring.added))
        return self._receipt(self._steps[lane])

    def append(self, segment: dict[str, Any]) -> Receipt:
        """Adds rows of an earlier replay, which are not counted."""
        self._ring.append(segment)
        return self._receipt(0)

    def draw(self, update: int, count: int) -> Drawn | None:
        """The minibatches of the updates after the first `update`; None where there is no transition yet."""
        if not drawable(self._ring):
            return None
        packed, slots = self._draw(update, count)
        self._tickets += 1
        newest = self._ring.added - 1
        self._drawn[self._tickets] = newest - (newest - slots) % self._ring.replay_size  # the numbers of the rows
        self._drawn.pop(self._tickets - KEPT, None)
        moments = None if self._moments is None else self._moments.state()
        return Drawn(packed, self._tickets, self._receipt(0), moments)

    def refresh(self, ticket: int, errors: np.ndarray) -> None:
        """Takes the TD errors of the first minibatches of a draw, `[count, ...]`; late ones are ignored."""
        if ticket not in self._drawn:
            return
        numbers = self._drawn.pop(ticket)[: len(errors)]
        held = numbers >= self._ring.added - self._ring.replay_size
        if held.any():
            self._draw.refresh(numbers[held] % self._ring.replay_size, errors.reshape(*numbers.shape, -1)[held])

    def return_range(self) -> tuple[float, float] | None:
        """See `tfdpg.replay.return_range`; None where there is no transition yet."""
        return return_range(self._ring, self._draw.gamma) if drawable(self._ring) else None

    def receipt(self) -> Receipt:
        """What the shard holds; its `steps` mean nothing."""
        return self._receipt(0)

    def rows(self, incarnation: int, counted: Mapping[int, int]) -> tuple[dict[str, Any], Receipt]:
        """Return the rows of all transitions that the learner has counted, as one segment, and what the shard holds.

        Args:
            incarnation: the process whose steps were counted; the steps of another one were not.
            counted: for each sub-environment, how many of its steps the learner has counted.
        """
        segment = whole(self._ring)
        counted = counted if incarnation == self._incarnation else {}
        dropped = np.zeros(len(segment["rows"]), bool)
        oldest = self._ring.added - len(dropped)
        for lane, chunks in self._chunks.items():
            for chunk in chunks:
                if chunk.steps > counted.get(lane, 0):
                    dropped[max(0, chunk.first - oldest) : max(0, chunk.stop - oldest)] = True
        return without(segment, dropped), self._receipt(0)

    def _receipt(self, steps: int) -> Receipt:
        return Receipt(self._incarnation, steps, self._ring.size)


def split(ring: Ring, parts: int) -> Iterator[dict[str, Any]]:
    """The rows of a ring as so many segments, the oldest first.

    A transition from one to the next is lost.
    """
    edges = [ring.added - ring.size + ring.size * part // parts for part in range(parts + 1)]
    for first, stop in itertools.pairwise(edges):
        yield alone(ring.segment(first, stop))


def without(segment: dict[str, Any], dropped: np.ndarray) -> dict[str, Any]:
    """Return a segment without some of its rows; no other row leads to them.

    Args:
        segment: rows, as `Ring.segment` gives them.
        dropped: which rows to leave out, bool `[rows]`.
    """
    if not dropped.any():
        return segment
    kept = np.flatnonzero(~dropped)
    places = np.cumsum(~dropped) - 1
    left = {name: values[kept] if np.ndim(values) else values for name, values in segment.items()}
    for name in LINKS:
        if name in left:
            target = np.minimum(kept + left[name], len(dropped) - 1)
            leads_on = (left[name] > 0) & ~dropped[target]
            left[name] = np.where(leads_on, places[target] - places[kept], 0).astype(np.int32)
    return left
