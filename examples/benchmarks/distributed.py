"""Measure distributed training: its speed by chunk size and workers, the learner's speed, memory and message sizes.

    pip install -e '.[ray,mujoco]'
    python examples/benchmarks/distributed.py --json distributed.json

Everything runs on one machine, in its own Ray instance. The collection rate is that of an epoch without learning, after
a warm-up epoch. The learner is pinned to the first core. Its updates are timed first alone, and then while two workers
on the other core collect as fast as they can, in chunks of 1,000. With a single core, nothing is pinned.
"""

import argparse
import functools
import json
import os
import pickle
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import keras
import ray

import tfdpg
from tfdpg import distributed
from tfdpg.acting import BehaviourPolicy
from tfdpg.distributed.plan import policy_for_workers
from tfdpg.distributed.processes import OBJECT_STORE_BYTES
from tfdpg.distributed.worker import RolloutRequest, Worker

CHUNKS = (10, 50, 100, 500, 1000)


class Weighed(gym.Wrapper):
    """Writes the memory of its process, without shared memory, to a file after some steps."""

    def __init__(self, env: gym.Env, directory: str):
        super().__init__(env)
        self._file = Path(directory) / f"{os.getpid()}.txt"
        self._steps = 0

    def step(self, action: Any) -> Any:
        """Take a step."""
        self._steps += 1
        if self._steps == 2000:
            status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
            kilobytes = [int(status[name].split()[0]) for name in ("VmRSS", "RssShmem")]
            self._file.write_text(str((kilobytes[0] - kilobytes[1]) / 1024))
        return super().step(action)


def weighed(env_id: str, directory: str) -> gym.Env:
    """Make an environment that is wrapped in `Weighed`."""
    return Weighed(gym.make(env_id), directory)


class Clock(keras.callbacks.Callback):
    """Measures updates and steps per second over some seconds of learning, and then stops the training run."""

    def __init__(self, seconds: float):
        super().__init__()
        self._seconds = seconds
        self._first = None
        self.rates: dict[str, float] = {}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Record the time and the counters after an update phase."""
        agent: Any = self.model
        if agent.updates < 100:  # compiles
            return
        now = time.perf_counter(), agent.updates, agent.env_steps
        self._first = self._first or now
        passed = now[0] - self._first[0]
        if passed >= self._seconds:
            names = ("updates_per_second", "steps_per_second")
            self.rates = {name: (now[i + 1] - self._first[i + 1]) / passed for i, name in enumerate(names)}
            agent.stop_training = True


def new_agent(env_id: str, **options: Any) -> Any:
    """Return a TD3 agent with two hidden layers of 256 units and minibatches of 256."""
    env = gym.make(env_id)
    agent = tfdpg.TD3(env, batch_size=256, start_steps=0, update_after=1000, **options)
    env.close()
    return agent


def collecting(env_id: str, workers: int, chunk: int, steps: int, make_env: Any = None) -> float:
    """Return the transitions per second without learning."""
    options = {"actors": workers, "chunk": chunk, "samples_per_insert": 0, "verbose": 0}
    history = distributed.fit(new_agent(env_id), make_env or env_id, epochs=2, steps_per_epoch=steps, **options)
    return history.history["steps_per_second"][-1]


def learner_alone(env_id: str, seconds: float) -> float:
    """Return the updates per second on a filled replay buffer, with nothing else running."""
    agent = new_agent(env_id)
    distributed.fit(
        agent, env_id, actors=1, epochs=1, steps_per_epoch=5000, samples_per_insert=0, max_ep_len=1000, verbose=0
    )
    agent.learn(updates=100)
    began = time.perf_counter()
    first = agent.updates
    while time.perf_counter() - began < seconds:
        agent.learn(updates=50)
    return (agent.updates - first) / (time.perf_counter() - began)


def learner_among_workers(env_id: str, seconds: float) -> dict[str, float]:
    """Return the updates and steps per second while two workers collect without a limit."""
    clock = Clock(seconds)
    options = {"actors": 2, "chunk": 1000, "tolerance": 1e6, "steps_per_epoch": 10**9, "epochs": 1, "verbose": 0}
    distributed.fit(new_agent(env_id), env_id, callbacks=[clock], **options)
    return clock.rates


def sizes(env_id: str, chunk: int) -> dict[str, float]:
    """Return the bytes of a transition that a worker sends, and of the weights that the learner sends."""
    agent = new_agent(env_id)
    policy, weights = policy_for_workers(agent, "numpy")
    make_env = functools.partial(gym.make, env_id)
    behaviour = BehaviourPolicy(agent.spec, policy, agent.data.behaviour.exploration.at_scale(0.1))
    worker = Worker(0, make_env, behaviour, 0, 1000)
    sent = worker.rollout(weights(), 0, RolloutRequest(chunk, 0, 1.0, 0))
    return {"transition": len(pickle.dumps(sent, protocol=5)) / chunk, "weights": weights().nbytes}


def pin(cores: set[int]) -> None:
    """Pin all threads of this process, and the threads that they start, to some cores."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)


def main() -> None:
    """Run all measurements, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="Pendulum-v1", help="environment of the table of chunk sizes")
    parser.add_argument("--task", default="HalfCheetah-v5", help="environment of everything else")
    parser.add_argument("--steps", type=int, default=40_000, help="steps of each measurement of the collection rate")
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of each measurement of learning")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    arguments = parser.parse_args()
    env = arguments.env
    task = arguments.task
    steps = arguments.steps
    seconds = arguments.seconds
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        pin(set(cores[1:]))  # processes that Ray starts inherit this
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=OBJECT_STORE_BYTES)
    pin({cores[0]})
    learning: dict[str, Any] = {"alone": learner_alone(task, seconds), **learner_among_workers(task, seconds)}
    ray.shutdown()
    pin(set(cores))
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=OBJECT_STORE_BYTES)
    by_chunk = {chunk: collecting(env, 2, chunk, steps) for chunk in CHUNKS}
    with tempfile.TemporaryDirectory() as directory:
        make_env = functools.partial(weighed, task, directory)
        by_workers = {workers: collecting(task, workers, 100, steps, make_env) for workers in (1, 2)}
        megabytes = max(float(file.read_text()) for file in Path(directory).glob("*.txt"))
    ray.shutdown()
    found = {"chunks": by_chunk, "workers": by_workers, "learner": learning, "worker_megabytes": megabytes}
    found["bytes"] = sizes(task, 100)
    show(found, env, task)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


def show(found: dict[str, Any], env: str, task: str) -> None:
    """Print the tables."""
    print(f"| chunk | transitions/s, 2 workers, {env} | calls/s |\n|---|---|---|")
    for chunk, rate in found["chunks"].items():
        print(f"| {chunk:,} | {rate:,.0f} | {rate / chunk:,.0f} |")
    for workers, rate in found["workers"].items():
        print(f"{task}, {workers} worker(s), chunks of 100: {rate:,.0f} transitions/s")
    learner = found["learner"]
    size = found["bytes"]
    print(f"learner on {task}: {learner['alone']:,.0f} updates/s alone, {learner['updates_per_second']:,.0f} updates/s")
    print(f"    while 2 workers send {learner['steps_per_second']:,.0f} transitions/s")
    print(f"memory of a worker: {found['worker_megabytes']:,.0f} MB without shared memory")
    print(f"bytes: {size['transition']:,.0f} a transition, {size['weights']:,} a broadcast of weights")


if __name__ == "__main__":
    main()
