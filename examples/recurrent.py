"""Compare recurrent agents with others on tasks that hide a part of the state.

    python examples/recurrent.py                                      # TD3 with an LSTM on a pendulum without velocity
    python examples/recurrent.py --agent ddpg --recurrent gru --seeds 0 1 2
    python examples/recurrent.py --recurrent none                     # the same with feedforward networks
    python examples/recurrent.py --task recall-50                     # a cue to be remembered for 50 steps
    python examples/recurrent.py --task cheetah --steps 200000        # HalfCheetah-v5, positions only

Each run writes its evaluations to `runs/recurrent/<task>-<agent>-<recurrent>-<seed>.csv`.
"""

import argparse
import csv
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import tfdpg


class Hidden(gym.ObservationWrapper):
    """Hides some components of the observations of an environment.

    Args:
        env: an environment with one-dimensional Box observations.
        shown: the components that stay visible.
    """

    def __init__(self, env: gym.Env, shown: slice):
        super().__init__(env)
        self._shown = shown
        low = env.observation_space.low[shown]
        high = env.observation_space.high[shown]
        self.observation_space = gym.spaces.Box(low, high, dtype=env.observation_space.dtype)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Return the visible components."""
        return observation[self._shown]


class DelayedRecall(gym.Env):
    """Shows a cue, -1 or 1, once. Some steps later, the action must repeat it, with the reward -(action - cue)².

    A policy that does not remember the cue can do no better than the action 0, with a return of -1.

    Args:
        delay: steps between the cue and the action that is rewarded.
    """

    def __init__(self, delay: int):
        self._delay = delay
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,))  # the cue, and whether the action must repeat it now
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Start an episode, and return the observation with the cue."""
        super().reset(seed=seed)
        self._cue = float(self.np_random.choice([-1.0, 1.0]))
        self._step = 0
        return np.array([self._cue, 0.0], np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Take a step; the last action of the episode is compared with the cue."""
        is_last = self._step == self._delay
        reward = -float((action[0] - self._cue) ** 2) if is_last else 0.0
        self._step += 1
        return np.array([0.0, self._step == self._delay], np.float32), reward, is_last, False, {}


SMALL = {"hidden_units": (64, 64), "batch_size": 64, "start_steps": 1000, "update_after": 1000}
UNITS = {"recurrent_units": 32}
LONG = {"sequence_length": 51, "burn_in": 50, "gradient_steps": 10}  # one update every 5 steps
CHEETAH = {"hidden_units": (128, 128), "batch_size": 32, "gradient_steps": 15}  # one update, on 640 steps, every 3.3
TASKS: dict[str, tuple[Any, int, dict[str, Any], dict[str, Any]]] = {
    "pendulum": (lambda: Hidden(gym.make("Pendulum-v1"), slice(2)), 40_000, SMALL, UNITS),
    "recall-10": (lambda: DelayedRecall(10), 20_000, SMALL, UNITS | {"sequence_length": 11}),
    "recall-50": (lambda: DelayedRecall(50), 20_000, SMALL, UNITS | LONG),
    "cheetah": (lambda: Hidden(gym.make("HalfCheetah-v5"), slice(8)), 200_000, {}, CHEETAH),
}
"""For each task: a function that makes it, environment steps, options of all agents, options of recurrent agents."""


def train(task: str, agent: str, recurrent: str | None, seed: int, steps: int | None) -> Path:
    """Train one agent; return the file with its evaluations."""
    make_env, usual, options, memory = TASKS[task]
    if recurrent is not None:
        options = options | {"recurrent": recurrent} | memory
    env = make_env()
    history = getattr(tfdpg, agent.upper())(env, seed=seed, **options).fit(
        env,
        epochs=20,
        steps_per_epoch=(steps or usual) // 20,
        validation_env=make_env(),
        validation_episodes=10,
        verbose=2,
    )
    file = Path("runs/recurrent") / f"{task}-{agent}-{recurrent or 'none'}-{seed}.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    names = ("env_steps", "val_return", "val_return_std", "return", "steps_per_second")
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(names)
        writer.writerows(zip(*(history.history[name] for name in names), strict=True))
    return file


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, default="pendulum")
    parser.add_argument("--agent", choices=("td3", "ddpg", "d4pg"), default="td3")
    parser.add_argument("--recurrent", choices=("lstm", "gru", "rnn", "none"), default="lstm")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, help="environment steps; the default is the task's")
    return parser


if __name__ == "__main__":
    args = parser().parse_args()
    for seed in args.seeds:
        recurrent = None if args.recurrent == "none" else args.recurrent
        print(train(args.task, args.agent, recurrent, seed, args.steps))
