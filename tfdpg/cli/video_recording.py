"""Environments whose evaluation is shown in a window or recorded as a video.

A recorded environment runs in its own process, because TensorFlow and Mesa's software renderer contain different
versions of LLVM that crash when one process loads both.
"""

import contextlib
import functools
import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from tfdpg.cli.recording import StepRecorder
from tfdpg.environments import check_trusted, make, without_wrappers
from tfdpg.imports import SAFE_PATH, safe_path

FORMATS = (".mp4", ".mkv", ".mov", ".avi", ".gif")
"""The supported suffixes of video files."""
NO_SCREEN = (
    "`--render` needs a screen, and neither DISPLAY nor WAYLAND_DISPLAY is set. `--video FILE` records without one."
)


def check(render: bool, video: Path | None) -> None:
    """Check that an evaluation can be shown or recorded, before anything large is loaded.

    Raises:
        ValueError: there is no screen, the format of the video is not supported, or both options are set.
        ImportError: imageio is not installed.
    """
    if render and video:
        raise ValueError("`--render` and `--video` exclude each other: an environment has one render mode.")
    if render and not (_has_screen() or "SDL_VIDEODRIVER" in os.environ):
        raise ValueError(NO_SCREEN)
    if video is not None and video.suffix.lower() not in FORMATS:
        raise ValueError(f"`--video` must be a file that ends with {', '.join(FORMATS)}. Received: {video}")
    if video is not None and importlib.util.find_spec("imageio") is None:
        raise ImportError("`--video` needs imageio: pip install 'tfdpg[video]'")


def _has_screen() -> bool:
    return not sys.platform.startswith("linux") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


@contextlib.contextmanager
def evaluation_env(
    environment: Any,
    env_id: str | None,
    render: bool,
    video: Path | None,
    record: Path | None,
    trusted: bool,
    file: Path,
    names: Sequence[str] | None = None,
) -> Iterator[Any]:
    """Make the environment of an evaluation, and close it at the end.

    Args:
        environment: the id and arguments in `file`, as `environment_of` returns them; None if it has none.
        env_id: an id to use instead.
        render: whether to show the environment in a window.
        video: the file to record a video to.
        record: the directory to record the steps to.
        trusted: whether to import the modules that `file` names.
        file: the file that `environment` is from, for error messages.
        names: the policy's names of the numbers of an observation, which are recorded with the steps.
    """
    if env_id is not None:
        environment = {"id": env_id, "kwargs": {}}
    elif environment is None:
        raise ValueError("The exported model does not name its environment. Pass --env ID.")
    else:
        environment = without_wrappers(environment, file)
        if not isinstance(environment, Mapping) or set(environment) != {"id", "kwargs"}:
            raise ValueError(f"An environment must be an id and a dict of arguments. Received: {environment!r}")
        check_trusted(environment["id"], environment["kwargs"], trusted, file)
    make_env = functools.partial(_make, environment["id"], record, names, **environment["kwargs"])
    if video is not None:
        if "DISPLAY" not in os.environ:
            os.environ.setdefault("MUJOCO_GL", "egl")
        video.parent.mkdir(parents=True, exist_ok=True)
        make_one = functools.partial(_make_recorded_env, make_env, video, os.environ.get(SAFE_PATH, ""))
        with safe_path():
            env = AsyncVectorEnv([make_one], context="spawn", autoreset_mode=AutoresetMode.DISABLED)
    else:
        env = make_env(render_mode="human") if render else make_env()
    try:
        if render and not _has_screen() and any("mujoco" in kind.__module__ for kind in type(env.unwrapped).__mro__):
            raise ValueError(NO_SCREEN)  # SDL_VIDEODRIVER only helps pygame; GLFW would end the process
        yield env
    finally:
        env.close()


def _make(env_id: str, record: Path | None, names: Sequence[str] | None, **kwargs: Any) -> gym.Env:
    """Make an environment whose steps are recorded, if `record` is a directory."""
    env = make(env_id, **kwargs)
    return env if record is None else StepRecorder(env, record, names)


def _make_recorded_env(make_env: functools.partial[gym.Env], file: Path, users_safe_path: str) -> gym.Env:
    if multiprocessing.parent_process() is not None:  # Gymnasium also makes one in this process, to see its spaces
        os.environ[SAFE_PATH] = users_safe_path  # for the processes that the environment starts
    return VideoRecorder(make_env(render_mode="rgb_array"), file)


class VideoRecorder(gym.Wrapper):
    """Appends a frame to a video after each reset and step.

    Gymnasium's `RecordVideo` writes a file for each episode and keeps all of its frames in memory. This wrapper writes
    all episodes to one file, frame by frame.

    Args:
        env: an environment with the render mode `rgb_array`.
        file: the video. The first reset opens it, and `close` finishes it.
    """

    def __init__(self, env: gym.Env, file: Path):
        super().__init__(env)
        self._file = file
        self._writer: Any = None

    def reset(self, **kwargs: Any) -> Any:
        """Reset the environment and record the first frame."""
        result = super().reset(**kwargs)
        self._record_frame()
        return result

    def step(self, action: Any) -> Any:
        """Take a step and record a frame."""
        result = super().step(action)
        self._record_frame()
        return result

    def close(self) -> None:
        """Finish the video and close the environment."""
        if self._writer is not None:
            self._writer.close()
        super().close()

    def _record_frame(self) -> None:
        if self._writer is None:
            import imageio.v2 as imageio

            fps = self.env.metadata.get("render_fps", 30)
            self._writer = imageio.get_writer(self._file, fps=fps, macro_block_size=1)
        self._writer.append_data(self.env.render())
