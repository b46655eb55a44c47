"""Import the modules of users, which may be in the working directory.

Everything else that the command line imports must not be there: a directory with a stranger's run may contain a file
with the name of a library, such as `numpy.py`.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypeVar

Result = TypeVar("Result")

SAFE_PATH = "PYTHONSAFEPATH"
"""The environment variable with the effect of `python -P`."""


@contextlib.contextmanager
def user_modules(directory: str | None = None) -> Iterator[None]:
    """Let modules be imported from the working directory, if they are nowhere else.

    Args:
        directory: the working directory of another process, for which this one imports.
    """
    entry = working_directory() if directory is None else directory
    if entry is None or entry in sys.path or (directory is None and "" in sys.path):
        yield
        return
    entry = os.path.join(entry, "")  # differs from what an imported module may add itself
    sys.path.append(entry)
    try:
        yield
    finally:
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


def import_user_module(name: str) -> ModuleType:
    """Import a module that a user named, also from the working directory."""
    with user_modules():
        return importlib.import_module(name)


def call_for(directory: str | None, function: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Result:
    """Call a function that imports the modules of a user, for a process with this working directory."""
    with user_modules(directory):
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
