"""Checks of arguments: each names the argument, what was expected and what came."""

import functools
import inspect
import math
import numbers
from collections.abc import Callable, Collection
from typing import Any, TypeVar, cast

Init = TypeVar("Init", bound=Callable[..., None])


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


def up_to_infinity(name: str, value: Any) -> float:
    """Returns `value` as a float above 0, which may be infinite, or raises `ValueError`."""
    is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_real or not float(value) > 0:
        raise reject(name, "a number above 0, or infinity", value)
    return float(value)


def flag(name: str, value: Any) -> bool:
    """Returns `value` if it is True or False, or raises `ValueError`."""
    if not isinstance(value, bool):
        raise reject(name, "True or False", value)
    return value


def keeps_arguments(init: Init) -> Init:
    """Makes a constructor keep its arguments: all in `self.given`; in `self.changed` who are not at their defaults."""
    signature = inspect.signature(init)

    @functools.wraps(init)
    def keeping(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError:
            init(self, *args, **kwargs)  # whose own message names the constructor
            raise
        bound.apply_defaults()
        self.given = {name: value for name, value in bound.arguments.items() if name != "self"}
        defaults = {name: parameter.default for name, parameter in signature.parameters.items()}
        self.changed = {name for name, value in self.given.items() if _differs(value, defaults[name])}
        init(self, *args, **kwargs)

    return cast(Init, keeping)


def _differs(value: Any, default: Any) -> bool:
    plain = (bool, int, float, str, tuple)
    return value is not default and not (isinstance(value, plain) and isinstance(default, plain) and value == default)


def refuse_unused(changed: Collection[str], names: Collection[str], why: str) -> None:
    """Raises `ValueError` if one of `names` was changed, where `why` says that it has no effect."""
    for name in names:
        if name in changed:
            raise ValueError(f"`{name}` does nothing where {why}.")
