"""What depends on `device`, on a GPU where there is one, and elsewhere on the second of two logical CPUs.

    python -m pytest -m gpu tests/test_gpu.py

Each test starts processes that run functions of tests/on_device.py.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tfdpg
from tests import on_device
from tests.commands import EAGER, SHORT, TINY
from tfdpg import cli

NVIDIA = Path("/dev/nvidia0").exists() or (
    shutil.which("nvidia-smi") and subprocess.run(["nvidia-smi", "-L"], capture_output=True).stdout.strip()
)
GPU = [pytest.mark.gpu, pytest.mark.skipif(not NVIDIA, reason="there is no GPU")]
SECOND_CPU = pytest.param("cpu:1", marks=pytest.mark.slow)
on_each_device = pytest.mark.parametrize("device", [SECOND_CPU, pytest.param("gpu:0", marks=GPU)])
EACH = list(on_device.ALL)


def start(function, device, directory, *words):
    """Start a function of tests/on_device.py. A process for a CPU sees no GPU."""
    hidden = {"CUDA_VISIBLE_DEVICES": "0" if device == "gpu:0" else "-1"}
    command = [sys.executable, "-m", "tests.on_device", function, device, str(directory), *words]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
        env=os.environ | hidden | {"TF_FORCE_GPU_ALLOW_GROWTH": "true"},
    )


def finish(process):
    """Wait for a process, and return the lines that it printed."""
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out.splitlines()


def run(*arguments):
    return finish(start(*arguments))


@on_each_device
def test_agents_move_from_a_device_to_the_cpu_and_back(device, tmp_path):
    names = EACH if device == "gpu:0" else ["TD3", "ACER"]
    assert run("train", device, tmp_path, *names) == names
    assert run("move", "cpu:0", tmp_path, *names) == names
    assert run("move", device, tmp_path, *names) == names


@on_each_device
def test_xla_changes_nothing_but_rounding(device, tmp_path):
    assert run("compile_or_not", device, tmp_path, "TD3") == ["TD3"]


@on_each_device
def test_flat_tensors_are_on_the_device_and_probed(device, tmp_path):
    lines = run("flat_state", device, tmp_path)
    assert lines[0] == "flat"
    assert any("is used as a `tf.Variable`, not through Keras" in line for line in lines)


@on_each_device
def test_minibatches_reach_the_device_unchanged(device, tmp_path):
    assert run("minibatches", device, tmp_path) == ["numbers", "images"]


@on_each_device
def test_training_is_the_same_with_the_replay_buffer_on_the_device(device, tmp_path):
    assert run("replay", device, tmp_path, "TD3", "TD7", "n_step") == ["TD3", "TD7", "n_step"]
    assert run("replay_with_xla", device, tmp_path) == ["replay"]


@pytest.mark.gpu
@pytest.mark.skipif(not NVIDIA, reason="there is no GPU")
def test_two_processes_share_a_gpu(tmp_path):
    processes = [start("train", "gpu:0", tmp_path / which, "TD3") for which in "ab"]
    assert [finish(process) for process in processes] == [["TD3"], ["TD3"]]


@on_each_device
def test_an_agent_is_loaded_without_its_device(device, tmp_path):
    run("custom", device, tmp_path)
    with pytest.raises(ValueError, match=f"agent was on another device.*device='{device}'.*a `device` of this machine"):
        tfdpg.load_agent(tmp_path / "agent")
    for there in (None, "cpu:0"):
        agent = tfdpg.load_agent(tmp_path / "agent", device=there)
        assert agent.options.device == there
        (place,) = on_device.places(agent)
        assert place.endswith("CPU:0")


@on_each_device
def test_a_run_of_a_device_is_evaluated_exported_and_resumed_without_it(device, tmp_path, capsys):
    own = tmp_path / "runs/seed-0"
    words = ["--env", "tests.environments:Counter", *TINY, *SHORT, *EAGER]
    places = ["--device", device, "--replay-device", device, "--run-dir", str(own.parent)]
    run("command", device, tmp_path, "train", "ddpg", *words, *places)
    saved = sorted(path.name for path in (own / "checkpoints").iterdir())
    for command in (["evaluate", str(own), "--episodes", "1"], ["export", str(own), str(tmp_path / "model")]):
        assert cli.main([*command, "--checkpoint", "latest"]) == 0
        assert f"does not have device='{device}', so the policy runs without it." in capsys.readouterr().err
    resume = ["train", "--resume", str(own), "--epochs", "3"]
    assert cli.main(resume) == 1
    shown = capsys.readouterr().err
    assert "was on another device" in shown and f"device='{device}'" in shown and "`device` of this machine" in shown
    assert sorted(path.name for path in (own / "checkpoints").iterdir()) == saved  # none counts as damaged
    assert cli.main([*resume, "--device", "cpu:0"]) == 1
    assert "`replay_device` must be None or the same as `device`" in capsys.readouterr().err
    assert cli.main([*resume, "--device", "cpu:0", "--replay-device", "None"]) == 0
