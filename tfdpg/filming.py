"""Filming an environment in a process of its own.

TensorFlow and Mesa's software renderer bring different copies of LLVM, and crash when they meet in one process.
"""

import functools
import importlib.util
import os
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, AutoresetMode


def make(env_id: str, kwargs: dict[str, Any], file: Path) -> AsyncVectorEnv:
    """A vector environment of one lane, whose frames go into a video until it is closed.

    Args:
        env_id: id of a registered environment that can render to `rgb_array`.
        kwargs: its arguments.
        file: the video; its directory is made.

    Raises:
        ImportError: imageio is not installed.
    """
    if importlib.util.find_spec("imageio") is None:
        raise ImportError("`--video` needs imageio: pip install 'tfdpg[video]'")
    if "DISPLAY" not in os.environ:
        os.environ.setdefault("MUJOCO_GL", "egl")
    file.parent.mkdir(parents=True, exist_ok=True)
    make_one = functools.partial(_make_filmed, env_id, kwargs, file)
    return AsyncVectorEnv([make_one], context="spawn", autoreset_mode=AutoresetMode.DISABLED)


def _make_filmed(env_id: str, kwargs: dict[str, Any], file: Path) -> gym.Env:
    return Filmed(gym.make(env_id, **kwargs, render_mode="rgb_array"), file)


class Filmed(gym.Wrapper):
    """Appends a frame to a video after each reset and step.

    Args:
        env: an environment that renders to `rgb_array`.
        file: the video, which is opened at the first reset and finished by `close`.
    """

    def __init__(self, env: gym.Env, file: Path):
        super().__init__(env)
        self._file = file
        self._writer: Any = None

    def reset(self, **kwargs: Any) -> Any:
        """Resets, and films the first frame."""
        result = super().reset(**kwargs)
        self._film()
        return result

    def step(self, action: Any) -> Any:
        """Steps, and films."""
        result = super().step(action)
        self._film()
        return result

    def close(self) -> None:
        """Finishes the video."""
        if self._writer is not None:
            self._writer.close()
        super().close()

    def _film(self) -> None:
        if self._writer is None:
            import imageio.v2 as imageio

            fps = self.env.metadata.get("render_fps", 30)
            self._writer = imageio.get_writer(self._file, fps=fps, macro_block_size=1)
        self._writer.append_data(self.env.render())
