"""Environments to be looked at: in a window, or filmed in a process of their own.

TensorFlow and Mesa's software renderer bring different copies of LLVM, and crash when they meet in one process.
"""

import contextlib
import functools
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from tfdpg.environments import check_trusted, make

FORMATS = (".mp4", ".mkv", ".mov", ".avi", ".gif")
"""How the names of videos end."""


def check(render: bool, video: Path | None) -> None:
    """Refuses what cannot be shown or filmed, before anything is loaded.

    Raises:
        ValueError: there is no screen, the video has another format, or both ways are asked for.
        ImportError: imageio is not installed.
    """
    if render and video:
        raise ValueError("`--render` and `--video` exclude each other: an environment renders in one way.")
    if render and not (_has_screen() or "SDL_VIDEODRIVER" in os.environ):
        raise ValueError(NO_SCREEN)
    if video is not None and video.suffix.lower() not in FORMATS:
        raise ValueError(f"`--video` must be a file that ends with {', '.join(FORMATS)}. Received: {video}")
    if video is not None and importlib.util.find_spec("imageio") is None:
        raise ImportError("`--video` needs imageio: pip install 'tfdpg[video]'")


NO_SCREEN = (
    "`--render` needs a screen, and neither DISPLAY nor WAYLAND_DISPLAY is set. `--video FILE` films without one."
)


def _has_screen() -> bool:
    return not sys.platform.startswith("linux") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


@contextlib.contextmanager
def evaluation_env(
    environment: dict[str, Any] | None,
    env_id: str | None,
    *,
    render: bool,
    video: Path | None,
    trusted: bool,
    file: Path,
) -> Iterator[Any]:
    """Makes the environment of an evaluation, shown in a window or filmed if so asked, and closes it.

    Args:
        environment: id and arguments, as a file has them; None if it has none.
        env_id: the id to take instead.
        render: whether to show it.
        video: the file to film it to.
        trusted: whether what the file names may be imported.
        file: the one that names it.
    """
    check(render, video)
    chosen = environment if env_id is None else {"id": env_id, "kwargs": {}}
    if chosen is None:
        raise ValueError("It is not known what environment this policy was trained on. Pass --env ID.")
    if env_id is None:
        if not isinstance(chosen, Mapping) or set(chosen) != {"id", "kwargs"}:
            raise ValueError(f"An environment must be an id and a dict of arguments. Received: {chosen!r}")
        check_trusted(chosen["id"], chosen["kwargs"], trusted, file)
    if video is not None:
        env = make_recorded_env(chosen["id"], chosen["kwargs"], video)
    else:
        env = make(chosen["id"], **chosen["kwargs"], **({"render_mode": "human"} if render else {}))
    try:
        if render and not _has_screen() and any("mujoco" in kind.__module__ for kind in type(env.unwrapped).__mro__):
            raise ValueError(NO_SCREEN)  # SDL's drivers are pygame's, and GLFW ends the process
        yield env
    finally:
        env.close()


def make_recorded_env(env_id: str, kwargs: dict[str, Any], file: Path) -> AsyncVectorEnv:
    """A vector environment of one lane, whose frames go into a video until it is closed.

    Args:
        env_id: id of a registered environment that can render to `rgb_array`.
        kwargs: its arguments.
        file: the video; its directory is made.
    """
    if "DISPLAY" not in os.environ:
        os.environ.setdefault("MUJOCO_GL", "egl")
    file.parent.mkdir(parents=True, exist_ok=True)
    make_one = functools.partial(_make_recorded_env, env_id, kwargs, file)
    return AsyncVectorEnv([make_one], context="spawn", autoreset_mode=AutoresetMode.DISABLED)


def _make_recorded_env(env_id: str, kwargs: dict[str, Any], file: Path) -> gym.Env:
    return VideoRecorder(make(env_id, **kwargs, render_mode="rgb_array"), file)


class VideoRecorder(gym.Wrapper):
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
        self._record_frame()
        return result

    def step(self, action: Any) -> Any:
        """Steps, and films."""
        result = super().step(action)
        self._record_frame()
        return result

    def close(self) -> None:
        """Finishes the video."""
        if self._writer is not None:
            self._writer.close()
        super().close()

    def _record_frame(self) -> None:
        if self._writer is None:
            import imageio.v2 as imageio

            fps = self.env.metadata.get("render_fps", 30)
            self._writer = imageio.get_writer(self._file, fps=fps, macro_block_size=1)
        self._writer.append_data(self.env.render())
