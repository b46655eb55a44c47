"""Training speed of TD3 in tfdpg, SBX (JAX) and Stable-Baselines3 (torch), on one core, in one run.

    pip install -e '.[benchmark]'
    python examples/benchmarks/throughput.py --rounds 3

Each library trains in a process of its own, pinned to the same core, with the same networks and batch size and one
update for each environment step: tfdpg makes 50 after every 50 steps, as is its default; SBX and Stable-Baselines3
make one after each step, as is theirs, and once more 50 after 50. Rounds are interleaved. Importing and compiling are
not counted: the clock starts after a warm-up that includes learning. Prints environment steps per second, and the
ratio of tfdpg's to each in the same round.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

TASKS = {
    "Pendulum-v1": {"hidden": 64, "batch": 64, "warm_up": 2000, "steps": 10_000},
    "HalfCheetah-v5": {"hidden": 256, "batch": 256, "warm_up": 1500, "steps": 3000},
}


def train_tfdpg(env_id: str, hidden: int, batch: int, update_every: int) -> Callable[[int], None]:
    """A function that trains for some steps, with the progress bar on."""
    import gymnasium as gym

    import tfdpg

    env = gym.make(env_id)
    schedule = {"start_steps": 500, "update_after": 500, "update_every": update_every}
    agent = tfdpg.TD3(env, hidden_units=(hidden, hidden), batch_size=batch, **schedule)
    return lambda steps: agent.fit(env, epochs=1, steps_per_epoch=steps)


def train_sbx(env_id: str, hidden: int, batch: int, update_every: int) -> Callable[[int], None]:
    """The same with SBX."""
    import sbx

    return _train_baselines(sbx.TD3, env_id, hidden, batch, update_every, {})


def train_sb3(env_id: str, hidden: int, batch: int, update_every: int) -> Callable[[int], None]:
    """The same with Stable-Baselines3."""
    import stable_baselines3
    import torch

    torch.set_num_threads(1)
    return _train_baselines(stable_baselines3.TD3, env_id, hidden, batch, update_every, {"device": "cpu"})


def _train_baselines(
    algorithm: type, env_id: str, hidden: int, batch: int, update_every: int, options: dict
) -> Callable[[int], None]:
    import gymnasium as gym
    import numpy as np
    from stable_baselines3.common.noise import NormalActionNoise

    env = gym.make(env_id)
    size = env.action_space.shape[0]
    model = algorithm(
        "MlpPolicy",
        env,
        batch_size=batch,
        learning_starts=500,
        train_freq=update_every,
        gradient_steps=update_every,
        action_noise=NormalActionNoise(np.zeros(size), 0.1 * np.ones(size)),
        policy_kwargs={"net_arch": [hidden, hidden]},
        **options,
    )
    return lambda steps: model.learn(steps, reset_num_timesteps=False)


CONTESTANTS = {
    "tfdpg": (train_tfdpg, 50),
    "sbx": (train_sbx, 1),
    "sbx, 50 after 50": (train_sbx, 50),
    "sb3": (train_sb3, 1),
    "sb3, 50 after 50": (train_sb3, 50),
}


def measure(contestant: str, env_id: str) -> float:
    """Environment steps per second after a warm-up, in this process."""
    task = TASKS[env_id]
    build, update_every = CONTESTANTS[contestant]
    train = build(env_id, task["hidden"], task["batch"], update_every)
    train(task["warm_up"])
    began = time.perf_counter()
    train(task["steps"])
    return task["steps"] / (time.perf_counter() - began)


def measure_pinned(contestant: str, env_id: str, core: int) -> float:
    """`measure` in a process of its own, pinned to one core."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    process = subprocess.run(
        [sys.executable, __file__, "--child", contestant, "--env", env_id],
        env={**os.environ, **threads, "TF_CPP_MIN_LOG_LEVEL": "3"},
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        capture_output=True,
        text=True,
    )
    if process.returncode:
        raise RuntimeError(f"{contestant} failed:\n{process.stderr}")
    return json.loads(process.stdout.splitlines()[-1])


def main() -> None:
    """Measures all libraries on all tasks, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=TASKS, action="append", help="a task; the default is all")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds")
    parser.add_argument("--core", type=int, default=0, help="the core that every process is pinned to")
    parser.add_argument("--json", help="write all numbers to this file")
    parser.add_argument("--child", choices=CONTESTANTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print("\n" + json.dumps(measure(arguments.child, arguments.env[0])))
        return
    results = {}
    for env_id in arguments.env or TASKS:
        rounds = [
            {name: measure_pinned(name, env_id, arguments.core) for name in CONTESTANTS}
            for _ in range(arguments.rounds)
        ]
        results[env_id] = rounds
        print(f"\n{env_id}: environment steps per second, median (lowest to highest) of {arguments.rounds}")
        for name in CONTESTANTS:
            speeds = [speed[name] for speed in rounds]
            ratio = statistics.median(speed["tfdpg"] / speed[name] for speed in rounds)
            spread = f"({min(speeds):.0f} to {max(speeds):.0f})"
            print(f"  {name:16} {statistics.median(speeds):7.0f} {spread:18} tfdpg is {ratio:.2f} times as fast")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
