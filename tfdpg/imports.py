"""Import the modules of users, which may be in the working directory.

Everything else that the command line imports must not be there: a directory with a stranger's run may contain a file
with the name of a library, such as `numpy.py`.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, TypeVar

Result = TypeVar("Result")

SAFE_PATH = "PYTHONSAFEPATH"
"""The environment variable with the effect of `python -P`."""


_named: list[str] = []
"""The directories of files that the user named on the command line."""


def add_directory(directory: str) -> None:
    """Import users' modules from the directory of a file that the user named, too."""
    if directory not in _named:
        _named.append(directory)


def user_directories() -> list[str]:
    """Return the directories of users' modules: the working directory, unless it was removed, and those of files."""
    directory = working_directory()
    return _named if directory is None else [directory, *_named]


@contextlib.contextmanager
def user_modules(directories: Sequence[str] | None = None) -> Iterator[None]:
    """Let modules be imported from the directories of users' modules, if they are nowhere else.

    Args:
        directories: those of another process, for which this one imports; None takes those of this one.
    """
    searched = user_directories() if directories is None else directories
    known = [working_directory() if entry == "" and directories is None else entry for entry in sys.path]
    # an added entry differs from what an imported module may add itself
    added = [os.path.join(entry, "") for entry in searched if entry not in known]
    sys.path += added
    try:
        yield
    finally:
        for entry in added:
            with contextlib.suppress(ValueError):
                sys.path.remove(entry)


def working_directory() -> str | None:
    """Return the path of the working directory; None if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def safe_path() -> Iterator[None]:
    """Start processes of Python that import nothing from the working directory, as with `python -P`.

    Other ways to start one, such as `multiprocessing`, put the working directory first.
    """
    previous = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        del os.environ[SAFE_PATH]
        if previous is not None:
            os.environ[SAFE_PATH] = previous


def require(user: str, extra: str, *modules: str) -> None:
    """Raise `ImportError` if a module of an extra of the package is not installed.

    Args:
        user: what needs the modules, for the message.
        extra: the name of the extra.
        modules: the names of the modules.
    """
    try:
        for name in modules:
            importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{user} needs {error.name}: pip install 'tfdpg[{extra}]'") from error


def import_user_module(name: str) -> ModuleType:
    """Import a module that a user named, also from the working directory."""
    with user_modules():
        return importlib.import_module(name)


def call_for(directories: Sequence[str], function: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Result:
    """Call a function that imports the modules of a user, for a process with these directories of them."""
    with user_modules(directories):
        return function(*args, **kwargs)


def shadowed(name: str) -> str:
    """Return which installed module was imported instead of one of the working directory, as a sentence, or ""."""
    top = name.partition(".")[0]
    directory = working_directory() or ""
    imported = getattr(sys.modules.get(top), "__file__", None) or ""
    for own in (os.path.join(directory, top, "__init__.py"), os.path.join(directory, f"{top}.py")):
        if imported and os.path.exists(own) and not os.path.samefile(imported, own):
            return f" {imported} was imported, and not {own}: rename your module, or put its directory on PYTHONPATH."
    return ""
