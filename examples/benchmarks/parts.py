"""Measure the parts of tfdpg: importing, starting, acting, storing, sampling, and several environments at once.

    OMP_NUM_THREADS=1 taskset -c 0 python examples/benchmarks/parts.py
    OMP_NUM_THREADS=1 python examples/benchmarks/parts.py --part start --part vector_envs    # these need two cores

Times are medians, in microseconds unless stated otherwise, on HalfCheetah-v5 with 256x256 networks.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

FIRST_UPDATE = """
import time; began = time.perf_counter()
import tfdpg; imported = time.perf_counter() - began
import gymnasium
agent = tfdpg.TD3(env := gymnasium.make("HalfCheetah-v5"), start_steps=0, update_after=0)
agent.fit(env, epochs=1, steps_per_epoch=50, verbose=0)
print(imported, time.perf_counter() - began)
"""


def start() -> dict[str, float]:
    """Measure the seconds to import the package and to complete the first 50 updates, in new processes."""
    command = [sys.executable, "-c", FIRST_UPDATE]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(3)]
    imported, updated = (statistics.median(float(run[i]) for run in runs) for i in (0, 1))
    return {"seconds to import tfdpg": imported, "seconds to the first 50 updates": updated}


def act() -> dict[str, float]:
    """Time `act` and `observe` for one observation, and `predict` for 1,024 compared with the bare compiled call."""
    import gymnasium as gym
    import numpy as np
    import tensorflow as tf

    import tfdpg

    env = gym.make("HalfCheetah-v5")
    agent = tfdpg.TD3(env, start_steps=0)
    seen = np.random.default_rng(0).normal(size=(1024, 17)).astype(np.float32)

    def step(i: int) -> tuple[float, float]:
        began = time.perf_counter()
        agent.act(seen[i])
        acted = time.perf_counter()
        agent.observe(0.0, seen[i + 1], False, False)
        return acted - began, time.perf_counter() - acted

    acting, observing = (statistics.median(times) for times in zip(*map(step, range(1000)), strict=True))
    bare = tf.function(agent.pi, autograph=False)
    return {
        "act on one observation": acting * 1e6,
        "observe": observing * 1e6,
        "predict a batch of 1,024": microseconds(lambda: agent.predict(seen)),
        "a compiled call of the policy on it": microseconds(lambda: bare(tf.constant(seen)).numpy()),
    }


def replay() -> dict[str, float]:
    """Measure the memory of a million rows, and the time to sample 50 minibatches of 256 from them."""
    import gymnasium as gym
    import numpy as np

    import tfdpg

    numbers = {}
    for kind in ("uniform", "prioritized"):
        agent = tfdpg.TD3(gym.make("HalfCheetah-v5"), batch_size=256, replay=kind)
        rng = np.random.default_rng(0)
        env_indices = np.arange(1000)
        agent.replay.begin(env_indices, (rng.normal(size=(1000, 17)),))
        for _ in range(999):
            zeros = np.zeros(1000)
            agent.replay.add(env_indices, rng.uniform(-1, 1, (1000, 6)), zeros, zeros, (rng.normal(size=(1000, 17)),))
        errors = rng.exponential(size=(50, 256))

        def draw(agent: tfdpg.TD3 = agent, errors: np.ndarray = errors) -> None:
            _, rows = agent.data.minibatch_builder(0, 50)
            agent.data.minibatch_builder.update_priorities(rows, errors)

        numbers |= {
            "megabytes of a million rows": agent.replay.nbytes / 1e6,
            f"draw 50 minibatches of 256, {kind}": microseconds(draw, 50),
        }
    return numbers


def share() -> dict[str, float]:
    """Measure the share of the training time that adding and sampling take (batch 256, updates every 50 steps)."""
    import gymnasium as gym

    import tfdpg

    env = gym.make("HalfCheetah-v5")
    agent = tfdpg.TD3(env, batch_size=256, start_steps=0, update_after=0)
    agent.fit(env, epochs=1, steps_per_epoch=1000, verbose=0)
    spent = [0.0]

    def timed(function: Callable) -> Callable:
        def call(*arguments: object) -> object:
            began = time.perf_counter()
            result = function(*arguments)
            spent[0] += time.perf_counter() - began
            return result

        return call

    agent.replay.add = timed(agent.replay.add)
    agent.data.minibatch_builder.sampler.sample, agent.data.minibatch_builder._pack = (
        timed(agent.data.minibatch_builder.sampler.sample),
        timed(agent.data.minibatch_builder._pack),
    )
    began = time.perf_counter()
    agent.fit(env, epochs=1, steps_per_epoch=2000, verbose=0)
    return {"percent of training spent adding and drawing": 100 * spent[0] / (time.perf_counter() - began)}


def updates() -> dict[str, float]:
    """Measure the updates per second of TD3 and of D4PG's critics, with minibatches of 256 and including sampling."""
    import gymnasium as gym

    import tfdpg

    env = gym.make("HalfCheetah-v5")
    agents = {
        "TD3": tfdpg.TD3(env, batch_size=256),
        "D4PG, categorical": tfdpg.D4PG(env, v_min=-100, v_max=1000),
        "D4PG, mixture": tfdpg.D4PG(env, critic="mixture"),
        "D4PG, scalar": tfdpg.D4PG(env, critic="scalar"),
    }
    return in_turns(env, agents)


def normalized() -> dict[str, float]:
    """Measure updates per second of TD3 with normalised networks, with minibatches of 128 and including sampling."""
    import gymnasium as gym

    import tfdpg

    env = gym.make("HalfCheetah-v5")
    crossq = {name: value for name, value in tfdpg.recipes.normalized.items() if name != "start_steps"}
    kinds = {
        "TD3": {},
        "norm='layer'": {"norm": "layer"},
        "norm='batch'": {"norm": "batch"},
        "recipe normalized": crossq,
        "blocks=1 of 128": {"blocks": 1, "hidden_units": (128,)},
    }
    return in_turns(env, {name: tfdpg.TD3(env, **{"batch_size": 128} | options) for name, options in kinds.items()})


def in_turns(env: Any, agents: dict[str, Any]) -> dict[str, float]:
    """Measure the updates per second of agents in alternation; the first agent is "TD3"."""
    speeds: dict[str, list[float]] = {name: [] for name in agents}
    for agent in agents.values():
        agent.fit(env, epochs=1, steps_per_epoch=2000, verbose=0)
    for _ in range(7):
        for name, agent in agents.items():
            began = time.perf_counter()
            agent.learn(updates=300)
            speeds[name].append(300 / (time.perf_counter() - began))
    numbers = {f"{name}, updates/s": statistics.median(measured) for name, measured in speeds.items()}
    for name in list(agents)[1:]:
        ratios = [a / b for a, b in zip(speeds[name], speeds["TD3"], strict=True)]
        numbers[f"{name}, times as fast as TD3"] = statistics.median(ratios)
    return numbers


def critics() -> dict[str, float]:
    """Measure the milliseconds of an update of TD3 with two and with ten critics, including sampling."""
    import gymnasium as gym

    import tfdpg

    env = gym.make("HalfCheetah-v5")
    numbers: dict[str, float] = {}
    for units, batch in ((64, 64), (256, 256)):
        options = {"hidden_units": (units, units), "batch_size": batch}
        agents = {f"{n} critics": tfdpg.TD3(env, critics=n, **options) for n in (2, 10)}
        speeds = in_turns(env, {"TD3": agents["2 critics"], "ten": agents["10 critics"]})
        two, ten = 1000 / speeds["TD3, updates/s"], 1000 / speeds["ten, updates/s"]
        where = f"{units}x{units}, batch {batch}"
        numbers |= {f"2 critics, {where}, ms": two, f"10 critics, {where}, ms": ten, f"ratio, {where}": ten / two}
    return numbers


def stacked() -> dict[str, float]:
    """Measure the milliseconds of a gradient step of ten critics: as ten networks, and with stacked weights."""
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(0)

    def stepper(columns: int, units: int, batch: int, stacks: int, each: int) -> Callable[[], object]:
        shapes = [(columns, units), (1, units), (units, units), (1, units), (units, 1), (1, 1)]
        networks = [
            [tf.Variable(rng.normal(0, s[0] ** -0.5, (each, *s)).astype(np.float32)) for s in shapes]
            for _ in range(stacks)
        ]
        inputs = tf.constant(rng.normal(size=(batch, columns)).astype(np.float32))
        weights = [weight for network in networks for weight in network]

        def loss(network: list[tf.Variable]) -> tf.Tensor:
            w1, b1, w2, b2, w3, b3 = (tf.squeeze(w, 0) if each == 1 else w for w in network)
            hidden = tf.nn.relu((inputs if each == 1 else tf.broadcast_to(inputs, (each, *inputs.shape))) @ w1 + b1)
            return tf.reduce_sum(tf.square(tf.nn.relu(hidden @ w2 + b2) @ w3 + b3 - 1)) / batch

        @tf.function(jit_compile=True, autograph=False)
        def step() -> None:
            with tf.GradientTape() as tape:
                total = tf.add_n([loss(network) for network in networks])
            for weight, gradient in zip(weights, tape.gradient(total, weights), strict=True):
                weight.assign_sub(1e-5 * gradient)

        return step

    numbers: dict[str, float] = {}
    for units, batch in ((64, 64), (256, 256)):
        steps = {
            "ten networks": stepper(23, units, batch, stacks=10, each=1),
            "stacked weights": stepper(23, units, batch, stacks=1, each=10),
        }
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(7):
            for name, step in steps.items():
                times[name].append(microseconds(step, 100) / 1000)
        for name, measured in times.items():
            numbers[f"{name}, {units}x{units}, batch {batch}, ms"] = statistics.median(measured)
    return numbers


def vector_envs() -> dict[str, float]:
    """Measure the environment steps per second on Ant-v5 without updates: one environment, and eight in processes."""
    import gymnasium as gym

    import tfdpg

    speeds: dict[str, list[float]] = {"one Ant-v5, steps/s": [], "eight, async, steps/s": []}
    for _ in range(3):
        for name, measured in speeds.items():
            env = gym.make("Ant-v5") if name.startswith("one") else gym.make_vec("Ant-v5", 8, "async")
            agent = tfdpg.TD3(env, start_steps=0, update_after=10**9, replay_size=100_000)
            agent.fit(env, epochs=1, steps_per_epoch=1000, verbose=0)
            logs = agent.fit(env, epochs=1, steps_per_epoch=8000, verbose=0).history
            measured.append(logs["steps_per_second"][0])
            env.close()
    one, eight = (statistics.median(measured) for measured in speeds.values())
    return dict(zip(speeds, (one, eight), strict=True)) | {"times as fast": eight / one}


def microseconds(action: Callable[[], object], times: int = 300) -> float:
    """Return the median duration of a call, in microseconds."""
    action()
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds) * 1e6


PARTS = {
    "start": start,
    "act": act,
    "replay": replay,
    "share": share,
    "updates": updates,
    "normalized": normalized,
    "critics": critics,
    "stacked": stacked,
    "vector_envs": vector_envs,
}


def main() -> None:
    """Measure the selected parts one by one, and print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append", help="what to measure; the default is all")
    parser.add_argument("--json", help="write all numbers to this file")
    arguments = parser.parse_args()
    numbers = {}
    for part in arguments.part or PARTS:
        for name, value in PARTS[part]().items():
            print(f"{name:48}{value:12,.2f}", flush=True)
            numbers[name] = value
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(numbers, file, indent=2)


if __name__ == "__main__":
    main()
