"""Steps per second of algorithms in a user's own file, compared with the same algorithm inside tfdpg.

    python examples/benchmarks/own_file.py --rounds 9 --core 0

The programs are the built-in TD3, the same source in a file of its own, and SAC of `examples/sac.py` with the name of a
module of tfdpg and as it is. Each trains on Pendulum-v1 with 64x64 networks and minibatches of 64, with one update
after each step and with 50 updates after every 50 steps. All run in one process that is pinned to a core, and take
turns in short rounds. Seconds are processor time, which other programs on the machine affect least. A ratio is the
median over the rounds.
"""

import argparse
import importlib.util
import os
import pathlib
import statistics
import time
import warnings
from typing import Any

import pinned

ROOT = pathlib.Path(__file__).parents[2]
SIZES = {"hidden_units": (64, 64), "batch_size": 64, "start_steps": 200, "update_after": 200}
PROGRAMS = {"TD3": "TD3 in an own file", "SAC in tfdpg": "SAC in an own file"}
"""Programs inside tfdpg, and the same outside of it."""


def from_file(path: pathlib.Path, module_name: str) -> Any:
    """Return a module made from the source of a file."""
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def agent_class(program: str) -> Any:
    """Return the class of a program."""
    import tfdpg

    if program == "TD3":
        return tfdpg.TD3
    if program == "TD3 in an own file":
        return from_file(ROOT / "tfdpg/agents/td3.py", "own_td3").TD3
    module_name = "tfdpg.agents.sac" if program == "SAC in tfdpg" else "own_sac"
    return from_file(ROOT / "examples/sac.py", module_name).SAC


def speed(agent: Any, steps: int) -> float:
    """Train, and return the steps per second of processor time."""
    began = time.process_time()
    with warnings.catch_warnings(action="ignore"):  # about a short run
        agent.fit("Pendulum-v1", epochs=1, steps_per_epoch=steps, verbose=0)
    return steps / (time.process_time() - began)


def main() -> None:
    """Measure all programs in turn; print the numbers of each round, and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=pinned.count, default=9)
    parser.add_argument("--steps", type=pinned.count, default=1000, help="steps of each program in a round")
    parser.add_argument("--core", type=int, default=0)
    args = parser.parse_args()
    os.sched_setaffinity(0, [args.core])
    os.environ |= dict.fromkeys(pinned.THREADS, "1")
    for every in (1, 50):
        names = [name for pair in PROGRAMS.items() for name in pair]
        agents = {name: agent_class(name)("Pendulum-v1", seed=0, update_every=every, **SIZES) for name in names}
        for agent in agents.values():
            speed(agent, 500)
        ratios: dict[str, list[float]] = {own: [] for own in PROGRAMS.values()}
        for _ in range(args.rounds):
            speeds = {name: speed(agent, args.steps) for name, agent in agents.items()}
            for inside, own in PROGRAMS.items():
                ratios[own].append(speeds[own] / speeds[inside])
            print(every, {name: round(number) for name, number in speeds.items()}, flush=True)
        for own, each in ratios.items():
            print(
                f"{every} updates after every {every} steps: {own} is {statistics.median(each):.2f} "
                f"({min(each):.2f} to {max(each):.2f}) times as fast as inside tfdpg",
                flush=True,
            )


if __name__ == "__main__":
    main()
