"""How far each format is from the agents: the table of docs/formats.md.

    python examples/formats.py                      # all agents, some minutes
    python examples/formats.py --agents TD3 ACER    # those whose names begin so

Each agent trains briefly, is exported in each format, and the largest differences are those of `tfdpg.json`.
"""

import argparse
import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import tfdpg

FORMATS = ("litert", "onnx", "c")
SMALL = {"hidden_units": (64, 64), "batch_size": 32, "replay_size": 2000, "jit_compile": False}
USUAL = SMALL | {"start_steps": 100, "update_after": 100}
ACER = SMALL | {"n_steps": 10, "replay_start": 10}
MEMORY = USUAL | {"recurrent_units": 32, "sequence_length": 10, "burn_in": 5, "gradient_steps": 5}
SEEN = ("observation", "action", "reward")


class Parts(gym.ObservationWrapper):
    """A pendulum whose observation is a dict."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        low, high = env.observation_space.low, env.observation_space.high
        parts = {"angle": gym.spaces.Box(low[:2], high[:2]), "velocity": gym.spaces.Box(low[2:], high[2:])}
        self.observation_space = gym.spaces.Dict(parts)

    def observation(self, observation: np.ndarray) -> dict[str, np.ndarray]:
        """The parts."""
        return {"angle": observation[:2], "velocity": observation[2:]}


def pendulum() -> gym.Env:
    """Box observations, Box actions."""
    return gym.make("Pendulum-v1")


def cart_pole() -> gym.Env:
    """Box observations, Discrete actions."""
    return gym.make("CartPole-v1")


def parts() -> gym.Env:
    """Dict observations, Box actions."""
    return Parts(pendulum())


Make = tuple[Callable[..., Any], Callable[[], gym.Env], dict[str, Any]]
AGENTS: dict[str, Make] = {
    "TD3": (tfdpg.TD3, pendulum, USUAL),
    'TD3, `norm="batch"`, normalised observations': (
        tfdpg.TD3,
        pendulum,
        USUAL | {"norm": "batch", "normalize_observations": True},
    ),
    "TD3, Dict observations": (tfdpg.TD3, parts, USUAL),
    'TD3, `recurrent="lstm"`': (tfdpg.TD3, pendulum, MEMORY | {"recurrent": "lstm"}),
    "DDPG": (tfdpg.DDPG, pendulum, USUAL),
    'DDPG, `recurrent="gru"`, remembers rewards': (
        tfdpg.DDPG,
        pendulum,
        MEMORY | {"recurrent": "gru", "remembers": SEEN},
    ),
    'D4PG, `critic="categorical"`': (tfdpg.D4PG, pendulum, USUAL | {"v_min": -500, "v_max": 0}),
    'D4PG, `critic="mixture"`': (tfdpg.D4PG, pendulum, USUAL | {"critic": "mixture"}),
    'D4PG, `critic="scalar"`': (tfdpg.D4PG, pendulum, USUAL | {"critic": "scalar"}),
    'D4PG, `recurrent="lstm"`, two layers': (
        tfdpg.D4PG,
        pendulum,
        MEMORY | {"recurrent": "lstm", "recurrent_units": (16, 16), "v_min": -500, "v_max": 0},
    ),
    "ACER, Box actions": (tfdpg.ACER, pendulum, ACER),
    "ACER, Discrete actions": (tfdpg.ACER, cart_pole, ACER),
}
"""For each row of the table what makes the agent, its environment and its options."""


def row(name: str, formats: tuple[str, ...] = FORMATS) -> dict[str, str]:
    """Trains an agent, and says of each format how far it is from it."""
    make, make_env, options = AGENTS[name]
    env = make_env()
    agent = make(env, seed=0, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the training is too short for anything, and says so
        agent.fit(env, epochs=1, steps_per_epoch=300, verbose=0)
    with tempfile.TemporaryDirectory() as directory:
        return {format: cell(agent.export(Path(directory) / format, format=format)) for format in formats}


def cell(directory: Path) -> str:
    """The largest differences of actions and of what critics give; and what the format has not got."""
    metadata = json.loads((directory / "tfdpg.json").read_text())
    kinds: dict[str, float] = {}
    for name, signature in metadata["signatures"].items():
        kind = "pi" if name in ("pi", "initial_state", "distribution") else "critics"
        kinds[kind] = max(kinds.get(kind, 0), signature["difference"])
    texts = [f"{kind} {difference:.0e}" for kind, difference in kinds.items()]
    reasons: dict[str, list[str]] = {}
    left_out = metadata["left_out"] if metadata["export_format"] != "c" else {}  # what is there has its number
    for name, reason in left_out.items():
        reasons.setdefault(reason, []).append(f"`{name}`")
    return "; ".join([", ".join(texts), *(f"no {', '.join(names)}: {why}" for why, names in reasons.items())])


def parser() -> argparse.ArgumentParser:
    """What the command line takes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", nargs="+", default=[""], help="how the names of the agents begin")
    return parser


if __name__ == "__main__":
    chosen = tuple(parser().parse_args().agents)
    print(f"| agent | {' | '.join(FORMATS)} |\n|---|{'---|' * len(FORMATS)}")
    for name in AGENTS:
        if name.startswith(chosen):
            print(f"| {name} | {' | '.join(row(name).values())} |", flush=True)
