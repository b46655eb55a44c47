"""Checks of arguments, whose errors say which argument is wrong, what was expected and what was received; warnings."""

import math
import reprlib
import sys
import warnings
from typing import Annotated, Any

from tfdpg.ranges import INVALID, Count, Natural, Positive, Within, convert_value, describe_type

LONGEST = 300
"""The number of characters of a value that a message shows."""
MOST = 12
"""The number of items of a value that a message shows."""
_brief = reprlib.Repr()
_brief.maxlevel, _brief.maxdict, _brief.maxother, _brief.maxstring = 3, MOST, LONGEST, LONGEST
_brief.maxlist = _brief.maxtuple = _brief.maxset = _brief.maxfrozenset = MOST


def shown(value: Any) -> str:
    """Return a value as a message shows it, in at most about 300 characters: of an array, its shape and type."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and None not in shape and math.prod(shape) > MOST:
        return f"an array of shape {shape} and type {getattr(value, 'dtype', type(value).__name__)}"
    if isinstance(value, list | tuple | dict | set | frozenset):
        if len(value) > MOST:
            first = _shorten(_brief.repr(next(iter(value))))
            return f"a {type(value).__name__} of {len(value):,} items, of which the first is {first}"
        text = _brief.repr(value)
        return repr(value) if len(text) <= LONGEST and "..." not in text else _shorten(text)
    return _shorten(repr(value))


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def reject(name: str, expected: str, received: Any) -> ValueError:
    """Return the error for an invalid argument. The caller raises it."""
    return ValueError(f"`{name}` must be {expected}. Received: {name}={shown(received)}")


def check_value(name: str, kind: Any, value: Any) -> Any:
    """Convert a value to its type, as `convert_value` does.

    Raises:
        ValueError: the type does not allow the value. The message names the argument.
    """
    converted = convert_value(kind, value)
    if converted is INVALID:
        raise reject(name, describe_type(kind), value)
    return converted


def positive_int(name: str, value: Any) -> int:
    """Return `value` as an int of at least 1, or raise `ValueError`."""
    return check_value(name, Count, value)


def natural(name: str, value: Any) -> int:
    """Return `value` as an int of at least 0, or raise `ValueError`."""
    return check_value(name, Natural, value)


def real(name: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """Return `value` as a finite float in [low, high], or raise `ValueError`."""
    return check_value(name, Annotated[float, Within(low, high)], value)


def positive(name: str, value: Any) -> float:
    """Return `value` as a finite float above 0, or raise `ValueError`."""
    return check_value(name, Positive, value)


def flag(name: str, value: Any) -> bool:
    """Return `value` if it is True or False, or raise `ValueError`."""
    return check_value(name, bool, value)


def warn(text: str) -> None:
    """Issue a `UserWarning` that points to the line outside tfdpg that called it.

    Python shows equal warnings from one line only once per process. This function issues every warning, so that a
    second agent in a loop is reported too. Only the user's filters hide them.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"].split(".")[0] == "tfdpg":
        frame = frame.f_back
    where = frame.f_code.co_filename, frame.f_lineno, frame.f_globals["__name__"]
    warnings.warn_explicit(text, UserWarning, *where, registry={})
