"""Two nodes on one machine: a worker is killed, then a node is lost, and every step counts once."""

import functools
import os
import re
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster

from tests.agents.roster import AGENTS, brief
from tests.commands import TINY
from tests.distributed.environments import ReportingCounter, read_reports
from tests.environments import Counter
from tfdpg import distributed, export
from tfdpg.distributed import liveness, worker_pool
from tfdpg.training.callbacks import read_step_file
from tfdpg.training.interrupt import Interrupt

pytestmark = pytest.mark.filterwarnings("ignore:The Ray cluster at .* has no token authentication")

FAST_FAILURE_DETECTION = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
}
"""Options of Ray with which it detects a lost node after a few seconds instead of 17."""


@pytest.fixture(scope="module")
def cluster():
    """A head node without CPUs, so that all workers run on other nodes, and two nodes with one CPU each."""
    options = {"include_dashboard": False, "object_store_memory": 100 << 20, "_system_config": FAST_FAILURE_DETECTION}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **options})
    for _ in range(2):
        add_node(cluster)
    yield cluster
    cluster.shutdown()


def add_node(cluster):
    cluster.add_node(num_cpus=1, object_store_memory=100 << 20)


ENV = "tests.environments:tfdpg-test/Counter-v0"


class FailureSequence(keras.callbacks.Callback):
    """Kills a worker, then removes a node, then adds another node, each after training has recovered."""

    def __init__(self, cluster, directory):
        super().__init__()
        self.cluster = cluster
        self.directory = directory
        self.acts = iter((self.kill_a_worker, self.lose_a_node, self.bring_a_node, self.stop))
        self.act = next(self.acts)
        self.enough = 2
        self.steps = []

    def on_epoch_end(self, epoch, logs=None):
        if len(read_reports(self.directory)) >= self.enough:
            self.steps.append(self.model.env_steps)
            self.act()
            self.act = next(self.acts, self.stop)
        else:
            time.sleep(0.1)

    def kill_a_worker(self):
        os.kill(read_reports(self.directory)[0]["pid"], signal.SIGKILL)
        self.enough = 3

    def lose_a_node(self):
        self.cluster.remove_node(next(iter(self.cluster.worker_nodes)), allow_graceful=False)

    def bring_a_node(self):
        add_node(self.cluster)
        self.enough = 4

    def stop(self):
        self.model.stop_training = True


@brief
@pytest.mark.slow
def test_training_survives(cluster, tmp_path):
    agent = AGENTS["DDPG"](Counter(), replay_size=500_000)
    failures = FailureSequence(cluster, tmp_path)
    options = {"actors": 2, "chunk": 10, "verbose": 0, "ray_address": cluster.address, "samples_per_insert": 0.1}
    make_env = functools.partial(ReportingCounter, tmp_path)
    history = distributed.fit(agent, make_env, epochs=10**6, steps_per_epoch=200, callbacks=[failures], **options)
    logs = history.history
    assert len(failures.steps) == 4 and (np.diff(failures.steps) > 0).all()
    assert logs["worker_restarts"][-1] == 2 and logs["return"][-1] == 15
    assert agent.env_steps == len(agent.replay) == logs["env_steps"][-1]
    (observations,) = agent.replay.observation(np.arange(agent.replay.added))
    assert (observations[:, 1] == 0).sum() + agent.env_steps == agent.replay.added


@pytest.mark.slow
def test_too_few_cpus_give_a_warning(cluster):
    agent = AGENTS["DDPG"](Counter())
    options = {"actors": 5, "chunk": 5, "verbose": 0, "ray_address": cluster.address, "epochs": 1}
    with pytest.warns(UserWarning, match="2 CPUs, and 5 actors .*: 3 of them start"):
        distributed.fit(agent, Counter, steps_per_epoch=50, **options)
    assert agent.env_steps >= 50


@pytest.mark.slow
def test_warnings_of_missing_cpus_are_repeated(cluster, monkeypatch):
    monkeypatch.setattr(worker_pool, "STARTUP_SECONDS", 1.0)
    agent = AGENTS["DDPG"](Counter(), replay_size=500_000)

    class UntilWarned(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = len(warnings_in(caught)) >= 2
            time.sleep(0.05)

    def warnings_in(caught):
        return [str(each.message) for each in caught if "have not replied" in str(each.message)]

    options = {"actors": 5, "chunk": 5, "verbose": 0, "ray_address": cluster.address, "epochs": 10**6}
    with pytest.warns(UserWarning) as caught:
        distributed.fit(agent, Counter, steps_per_epoch=50, callbacks=[UntilWarned()], **options)
    texts = warnings_in(caught)
    first, second = (int(text.split(" for ")[1].split()[0]) for text in texts[:2])
    assert 1 <= first < second and second >= 2 * first - 1  # rounded
    for text in texts:
        assert re.match(r"Workers \[.+\] have not replied for \d+ seconds. 5 CPUs are required, one for each", text)
        assert "the Ray cluster has 2 on 3 nodes" in text and "3 are missing" in text


@brief
@pytest.mark.slow
def test_training_ends_where_no_node_comes_back(cluster, monkeypatch):
    agent = AGENTS["DDPG"](Counter(), replay_size=500_000)

    class LosesNodes(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if all(self.model.data.collector.episodes):  # both workers have sent steps
                monkeypatch.setattr(worker_pool, "STARTUP_SECONDS", 8.0)
                for node in list(cluster.worker_nodes):
                    cluster.remove_node(node, allow_graceful=False)

    options = {"actors": 2, "chunk": 10, "verbose": 0, "ray_address": cluster.address, "samples_per_insert": 0.1}
    message = "2 CPUs .* 0 on .* 2 are missing: nodes"
    with pytest.raises(TimeoutError, match=message):
        callbacks = [LosesNodes()]
        distributed.fit(
            agent, Counter, epochs=10**6, steps_per_epoch=200, step_timeout=0.05, callbacks=callbacks, **options
        )


def test_warnings_become_rare(monkeypatch):
    for name, nothing in (("cluster_resources", {}), ("available_resources", {}), ("nodes", [])):
        monkeypatch.setattr(ray, name, lambda nothing=nothing: nothing)
    monitor = liveness.LivenessMonitor(2, None, Interrupt(), liveness.ControlStore(None, 60.0))
    with pytest.warns(UserWarning) as caught:
        for waited in (*range(1000), 0, 61):
            monitor.check("Workers [0, 1]", float(waited), 60.0)
    seconds = [int(str(each.message).split(" for ")[1].split()[0]) for each in caught]
    assert seconds == [60, 120, 240, 480, 960, 61]


@pytest.mark.hours
def test_without_a_control_store_training_ends_with_a_checkpoint_and_the_reason(cluster, tmp_path):
    """This test is the last, because it ends the cluster. Training runs in its own process, which Ray could end."""
    for _ in range(2):
        add_node(cluster)
    command = [sys.executable, "-m", "tfdpg", "train", "ddpg", "--env", ENV, *TINY, "--epochs", "1000000"]
    command += ["--actors", "2", "--ray-address", cluster.address, "--run-dir", str(tmp_path), "--verbose", "0"]
    command += ["--steps-per-epoch", "1000", "--samples-per-insert", "0.01", "--validation-episodes", "1"]
    variables = os.environ | {"RAY_gcs_rpc_server_reconnect_timeout_s": "30"}  # Ray ends the process after this time
    process = subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True)
    checkpoints = tmp_path / "seed-0/checkpoints"
    deadline = time.monotonic() + 300
    while not export.versions(checkpoints):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.1)
    (control_store,) = cluster.head_node.all_processes["gcs_server"]
    control_store.process.kill()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "tfdpg: The control store of the Ray cluster at" in errors and "Training ends here" in errors
    assert export.versions(checkpoints)[-1] == read_step_file(tmp_path / "seed-0/trained.txt")[0]
