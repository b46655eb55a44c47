"""The environments of the command line: made by their ids, which people type and files name."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym

from tfdpg import filming
from tfdpg.arguments import positive_int

PATHS = ":./\\~"
"""What names of modules and files have, and other texts among an environment's arguments hardly."""


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
    """Raises `ValueError` if an environment that a file names imports a module, or reads a file, and is not trusted."""
    if not isinstance(env_id, str) or not isinstance(kwargs, Mapping):
        raise ValueError(f"An environment must be an id and a dict of arguments. Received: {env_id!r}, {kwargs!r}")
    followed = [env_id] if ":" in env_id else [text for text in _texts(kwargs) if set(text) & set(PATHS)]
    if followed and not trusted:
        raise ValueError(f"The file's environment imports or reads {followed[0]!r}. If you trust it, pass --trusted.")


def _texts(value: Any) -> Iterator[str]:
    """The texts among the values of an argument, and of what it holds."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)


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
        if not isinstance(made, Mapping) or set(made) != {"id", "kwargs"}:
            raise ValueError(f"An environment must be an id and a dict of arguments. Received: {made!r}")
        check_trusted(made["id"], made["kwargs"], trusted)
    if video is not None:
        env = filming.make(made["id"], made["kwargs"], video)
    else:
        env = make(made["id"], **made["kwargs"], **({"render_mode": "human"} if render else {}))
    try:
        yield env
    finally:
        env.close()
