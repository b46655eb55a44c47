"""Evaluate averages of the policy of TD7 beside the newest policy, in one training run, for an experiment.

    python examples/results/averages.py HopperRuns-v5 --seed 0 --steps 100000
    python examples/results/averages.py --table

Every 5,000 steps, the newest policy and averages of its weights are evaluated: over the last 2,000, 5,000 and 15,000
updates, and over about the last 5, 10 and 20 % of all updates. An average does not change the training, so all of them
belong to the same run, with the recipe `embeddings`. The returns are written to `averages/ENV-SEED.csv`.
docs/recipes.md has the results, and `--table` prints its table. `HopperRuns-v5` and `Walker2dBackwards-v5` are
registered here: in the first, speed counts twice and standing half; in the second, the robot walks backwards and
standing counts half.
"""

import argparse
import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import keras
import numpy as np
import tensorflow as tf

import tfdpg

UPDATES = 2_000, 5_000, 15_000
PARTS = 0.05, 0.1, 0.2
COLUMNS = "newest", *(f"updates_{n}" for n in UPDATES), *(f"part_{part}" for part in PARTS)
PERIOD, EPOCH = 250, 5_000
"""Updates between two averages, and environment steps between two evaluations."""
DIRECTORY = Path(__file__).parent / "averages"
HALF = {"healthy_reward": 0.5}
VARIANTS = {"HopperRuns": ("Hopper", 2.0), "Walker2dBackwards": ("Walker2d", -1.0)}
"""The name of a task, the Gymnasium task that it is made from, and the weight of its forward speed."""


def register_tasks() -> None:
    """Register the variants of Gymnasium's tasks."""
    for name, (base, weight) in VARIANTS.items():
        settings = HALF | {"forward_reward_weight": weight}
        entry_point = gymnasium.spec(f"{base}-v5").entry_point
        gymnasium.register(f"{name}-v5", entry_point, max_episode_steps=1000, kwargs=settings)


def make(env_id: str) -> gymnasium.Env:
    """Make an environment whose observations are vectors."""
    env = gymnasium.make(f"shimmy:{env_id}" if env_id.startswith("dm_control") else env_id)
    return gymnasium.wrappers.FlattenObservation(env) if env_id.startswith("dm_control") else env


class Evaluator:
    """Evaluates weights of an encoder and a policy.

    Args:
        networks: the encoder and the policy.
        envs: an environment for each episode.
        seed: the seed of the first episode; the others follow.
    """

    def __init__(self, networks: tuple[keras.Model, keras.Model], envs: list[gymnasium.Env], seed: int):
        self.encoder, self.pi = (keras.models.clone_model(network) for network in networks)
        self.act = tf.function(lambda observation: self.pi([observation, self.encoder(observation)]))
        self.envs = envs
        self.seed = seed

    def __call__(self, weights: list[list[np.ndarray]]) -> float:
        """The mean return of one episode in each environment."""
        for network, values in zip((self.encoder, self.pi), weights, strict=True):
            network.set_weights(values)
        observations = [env.reset(seed=self.seed + i)[0] for i, env in enumerate(self.envs)]
        returns, is_live = np.zeros(len(self.envs)), np.ones(len(self.envs), bool)
        while is_live.any():
            actions = self.act(tf.constant(np.stack(observations), tf.float32)).numpy()
            for i in np.flatnonzero(is_live):
                action = actions[i].astype(self.envs[i].action_space.dtype)
                observations[i], reward, terminated, truncated, _ = self.envs[i].step(action)
                returns[i] += float(reward)
                is_live[i] = not (terminated or truncated)
        return float(returns.mean())


class Averages(keras.callbacks.Callback):
    """Keeps the averages, and evaluates them after each epoch.

    Args:
        agent: a TD7 that makes one update per step.
        evaluate: the mean return of weights of an encoder and a policy.
    """

    def __init__(self, agent: tfdpg.TD7, evaluate: Callable[[list[list[np.ndarray]]], float]):
        super().__init__()
        self.agent = agent
        self.evaluate = evaluate
        self.averages = {key: self.newest() for key in (*UPDATES, *PARTS)}
        self.count = 0
        self.rows: list[list[float]] = []

    def newest(self) -> list[list[np.ndarray]]:
        """The weights of the encoder and of the policy."""
        return [network.get_weights() for network in (self.agent.fixed_zs, self.agent.pi)]

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Average, if it is time."""
        updates = self.agent.updates
        if updates // PERIOD == self.count:
            return
        self.count += 1
        newest = self.newest()
        for key, average in self.averages.items():
            part = min(1, PERIOD / (key if key >= 1 else key * updates))
            for old, new in zip(sum(average, []), sum(newest, []), strict=True):
                old += (new - old) * part

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Evaluate the newest policy and all averages."""
        if self.agent.updates:
            weights = self.newest(), *self.averages.values()
            self.rows.append([(epoch + 1) * EPOCH, *(round(self.evaluate(each), 1) for each in weights)])


def train(env_id: str, seed: int, steps: int) -> None:
    """Train, and write the returns to a file."""
    env = make(env_id)
    agent = tfdpg.TD7(env, seed=seed, **tfdpg.recipes.embeddings)
    envs = [make(env_id) for _ in range(5 if env_id.startswith("dm_control") else 10)]
    averages = Averages(agent, Evaluator((agent.fixed_zs, agent.pi), envs, 10_000 * (seed + 1)))
    agent.fit(env, epochs=steps // EPOCH, steps_per_epoch=EPOCH, callbacks=[averages])
    with (DIRECTORY / f"{env_id.replace('/', '-')}-{seed}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["env_steps", *COLUMNS], *averages.rows])


def table() -> str:
    """Return a table of the mean of all evaluations in the second half of each run, and of the ratios to the newest.

    The last line counts falls: evaluations in the second halves below 70 % of the best until then, in the same column.
    """
    lines, ratios, falls = [f"| Task, seed | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"], [], []
    for file in sorted(DIRECTORY.glob("*.csv")):
        with file.open() as lines_of_file:
            returns = np.array([[float(row[column]) for column in COLUMNS] for row in csv.DictReader(lines_of_file)])
        half = len(returns) // 2
        scores = returns[half:].mean(axis=0)
        ratios.append(scores / scores[0])
        falls.append((returns < 0.7 * np.maximum.accumulate(returns))[half:].sum(axis=0))
        lines.append(f"| {file.stem} | {' | '.join(f'{score:,.0f}' for score in scores)} |")
    lines.append(f"| mean ratio | {' | '.join(f'{ratio:.2f}' for ratio in np.mean(ratios, axis=0))} |")
    return "\n".join([*lines, f"| falls | {' | '.join(str(count) for count in np.sum(falls, axis=0))} |"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", nargs="?", metavar="ENV", help="the id of an environment")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the run (default %(default)s)")
    parser.add_argument("--steps", type=int, default=50_000, help="environment steps (default %(default)s)")
    parser.add_argument("--table", action="store_true", help="print the table of all runs")
    args = parser.parse_args()
    if args.table:
        print(table())
    elif args.env is None:
        parser.error("ENV or --table is required")
    else:
        register_tasks()
        train(args.env, args.seed, args.steps)
