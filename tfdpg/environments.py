"""Environments by their ids, which people type and files name."""

import ast
import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from tfdpg.arguments import positive_int

PATHS = ":./\\~"
"""What names of modules and files have, and other texts among an environment's arguments hardly."""


def _entry(env_id: str) -> str | EnvSpec:
    """What Gymnasium makes an environment of: its id, with the module that registers it where that is known, or a spec.

    Of `module:Class` that is a spec, since nobody registered the class.
    """
    module, _, name = env_id.partition(":")
    if name.isidentifier() and callable(getattr(importlib.import_module(module), name, None)):
        return EnvSpec(env_id, entry_point=env_id)
    return f"shimmy:{env_id}" if env_id.startswith("dm_control/") else env_id


def make(env_id: str, **kwargs: Any) -> gym.Env:
    """Makes an environment.

    Args:
        env_id: a registered id, `module:id` where a module is to be imported that registers it, or `module:Class`.
        kwargs: arguments of the environment, and of `gymnasium.make`.

    Raises:
        ValueError: it cannot be made; the message says why, on one line.
    """
    try:
        return gym.make(_entry(env_id), **kwargs)
    except (gym.error.Error, ImportError, TypeError) as error:
        message = " ".join(str(error).split())
        raise ValueError(f"The environment {env_id!r} cannot be made with {kwargs}: {message}") from error


@contextlib.contextmanager
def opened(env: Any) -> Iterator[Any]:
    """An environment as it is; or one made by its id, and closed in the end."""
    if not isinstance(env, str):
        yield env
        return
    made = make(env)
    try:
        yield made
    finally:
        made.close()


def parse_kwargs(pairs: Sequence[str]) -> dict[str, Any]:
    """An environment's arguments, as people type them: `name=value` with Python literals, and texts as they are."""
    kwargs = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (name.isidentifier() and equals):
            raise ValueError(f"`--env-kwargs` takes name=value pairs. Received: {pair!r}")
        try:
            kwargs[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            kwargs[name] = text
    return kwargs


def foreign(env_id: str, kwargs: Mapping[str, Any]) -> list[str]:
    """What an environment that a file names imports, or reads."""
    return [env_id] if ":" in env_id else [text for text in _texts(kwargs) if set(text) & set(PATHS)]


def check_trusted(env_id: str, kwargs: Mapping[str, Any], trusted: bool, file: Any) -> None:
    """Raises `ValueError` if the environment of a file imports a module, or reads a file, and is not trusted."""
    if not isinstance(env_id, str) or not isinstance(kwargs, Mapping):
        raise ValueError(f"An environment must be an id and a dict of arguments. Received: {env_id!r}, {kwargs!r}")
    if not trusted and (followed := foreign(env_id, kwargs)):
        raise ValueError(f"{file} imports, or follows, {followed[0]!r}. If you trust it, pass --trusted.")


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
    return gym.make_vec(_entry(env_id), num_envs=num_envs, vectorization_mode=vectorization, **kwargs)
