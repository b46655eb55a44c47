"""The requests of docs/deployment.md are made to a server, and its client writes a log that `fit_offline` reads."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tfdpg
from tests.agents.roster import SMALL
from tests.docs.pages import fences
from tests.serve.conftest import serving
from tfdpg import export

PAGE = "docs/deployment.md"
MODEL = "td3-pendulum"


@pytest.fixture
def model(tmp_path):
    """A model directory with two versions."""
    for seed in range(2):
        tfdpg.TD3("Pendulum-v1", seed=seed, **SMALL).export(tmp_path / "exported_models" / MODEL)
    return tmp_path / "exported_models" / MODEL


def local(code, ports):
    """Return code for the ports of the server of a test."""
    code = code.replace("localhost:8501", f"localhost:{ports.rest}")
    return code.replace("localhost:8500", f"localhost:{ports.grpc}")


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_curl_requests_are_answered(model):
    first, second = [block.code for block in fences(PAGE, "bash")]
    export.write_labels(model, {"stable": 1, "canary": 2})
    with serving(model) as client:
        second = second.replace('-d "$x"', '-d "$x"; echo')
        code = local("\necho\n".join([first, second]), client.ports)
        found = subprocess.run(["bash", "-euc", code], capture_output=True, text=True, check=True).stdout
    actions = [float(number) for number in re.findall(r'"predictions": \[\[(.*?)\]\]', found)]
    x = np.array([[1.0, 0.0, 0.5]], np.float32)
    stable, canary = (float(tfdpg.load(model / version)(x)[0, 0]) for version in "12")
    np.testing.assert_allclose(actions, [canary, stable, canary], rtol=1e-4, atol=1e-5)
    assert stable != canary


@pytest.mark.slow
def test_the_client_writes_a_log_that_training_reads(model, monkeypatch):
    (block,) = fences(PAGE, "py")
    directory = model.parent.parent
    monkeypatch.chdir(directory)
    with serving(model) as client:
        Path("control.py").write_text(local(block.code, client.ports))
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
        found = subprocess.run(
            [sys.executable, "control.py"], env=environment, capture_output=True, text=True, check=True
        ).stdout
    assert re.fullmatch(r"version 2 return -\d+\.\d\n", found)
    agent = tfdpg.TD3("Pendulum-v1", **SMALL)
    agent.save("saved")
    training = next(each.code for each in fences(PAGE, "python") if "prediction_logs" in each.code)
    training = re.sub(r'load_agent\(".*?"\)', 'load_agent("saved")', training)
    training = training.replace("steps_per_epoch=1000", "steps_per_epoch=5").replace("episodes=20", "episodes=1")
    names = {}
    exec(compile(training, PAGE, "exec"), names)
    assert len(names["agent"].replay) >= 199 and export.versions(model) == [1, 2, 3]
