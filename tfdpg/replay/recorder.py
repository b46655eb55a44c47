"""A recording of every transition, in files that `Agent.fit_offline` reads."""

import weakref
from pathlib import Path
from typing import Any

import numpy as np

from tfdpg import files
from tfdpg.arguments import positive_int
from tfdpg.replay.time_steps import TimeSteps
from tfdpg.spec import Packed, Spec


class Recorder:
    """Writes transitions to `directory/000000.npz`, `000001.npz`, ...; it takes what a `ReplayBuffer` takes.

    A file holds `observations`, `actions`, `rewards`, `terminations`, `truncations` and `next_observations`, a row
    for each transition; a Dict observation has `observations/<key>` for each key. Rewards are those that the replay
    stores.

    Args:
        directory: where to write; files that are there stay.
        spec: the spaces.
        rows: transitions in a file at most.
    """

    def __init__(self, directory: str | Path, spec: Spec, rows: int = 10_000):
        self.directory = Path(directory)
        self.spec = spec
        self._rows = positive_int("rows", rows)
        self._observations: dict[int, Packed] = {}
        self._last_transition: dict[int, int] = {}
        self._transitions: list[dict] = []
        weakref.finalize(self, _write, self.directory, self.spec, self._transitions)

    def begin(self, env_indices: np.ndarray, observation: Packed) -> None:
        """Opens an episode on each of `env_indices`, as `ReplayBuffer.begin`."""
        for i, env_index in enumerate(env_indices):
            self._observations[int(env_index)] = tuple(part[i].copy() for part in observation)

    def add(
        self,
        env_indices: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        next_observation: Packed,
    ) -> None:
        """Takes a transition of each lane, as `ReplayBuffer.add`."""
        if len(self._transitions) >= self._rows:
            self.flush()
        width = self.spec.act_dim  # what else is stored with a step stands behind the action
        for i, env_index in enumerate(map(int, env_indices)):
            following = tuple(part[i].copy() for part in next_observation)
            row = {
                "observation": self._observations[env_index],
                "action": action[i, :width].copy(),
                "reward": reward[i],
            }
            row |= {"terminated": bool(terminated[i]), "truncated": False, "next": following, "env_index": env_index}
            self._observations[env_index] = following
            self._last_transition[env_index] = len(self._transitions)
            self._transitions.append(row)

    def extend(self, env_index: int, rows: TimeSteps) -> None:
        """Takes successive rows of a lane, as `ReplayBuffer.extend`."""
        env_indices = np.array([env_index])
        for i, opens in enumerate(rows.is_first):
            row = rows.part(slice(i, i + 1))
            if opens:
                self.end(env_indices)
            if opens or env_index not in self._observations:
                self.begin(env_indices, row.observation)
            else:
                self.add(env_indices, row.action, row.reward, row.terminated, row.observation)

    def end(self, env_indices: np.ndarray) -> None:
        """Closes the episode on each of `env_indices`, as `ReplayBuffer.end`: what did not terminate was truncated."""
        for env_index in map(int, env_indices):
            last = self._last_transition.pop(env_index, None)
            if last is not None:
                self._transitions[last]["truncated"] = not self._transitions[last]["terminated"]
            self._observations.pop(env_index, None)

    def flush(self) -> None:
        """Writes what was not written yet."""
        _write(self.directory, self.spec, self._transitions)
        self._transitions.clear()
        self._last_transition.clear()


def _write(directory: Path, spec: Spec, rows: list[dict]) -> None:
    if not rows:
        return
    rows = sorted(rows, key=lambda row: row["env_index"])  # so that an episode's steps follow each other

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
