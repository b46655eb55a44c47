"""The time between two steps of a machine that has a clock, while an agent learns: `fit(realtime=True)`.

    python examples/benchmarks/realtime.py --agents TD3 TD7 D4PG TD3-LSTM --hz 100 --steps 20000 --cores 0
    python examples/benchmarks/realtime.py --agents TD3 --hz 50 100 250 --steps 20000 --cores 0 1

The machine is HalfCheetah-v5 behind a clock: `step` receives an action, waits for the next tick of the clock, and
returns the observation at that tick. The overhead is the time from the return of `step` or `reset` until the next call
of `step`, in which the agent stores the step and computes the next action. The first steps, before learning begins, do
not count.

First, the script measures how many updates per second the agent makes when it only learns. It then asks for one update
per step, or for fewer if that is more than `--load` of this speed. Each agent trains in a process of its own, which is
pinned to the cores. Nothing else should run on them.
"""

import argparse
import json
import math
import os
import time
from typing import Any

import pinned

PERCENTILES = 50, 99, 99.9, 100
AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "TD3": ("TD3", {}),
    "TD7": ("TD7", {}),
    "D4PG": ("D4PG", {}),
    "TD3-LSTM": ("TD3", {"recurrent": "lstm", "hidden_units": (64, 64), "batch_size": 64}),
}
"""The class and the options of each agent; other options have their defaults."""
LEARNS_AFTER = 1000
"""The number of environment steps before the first update."""


def plant(hz: float) -> Any:
    """Return an environment with a clock, which records when it is called and when it returns."""
    import gymnasium as gym

    class Plant(gym.Wrapper):
        def __init__(self):
            super().__init__(gym.make("HalfCheetah-v5"))
            self.overheads: list[float] = []
            self.tick = self.returned = time.perf_counter()
            self.lost = 0
            self.on_step = lambda: None

        def reset(self, **arguments: Any) -> Any:
            result = super().reset(**arguments)
            self.tick = self.returned = time.perf_counter()
            return result

        def step(self, action: Any) -> Any:
            called = time.perf_counter()
            self.overheads.append(called - self.returned)
            self.tick += 1 / hz
            while self.tick < called:  # the action is late: a tick is lost
                self.tick += 1 / hz
                self.lost += 1
            time.sleep(max(0.0, self.tick - time.perf_counter()))
            result = super().step(action)
            self.on_step()
            self.returned = time.perf_counter()
            return result

    return Plant()


def updates_per_second(make: Any, options: dict[str, Any]) -> float:
    """Return how many updates per second an agent makes that only learns."""
    import gymnasium as gym

    agent = make("HalfCheetah-v5", seed=0, start_steps=LEARNS_AFTER, update_after=LEARNS_AFTER, **options)
    with gym.make("HalfCheetah-v5") as env:
        agent.fit(env, epochs=1, steps_per_epoch=LEARNS_AFTER + 100, verbose=0)  # compiles
    agent.learn(updates=50)
    done = agent.updates
    began = time.perf_counter()
    while (seconds := time.perf_counter() - began) < 10:
        agent.learn(updates=50)
    return (agent.updates - done) / seconds


def measure(name: str, hz: float, steps: int, load: float) -> dict[str, Any]:
    """Train an agent in real time; return its overheads and the updates that it made."""
    import numpy as np

    import tfdpg

    class_name, options = AGENTS[name]
    make = getattr(tfdpg, class_name)
    alone = updates_per_second(make, options)
    every = max(1, math.ceil(hz / (load * alone)))
    schedule = {"start_steps": LEARNS_AFTER, "update_after": LEARNS_AFTER, "update_every": every, "gradient_steps": 1}
    env = plant(hz)
    agent = make(env, seed=0, **schedule, **options)
    late = 0  # updates that are due at the last step, and not made yet

    def count() -> None:
        nonlocal late
        late = agent.data.schedule.late

    env.on_step = count
    history = agent.fit(env, epochs=1, steps_per_epoch=LEARNS_AFTER + steps, realtime=True, verbose=0).history
    wanted, made = (history[name][0] * agent.env_steps for name in ("updates_per_step_wanted", "updates_per_step"))
    overheads = 1000 * np.array(env.overheads[LEARNS_AFTER:])
    return {
        "agent": name,
        "cores": sorted(os.sched_getaffinity(0)),
        "hz": hz,
        "overhead_ms": [float(np.percentile(overheads, share)) for share in PERCENTILES],
        "late": float(np.mean(overheads > 100 / hz)),
        "lost_ticks": env.lost,
        "alone": alone,
        "wanted": hz / every,
        "made": (made - late) / wanted,
    }


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", choices=AGENTS, nargs="+", default=list(AGENTS))
    parser.add_argument("--hz", type=float, nargs="+", default=[100.0], help="rates of the machine's clock")
    parser.add_argument("--steps", type=pinned.count, default=20_000, help="steps while the agent learns")
    parser.add_argument("--cores", type=int, nargs="+", default=[0], help="the cores of each process")
    parser.add_argument("--load", type=float, default=0.8, help="largest share of the speed of learning alone")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser


def main() -> None:
    """Measure all agents, and print a row of a table for each."""
    args = parser().parse_args()
    if args.child:
        print("\n" + json.dumps(measure(args.agents[0], args.hz[0], args.steps, args.load)))
        return
    titles = "agent", "cores", "Hz", "p50 ms", "p99 ms", "p99.9 ms", "max ms", "> 10 % of a period"
    titles += "lost ticks", "alone /s", "wanted /s", "made"
    print("| " + " | ".join(titles) + " |\n" + "|---" * len(titles) + "|", flush=True)
    for hz in args.hz:
        for name in args.agents:
            words = "--child", "--agents", name, "--hz", str(hz), "--steps", str(args.steps), "--load", str(args.load)
            result = pinned.in_pinned_process(__file__, args.cores, *words)
            milliseconds = [f"{value:.2f}" for value in result["overhead_ms"]]
            rates = [f"{result['alone']:.0f}", f"{result['wanted']:.0f}", f"{result['made']:.1%}"]
            cells = [name, str(len(args.cores)), f"{hz:g}", *milliseconds, f"{result['late']:.2%}"]
            print("| " + " | ".join([*cells, str(result["lost_ticks"]), *rates]) + " |", flush=True)


if __name__ == "__main__":
    main()
