"""Checks of arguments: each names the argument, what was expected and what came; and warnings."""

import math
import numbers
import sys
import warnings
from typing import Any


def reject(name: str, expected: str, received: Any) -> ValueError:
    """The error for an argument that cannot be used; raise what this returns."""
    return ValueError(f"`{name}` must be {expected}. Received: {name}={received!r}")


def positive_int(name: str, value: Any) -> int:
    """Returns `value` as an int of at least 1, or raises `ValueError`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise reject(name, "a positive integer", value)
    return int(value)


def natural(name: str, value: Any) -> int:
    """Returns `value` as an int of at least 0, or raises `ValueError`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 0:
        raise reject(name, "an integer of at least 0", value)
    return int(value)


def real(name: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """Returns `value` as a finite float in [low, high], or raises `ValueError`."""
    is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    number = float(value) if is_real else math.nan
    if not math.isfinite(number) or not low <= number <= high:
        at_least = "" if low == -math.inf else f" of at least {low:g}"
        raise reject(name, "a finite number" + (at_least if high == math.inf else f" in [{low:g}, {high:g}]"), value)
    return number


def positive(name: str, value: Any) -> float:
    """Returns `value` as a finite float above 0, or raises `ValueError`."""
    number = real(name, value)
    if number <= 0:
        raise reject(name, "a number above 0", value)
    return number


def flag(name: str, value: Any) -> bool:
    """Returns `value` if it is True or False, or raises `ValueError`."""
    if not isinstance(value, bool):
        raise reject(name, "True or False", value)
    return value


def warn(text: str) -> None:
    """Warn at the line outside tfdpg that called, each time: Python's filters hide only what the user filters out.

    Python shows equal warnings of one line once in a process, so a second agent in a loop would not be heard.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"].split(".")[0] == "tfdpg":
        frame = frame.f_back
    where = frame.f_code.co_filename, frame.f_lineno, frame.f_globals["__name__"]
    warnings.warn_explicit(text, UserWarning, *where, registry={})
