"""Train runs that are broken on purpose, and healthy ones, and print what `tfdpg diagnose` says first about each.

    python examples/broken_runs.py runs/broken

Run the script in the root directory of the repository. It trains the runs one after the other and prints the table of
docs/diagnosis.md. Each run on Pendulum-v1 takes 15 seconds, and the run on HalfCheetah-v5 takes five minutes. Runs
whose directories already exist are not trained again.
"""

import argparse
import contextlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tfdpg.cli import main

TD3 = ["td3", "--hidden-units", "64", "64", "--start-steps", "1000"]
"""The agent of the broken runs, with the settings of the quickstart."""
LENGTH = ["--epochs", "10", "--steps-per-epoch", "1000"]
ENV = "examples.broken_runs:pendulum"


def broken(*words: str, **kwargs: Any) -> list[str]:
    """Return the arguments of `tfdpg train` for a run with flags, on a pendulum with arguments."""
    made = ["--env-kwargs", *(f"{name}={value!r}" for name, value in kwargs.items())] if kwargs else []
    return [*TD3, "--env", ENV, *LENGTH, *words, *made]


RUNS = {
    "learning rates 100 times too large": broken("--pi-lr", "0.1", "--q-lr", "0.1"),
    "rewards times 1e-4": broken(reward=1e-4),
    "rewards times 1e4": broken(reward=1e4),
    "time limit reported as terminated": broken(terminates=True),
    "observations times 1e5": broken(observation=1e5),
    "gamma 0.5": broken("--gamma", "0.5"),
    "no exploration": broken("--act-noise", "0", "--start-steps", "0"),
    "no velocity in the observation": broken(velocity=False),
    "actions clipped to a tenth of their range": broken(action=10.0),
    "start_steps beyond the end": broken("--start-steps", "20000"),
    "sign error in the reward": broken(reward=-1.0),
    "healthy: TD3 on Pendulum-v1": [*TD3, "--env", "Pendulum-v1", *LENGTH],
    "healthy: DDPG on Pendulum-v1": ["ddpg", *TD3[1:], "--env", "Pendulum-v1", *LENGTH],
    "healthy: D4PG on Pendulum-v1": [
        *("d4pg", *TD3[1:], "--env", "Pendulum-v1", *LENGTH),
        *("--pi-lr", "1e-3", "--q-lr", "1e-3"),
    ],
    "healthy: TD3 on HalfCheetah-v5": [
        *("td3", "--env", "HalfCheetah-v5", "--start-steps", "5000", "--epochs", "8", "--steps-per-epoch", "5000"),
        *("--validation-episodes", "3"),
    ],
}
"""The arguments of `tfdpg train` for each run."""


def pendulum(
    reward: float = 1.0, observation: float = 1.0, action: float = 1.0, velocity: bool = True, terminates: bool = False
) -> gym.Env:
    """Make Pendulum-v1 with one mistake.

    Args:
        reward: factor of the rewards.
        observation: factor of the observations.
        action: factor of the bounds of the actions; actions are clipped to those of Pendulum-v1.
        velocity: whether the observation contains the angular velocity.
        terminates: whether the time limit is reported as `terminated`.
    """
    env = gym.make("Pendulum-v1")
    if reward != 1:
        env = gym.wrappers.TransformReward(env, lambda value: reward * value)
    if observation != 1:
        env = gym.wrappers.RescaleObservation(env, -observation, observation)
    if not velocity:
        space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        env = gym.wrappers.TransformObservation(env, lambda values: values[:2], space)
    if action != 1:
        space = spaces.Box(-2.0 * action, 2.0 * action, (1,), np.float32)
        env = gym.wrappers.TransformAction(env, lambda torque: np.clip(torque, -2.0, 2.0), space)
    return Terminating(env) if terminates else env


class Terminating(gym.Wrapper):
    """Reports truncated episodes as terminated."""

    def step(self, action: Any) -> Any:
        """Take a step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated or truncated, False, info


def run_directory(directory: Path, name: str, seed: int) -> Path:
    """Return the directory of a run."""
    words = "".join(letter if letter.isalnum() or letter == "-" else " " for letter in name).split()
    return directory / "-".join(words) / f"seed-{seed}"


def train(directory: Path, name: str, seed: int, flags: Sequence[str] = ()) -> None:
    """Train a run, unless its directory already exists.

    Args:
        directory: the directory of all runs.
        name: the name of the run.
        seed: its seed.
        flags: further flags of `tfdpg train`.
    """
    if not (run := run_directory(directory, name, seed)).exists():
        common = ["--run-dir", str(run.parent), "--seeds", str(seed), "--verbose", "0"]
        main(["train", *RUNS[name], *common, *flags])


def diagnose(directory: Path, name: str, seed: int) -> list[str]:
    """Return the names of the checks that find something in a run, the worst first."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        main(["diagnose", str(run_directory(directory, name, seed)), "--trusted", "--json"])
    return [found["check"] for found in json.loads(shown.getvalue())["findings"]]


def table(directory: Path, names: Sequence[str], seeds: Sequence[int]) -> str:
    """Train and diagnose runs, and return the table as Markdown."""
    lines = ["| run | seed | first verdict | further verdicts |", "|---|---|---|---|"]
    for name in names:
        for seed in seeds:
            train(directory, name, seed)
            first, *others = diagnose(directory, name, seed) or ["nothing found"]
            lines.append(f"| {name} | {seed} | {first} | {', '.join(others)} |")
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("directory", type=Path, help="directory of the runs")
    made.add_argument("--runs", nargs="+", choices=list(RUNS), default=list(RUNS), help="names of runs")
    made.add_argument("--seeds", nargs="+", type=int, default=[0], help="seeds")
    return made


if __name__ == "__main__":
    given = parser().parse_args()
    print(table(given.directory, given.runs, given.seeds))
