"""Train TD3 with and without the option `smoothness`, and measure how much the actions change from step to step.

python examples/smoothness/compare.py --env Pendulum-v1 --steps 10000 --smoothness 0 1 10 --seeds 0 1 2
python examples/smoothness/compare.py --draw

The first command appends a row for each agent to results.csv in this directory. The second draws smoothness.svg, the
figure of docs/smooth-actions.md, and prints its table.
"""

import argparse
import csv
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import tfdpg
from examples.results.table import save
from tfdpg.plotting.figures import STYLE

RESULTS = Path(__file__).with_name("results.csv")
COLUMNS: tuple[str, ...] = "env", "steps", "smoothness", "seed", "return", "change"
SMALL = {"hidden_units": (64, 64), "batch_size": 64, "start_steps": 1000}
"""Options for Pendulum-v1; the other environments have the defaults."""


def measure(policy: Callable[[Any], Any], env: gym.Env, episodes: int) -> tuple[float, float]:
    """Return the mean return of a policy, and the mean of |a_t − a_{t−1}| as a fraction of the action scale."""
    scale = tfdpg.Spec.of(env).action_scale
    returns = []
    changes = []
    for episode in range(episodes):
        observation, _ = env.reset(seed=10_000 + episode)
        actions = []
        rewards = []
        ended = False
        while not ended:
            actions.append(policy(observation))
            observation, reward, terminated, truncated, _ = env.step(actions[-1])
            rewards.append(reward)
            ended = terminated or truncated
        returns.append(np.sum(rewards))
        changes.append(np.mean(np.abs(np.diff(actions, axis=0)) / scale))
    return float(np.mean(returns)), float(np.mean(changes))


def train(env_id: str, steps: int, smoothness: float, seed: int, episodes: int = 20, **options: Any) -> dict[str, Any]:
    """Train an agent, and return its row of results.csv."""
    env = gym.make(env_id)
    agent = tfdpg.TD3(env, seed=seed, smoothness=smoothness, **options)
    agent.fit(env, epochs=1, steps_per_epoch=steps, verbose=0)
    measured = measure(agent, gym.make(env_id), episodes)
    return dict(zip(COLUMNS, (env_id, steps, smoothness, seed, *measured), strict=True))


def append(row: dict[str, Any]) -> None:
    """Append a row to results.csv, and print it."""
    is_new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow({name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()})
    print(row, flush=True)


def by_weight(rows: Iterable[dict[str, str]]) -> dict[str, dict[float, list[dict[str, str]]]]:
    """Return the rows by environment and λ, both in order."""
    groups: dict[str, dict[float, list[dict[str, str]]]] = {}
    for row in sorted(rows, key=lambda row: (row["env"] != "Pendulum-v1", row["env"], float(row["smoothness"]))):
        groups.setdefault(row["env"], {}).setdefault(float(row["smoothness"]), []).append(row)
    return groups


def mean(rows: list[dict[str, str]], column: str) -> float:
    """Return the mean of a column."""
    return statistics.fmean(float(row[column]) for row in rows)


def draw_points(axis: Any, weights: dict[float, list[dict[str, str]]], column: str) -> None:
    """Draw a point for each seed, side by side, and a line at the mean for each λ."""
    for place, rows in enumerate(weights.values()):
        values = [float(row[column]) for row in sorted(rows, key=lambda row: int(row["seed"]))]
        places = [place + 0.16 * (seed - (len(values) - 1) / 2) for seed in range(len(values))]
        axis.hlines(statistics.fmean(values), place - 0.35, place + 0.35, color="#029e73", linewidth=2, label="mean")
        axis.plot(places, values, "o", color="#0173b2", markersize=5, clip_on=False, zorder=3, label="one seed")
    axis.set_xticks(range(len(weights)), [f"{weight:g}" for weight in weights])
    axis.set_xlim(-0.5, len(weights) - 0.5)
    axis.grid(axis="x", visible=False)


def draw() -> None:
    """Write smoothness.svg, and print a row of the table for each environment and λ."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    with RESULTS.open(newline="") as file:
        groups = by_weight(csv.DictReader(file))
    style: Any = {**STYLE, "axes.grid": True, "axes.axisbelow": True}
    plt.rcParams.update(style)
    size = 3.3 * len(groups), 5
    figure, axes = plt.subplots(2, len(groups), figsize=size, squeeze=False, sharex="col", layout="constrained")
    for column, (env, weights) in enumerate(groups.items()):
        change, returned = axes[:, column]
        draw_points(change, weights, "change")
        draw_points(returned, weights, "return")
        change.set_title(env)
        change.set_ylim(bottom=0)
        returned.yaxis.set_major_formatter("{x:,.0f}")
        returned.set_xlabel("smoothness")
        for weight, rows in weights.items():
            print(f"| {env} | {weight:g} | {len(rows)} | {mean(rows, 'change'):.3f} | {mean(rows, 'return'):,.0f} |")
    axes[0, 0].set_ylabel("mean change of an action")
    axes[1, 0].set_ylabel("return")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(unique.values(), unique, loc="outside lower center", ncols=2, frameon=False)
    save(figure, RESULTS.with_name("smoothness.svg"), "")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--smoothness", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--draw", action="store_true", help="draw the figure from results.csv; nothing is trained")
    return parser


def main() -> None:
    """Train the agents, or draw the figure."""
    arguments = parser().parse_args()
    if arguments.draw:
        draw()
        return
    options = SMALL if arguments.env == "Pendulum-v1" else {}
    for seed in arguments.seeds:
        for smoothness in arguments.smoothness:
            append(train(arguments.env, arguments.steps, smoothness, seed, **options))


if __name__ == "__main__":
    main()
