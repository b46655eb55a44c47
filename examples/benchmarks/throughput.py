"""Measure training speed and memory of TD3 in tfdpg, SBX (JAX), Stable-Baselines3 and skrl (both torch), in one run.

    pip install -e '.[benchmark]'
    python examples/benchmarks/throughput.py --rounds 3

Each library trains in its own process, pinned first to one core and then to two. All have the same networks, the same
batch size and one update per environment step. tfdpg is measured with 50 updates after every 50 steps, its default, and
with one update after each step, the default of the others. SBX and Stable-Baselines3 are also measured with 50 updates
after every 50 steps. Rounds are interleaved. The clock starts after a warm-up that includes learning.

For each library and set of cores, the script prints

- the environment steps per second,
- how many times as fast this is as on the first set of cores,
- how many times as fast the two forms of tfdpg are on the same cores in the same round,
- the peak memory of the process,
- the seconds from the start of the process to the end of the first learning, including imports and compilation.

The script also measures how fast NumPy and TensorFlow multiply matrices with the shapes of the hidden layers. The time
that the matrix products of an update take at the fastest of these rates is the arithmetic limit of the update (without
sampling).
"""

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable

import contestants
import pinned

TASKS = {
    "Pendulum-v1": {"hidden": 64, "batch": 64, "warm_up": 1500, "steps": 10_000},
    "HalfCheetah-v5": {"hidden": 256, "batch": 256, "warm_up": 1000, "steps": 3000},
}
CONTESTANTS = {
    "tfdpg, 50 after 50": (contestants.tfdpg, 50),
    "tfdpg, 1 after 1": (contestants.tfdpg, 1),
    "sbx, 1 after 1": (contestants.sbx, 1),
    "sbx, 50 after 50": (contestants.sbx, 50),
    "sb3, 1 after 1": (contestants.sb3, 1),
    "sb3, 50 after 50": (contestants.sb3, 50),
    "skrl, 1 after 1": (contestants.skrl, 1),
}
OURS = ("tfdpg, 50 after 50", "tfdpg, 1 after 1")


def measure(contestant: str, env_id: str, launched: float) -> dict[str, float]:
    """Measure this process: steps per second after a warm-up, seconds to the first learning, and peak megabytes."""
    if contestant.startswith(("sb3", "skrl")):
        pinned.use_these_cores_in_torch()
    task = TASKS[env_id]
    build, update_every = CONTESTANTS[contestant]
    train = build(env_id, task["hidden"], task["batch"], update_every)
    train(contestants.RANDOM_STEPS + 50)
    learnt = time.time() - launched
    train(task["warm_up"])
    began = time.perf_counter()
    train(task["steps"])
    speed = task["steps"] / (time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"steps_per_second": speed, "seconds_to_first_learning": learnt, "peak_megabytes": peak}


def measure_limit(env_id: str) -> dict[str, float]:
    """Measure the duration of an update and the rate of matrix products, and compare them with its operations."""
    import gymnasium as gym
    import numpy as np
    import tensorflow as tf

    import tfdpg

    hidden = TASKS[env_id]["hidden"]
    batch = TASKS[env_id]["batch"]
    agent = tfdpg.TD3(gym.make(env_id), hidden_units=(hidden, hidden), batch_size=batch, update_after=0)
    agent.fit(gym.make(env_id), epochs=1, steps_per_epoch=1000, verbose=0)
    draw = _best(lambda: agent.data.minibatch_builder(agent.updates, 50), 10)
    update = (_best(lambda: agent.learn(updates=50), 10) - draw) / 50

    x, y = (
        np.random.default_rng(i).normal(size=(size, hidden)).astype(np.float32) for i, size in ((0, batch), (1, hidden))
    )
    repeats = int(1e9 // (2 * batch * hidden * hidden))

    def products(z: tf.Tensor) -> tf.Tensor:
        count = tf.constant(repeats)
        loop = tf.while_loop(
            lambda i, _: i < count, lambda i, z: (i + 1, z @ (y * 0.01)), [0, z], parallel_iterations=1
        )
        return loop[1]

    def in_numpy() -> None:
        for _ in range(repeats):
            np.matmul(x, y)

    def in_tensorflow(jit_compile: bool) -> Callable[[], object]:
        function = tf.function(products, jit_compile=jit_compile)
        return lambda: function(tf.constant(x)).numpy()

    forms = (in_numpy, in_tensorflow(False), in_tensorflow(True))
    rate = max(repeats * 2 * batch * hidden * hidden / _best(form, 10) for form in forms)
    arithmetic = update_flops(agent.replay.obs_width, agent.spec.act_dim, hidden, batch)
    return {
        "flops": arithmetic,
        "flops_per_second": rate,
        "update_seconds": update,
        "share": arithmetic / rate / update,
    }


def update_flops(obs: int, act: int, hidden: int, batch: int) -> float:
    """Return the operations in the matrix products of one update, on average over the policy delay.

    They are multiplications and additions. Each layer has three equally large products: its output, the gradient for
    its weights and the gradient for its inputs. A first layer does not need the last one, except for the part of the
    action in the policy's update.
    """
    inner = hidden * hidden
    pi = obs * hidden + inner + hidden * act
    q = (obs + act) * hidden + inner + hidden
    critics = pi + 2 * q + 2 * (3 * q - (obs + act) * hidden)
    policy = pi + q + (q - obs * hidden) + 2 * pi - obs * hidden
    return 2 * batch * (critics + policy / 2)


def _best(action: Callable[[], object], times: int) -> float:
    """Return the seconds of the fastest of some calls, after one call to warm up."""
    action()
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def in_pinned_process(child: str, env_id: str, cores: str) -> dict[str, float]:
    """Return the result of `measure` or `measure_limit` in a separate process, pinned to cores such as 0,1."""
    words = ["--child", child, "--launched", str(time.time()), "--env", env_id]
    return pinned.in_pinned_process(__file__, [int(core) for core in cores.split(",")], *words)


def main() -> None:
    """Measure all libraries on all tasks, and print a table for each task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=TASKS, action="append", help="a task; the default is all")
    parser.add_argument("--rounds", type=pinned.count, default=3, help="interleaved rounds")
    parser.add_argument("--cores", nargs="+", default=["0", "0,1"], help="sets of cores to pin to, in turn")
    parser.add_argument("--only", action="append", choices=CONTESTANTS, help="other libraries; the default is all")
    parser.add_argument("--json", help="write all numbers to this file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--launched", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child == "limit":
        print("\n" + json.dumps(measure_limit(arguments.env[0])))
        return
    if arguments.child:
        print("\n" + json.dumps(measure(arguments.child, arguments.env[0], arguments.launched)))
        return
    names = [name for name in CONTESTANTS if not arguments.only or name in (*OURS, *arguments.only)]
    results = {}
    for env_id in arguments.env or TASKS:
        rounds = [
            {name: {cores: in_pinned_process(name, env_id, cores) for cores in arguments.cores} for name in names}
            for _ in range(arguments.rounds)
        ]
        results[env_id] = {"rounds": rounds, "limit": in_pinned_process("limit", env_id, arguments.cores[0])}
        report(env_id, results[env_id])
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=2)


def report(env_id: str, result: dict) -> None:
    """Print the table of a task."""
    rounds = result["rounds"]
    limit = result["limit"]
    task = TASKS[env_id]
    print(f"\n{env_id}, {task['hidden']}x{task['hidden']}, batch {task['batch']}, {len(rounds)} rounds")
    print(
        f"{'':20}{'cores':>6}{'steps/s, median (range)':>26}{'times as first':>16}"
        f"{'tfdpg 50/50 is':>16}{'tfdpg 1/1 is':>14}{'peak MB':>9}{'first s':>9}"
    )
    for name, on in rounds[0].items():
        first = next(iter(on))
        for cores in on:
            speeds = [measured[name][cores]["steps_per_second"] for measured in rounds]
            ratios = [_ratio(rounds, *pair) for pair in (((name, cores), (name, first)), *_against(name, cores))]
            peak, start = (
                statistics.median(measured[name][cores][key] for measured in rounds)
                for key in ("peak_megabytes", "seconds_to_first_learning")
            )
            spread = f"{statistics.median(speeds):.0f} ({min(speeds):.0f} to {max(speeds):.0f})"
            print(
                f"{name:20}{cores:>6}{spread:>26}{ratios[0]:15.2f}x{ratios[1]:15.2f}x{ratios[2]:13.2f}x"
                f"{peak:9.0f}{start:9.1f}"
            )
    print(
        f"update of tfdpg on {first}: {limit['update_seconds'] * 1e3:.3f} ms; its {limit['flops'] / 1e6:.0f} million "
        f"operations at {limit['flops_per_second'] / 1e9:.0f} GFLOP/s: {limit['share']:.0%} of the arithmetic limit"
    )


def _against(name: str, cores: str) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """Return both forms of tfdpg, each paired with a contestant on the same cores."""
    return [((our, cores), (name, cores)) for our in OURS]


def _ratio(rounds: list[dict], one: tuple[str, str], other: tuple[str, str]) -> float:
    """Return how many times as fast one contestant is as another, as the median over rounds."""
    speeds = [[measured[name][on]["steps_per_second"] for name, on in (one, other)] for measured in rounds]
    return statistics.median(a / b for a, b in speeds)


if __name__ == "__main__":
    main()
