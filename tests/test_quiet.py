"""TensorFlow's start-up messages do not appear on standard error."""

import os
import subprocess
import sys

import pytest

AGENT = "import gymnasium as gym, tfdpg; tfdpg.TD3(gym.make('Pendulum-v1'), hidden_units=(8,))"
MODEL = "import numpy as np, tfdpg; tfdpg.load('exported_models/td3-halfcheetah')(np.zeros(17))"


def errors(code, **variables):
    """What a new process writes to standard error."""
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"} | variables
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stderr


@pytest.mark.slow
@pytest.mark.parametrize("code", [AGENT, MODEL], ids=["an agent", "an exported model"])
def test_creating_or_loading_writes_nothing(code):
    assert errors(code) == ""


@pytest.mark.slow
def test_a_log_level_of_the_user_does_not_bring_them_back():
    code = "from tfdpg.cli import main; main(['evaluate', 'exported_models/td3-halfcheetah', '--env', 'No-v0'])"
    assert errors(code, TF_CPP_MIN_LOG_LEVEL="2").startswith("tfdpg: The environment 'No-v0' cannot be made")


@pytest.mark.slow
def test_all_messages_appear_on_request():
    assert "cudart_stub" in errors("import tfdpg; tfdpg.TD3", TF_CPP_MIN_LOG_LEVEL="0")
