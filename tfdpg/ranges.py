"""Types with ranges: conversion of values to them, and their descriptions in messages and tables."""

import functools
import math
import numbers
import operator
import re
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Protocol, runtime_checkable


class Within(NamedTuple):
    """The range of a number, for use in `Annotated`.

    Attributes:
        low: the lower bound.
        high: the upper bound.
        is_open: whether `low` itself is excluded.
        is_open_above: whether `high` itself is excluded.
        may_be_infinite: whether infinity is allowed.
    """

    low: float = -math.inf
    high: float = math.inf
    is_open: bool = False
    is_open_above: bool = False
    may_be_infinite: bool = False

    def holds(self, number: float) -> bool:
        """Return whether a number lies in the range."""
        above = number > self.low if self.is_open else number >= self.low
        below = number < self.high if self.is_open_above else number <= self.high
        return above and below and (self.may_be_infinite or math.isfinite(number))

    def describe(self, kind: type) -> str:
        """Describe the range, for messages: "a finite number in [0, 1]".

        Args:
            kind: `int` or `float`.
        """
        if kind is int and self.low == 1:
            return "a positive integer"
        if self.is_open:
            return f"a number above {self.low:g}" + (", or infinity" if self.may_be_infinite else "")
        noun = "an integer" if kind is int else "a finite number"
        if self.high < math.inf:
            return f"{noun} in [{self.low:g}, {self.high:g}{')' if self.is_open_above else ']'}"
        return noun if self.low == -math.inf else f"{noun} of at least {self.low:g}"


Natural = Annotated[int, Within(0)]
Count = Annotated[int, Within(1)]
Fraction = Annotated[float, Within(0, 1)]
FractionBelowOne = Annotated[float, Within(0, 1, is_open_above=True)]
NonNegative = Annotated[float, Within(0)]
Positive = Annotated[float, Within(0, is_open=True)]
PositiveOrInfinite = Annotated[float, Within(0, is_open=True, may_be_infinite=True)]
OPSETS = Within(12, 18)
"""The versions of ONNX's operators to which policies can be exported; each is tested."""
OPSET = 17
"""The default of them."""


@runtime_checkable
class KerasCell(Protocol):
    """A Keras RNN cell. It is recognised by its `state_size`, because this module does not import Keras."""

    @property
    def state_size(self) -> Any:
        """The widths of the parts of its state."""


INVALID = object()
"""What `convert_value` returns for a value that its type does not allow."""


def convert_value(kind: Any, value: Any) -> Any:
    """Convert a value to a type: numbers to Python's, sequences to tuples.

    Args:
        kind: a class, `Any`, or a `Literal`, `Sequence`, `tuple`, union or `Annotated` (with `Within`) type.
        value: the value to convert.

    Returns:
        The converted value, or `INVALID` if the type does not allow it.
    """
    kind, range_ = _split(kind)
    origin = typing.get_origin(kind)
    parts = typing.get_args(kind)
    if origin in UNIONS:
        return next((converted for part in parts if (converted := convert_value(part, value)) is not INVALID), INVALID)
    if origin is Literal:
        is_valid = any(type(value) is type(part) and value == part for part in parts)
    elif origin in (Sequence, tuple):
        is_valid = isinstance(value, Sequence) and not isinstance(value, str)
        value = tuple(convert_value(parts[0], part) for part in value) if is_valid else value
        is_valid = is_valid and all(part is not INVALID for part in value)
    elif kind in (int, float):
        number: Any = numbers.Integral if kind is int else numbers.Real
        is_valid = isinstance(value, number) and not isinstance(value, bool)
        value = kind(value) if is_valid else value
        is_valid = is_valid and range_.holds(value)
    else:
        is_valid = kind is Any or isinstance(value, origin or kind)
    return value if is_valid else INVALID


def describe_type(kind: Any) -> str:
    """Describe a type for messages and tables: "a sequence of positive integers"."""
    kind, range_ = _split(kind)
    origin = typing.get_origin(kind)
    parts = typing.get_args(kind)
    if origin in UNIONS or origin is Literal:
        texts = [f'"{part}"' if isinstance(part, str) else repr(part) for part in parts]
        *others, last = texts if origin is Literal else map(describe_type, parts)
        return f"{', '.join(others)} or {last}" if others else last
    if origin in (Sequence, tuple):
        one = describe_type(parts[0]).removeprefix("a ").removeprefix("an ")
        return "a sequence of " + re.sub(r"\b(number|integer|string)\b", r"\1s", one)
    if kind in (int, float):
        return range_.describe(kind)
    return NAMES.get(kind) or f"a {(origin or kind).__name__}"


def command_line_type(kind: Any) -> Any:
    """Return a type without the alternatives that a command line cannot express."""
    if typing.get_origin(kind) not in UNIONS:
        return kind
    return functools.reduce(operator.or_, [part for part in typing.get_args(kind) if part is not KerasCell])


def without_ranges(kind: Any) -> Any:
    """Return a type without `Annotated`, as it is written in a signature."""

    def function() -> None: ...

    function.__annotations__["return"] = kind
    return typing.get_type_hints(function)["return"]


def _split(kind: Any) -> tuple[Any, Within]:
    """Split a type from its range."""
    return (kind.__origin__, kind.__metadata__[0]) if typing.get_origin(kind) is Annotated else (kind, Within())


UNIONS = (typing.Union, types.UnionType)
NAMES = {
    bool: "True or False",
    str: "a string",
    Path: "a path",
    types.NoneType: "None",
    Any: "an object",
    KerasCell: "a Keras RNN cell",
}
