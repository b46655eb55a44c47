"""Ctrl-C and SIGTERM, in a separate process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tfdpg

SCRIPT = """
import sys, functools, pathlib, keras
from tests.agents.roster import AGENTS
from tests.distributed.environments import ReportingCounter
from tests.environments import Counter
from tfdpg import distributed
from tfdpg.training.callbacks import Checkpoint

if __name__ == "__main__":
    directory = sys.argv[1]
    agent = AGENTS["DDPG"](Counter())
    note_update = lambda batch, logs: agent.updates and pathlib.Path(directory, "updated").touch()
    make_env = functools.partial(ReportingCounter, directory)
    options = {"epochs": 10**6, "steps_per_epoch": 10**6, "verbose": 0, "chunk": 10, "samples_per_insert": 0.1}
    callbacks = [Checkpoint(directory + "/checkpoints"), keras.callbacks.LambdaCallback(on_train_batch_end=note_update)]
    distributed.fit(agent, make_env, actors=2, callbacks=callbacks, **options)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.slow
def test_a_signal_leaves_a_checkpoint_and_no_workers(tmp_path, number):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.time() + 300
    while len(list(tmp_path.glob("*.json"))) < 2 or not (tmp_path / "updated").exists():
        assert time.time() < deadline
        time.sleep(0.2)
        assert process.poll() is None, process.communicate()[1]
    groups = {
        os.getpgid(int(child)) for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    }
    assert groups and process.pid not in groups, "Ray would end with the signal, and this process with it."
    os.killpg(process.pid, number)  # as a terminal does, or a scheduler
    _, errors = process.communicate(timeout=200)
    if number == signal.SIGTERM:
        assert process.returncode == 143, errors
    else:
        assert "KeyboardInterrupt: Training was interrupted" in errors, errors
    (saved,) = (tmp_path / "checkpoints").iterdir()
    agent = tfdpg.load_agent(saved)
    assert agent.env_steps == int(saved.name) > 0 and agent.updates > 0
    for file in tmp_path.glob("*.json"):
        assert not is_running(int(file.stem))


WITH_A_STOPPED_SHARD = """
import os, signal, sys, keras, ray
from tests.agents.roster import AGENTS
from tests.environments import Counter
from tfdpg import distributed
from tfdpg.training.callbacks import Checkpoint

class StopsShard(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            shard = self.model.learner.remote_replay.shards[1].actor
            os.kill(ray.get(shard.__ray_call__.remote(lambda _: os.getpid())), signal.SIGSTOP)
            print("stopped", flush=True)

if __name__ == "__main__":
    options = {"epochs": 10**6, "verbose": 0, "chunk": 10, "samples_per_insert": 0.1, "replay_shards": 2}
    options["callbacks"] = [Checkpoint(sys.argv[1], every=10**6), StopsShard()]
    agent = AGENTS["DDPG"](Counter(), replay_size=500_000)
    distributed.fit(agent, Counter, actors=2, steps_per_epoch=1000, **options)
"""


@pytest.mark.hours
def test_a_shard_that_does_not_answer_does_not_hold_up_sigterm(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", WITH_A_STOPPED_SHARD, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "TF_CPP_MIN_LOG_LEVEL": "3"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "stopped\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(200) == 143  # the shard would never answer
    (saved,) = tmp_path.iterdir()
    assert tfdpg.load_agent(saved).env_steps == int(saved.name) >= 2000


def is_running(pid):
    for _ in range(600):
        if not Path(f"/proc/{pid}").exists():
            return False
        time.sleep(0.1)
    return True
