"""Make environments from the ids that users type and that files contain."""

import ast
import contextlib
import functools
import importlib
import inspect
import os
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from tfdpg.arguments import positive_int, shown, warn
from tfdpg.imports import import_user_module, shadowed, user_modules

PATH_CHARACTERS = ":./\\~"
"""An argument of an environment that contains one of these is regarded as the name of a module or file."""
ALIKE = ((int, float), (list, tuple))
"""Types of which one may be given in place of the other."""
LIBRARY_FILES = tuple(os.path.dirname(module.__file__ or "") + os.sep for module in (gym, importlib)) + (
    __file__,
    "<frozen",
)
"""The start of the names of files that only call the code of a user."""


def _entry(env_id: str) -> str | EnvSpec:
    """Return the argument of `gymnasium.make` for an id: the id, or a specification of the class for `module:Class`."""
    module, colon, name = env_id.partition(":")
    if colon and callable(getattr(import_user_module(module), name, None)):
        return EnvSpec(env_id, entry_point=env_id)
    return f"shimmy:{env_id}" if env_id.startswith("dm_control/") else env_id


def make(env_id: str, /, **kwargs: Any) -> gym.Env:
    """Make an environment.

    Args:
        env_id: a registered id, `module:id` to import the module that registers it, or `module:Class`.
        kwargs: arguments of the environment and of `gymnasium.make`.

    Raises:
        ValueError: the environment cannot be made. The message gives the reason on one line.
    """
    with _creation_errors(env_id, kwargs):
        return _recorded(_with_remarks(gym.make(_entry(env_id), **kwargs), kwargs), env_id, kwargs)


def _recorded(env: Any, env_id: str, kwargs: Mapping[str, Any]) -> Any:
    """Record how an environment was made, for `made_from`: the id in its own specification lacks the module."""
    arguments = {name: value for name, value in kwargs.items() if name != "render_mode"}
    env.unwrapped.tfdpg_made_from = {"id": env_id, "kwargs": arguments}
    return env


def made_from(env: Any) -> dict[str, Any] | None:
    """Return the id and arguments of an environment that this module made; None for others."""
    return getattr(env.unwrapped, "tfdpg_made_from", None)


def maker(env_id: str) -> Callable[[], gym.Env]:
    """Return a function that makes the environment. The id is looked up now, and the environment is made later.

    Raises:
        ValueError: the id is not known. The message gives the reason on one line.
    """
    with _creation_errors(env_id, {}):
        if isinstance(entry := _entry(env_id), str):
            module, _, name = entry.rpartition(":")
            if module:
                import_user_module(module)
            gym.spec(name)
    return functools.partial(make, env_id)


def make_unchecked(env_id: str, /, **kwargs: Any) -> gym.Env:
    """Make an environment without Gymnasium's checker, which raises the errors that `tfdpg check` reports."""
    with _creation_errors(env_id, kwargs):
        return gym.make(_entry(env_id), **{"disable_env_checker": True} | kwargs)


@contextlib.contextmanager
def _creation_errors(env_id: str, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Import what an environment's id names, and convert any exception to a `ValueError` that names the environment."""
    try:
        with user_modules() if ":" in env_id else contextlib.nullcontext():
            yield  # meanwhile, the module of an id, and what it imports, may be in the working directory
    except (Exception, SystemExit) as error:
        given = f" with {dict(kwargs)}" if kwargs else ""
        why = " ".join(_creation_error(env_id, error).split())
        raise ValueError(f"The environment {env_id!r} cannot be made{given}: {why}") from error


def _with_remarks(env: gym.Env, kwargs: Mapping[str, Any]) -> gym.Env:
    """Return an environment whose errors name the arguments that have another type than their defaults, if any have."""
    parameters: Mapping[str, inspect.Parameter] = {}
    with contextlib.suppress(ValueError, TypeError):  # the constructor of a class in C may have no signature
        parameters = inspect.signature(type(env.unwrapped).__init__).parameters if kwargs else {}
    remarks = []
    for name in parameters.keys() & kwargs.keys():
        default = parameters[name].default
        kinds = next((kinds for kinds in ALIKE if isinstance(default, kinds)), type(default))
        if not (default is None or default is inspect.Parameter.empty or isinstance(kwargs[name], kinds)):
            remarks.append(f"`{name}` is {kwargs[name]!r}, and its default is {default!r}")
    return RemarkingEnv(env, "; ".join(sorted(remarks))) if remarks else env


class RemarkingEnv(gym.Wrapper):
    """Converts an error of `reset` and `step` to a `ValueError` of one line that ends with a remark.

    Args:
        env: the environment.
        remark: the remark, such as which argument may be wrong.
    """

    def __init__(self, env: gym.Env, remark: str):
        super().__init__(env)
        self._remark = remark

    def reset(self, **kwargs: Any) -> Any:
        """Reset the environment."""
        return self._call(self.env.reset, **kwargs)

    def step(self, action: Any) -> Any:
        """Take a step."""
        return self._call(self.env.step, action)

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except (TypeError, ValueError, AttributeError, LookupError) as error:
            place = f" ({place})" if (place := place_of(error)) else ""
            message = " ".join(f"{type(error).__name__}: {error}{place}. {self._remark}".split())
            raise ValueError(f"The environment raised {message}.") from error


def _creation_error(env_id: str, error: BaseException) -> str:
    module, colon, name = env_id.partition(":")
    if isinstance(error, gym.error.NameNotFound | gym.error.NamespaceNotFound) and colon:
        own = []
        for class_name, kind in inspect.getmembers(import_user_module(module), inspect.isclass):
            if issubclass(kind, gym.Env) and not kind.__module__.startswith("gymnasium."):
                own.append(class_name)
        return (
            f"module {module!r} has no class {name!r}, and registers no environment with this name. "
            f"Its environment classes: {', '.join(own) or 'none'}.{shadowed(module)}"
        )
    if isinstance(error, gym.error.Error):
        is_unknown = type(error) in (gym.error.Error, gym.error.NameNotFound, gym.error.NamespaceNotFound)
        return f"{error}{' An environment of your own is module:Class.' if is_unknown and not colon else ''}"
    if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
        return f"{error}. Modules are looked for in the working directory and on PYTHONPATH."
    if "was raised from the environment creator" in str(error) and error.__cause__:
        error = error.__cause__  # the message of Gymnasium's error repeats the arguments
    place = place_of(error)
    return f"it raised {type(error).__name__}: {error} ({place})" if place else str(error)


def place_of(error: BaseException) -> str:
    """Return the file and line where the code of a user raised; "" if a library raised before it ran."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(LIBRARY_FILES)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def is_real(env: Any) -> bool:
    """Return whether an environment is a real machine: its unwrapped environment has an attribute `is_real` = True.

    Of a real machine, only one instance is ever made, and recorded actions are never repeated.
    """
    return bool(getattr(env.unwrapped, "is_real", False))


_closed: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()


def close(env: Any) -> None:
    """Close an environment, unless this function has closed it before: a machine is switched off once."""
    if _closed.get(id(env)) is not env:
        _closed[id(env)] = env
        env.close()


def check_simulated(flag: str, env_id: str, kwargs: Mapping[str, Any]) -> None:
    """Raise `ValueError` if an environment cannot be made, or if a flag needs several instances of a real machine."""
    with contextlib.closing(make(env_id, **kwargs)) as env:
        if is_real(env):
            raise ValueError(
                f"`{flag}` makes several instances of {env_id}, which is a real machine (`is_real`): only one is made."
            )


@contextlib.contextmanager
def opened(env: Any) -> Iterator[Any]:
    """Yield an environment. An id is made into an environment, which is closed at the end."""
    if not isinstance(env, str):
        _closed.pop(id(env), None)  # it is used again
        yield env
        return
    with contextlib.closing(make(env)) as made:
        yield made


def parse_kwargs(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse texts of the form `name=value` into arguments. Values that are not Python literals are strings."""
    kwargs = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (name.isidentifier() and equals):
            raise ValueError(f"`--env-kwargs` must be name=value pairs. Received: {pair!r}")
        try:
            kwargs[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            kwargs[name] = text
    return kwargs


def external_references(env_id: str, kwargs: Mapping[str, Any]) -> list[str]:
    """Return what an environment imports or reads: its id with a module, or arguments that may be names of files."""
    return [env_id] if ":" in env_id else [text for text in strings(kwargs) if set(text) & set(PATH_CHARACTERS)]


def check_trusted(env_id: str, kwargs: Mapping[str, Any], trusted: bool, file: Any) -> None:
    """Raise `ValueError` if the environment that a file names imports a module or reads a file and is not trusted."""
    if not isinstance(env_id, str) or not isinstance(kwargs, Mapping):
        raise ValueError(f"An environment must be an id and a dict of arguments. Received: {env_id!r}, {kwargs!r}")
    check_followed(external_references(env_id, kwargs), trusted, file)


def check_followed(named: Sequence[str], trusted: bool, file: Any) -> None:
    """Raise `ValueError` if a file names modules to import or paths to follow and is not trusted."""
    if named and not trusted:
        raise ValueError(
            f"{file} imports, or follows, {named[0]!r}. If you trust it, pass --trusted. (Only a run that you trained "
            "on this machine, and that was not moved, copied or changed, needs no flag.)"
        )


def without_wrappers(environment: Any, file: Any) -> Any:
    """Return the id and arguments of the environment that a file names; warn of its wrappers, which are only named."""
    if not isinstance(environment, Mapping) or not environment.get("wrappers"):
        return environment
    warn(
        f"The policy in {file} was trained in an environment with the wrappers {shown(environment['wrappers'])}. These "
        f"episodes, and their returns, are of {shown(environment.get('id'))} without them. --env "
        "MODULE:FUNCTION takes a function that returns the wrapped environment."
    )
    return {name: value for name, value in environment.items() if name != "wrappers"}


def strings(value: Any) -> Iterator[str]:
    """Yield all strings in an argument, including those in nested lists and dicts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from strings(part)


def make_envs(env_id: str, kwargs: Mapping[str, Any], num_envs: int, vectorization: str) -> Any:
    """Make an environment, or a vector environment if `num_envs` is more than 1.

    Raises:
        ValueError: the environment cannot be made, or `vectorization` has no effect.
    """
    if positive_int("num_envs", num_envs) == 1:
        if vectorization != "sync":
            raise ValueError("`--vectorization` needs several environments: pass --num-envs.")
        return make(env_id, **kwargs)
    check_simulated("--num-envs", env_id, kwargs)
    with _creation_errors(env_id, kwargs):
        wrappers: Any = [functools.partial(_with_remarks, kwargs=kwargs)]
        env = gym.make_vec(
            _entry(env_id), num_envs=num_envs, vectorization_mode=vectorization, wrappers=wrappers, **kwargs
        )
        return _recorded(env, env_id, kwargs)
