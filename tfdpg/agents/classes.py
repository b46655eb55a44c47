"""Find the class and the options of an algorithm by its name: "td3", or "module:Class" for one in a user's own file.

A user's file is imported only by `import_agent`, which is called with the user's consent. All other functions use what
it has imported, so that a name in a stranger's file imports nothing.
"""

import importlib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfdpg.imports import add_directory, import_user_module, shadowed

if TYPE_CHECKING:
    from tfdpg.agents.agent import Agent
    from tfdpg.agents.options import AgentOptions

AGENTS = {name: f"tfdpg.agents.{name.lower()}" for name in ("DDPG", "TD3", "D4PG", "TD7", "ACER")}
"""The built-in algorithms, and their modules."""
_external: dict[str, "type[Agent]"] = {}
"""The classes of users' own files that were imported, by their names."""


def is_external(name: str) -> bool:
    """Return whether a name is that of an algorithm in a user's own file."""
    return ":" in name


def full_name(name: str) -> str:
    """Return the name of an algorithm as files contain it: in lower case, "module:Class", or "/path/file.py:Class"."""
    module, colon, qualified_name = name.rpartition(":")
    if not colon:
        return name.lower()
    return f"{Path(module).resolve() if module.endswith('.py') else module}:{qualified_name}"


def display_name(name: str) -> str:
    """Return the name of an algorithm as people read it: "TD3", or the name of the class."""
    return name.rpartition(":")[2].rpartition(".")[2] if is_external(name) else name.upper()


def agent_class(name: str) -> "type[Agent]":
    """The class of an algorithm, in any case ("td3" or "TD3"), or of an own algorithm that is imported.

    This imports TensorFlow.

    Raises:
        ValueError: there is no such algorithm.
    """
    if name in _external:
        return _external[name]
    _check(name)
    return getattr(importlib.import_module(AGENTS[name.upper()]), name.upper())


def options_class(name: str) -> "type[AgentOptions]":
    """The class of an algorithm's options. This does not import TensorFlow.

    Raises:
        ValueError: there is no such algorithm, or it is an own one that is not imported.
    """
    if name in _external:
        make: Any = _external[name]
        return make.__init__.options_class
    _check(name)
    from tfdpg.agents.options import OPTIONS

    return OPTIONS[name.upper()]


def class_names(name: str) -> list[str]:
    """Return the names of an algorithm's class and of those that it inherits from. This does not import TensorFlow."""
    if name in _external:
        return [each.__name__ for each in _external[name].__mro__]
    _check(name)
    return [name.upper()]


def is_known(name: str) -> bool:
    """Return whether the options of an algorithm are known: it is built-in, or was imported."""
    return name in _external or not is_external(name)


def _check(name: str) -> None:
    if name.upper() not in AGENTS:
        why = f"The class {name!r} was not imported." if is_external(name) else f"There is no agent {name!r}."
        raise ValueError(f"{why} Known: {', '.join([*AGENTS, *_external])}")


def import_agent(name: str) -> "type[Agent]":
    """Import an algorithm of a user's own file, whose name the other functions then know.

    Args:
        name: "module:Class" or "path/file.py:Class". The module may be in the working directory.

    Raises:
        ValueError: it cannot be imported, or is not a class of agents that takes options. The message is one line.
    """
    name = full_name(name)
    _external[name] = checked_class(imported(name), repr(name))
    return _external[name]


def imported(name: str) -> Any:
    """Return the object with a full name; raise `ValueError` if it cannot be imported."""
    module_name, _, qualified_name = name.rpartition(":")
    file = Path(module_name) if module_name.endswith(".py") else None
    if file is not None:
        if not file.is_file():
            raise ValueError(f"{name!r} cannot be imported: there is no file {file}")
        add_directory(str(file.parent))
        module_name = file.stem
    try:
        module = import_user_module(module_name)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{name!r} cannot be imported: {_import_error(module_name, error)}") from error
    found = module.__file__ or ""
    if file is not None and Path(found).resolve() != file:
        raise ValueError(f"{name!r} cannot be imported: {module_name!r} is the module {found}. Rename the file.")
    thing: Any = module
    for part in qualified_name.split("."):
        if not hasattr(thing, part):
            classes = ", ".join(_agents_of(module)) or "none"
            raise ValueError(
                f"{name!r} cannot be imported: {module_name} has no class {qualified_name!r}. Its agents: {classes}."
                f"{shadowed(module_name)}"
            )
        thing = getattr(thing, part)
    return thing


def _import_error(module: str, error: BaseException) -> str:
    from tfdpg.environments import place_of

    if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
        return f"{error}. Modules are looked for in the working directory and on PYTHONPATH."
    place = f" ({place_of(error)})" if place_of(error) else ""
    return " ".join(f"it raised {type(error).__name__}: {error}{place}".split())


def _agents_of(module: Any) -> list[str]:
    """Return the names of the classes of agents that a module defines."""
    from tfdpg.agents.agent import Agent

    return [
        name
        for name, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, Agent) and kind.__module__ == module.__name__
    ]


def checked_class(given: Any, what: str) -> "type[Agent]":
    """The class, if it is one of agents that take options as keyword arguments; raises `ValueError` otherwise."""
    from tfdpg.agents.agent import Agent

    if not (isinstance(given, type) and issubclass(given, Agent)):
        raise ValueError(f"{what} must be a subclass of tfdpg.Agent. Received: {given!r}")
    if not hasattr(given.__init__, "options_class"):
        raise ValueError(
            f"The constructor of {what} must take its options with the decorator `tfdpg.options.takes_options`. "
            f"Received: {given!r}"
        )
    return given
