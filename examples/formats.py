"""Print the table of docs/formats.md: the differences between the outputs of each format and those of the agents.

    python examples/formats.py                      # all rows, some minutes
    python examples/formats.py --agents TD3 ddpg    # only rows whose names begin with TD3 or ddpg

The models of exported_models/ are converted to each format. They are compared on 1,000 observations of episodes in
which the policy acts. A few small agents cover options that none of these models has. They train for 300 steps and are
compared on eight observations, like every export.
"""

import argparse
import functools
import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import tfdpg
from tfdpg import export
from tfdpg.export.source import Source
from tfdpg.export.verify import differences, in_session
from tfdpg.exported import LEVELS
from tfdpg.formats.convert import FORMATS as RUNTIMES

FORMATS = ("litert", "onnx", "c")
MODELS = Path(__file__).parents[1] / "exported_models"
SMALL = {"hidden_units": (64, 64), "batch_size": 32, "replay_size": 2000, "jit_compile": False}
USUAL = SMALL | {"start_steps": 100, "update_after": 100}
RECURRENT_OPTIONS = USUAL | {"recurrent_units": 32, "sequence_length": 10, "burn_in": 5, "gradient_steps": 5}
EMBEDDINGS = {"embedding_units": 32, "encoder_units": (32, 32), "update_every": 5}
SEEN = ("observation", "action", "reward")


class Parts(gym.ObservationWrapper):
    """A pendulum whose observation is a dict."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        low = env.observation_space.low
        high = env.observation_space.high
        parts = {"angle": gym.spaces.Box(low[:2], high[:2]), "velocity": gym.spaces.Box(low[2:], high[2:])}
        self.observation_space = gym.spaces.Dict(parts)

    def observation(self, observation: np.ndarray) -> dict[str, np.ndarray]:
        """Return the parts of an observation."""
        return {"angle": observation[:2], "velocity": observation[2:]}


def pendulum() -> gym.Env:
    """Make a pendulum with Box observations and Box actions."""
    return gym.make("Pendulum-v1")


def parts() -> gym.Env:
    """Make a pendulum with Dict observations and Box actions."""
    return Parts(pendulum())


Make = tuple[Callable[..., Any], Callable[[], gym.Env], dict[str, Any]]
AGENTS: dict[str, Make] = {
    'TD3, `norm="batch"`, normalised observations': (
        tfdpg.TD3,
        pendulum,
        USUAL | {"norm": "batch", "normalize_observations": True},
    ),
    "TD3, Dict observations": (tfdpg.TD3, parts, USUAL),
    "TD7": (tfdpg.TD7, pendulum, USUAL | EMBEDDINGS),
    'TD7, `norm="batch"`, no target networks': (
        tfdpg.TD7,
        pendulum,
        USUAL | EMBEDDINGS | {"norm": "batch", "target_networks": False, "keep_best_policy": False},
    ),
    'DDPG, `recurrent="gru"`, remembers rewards': (
        tfdpg.DDPG,
        pendulum,
        RECURRENT_OPTIONS | {"recurrent": "gru", "remembers": SEEN},
    ),
    'D4PG, `recurrent="lstm"`, two layers': (
        tfdpg.D4PG,
        pendulum,
        RECURRENT_OPTIONS | {"recurrent": "lstm", "recurrent_units": (16, 16), "v_min": -500, "v_max": 0},
    ),
}
"""For each row with a small agent: its class, a function that makes its environment, and its options."""
ROWS = [f"`{path.name}`" for path in sorted(MODELS.iterdir())] + list(AGENTS)
"""The rows of the table: the models of exported_models/, and the small agents."""


def row(name: str, formats: tuple[str, ...] = FORMATS) -> dict[str, str]:
    """Return, for each format, its differences from an exported model or a small agent, as a cell of the table."""
    with tempfile.TemporaryDirectory() as directory:
        targets = {format: Path(directory) / format for format in formats}
        if name not in AGENTS:
            version = MODELS / name.strip("`") / "1"
            return {format: cell(*converted(version, target, format)) for format, target in targets.items()}
        make, make_env, options = AGENTS[name]
        env = make_env()
        agent = make(env, seed=0, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the run is too short to learn anything, and warns about it
            agent.fit(env, epochs=1, steps_per_epoch=300, verbose=0)
        return {format: cell(*exported(agent, target, format)) for format, target in targets.items()}


def exported(agent: tfdpg.Agent, directory: Path, format: Any) -> tuple[Path, dict[str, float]]:
    """Export an agent, and return the differences that `tfdpg.json` states."""
    agent.export(directory, format=format)
    signatures = json.loads((directory / "tfdpg.json").read_text())["signatures"]
    return directory, {name: signature["difference"] for name, signature in signatures.items()}


def converted(version: Path, directory: Path, format: str) -> tuple[Path, dict[str, float]]:
    """Convert an exported model, and measure the differences of its signatures on observations of its environment."""
    export.convert(version, directory, format)
    source = Source(version)
    policy = tfdpg.load(version)
    environment = source.metadata["environment"]
    observations = export.observations_of_export(source.spec, policy, environment, source.observations).values
    with in_session(version) as saved, RUNTIMES[format].run(source, directory) as run:
        given = dict(observations)
        if source.recurrent_spec is None:
            given |= saved("pi_and_q", observations)
            given |= {"a": given["pi"], "levels": np.tile(np.array(LEVELS, np.float32), (len(given["pi"]), 1))}
        cases = {
            name: [{key: given[key] for key in inputs[-1]}] if set(inputs[-1]) <= set(given) else inputs
            for name, inputs in source.cases.items()
        }
        if source.recurrent_spec is not None:
            # also compare steps of the policy from an initial state with these observations
            cases["pi"] = [*source.cases["pi"], _first_steps(source, saved, observations)]
        source.cases = cases
        references = {name: functools.partial(saved, name) for name in cases}
        names = list(json.loads((directory / "tfdpg.json").read_text())["signatures"])
        return directory, differences(source, run, references, names)


def _first_steps(source: Source, saved: Any, observations: Any) -> dict[str, np.ndarray]:
    """Return the inputs of `pi` at the first step of an episode for each observation."""
    count = len(next(iter(observations.values())))
    return dict(observations) | saved("initial_state", {"batch": np.array(count, np.int32)})


def cell(directory: Path, measured: dict[str, float]) -> str:
    """Format the largest differences of actions and of critic outputs, and the signatures that the format lacks."""
    metadata = json.loads((directory / "tfdpg.json").read_text())
    kinds: dict[str, float] = {}
    for name, difference in measured.items():
        kind = "pi" if name in ("pi", "initial_state", "distribution") else "critics"
        kinds[kind] = max(kinds.get(kind, 0), difference)
    descriptions = [f"{kind} {difference:.0e}" for kind, difference in kinds.items()]
    reasons: dict[str, list[str]] = {}
    left_out = metadata["left_out"] if metadata["export_format"] != "c" else {}  # what is there has its number
    for name, reason in left_out.items():
        reasons.setdefault(reason, []).append(f"`{name}`")
    return "; ".join([", ".join(descriptions), *(f"no {', '.join(names)}: {why}" for why, names in reasons.items())])


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", nargs="+", default=[""], help="only rows whose names begin with one of these")
    return parser


if __name__ == "__main__":
    chosen = tuple(parser().parse_args().agents)
    print(f"| agent | {' | '.join(FORMATS)} |\n|---|{'---|' * len(FORMATS)}")
    for name in ROWS:
        if name.strip("`").startswith(chosen):
            print(f"| {name} | {' | '.join(row(name).values())} |", flush=True)
