"""Train a policy, export it, and continue from the export for 2,000 steps: does the policy get worse?

python examples/fine_tuning/compare.py --env Pendulum-v1 --seeds 0 1 2
python examples/fine_tuning/compare.py --env HalfCheetah-v5 --seeds 0 1
python examples/fine_tuning/compare.py --draw

The first two commands train the policy that is exported, unless runs/fine-tuning has it, and append a row for each
evaluation of the fine-tuned policies to results.csv in this directory. The last one draws fine_tuning.svg, the figure
of docs/fine-tuning.md, and prints its table.
"""

import argparse
import csv
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

import tfdpg
from examples.results.table import save
from tfdpg.plotting.figures import STYLE

RESULTS = Path(__file__).with_name("results.csv")
COLUMNS: tuple[str, ...] = "env", "setting", "seed", "step", "return"
STEPS = 2000


class Task(NamedTuple):
    """An environment, and the policy that is exported.

    Attributes:
        agent: the class of the agent.
        options: its options.
        epochs: the number of epochs for which it is trained.
        steps: the number of steps of an epoch.
        every: the number of steps between two evaluations of a fine-tuned policy.
        episodes: the number of episodes of an evaluation. All evaluations of a seed begin in the same states.
    """

    agent: type[tfdpg.Agent]
    options: dict[str, Any]
    epochs: int
    steps: int
    every: int
    episodes: int


TASKS = {
    "Pendulum-v1": Task(tfdpg.TD3, {"hidden_units": (64, 64), "start_steps": 1000}, 10, 1000, 250, 20),
    "HalfCheetah-v5": Task(tfdpg.TD7, tfdpg.recipes.embeddings, 20, 2000, 250, 5),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "2,000 warm-up updates": {"warm_up_updates": 2000},
    "bc_weight=0": {"bc_weight": 0.0},
    "bc_weight=0, 2,000 warm-up updates": {"bc_weight": 0.0, "warm_up_updates": 2000},
}
"""Options of `from_export`."""
COLOURS = dict(zip(SETTINGS, ("#0173b2", "#029e73", "#de8f05", "#cc78bc"), strict=True))


def exported(env: str, directory: Path, **options: Any) -> Path:
    """Return the exported policy, and train it first if there is none."""
    task = TASKS[env]
    if not directory.exists():
        agent: Any = task.agent(env, **task.options | options)
        agent.fit(env, epochs=task.epochs, steps_per_epoch=task.steps, verbose=0)
        agent.export(directory)
    return directory


def fine_tune(
    env: str, model: Path, setting: str, seed: int, *, steps: int = STEPS, **options: Any
) -> list[dict[str, Any]]:
    """Continue from an export, and return the rows of results.csv: one for each evaluation."""
    task = TASKS[env]
    agent: Any = task.agent.from_export(model, env, seed=seed, **SETTINGS[setting] | options)
    training, validation = gym.make(env), gym.make(env)
    rows = []
    for step in range(0, steps + 1, task.every):
        if step:
            epoch = step // task.every
            agent.fit(training, epochs=epoch, initial_epoch=epoch - 1, steps_per_epoch=task.every, verbose=0)
        score = agent.evaluate(validation, task.episodes, seed=1_000_000 + seed)["return"]
        rows.append(dict(zip(COLUMNS, (env, setting, seed, step, score), strict=True)))
    return rows


def append(rows: list[dict[str, Any]]) -> None:
    """Append rows to results.csv, and print their returns."""
    is_new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        for row in rows:
            writer.writerow(row | {"return": f"{row['return']:.6g}"})
    print(*rows[0].values(), *(f"{row['return']:.0f}" for row in rows[1:]), flush=True)


Curves = dict[str, dict[str, dict[int, list[tuple[int, float]]]]]
"""The evaluations of each seed, by task and setting: pairs of an environment step and a return."""


def curves() -> Curves:
    """Return the evaluations in results.csv."""
    found: Curves = {}
    with RESULTS.open(newline="") as file:
        for row in csv.DictReader(file):
            of_setting = found.setdefault(row["env"], {}).setdefault(row["setting"], {})
            of_setting.setdefault(int(row["seed"]), []).append((int(row["step"]), float(row["return"])))
    return found


def draw() -> None:
    """Write fine_tuning.svg, and print a row of the table for each task and setting."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    tasks = curves()
    style: Any = {**STYLE, "axes.grid": True}
    plt.rcParams.update(style)
    figure, axes = plt.subplots(1, len(tasks), figsize=(3.3 * len(tasks), 3.4), squeeze=False, layout="constrained")
    for axis, (task, settings) in zip(axes[0], tasks.items(), strict=True):
        for setting in SETTINGS:
            seeds = settings[setting]
            steps = np.array([step for step, _ in next(iter(seeds.values()))])
            returns = np.array([[score for _, score in curve] for curve in seeds.values()])
            axis.plot(steps, returns.T, color=COLOURS[setting], alpha=0.35, linewidth=1)
            axis.plot(steps, returns.mean(axis=0), color=COLOURS[setting], linewidth=2, label=setting)
            means = returns.mean(axis=0)
            each = ", ".join(f"{value:.0f}" for value in returns.min(axis=1))
            shown = f"{means[0]:.0f} | {means.min():.0f} | {each} | {statistics.fmean(returns[:, -1]):.0f}"
            print(f"| {task} | {setting} | {shown.replace('-', '−')} |")
        axis.set_title(task)
        axis.set_xlabel("environment steps")
    axes[0, 0].set_ylabel("return")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    save(figure, RESULTS.with_name("fine_tuning.svg"), "")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=TASKS, default="Pendulum-v1")
    parser.add_argument("--settings", choices=SETTINGS, nargs="+", default=list(SETTINGS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--draw", action="store_true", help="draw the figure from results.csv; nothing is trained")
    return parser


def main() -> None:
    """Fine-tune the policies, or draw the figure."""
    arguments = parser().parse_args()
    if arguments.draw:
        draw()
        return
    model = exported(arguments.env, Path("runs/fine-tuning") / arguments.env)
    for seed in arguments.seeds:
        for setting in arguments.settings:
            append(fine_tune(arguments.env, model, setting, seed))


if __name__ == "__main__":
    main()
