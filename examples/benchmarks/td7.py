"""Updates per second of TD7 in tfdpg and in its authors' program (torch), and of TD3 and the recipes, in one run.

    pip install torch
    git clone https://github.com/sfujim/TD7 /tmp/TD7
    python examples/benchmarks/td7.py --authors /tmp/TD7 --rounds 3

Each program makes its updates in a process of its own, pinned to the same core, with the spaces of HalfCheetah-v5 and a
replay buffer of 10,000 transitions. Rounds are interleaved. TD7 has the sizes of the paper (256 units, minibatches of
256). TD3 has 256 units and minibatches of 256. The others are the recipes of these names. Without `--authors`, only
tfdpg is measured. Sampling is part of an update. tfdpg makes 50 updates in each call. The program also prints the time
that `act` takes.
"""

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pinned

FILLED = 10_000


def filled(agent: Any) -> Any:
    """Return the agent with a replay buffer of random transitions."""
    with warnings.catch_warnings(action="ignore"):  # about a run without updates
        agent.fit(gym.make("HalfCheetah-v5"), epochs=1, steps_per_epoch=FILLED, verbose=0)
    return agent


def tfdpg(kind: str) -> tuple[Callable[[int], Any], Callable[[np.ndarray], Any]]:
    """Return a function that makes updates and one that acts, with an agent of tfdpg."""
    import tfdpg

    options = {"start_steps": FILLED, "update_after": 10**9, "update_every": 50}
    plain = {"td3": {"batch_size": 256}, "td7": {"keep_best_policy": False}}
    sizes = plain.get(kind) or tfdpg.recipes.RECIPES[kind]
    make = getattr(tfdpg, tfdpg.recipes.AGENTS.get(kind, kind.upper()))
    agent = filled(make("HalfCheetah-v5", **sizes | options))
    return lambda updates: agent.learn(updates=updates), agent.act


def authors(clone: str) -> tuple[Callable[[int], Any], Callable[[np.ndarray], Any]]:
    """Return the same two functions with the authors' program, in the directory `clone`."""
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, clone)
    import TD7

    env = gym.make("HalfCheetah-v5")
    agent = TD7.Agent(17, 6, 1.0)
    observation, _ = env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(FILLED):
        action = env.action_space.sample()
        following, reward, terminated, truncated, _ = env.step(action)
        agent.replay_buffer.add(observation, action, following, reward, float(terminated))
        observation = env.reset()[0] if terminated or truncated else following
    return lambda updates: [agent.train() for _ in range(updates)], agent.select_action


PROGRAMS = ("td7", "authors", "lean", "embeddings", "normalized", "td3")


def measure(program: str, clone: str | None) -> list[float]:
    """Measure updates per second in this process, the best of three times 100, and the microseconds of an action."""
    learn, act = authors(clone) if program == "authors" and clone else tfdpg(program)
    observation = gym.make("HalfCheetah-v5").reset(seed=0)[0]
    learn(100)
    speeds = []
    for _ in range(3):
        began = time.perf_counter()
        learn(100)
        speeds.append(100 / (time.perf_counter() - began))
    times = []
    for _ in range(500):
        began = time.perf_counter()
        act(observation)
        times.append(time.perf_counter() - began)
    return [max(speeds), 1e6 * statistics.median(times)]


def main() -> None:
    """Measure all programs in turn; print the numbers of each round and the ratios of their medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--authors", help="a clone of the authors' repository")
    parser.add_argument("--rounds", type=pinned.count, default=3)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--child", choices=PROGRAMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(measure(args.child, args.authors))
        return
    found: dict[str, list[list[float]]] = {program: [] for program in PROGRAMS}
    if not args.authors:
        del found["authors"]
    for _ in range(args.rounds):
        for program, measured in found.items():
            words = ["--child", program, *["--authors", args.authors] * bool(args.authors)]
            measured.append(pinned.in_pinned_process(__file__, [args.core], *words))
        print({name: [round(x, 1) for x in measured[-1]] for name, measured in found.items()}, flush=True)
    speed, acting = (
        {name: statistics.median(each[i] for each in rounds) for name, rounds in found.items()} for i in (0, 1)
    )
    if args.authors:
        print(f"tfdpg makes {speed['td7'] / speed['authors']:.2f} times as many updates of TD7 a second as its authors")
    for name in ("td7", "lean", "embeddings", "normalized"):
        print(f"an update of {name} takes {speed['td3'] / speed[name]:.2f} times as long as one of TD3")
    print(f"acting takes TD7 {acting['td7'] / acting['td3']:.2f} times as long as TD3")


if __name__ == "__main__":
    main()
