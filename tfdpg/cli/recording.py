"""Recording of evaluation episodes, in files that training, comparisons and plots read."""

import csv
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from tfdpg.arguments import reject
from tfdpg.spec import Spec
from tfdpg.training.environment.env_runner import EXECUTED
from tfdpg.training.environment.info_numbers import HANDLED, is_number
from tfdpg.training.environment.step_parsing import batched

MOST_COLUMNS = 1000
"""Observations with more numbers, such as images, are only in the .npz files."""


def check_directory(directory: Path) -> None:
    """Raise `ValueError` unless a directory is new or empty."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise reject("record", "a new or an empty directory", str(directory))


class StepRecorder(gym.Wrapper):
    """Writes the steps of each episode to `directory/0000.npz` and `directory/0000.csv`, `0001.npz` and so on.

    The .npz file has the arrays of `Agent.fit_offline`, and `infos/<name>` for each number in `info`, NaN in steps
    without it. The .csv file has the same in columns. An episode that ends before its last step is truncated. If the
    numbers of an observation have names, these are the array `observation_names` of the .npz file.

    Args:
        env: the environment.
        directory: a new or an empty directory, which is made with the first episode.
        names: a name for each number of an observation; None for no names.
    """

    def __init__(self, env: gym.Env, directory: Path, names: Sequence[str] | None = None):
        super().__init__(env)
        self._names = {} if names is None else {"observation_names": np.array(names)}
        self._directory = directory
        self._spec = Spec.of(env)
        self._episode = 0
        self._steps: list[dict[str, Any]] = []
        self._infos: list[dict[str, float]] = []

    def reset(self, **kwargs: Any) -> Any:
        """Reset the environment; write the last episode."""
        self._write()
        observation, info = super().reset(**kwargs)
        self._observation = self._named(observation)
        return observation, info

    def step(self, action: Any) -> Any:
        """Take a step, and record it."""
        result = super().step(action)
        observation, reward, terminated, truncated, info = result
        following = self._named(observation)
        self._steps.append(
            {f"observations{name}": part for name, part in self._observation.items()}
            | {"actions": np.array(info.get(EXECUTED, action)), "rewards": float(reward)}
            | {"terminations": bool(terminated), "truncations": bool(truncated)}
            | {f"next_observations{name}": part for name, part in following.items()}
        )
        self._infos.append(
            {
                name: float(value)
                for name, value in info.items()
                if is_number(value) and name not in HANDLED - {"is_success", "success"}
            }
        )
        self._observation = following
        return result

    def close(self) -> None:
        """Close the environment; write the last episode."""
        self._write()
        super().close()

    def _named(self, observation: Any) -> dict[str, np.ndarray]:
        """Return copies of the parts of an observation, by "/<name>", or by "" if it has no parts."""
        parts = self._spec.by_name(batched(self._spec, observation))
        return {f"/{name}" if self._spec.is_dict else "": np.array(part[0]) for name, part in parts.items()}

    def _write(self) -> None:
        if not self._steps:
            return
        last = self._steps[-1]
        last["truncations"] |= not last["terminations"]
        arrays = {name: np.stack([step[name] for step in self._steps]) for name in last}
        for name in sorted({name for info in self._infos for name in info}):
            arrays[f"infos/{name}"] = np.array([info.get(name, np.nan) for info in self._infos])
        self._directory.mkdir(parents=True, exist_ok=True)
        file = self._directory / f"{self._episode:04}"
        save: Any = np.savez
        save(file.with_suffix(".npz"), **arrays, **self._names)
        columns = {"episode": itertools.repeat(self._episode), "step": range(len(self._steps))}
        columns |= {name: values for name, values in table_columns(arrays)}
        with open(file.with_suffix(".csv"), "w", newline="") as text:
            writer = csv.writer(text)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=False))
        self._episode += 1
        self._steps, self._infos = [], []


COLUMNS = {"observations": "obs", "next_observations": "next_obs", "actions": "action", "rewards": "reward"}
COLUMNS |= {"terminations": "terminated", "truncations": "truncated", "infos": "info"}
"""The names of columns for those of arrays."""


def table_columns(arrays: dict[str, np.ndarray]) -> Iterator[tuple[str, list[Any]]]:
    """Yield a column for each number in each row of the arrays, with the names of `table_arrays`."""
    for name, values in arrays.items():
        kind, _, part = name.partition("/")
        column = "_".join(filter(None, [COLUMNS[kind], part]))
        rows = values.reshape(len(values), -1)
        if rows.shape[1] > MOST_COLUMNS:
            continue
        if values.ndim == 1:
            yield column, values.tolist()
        else:
            yield from ((f"{column}_{i}", rows[:, i].tolist()) for i in range(rows.shape[1]))
