"""The numbers in `info`: their means over the steps of each episode."""

from typing import Any

import numpy as np

HANDLED = {"is_success", "success", "executed_action", "intervention", "final_info", "final_obs", "episode"}
"""The entries of `info` that have a meaning of their own, or that Gymnasium adds."""


def is_number(value: Any) -> bool:
    """Return whether an entry of `info` is a real number or a bool, of Python or NumPy, that a float can hold."""
    if isinstance(value, int):
        return abs(value) < 2**63
    return isinstance(value, (float, np.floating, np.integer, np.bool_))


class InfoNumbers:
    """The numbers that an environment gave in `info` during the episodes that have not ended.

    Numbers are Python's and NumPy's scalars, also booleans. Anything else in `info` is ignored.

    Args:
        num_envs: the number of sub-environments.
        is_vector: whether `info` is that of a vector environment, with an array `[num_envs]` for each entry, and the
            sub-environments that gave it in a mask, whose name is that of the entry after an underscore.
    """

    def __init__(self, num_envs: int, is_vector: bool):
        self._num_envs = num_envs
        self._is_vector = is_vector
        self._sums: dict[str, np.ndarray] = {}
        self._counts: dict[str, np.ndarray] = {}

    def add(self, info: dict[str, Any], ended: np.ndarray) -> None:
        """Add the numbers of a step; `ended` says which sub-environments ended their episodes, `[num_envs]`."""
        if not self._is_vector:
            for name, value in info.items():
                if is_number(value) and name not in HANDLED:
                    self._add(name, 0, value)
            return
        final = info.get("final_info")
        if final is not None:  # in SAME_STEP mode, `info` is that of the reset where an episode ended
            self._add_arrays(final, ended)
            ended = ~ended
        self._add_arrays(info, np.ones(self._num_envs, bool) if final is None else ended)

    def means(self, env_index: int) -> dict[str, float]:
        """Return the mean of each number over the steps of the open episode in which it was given."""
        return {
            name: float(self._sums[name][env_index] / counts[env_index])
            for name, counts in self._counts.items()
            if counts[env_index]
        }

    def forget(self, env_indices: Any) -> None:
        """Begin new episodes in some sub-environments."""
        for values in (*self._sums.values(), *self._counts.values()):
            values[env_indices] = 0

    def _add_arrays(self, infos: dict[str, Any], counted: np.ndarray) -> None:
        for name, values in infos.items():
            are_numbers = (
                isinstance(values, np.ndarray) and values.shape == counted.shape and values.dtype.kind in "biuf"
            )
            is_mask = isinstance(name, str) and name[:1] == "_" and name[1:] in infos
            if are_numbers and name not in HANDLED and not is_mask:
                given = counted & infos.get(f"_{name}", True)
                self._add(name, given, values[given])

    def _add(self, name: str, where: Any, values: Any) -> None:
        if name not in self._sums:
            self._sums[name] = np.zeros(self._num_envs)
            self._counts[name] = np.zeros(self._num_envs, np.int64)
        self._sums[name][where] += values
        self._counts[name][where] += 1
