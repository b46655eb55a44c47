"""Measure the minutes and steps to a score: TD3 in tfdpg, and TD3, SAC and CrossQ in Stable-Baselines3 and SBX.

    pip install -e '.[benchmark]'
    OUT=time-to-score.csv
    python examples/benchmarks/time_to_score.py --task HalfCheetah-v5 --seeds 0 1 --out $OUT --core 0

Each run is a separate process on one core, with one thread. Every 5,000 steps, its policy is evaluated without
exploration, on the same 10 episodes for all runs. A run ends when the mean of two consecutive evaluations reaches the
task's score (or the value of `--score`), or when its budget is spent. The clock includes the imports, and is stopped
during evaluations. tfdpg trains with the defaults of `TD3(env)`, and with each recipe of `tfdpg.recipes`. The other
libraries have the settings of rl-baselines3-zoo for these tasks, to which SBX's pages refer.

A line is appended to the CSV after each run. The script can be interrupted and started again: runs in the CSV are not
repeated, unless they did not reach the score with a smaller budget. At the end, the script prints the minutes and steps
of each run, and how many times as fast tfdpg is as the fastest of the others.
"""

import argparse
import csv
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pinned

SCORES = {"HalfCheetah-v5": 7500, "Hopper-v5": 2500, "Walker2d-v5": 3000, "Ant-v5": 3000}
EPISODES = 10
EVERY = 5000

Act = Callable[[Any], Any]
"""Maps an observation to the action of the policy."""
ShouldStop = Callable[[Act], bool]
"""Evaluates a policy after `EVERY` more steps, and returns whether the run is over."""

TD3_OF_THE_ZOO = {
    "learning_rate": 1e-3,
    "learning_starts": 10_000,
    "batch_size": 256,
    "train_freq": 1,
    "gradient_steps": 1,
    "policy_kwargs": {"net_arch": [400, 300]},
}
SAC_OF_THE_ZOO = {"learning_starts": 10_000}
CROSSQ_OF_THE_ZOO = {
    "learning_rate": 1e-3,
    "learning_starts": 5000,
    "policy_delay": 3,
    "policy_kwargs": {"net_arch": {"pi": [256, 256], "qf": [2048, 2048]}},
}
BASELINES = {
    "sb3 TD3": ("stable_baselines3", TD3_OF_THE_ZOO),
    "sb3 SAC": ("stable_baselines3", SAC_OF_THE_ZOO),
    "sbx TD3": ("sbx", TD3_OF_THE_ZOO),
    "sbx SAC": ("sbx", SAC_OF_THE_ZOO),
    "sbx CrossQ": ("sbx", CROSSQ_OF_THE_ZOO),
    "sbx CrossQ, 1024": ("sbx", {"learning_starts": 5000}),  # SBX's own defaults: smaller critics
}
PLAIN = "tfdpg TD3"


class Run(NamedTuple):
    """A run, as in a line of the CSV; `score` is the best mean of two consecutive evaluations."""

    contestant: str
    task: str
    seed: int
    reached: bool
    minutes: float
    steps: int
    score: float

    def answers(self, minutes: float, steps: int) -> bool:
        """Return whether the run reached the score or spent a budget of this size."""
        return self.reached or self.minutes >= minutes or self.steps >= steps


def recipes() -> dict[str, Mapping[str, Any]]:
    """Return the options of `tfdpg.recipes` by the names of the contestants."""
    return {f"tfdpg {name}": value for name, value in importlib.import_module("tfdpg.recipes").RECIPES.items()}


def train(contestant: str, task: str, seed: int, should_stop: ShouldStop) -> None:
    """Train a contestant until `should_stop` returns True."""
    import gymnasium as gym

    if contestant in BASELINES:
        _train_baseline(contestant, gym.make(task), seed, should_stop)
    else:
        _train_tfdpg(contestant, gym.make(task), seed, should_stop)


def _train_tfdpg(contestant: str, env: Any, seed: int, should_stop: ShouldStop) -> None:
    import keras

    import tfdpg
    from tfdpg.recipes import AGENTS

    class StopWhenScored(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = should_stop(agent)

    options = recipes().get(contestant, {})
    agent = getattr(tfdpg, AGENTS.get(contestant.removeprefix("tfdpg "), "TD3"))(env, seed=seed, **options)
    agent.fit(env, epochs=10**6, steps_per_epoch=EVERY, callbacks=[StopWhenScored()], verbose=0)


def _train_baseline(contestant: str, env: Any, seed: int, should_stop: ShouldStop) -> None:
    import numpy as np
    from stable_baselines3.common.noise import NormalActionNoise

    pinned.use_these_cores_in_torch()
    library, options = BASELINES[contestant]
    name = contestant.split()[1].rstrip(",")
    if name == "TD3":
        size = env.action_space.shape[0]
        options = options | {"action_noise": NormalActionNoise(np.zeros(size), 0.1 * np.ones(size))}
    model = getattr(importlib.import_module(library), name)("MlpPolicy", env, seed=seed, device="cpu", **options)
    over = False
    while not over:
        model.learn(EVERY, reset_num_timesteps=False)
        over = should_stop(lambda observation: model.predict(observation, deterministic=True)[0])


def evaluate(env: Any, act: Act) -> float:
    """Return the mean return of `EPISODES` episodes, which are the same for every policy."""
    total = 0.0
    for episode in range(EPISODES):
        observation, _ = env.reset(seed=episode)
        ended = False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(act(observation))
            total += reward
            ended = terminated or truncated
    return float(total / EPISODES)


def measure(contestant: str, task: str, seed: int, minutes: float, steps: int, goal: float) -> Run:
    """Train a contestant in this process, and return its run."""
    import gymnasium as gym

    env = gym.make(task)
    returns = []
    trained = 0.0
    began = time.perf_counter()
    run = Run(contestant, task, seed, False, 0.0, 0, float("-inf"))

    def should_stop(act: Act) -> bool:
        nonlocal trained, began, run
        trained += time.perf_counter() - began
        returns.append(evaluate(env, act))
        last = statistics.mean(returns[-2:]) if len(returns) > 1 else float("-inf")
        score = max(run.score, last)
        taken = EVERY * len(returns)
        run = run._replace(reached=last >= goal, minutes=trained / 60, steps=taken, score=score)
        print(f"{contestant}, {task}, seed {seed}: {taken} steps, {returns[-1]:.0f}", file=sys.stderr, flush=True)
        began = time.perf_counter()
        return run.answers(minutes, steps)

    train(contestant, task, seed, should_stop)
    return run


def read(file: Path) -> dict[tuple[str, str, int], Run]:
    """Return the last run in a CSV for each contestant, task and seed."""
    if not file.exists():
        return {}
    with file.open() as lines:
        rows = [
            Run(
                row["contestant"],
                row["task"],
                int(row["seed"]),
                row["reached"] == "True",
                float(row["minutes"]),
                int(row["steps"]),
                float(row["score"]),
            )
            for row in csv.DictReader(lines)
        ]
    return {row[:3]: row for row in rows}


def append(file: Path, run: Run) -> None:
    """Append a run to a CSV."""
    file.parent.mkdir(parents=True, exist_ok=True)
    is_new = not file.exists()
    with file.open("a", newline="") as lines:
        writer = csv.writer(lines)
        if is_new:
            writer.writerow(Run._fields)
        writer.writerow(run)


def report(runs: list[Run], scores: Mapping[str, float]) -> None:
    """Print a table for each task; `>` marks the numbers of runs that spent their budget without reaching the score."""
    for task in [task for task in scores if any(run.task == task for run in runs)]:
        names = dict.fromkeys(run.contestant for run in runs if run.task == task)
        of = {name: [run for run in runs if (run.contestant, run.task) == (name, task)] for name in names}
        others = [mean for mean in (_mean_minutes(of[name]) for name in names if not _is_ours(name)) if mean]
        print(f"\n{task} to {scores[task]}, one core, {EPISODES} episodes every {EVERY:,} steps")
        print(f"{'':22}{'minutes':>24}{'thousand steps':>24}{'best score':>12}  times as fast")
        for name in names:
            marks = [("" if run.reached else ">", run) for run in of[name]]
            minutes = ", ".join(f"{mark}{run.minutes:.1f}" for mark, run in marks)
            steps = ", ".join(f"{mark}{run.steps / 1000:.0f}" for mark, run in marks)
            mean = _mean_minutes(of[name])
            ratio = ""
            if _is_ours(name) and mean and others:
                ratio = f"{min(others) / mean:.2f}x"
            print(f"{name:22}{minutes:>24}{steps:>24}{max(run.score for run in of[name]):12.0f}  {ratio}")


def _is_ours(contestant: str) -> bool:
    return contestant.startswith("tfdpg")


def _mean_minutes(runs: list[Run]) -> float | None:
    """Return the mean over seeds; None if a run did not reach the score."""
    return statistics.mean(run.minutes for run in runs) if all(run.reached for run in runs) else None


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [PLAIN, *recipes(), *BASELINES]
    parser.add_argument("--task", choices=SCORES, action="append", help="a task; the default is all")
    parser.add_argument("--score", type=int, help="the score to reach; use a separate CSV for each score")
    parser.add_argument("--contestant", choices=names, action="append", help="agents to train; the default is all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--minutes", type=float, default=180, help="budget of a run in minutes of training")
    parser.add_argument("--steps", type=int, default=1_000_000, help="budget of a run in environment steps")
    parser.add_argument("--core", type=int, default=0, help="the core to which every process is pinned")
    parser.add_argument("--out", type=Path, default=Path("time-to-score.csv"), help="CSV to which runs are appended")
    parser.add_argument("--report", action="store_true", help="run nothing; print the table")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser


def main() -> None:
    """Make the runs that are not in the CSV, and print the tables."""
    arguments = parser().parse_args()
    budget = arguments.minutes, arguments.steps
    scores = dict.fromkeys(SCORES, arguments.score) if arguments.score else SCORES
    if arguments.child:
        task = arguments.task[0]
        run = measure(arguments.contestant[0], task, arguments.seeds[0], *budget, scores[task])
        print("\n" + json.dumps(run))
        return
    if not recipes():
        print("tfdpg.recipes is empty: tfdpg runs only as `TD3(env)`.", file=sys.stderr)
    contestants = [] if arguments.report else arguments.contestant or [PLAIN, *recipes(), *BASELINES]
    for task in arguments.task or SCORES:
        for seed in arguments.seeds:
            for contestant in contestants:
                known = read(arguments.out).get((contestant, task, seed))
                if known is None or not known.answers(*budget):
                    words = [f"--contestant={contestant}", f"--task={task}", f"--seeds={seed}", "--child"]
                    words += [f"--minutes={arguments.minutes}", f"--steps={arguments.steps}"]
                    words += [f"--score={arguments.score}"] * bool(arguments.score)
                    append(arguments.out, Run(*pinned.in_pinned_process(__file__, [arguments.core], *words)))
    if not (runs := list(read(arguments.out).values())):
        sys.exit(f"There is no run in {arguments.out}")
    report(runs, scores)


if __name__ == "__main__":
    main()
