"""Record every transition in files that `Agent.fit_offline` reads."""

import contextlib
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from tfdpg import files
from tfdpg.arguments import positive_int
from tfdpg.replay.buffer import TimeSteps
from tfdpg.spec import Packed, Spec


class Recorder:
    """Write transitions to `directory/000000.npz`, `000001.npz`, ...; it has the methods with which a buffer is filled.

    A file contains `observations`, `actions`, `rewards`, `terminations`, `truncations` and `next_observations`, with a
    row for each transition; a Dict or Tuple observation has an array `observations/<name>` for each part (see
    `tfdpg.Spec`). Rewards are those that the replay buffer stores.

    Args:
        directory: the directory; existing files are not overwritten.
        spec: the spaces of the environment.
        rows: maximum number of transitions in a file, at least 1.

    Example:
        ```python
        recorder = tfdpg.replay.Recorder("transitions", tfdpg.Spec.of(env), rows=50_000)
        agent = tfdpg.TD3(env, recorders=[recorder])
        ```
    """

    def __init__(self, directory: str | Path, spec: Spec, rows: int = 10_000):
        self.directory = Path(directory)
        self.spec = spec
        self._rows = positive_int("rows", rows)
        self._observations: dict[int, Packed] = {}
        self._last_transition: dict[int, dict] = {}
        self._transitions: list[dict] = []
        weakref.finalize(self, _write, self.directory, self.spec, self._transitions)

    def begin(self, env_indices: np.ndarray, observation: Packed) -> None:
        """Open an episode in each of the sub-environments; see `ReplayBuffer.begin`."""
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
        """Record a step of each of the sub-environments; see `ReplayBuffer.add`."""
        if len(self._transitions) >= self._rows:
            self.flush()
        for i, env_index in enumerate(map(int, env_indices)):
            following = tuple(part[i].copy() for part in next_observation)
            transition = {
                "observation": self._observations[env_index],
                "action": action[i, : self.spec.act_dim].copy(),  # other stored columns follow the action
                "reward": reward[i],
                "terminated": bool(terminated[i]),
                "truncated": False,
                "next": following,
                "env_index": env_index,
            }
            self._observations[env_index] = following
            self._last_transition[env_index] = transition
            self._transitions.append(transition)

    def extend(self, env_index: int, rows: TimeSteps) -> None:
        """Record successive rows of a sub-environment; see `ReplayBuffer.extend`."""
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
        """Close the episode in each of the sub-environments; it is truncated unless its last step terminated it."""
        for env_index in map(int, env_indices):
            last = self._last_transition.pop(env_index, None)
            if last is not None:
                last["truncated"] = not last["terminated"]
            self._observations.pop(env_index, None)

    @property
    def is_half_full(self) -> bool:
        """Whether half of the transitions of a file are not in a file yet."""
        return 2 * len(self._transitions) >= self._rows

    def flush(self, lock: contextlib.AbstractContextManager[Any] | None = None) -> None:
        """Write the transitions that are not in a file yet. `fit` calls this when it ends.

        Args:
            lock: held while the transitions are taken, if another thread records steps; None if there is no other one.

        Raises:
            tfdpg.files.DiskFullError: the disk is full.
        """
        with lock or contextlib.nullcontext():
            count = len(self._transitions)
            rows = self._transitions[:count]
        _write(self.directory, self.spec, rows)
        with lock or contextlib.nullcontext():
            del self._transitions[:count]


def _write(directory: Path, spec: Spec, rows: list[dict]) -> None:
    if not rows:
        return
    rows = sorted(rows, key=lambda row: row["env_index"])  # so that the steps of an episode are contiguous

    def observations(name: str, key: str) -> dict[str, np.ndarray]:
        packed = tuple(np.stack(parts) for parts in zip(*(row[key] for row in rows), strict=True))
        leaves = spec.unpack(packed)
        return {f"{name}/{leaf}": values for leaf, values in leaves.items()} if spec.is_dict else {name: leaves["x"]}

    arrays: dict[str, Any] = observations("observations", "observation") | observations("next_observations", "next")
    names = {"actions": "action", "rewards": "reward", "terminations": "terminated", "truncations": "truncated"}
    arrays |= {name: np.stack([row[key] for row in rows]) for name, key in names.items()}
    directory.mkdir(parents=True, exist_ok=True)
    numbers = [int(file.stem) for file in directory.glob("*.npz") if file.stem.isdecimal()]
    path = directory / f"{max(numbers, default=-1) + 1:06}.npz"
    with files.writing(path, lambda: sum(array.nbytes for array in arrays.values())), open(path, "xb") as file:
        np.savez(file, **arrays)
