"""A recording of every transition, in files that `Agent.fit_offline` reads."""

import weakref
from pathlib import Path
from typing import Any

import numpy as np

from tfdpg import files
from tfdpg.arguments import positive_int
from tfdpg.replay.rows import Rows
from tfdpg.spec import Packed, Spec


class Recorder:
    """Writes transitions to `directory/000000.npz`, `000001.npz`, ...; it takes what a `Ring` takes.

    A file holds `observations`, `actions`, `rewards`, `terminations`, `truncations` and `next_observations`, a row
    for each transition; a Dict observation has `observations/<key>` for each key. Rewards are those that the replay
    stores.

    Args:
        directory: where to write; files that are there stay.
        spec: the spaces.
        rows: transitions in a file at most.
    """

    def __init__(self, directory: str | Path, spec: Spec, rows: int = 10_000):
        self.directory, self.spec, self._rows = Path(directory), spec, positive_int("rows", rows)
        self._observations: dict[int, Packed] = {}
        self._waiting: dict[int, int] = {}
        self._buffer: list[dict] = []
        weakref.finalize(self, _write, self.directory, self.spec, self._buffer)

    def begin(self, lanes: np.ndarray, observation: Packed) -> None:
        """Opens an episode on each of `lanes`, as `Ring.begin`."""
        for i, lane in enumerate(lanes):
            self._observations[int(lane)] = tuple(part[i].copy() for part in observation)

    def add(
        self,
        lanes: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        next_observation: Packed,
    ) -> None:
        """Takes a transition of each lane, as `Ring.add`."""
        if len(self._buffer) >= self._rows:
            self.flush()
        width = self.spec.act_dim  # what else is stored with a step stands behind the action
        for i, lane in enumerate(map(int, lanes)):
            following = tuple(part[i].copy() for part in next_observation)
            row = {"observation": self._observations[lane], "action": action[i, :width].copy(), "reward": reward[i]}
            row |= {"terminated": bool(terminated[i]), "truncated": False, "next": following, "lane": lane}
            self._observations[lane], self._waiting[lane] = following, len(self._buffer)
            self._buffer.append(row)

    def extend(self, lane: int, rows: Rows) -> None:
        """Takes successive rows of a lane, as `Ring.extend`."""
        lanes = np.array([lane])
        for i, opens in enumerate(rows.first):
            row = rows.part(slice(i, i + 1))
            if opens:
                self.end(lanes)
            if opens or lane not in self._observations:
                self.begin(lanes, row.observation)
            else:
                self.add(lanes, row.action, row.reward, row.terminated, row.observation)

    def end(self, lanes: np.ndarray) -> None:
        """Closes the episode on each of `lanes`, as `Ring.end`: what did not terminate was truncated."""
        for lane in map(int, lanes):
            last = self._waiting.pop(lane, None)
            if last is not None:
                self._buffer[last]["truncated"] = not self._buffer[last]["terminated"]
            self._observations.pop(lane, None)

    def flush(self) -> None:
        """Writes what was not written yet."""
        _write(self.directory, self.spec, self._buffer)
        self._buffer.clear()
        self._waiting.clear()


def _write(directory: Path, spec: Spec, rows: list[dict]) -> None:
    if not rows:
        return
    rows = sorted(rows, key=lambda row: row["lane"])  # so that an episode's steps follow each other

    def observations(name: str, key: str) -> dict[str, np.ndarray]:
        packed = tuple(np.stack(parts) for parts in zip(*(row[key] for row in rows), strict=True))
        leaves = spec.unpack(packed)
        return {f"{name}/{leaf}": values for leaf, values in leaves.items()} if spec.is_dict else {name: leaves["x"]}

    arrays: dict[str, Any] = observations("observations", "observation") | observations("next_observations", "next")
    names = {"actions": "action", "rewards": "reward", "terminations": "terminated", "truncations": "truncated"}
    arrays |= {name: np.stack([row[key] for row in rows]) for name, key in names.items()}
    directory.mkdir(parents=True, exist_ok=True)
    numbers = [int(file.stem) for file in directory.glob("*.npz") if file.stem.isdigit()]
    path = directory / f"{max(numbers, default=-1) + 1:06}.npz"
    with files.writing(path, lambda: sum(array.nbytes for array in arrays.values())), open(path, "xb") as file:
        np.savez(file, **arrays)
