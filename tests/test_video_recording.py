"""Videos of evaluations."""

import os
import subprocess
import sys
import warnings

import gymnasium as gym
import imageio.v3 as imageio
import pytest

import tfdpg


@pytest.mark.parametrize(
    "env, size", [pytest.param("Pendulum-v1", 500, marks=pytest.mark.hours), ("InvertedPendulum-v5", 480)]
)
@pytest.mark.slow
def test_video_has_every_frame(tmp_path, env, size):
    agent = tfdpg.TD3(gym.make(env), hidden_units=(4,), jit_compile=False)
    agent.export(tmp_path / "model")
    video = tmp_path / "videos/pendulum.mp4"
    command = [sys.executable, "-W", "ignore", "-m", "tfdpg", "evaluate", str(tmp_path / "model"), "--episodes", "2"]
    environment = os.environ | {"SDL_VIDEODRIVER": "dummy"}
    subprocess.run(
        [*command, "--max-ep-len", "3", "--video", str(video)], env=environment, check=True, capture_output=True
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frames = list(imageio.imiter(video))
    assert len(frames) == 2 * 4 and frames[0].shape == (size, size, 3)
