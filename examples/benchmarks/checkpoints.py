"""Measure the cost of checkpoints with a full replay buffer of a million rows.

    OMP_NUM_THREADS=1 taskset -c 0 python examples/benchmarks/checkpoints.py

TD3 with 256x256 networks makes one update per step on HalfCheetah-v5, and saves a checkpoint after every 4,000 steps.
The script prints a line for each checkpoint: its duration in milliseconds, the part of it that was spent waiting for
the disk, the megabytes written, and the duration as a share of the time of these steps. The first checkpoint of each
kind of replay buffer writes all rows.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

import tfdpg

STEPS = 4000


class Cost(NamedTuple):
    """The cost of a checkpoint; `flushing` is the part of `seconds` that was spent in fsync."""

    seconds: float
    flushing: float
    written: int


class Measured(tfdpg.callbacks.Checkpoint):
    """Saves checkpoints, and measures the cost of each."""

    def __init__(self, directory: Path):
        super().__init__(directory)
        self.costs: list[Cost] = []
        self._known: set[int] = set()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Save a checkpoint, and measure its cost."""
        fsync = os.fsync
        flushing = 0.0

        def timed(descriptor: int) -> None:
            nonlocal flushing
            began = time.perf_counter()
            fsync(descriptor)
            flushing += time.perf_counter() - began

        os.fsync = timed
        began = time.perf_counter()
        super().on_epoch_end(epoch, logs)
        os.fsync = fsync
        seconds = time.perf_counter() - began
        files = {status.st_ino: status.st_size for status in map(os.stat, self._newest().iterdir())}
        self.costs.append(Cost(seconds, flushing, sum(files[inode] for inode in files.keys() - self._known)))
        self._known = set(files)

    def _newest(self) -> Path:
        return self.directory / str(self.agent.env_steps)


def filled(replay: str, rows: int) -> tfdpg.TD3:
    """Return an agent whose replay buffer is full of episodes of 1,000 steps, the length of those of HalfCheetah."""
    agent = tfdpg.TD3("HalfCheetah-v5", replay=replay, replay_size=rows, start_steps=0, update_after=0)
    rng = np.random.default_rng(0)
    env_indices = np.arange(min(1000, rows // 2))

    def observation() -> tuple[np.ndarray, ...]:
        return (rng.normal(size=(len(env_indices), 17)).astype(np.float32),)

    agent.replay.begin(env_indices, observation())
    while agent.replay.added < rows:
        zeros = np.zeros(len(env_indices))
        agent.replay.add(env_indices, rng.uniform(-1, 1, (len(env_indices), 6)), zeros, zeros, observation())
    return agent


def measure(replay: str, rows: int, checkpoints: int, directory: Path) -> None:
    """Train an agent, and print the cost of each checkpoint."""
    agent = filled(replay, rows)
    env = gym.make("HalfCheetah-v5")
    agent.fit(env, epochs=1, steps_per_epoch=200, verbose=0)  # compiles
    saves = Measured(directory)
    logs = agent.fit(env, epochs=checkpoints, steps_per_epoch=STEPS, callbacks=[saves], verbose=0).history
    times = [STEPS / speed for speed in logs["steps_per_second"]]
    print(f"{replay}, {agent.replay.size:,} rows; {STEPS:,} steps take {statistics.median(times):.1f} s")
    for cost, seconds in zip(saves.costs, times, strict=True):
        print(
            f"{cost.seconds * 1e3:8.1f} ms, {cost.flushing * 1e3:6.1f} in fsync; {cost.written / 1e6:6.1f} MB; "
            f"{100 * cost.seconds / seconds:5.2f} % of {seconds:.1f} s"
        )
    later = saves.costs[1:]
    median = statistics.median(cost.seconds for cost in later)
    share = 100 * sum(cost.seconds for cost in later) / sum(times[1:])
    print(f"{median * 1e3:8.1f} ms is the median without the first; share without the first: {share:.2f} %", flush=True)


def main() -> None:
    """Measure both kinds of replay buffer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replay", nargs="+", choices=("uniform", "prioritized"), default=("uniform", "prioritized"))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--checkpoints", type=int, default=8)
    parser.add_argument("--directory", type=Path, help="where to save, which selects the disk to measure")
    options = parser.parse_args()
    for replay in options.replay:
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            measure(replay, options.rows, options.checkpoints, Path(directory))


if __name__ == "__main__":
    main()
