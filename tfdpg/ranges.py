"""Types with ranges: which values they have, and how people call them."""

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
    """The range of a number: [low, high], without `low` itself if `is_open`, without `high` if `is_open_above`."""

    low: float = -math.inf
    high: float = math.inf
    is_open: bool = False
    is_open_above: bool = False
    may_be_infinite: bool = False

    def holds(self, number: float) -> bool:
        """Whether a number lies in the range."""
        above = number > self.low if self.is_open else number >= self.low
        below = number < self.high if self.is_open_above else number <= self.high
        return above and below and (self.may_be_infinite or math.isfinite(number))

    def describe(self, kind: type) -> str:
        """The range in words, of an `int` or a `float`."""
        if kind is int:
            return {-math.inf: "an integer", 1: "a positive integer"}.get(
                self.low, f"an integer of at least {self.low:g}"
            )
        if self.is_open:
            return f"a number above {self.low:g}" + (", or infinity" if self.may_be_infinite else "")
        if self.high < math.inf:
            return f"a finite number in [{self.low:g}, {self.high:g}{')' if self.is_open_above else ']'}"
        return "a finite number" + ("" if self.low == -math.inf else f" of at least {self.low:g}")


Natural = Annotated[int, Within(0)]
Count = Annotated[int, Within(1)]
Fraction = Annotated[float, Within(0, 1)]
FractionBelowOne = Annotated[float, Within(0, 1, is_open_above=True)]
NonNegative = Annotated[float, Within(0)]
Positive = Annotated[float, Within(0, is_open=True)]
PositiveOrInfinite = Annotated[float, Within(0, is_open=True, may_be_infinite=True)]


@runtime_checkable
class KerasCell(Protocol):
    """A Keras RNN cell, known by the size of its state, since options do without Keras."""

    @property
    def state_size(self) -> Any:
        """The widths of its state's parts."""
        ...


def command_line_type(kind: Any) -> Any:
    """A type without what cannot be written on a command line."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind
    return functools.reduce(operator.or_, [part for part in typing.get_args(kind) if part is not KerasCell])


def without_ranges(kind: Any) -> Any:
    """A type as people write it."""
    if typing.get_origin(kind) is Annotated:
        return kind.__origin__
    parts = tuple(without_ranges(part) for part in typing.get_args(kind))
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return functools.reduce(operator.or_, parts)
    return Sequence[parts[0]] if typing.get_origin(kind) is Sequence else kind


INVALID = object()
"""What no type has."""


def convert_value(kind: Any, value: Any) -> Any:
    """A value as a type has it; `INVALID` if it is none of its values."""
    range_ = Within()
    if typing.get_origin(kind) is Annotated:
        range_ = kind.__metadata__[0]
        kind = kind.__origin__
    origin = typing.get_origin(kind)
    parts = typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return next((converted for part in parts if (converted := convert_value(part, value)) is not INVALID), INVALID)
    if origin is Literal:
        return value if any(type(value) is type(part) and value == part for part in parts) else INVALID
    if origin in (Sequence, tuple):
        converted = [convert_value(parts[0], part) for part in value] if _is_sequence(value) else [INVALID]
        return INVALID if any(part is INVALID for part in converted) else tuple(converted)
    if kind in (int, float):
        return _number(kind, range_, value)
    if kind is Any:
        return value
    return value if isinstance(value, origin or kind) else INVALID


def _number(kind: Any, range_: Within, value: Any) -> Any:
    wanted: Any = numbers.Integral if kind is int else numbers.Real
    is_number = isinstance(value, wanted) and not isinstance(value, bool)
    return kind(value) if is_number and range_.holds(kind(value)) else INVALID


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def describe_type(kind: Any) -> str:
    """A type in words."""
    range_ = Within()
    if typing.get_origin(kind) is Annotated:
        range_ = kind.__metadata__[0]
        kind = kind.__origin__
    origin = typing.get_origin(kind)
    parts = typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        *others, last = [describe_type(part) for part in parts]
        return f"{', '.join(others)} or {last}"
    if origin is Literal:
        *others, last = [f'"{part}"' if isinstance(part, str) else repr(part) for part in parts]
        return f"{', '.join(others)} or {last}" if others else last
    if origin in (Sequence, tuple):
        one = describe_type(parts[0]).removeprefix("a ").removeprefix("an ")
        return "a sequence of " + re.sub(r"\b(number|integer|text)\b", r"\1s", one)
    if kind in (int, float):
        return range_.describe(kind)
    names = {bool: "True or False", str: "a text", Path: "a path", types.NoneType: "None", Any: "an object"}
    names |= {KerasCell: "a Keras RNN cell"}
    return names.get(kind) or f"a {(origin or kind).__name__}"
