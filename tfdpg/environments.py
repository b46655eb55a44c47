"""The environments of the command line: made by their ids, which people type and files name."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym

from tfdpg import filming
from tfdpg.arguments import positive_int


def full_id(env_id: str) -> str:
    """The id with the module that registers it, where that is known and is not said."""
    return f"shimmy:{env_id}" if env_id.startswith("dm_control/") else env_id


def make(env_id: str, **kwargs: Any) -> gym.Env:
    """Makes an environment.

    Raises:
        ValueError: it cannot be made; the message says why, on one line.
    """
    try:
        return gym.make(full_id(env_id), **kwargs)
    except (gym.error.Error, ImportError, TypeError) as error:
        message = " ".join(str(error).split())
        raise ValueError(f"The environment {env_id!r} cannot be made with {kwargs}: {message}") from error


def check_trusted(env_id: str, kwargs: Mapping[str, Any], trusted: bool) -> None:
    """Raises `ValueError` if an environment that a file names would import a module, which nobody trusts."""
    names = [env_id, *(value for value in kwargs.values() if isinstance(value, str))]
    if not trusted and (imports := [name for name in names if ":" in name]):
        raise ValueError(f"The environment of the file imports {imports[0]!r}. If you trust it, pass --trusted.")


def make_several(env_id: str, kwargs: Mapping[str, Any], num_envs: int, vectorization: str) -> Any:
    """Makes an environment, or a vector environment of several.

    Raises:
        ValueError: it cannot be made, or `vectorization` does nothing.
    """
    if positive_int("num_envs", num_envs) == 1:
        if vectorization != "sync":
            raise ValueError("`--vectorization` needs several environments: pass --num-envs.")
        return make(env_id, **kwargs)
    make(env_id, **kwargs).close()
    return gym.make_vec(full_id(env_id), num_envs=num_envs, vectorization_mode=vectorization, **kwargs)


@contextlib.contextmanager
def evaluation_env(
    environment: dict[str, Any] | None, env_id: str | None, *, render: bool, video: Path | None, trusted: bool
) -> Iterator[Any]:
    """Makes the environment of an evaluation, shown in a window or filmed if so asked, and closes it.

    Args:
        environment: id and arguments, as a file has them; None if it has none.
        env_id: the id to take instead.
        render: whether to show it.
        video: the file to film it to.
        trusted: whether what the file names may be imported.
    """
    if render and video:
        raise ValueError("`--render` and `--video` exclude each other: an environment renders in one way.")
    made = environment if env_id is None else {"id": env_id, "kwargs": {}}
    if made is None:
        raise ValueError("It is not known what environment this policy was trained on. Pass --env ID.")
    if env_id is None:
        check_trusted(made["id"], made["kwargs"], trusted)
    if video is not None:
        env = filming.make(made["id"], made["kwargs"], video)
    else:
        env = make(made["id"], **made["kwargs"], **({"render_mode": "human"} if render else {}))
    try:
        yield env
    finally:
        env.close()
