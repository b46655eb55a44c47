"""Train TD3 on tasks with sparse rewards, with and without demonstrations of a controller that was written by hand.

python examples/demonstrations/compare.py --env MountainCarContinuous-v0 --steps 30000 --ratio 0 0.5 --seeds 0 1 2
python examples/demonstrations/compare.py --env SparsePendulum --steps 30000 --ratio 0 0.5 --seeds 0 1 2
python examples/demonstrations/compare.py --draw

The first two commands append a row for each evaluation to results.csv in this directory. The last one draws
demonstrations.svg, the figure of docs/demonstrations.md, and prints its table.
"""

import argparse
import csv
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import tfdpg
from examples.results.table import save
from tfdpg.plotting.figures import STYLE

RESULTS = Path(__file__).with_name("results.csv")
COLUMNS: tuple[str, ...] = "env", "episodes", "ratio", "seed", "step", "return"
OPTIONS = {"hidden_units": (64, 64), "batch_size": 128, "start_steps": 1000}
NOISE = 0.3
"""Standard deviation of the noise of the controllers, as a fraction of the action scale."""
COLOURS = {0.0: "#de8f05", 0.5: "#0173b2"}


class SparsePendulum(gym.Wrapper):
    """Pendulum-v1, whose reward is 1 while it is upright and slow, and 0 otherwise."""

    def __init__(self):
        super().__init__(gym.make("Pendulum-v1"))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step; the reward is 1 within 0.2 rad of the top and below 1 rad/s."""
        observation, _, terminated, truncated, info = self.env.step(action)
        cosine, _, velocity = observation
        return observation, float(cosine > np.cos(0.2) and abs(velocity) < 1), terminated, truncated, info


def swing_up(observation: np.ndarray) -> np.ndarray:
    """Return the torque that swings the pendulum up by its energy, and balances it near the top."""
    cosine, sine, velocity = observation
    if cosine > 0.9 and abs(velocity) < 3:
        return np.array([-10 * sine - 2.5 * velocity])
    missing = 5 - 5 * cosine - velocity**2 / 6  # of the energy at the top
    return np.array([2 * np.sign(missing) * (np.sign(velocity) or 1)])


def rock(observation: np.ndarray) -> np.ndarray:
    """Return the force that pushes the car in the direction in which it moves."""
    return np.sign(observation[1:]) + (observation[1:] == 0)


TASKS: dict[str, tuple[Callable[[], gym.Env], Callable[[np.ndarray], np.ndarray]]] = {
    "SparsePendulum": (SparsePendulum, swing_up),
    "MountainCarContinuous-v0": (lambda: gym.make("MountainCarContinuous-v0"), rock),
}
"""The environments and their controllers."""


def demonstrate(task: str, episodes: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return the transitions of some episodes of a controller with noise, as `fit` takes them."""
    make, controller = TASKS[task]
    env = make()
    spec = tfdpg.Spec.of(env)
    rng = np.random.default_rng(seed)
    rows: list[tuple[Any, ...]] = []
    for episode in range(episodes):
        observation, _ = env.reset(seed=1_000_000 + 1000 * seed + episode)
        ended = False
        while not ended:
            noise = NOISE * spec.action_scale * rng.normal(size=spec.act_dim)
            action = np.clip(controller(observation) + noise, spec.low, spec.high).astype(np.float32)
            following, reward, terminated, truncated, _ = env.step(action)
            rows.append((observation, action, reward, terminated, truncated, following))
            observation = following
            ended = terminated or truncated
    names = "observations", "actions", "rewards", "terminations", "truncations", "next_observations"
    return {name: np.array(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}


def train(
    task: str, steps: int, ratio: float, seed: int, *, episodes: int = 5, every: int = 1000, **options: Any
) -> list[dict[str, Any]]:
    """Train an agent, and return its rows of results.csv: one for each evaluation. A ratio of 0 is without data."""
    make, _ = TASKS[task]
    agent = tfdpg.TD3(make(), seed=seed, **OPTIONS | options)
    data: dict[str, Any] = {}
    if ratio:
        data = {"demonstrations": demonstrate(task, episodes, seed), "demonstration_ratio": ratio}
    monitoring = {"validation_env": make(), "validation_episodes": 10, "verbose": 0}
    history = agent.fit(make(), epochs=steps // every, steps_per_epoch=every, **data, **monitoring).history
    scores = zip(history["env_steps"], history["val_return"], strict=True)
    return [
        dict(zip(COLUMNS, (task, episodes if ratio else 0, ratio, seed, int(step), score), strict=True))
        for step, score in scores
    ]


def append(rows: list[dict[str, Any]]) -> None:
    """Append rows to results.csv, and print the last one."""
    is_new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        for row in rows:
            writer.writerow(row | {"return": f"{row['return']:.6g}"})
    print(rows[-1], flush=True)


Curves = dict[str, dict[float, dict[int, list[tuple[int, float]]]]]
"""The evaluations of each seed, by task and ratio: pairs of an environment step and a return."""


def curves() -> Curves:
    """Return the evaluations in results.csv."""
    found: Curves = {}
    with RESULTS.open(newline="") as file:
        for row in csv.DictReader(file):
            of_ratio = found.setdefault(row["env"], {}).setdefault(float(row["ratio"]), {})
            of_ratio.setdefault(int(row["seed"]), []).append((int(row["step"]), float(row["return"])))
    return found


def demonstrated_return(task: str, episodes: int = 5, seeds: int = 3) -> float:
    """Return the mean return of the demonstrations."""
    totals = [demonstrate(task, episodes, seed)["rewards"].sum() for seed in range(seeds)]
    return float(np.mean(totals)) / episodes


def last(curve: list[tuple[int, float]]) -> float:
    """Return the mean of the last five evaluations."""
    return statistics.fmean(score for _, score in curve[-5:])


def draw() -> None:
    """Write demonstrations.svg, and print a row of the table for each task and ratio."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    tasks = curves()
    style: Any = {**STYLE, "axes.grid": True}
    plt.rcParams.update(style)
    figure, axes = plt.subplots(1, len(tasks), figsize=(3.3 * len(tasks), 3.2), squeeze=False, layout="constrained")
    for axis, (task, ratios) in zip(axes[0], tasks.items(), strict=True):
        shown = demonstrated_return(task)
        for ratio, seeds in sorted(ratios.items()):
            colour = COLOURS[ratio]
            label = f"ratio {ratio:g}" if ratio else "without demonstrations"
            steps = np.array([step for step, _ in next(iter(seeds.values()))])
            returns = np.array([[score for _, score in curve] for curve in seeds.values()])
            axis.plot(steps / 1000, returns.T, color=colour, alpha=0.35, linewidth=1)
            axis.plot(steps / 1000, returns.mean(axis=0), color=colour, linewidth=2, label=label)
            ends = [last(curve) for curve in seeds.values()]
            each = ", ".join(f"{end:.1f}" for end in ends)
            print(f"| {task} | {ratio:g} | {steps[-1]:,} | {statistics.fmean(ends):.1f} | {each} | {shown:.1f} |")
        axis.axhline(shown, color="#666666", linestyle=":", label="the demonstrations")
        axis.set_title(task)
        axis.set_xlabel("environment steps (thousands)")
    axes[0, 0].set_ylabel("return")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    save(figure, RESULTS.with_name("demonstrations.svg"), "")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=TASKS, default="MountainCarContinuous-v0")
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--ratio", type=float, nargs="+", default=[0.0, 0.5], help="0 is without demonstrations")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--draw", action="store_true", help="draw the figure from results.csv; nothing is trained")
    return parser


def main() -> None:
    """Train the agents, or draw the figure."""
    arguments = parser().parse_args()
    if arguments.draw:
        draw()
        return
    for seed in arguments.seeds:
        for ratio in arguments.ratio:
            append(train(arguments.env, arguments.steps, ratio, seed))


if __name__ == "__main__":
    main()
