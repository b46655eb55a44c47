"""The search space: which options are searched, and how a trial draws their values."""

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tfdpg.agents.classes import options_class
from tfdpg.cli.run_options import RunConfig
from tfdpg.hints import did_you_mean
from tfdpg.options import BuiltIn, Choices, Option, Search, options_of

if TYPE_CHECKING:
    from optuna import Trial

DEFAULT = ("pi_lr", "q_lr", "lr", "gamma", "batch_size", "act_noise", "sigma", "hidden_units")
"""The options that are searched by default, if the agent has them, they have an effect, and their value is in range."""


class Dimension(NamedTuple):
    """An option that is searched.

    Attributes:
        name: the name of the option.
        mark: its range or its choices, extended by `initial`.
        initial: its value in the first trial.
    """

    name: str
    mark: Search | Choices
    initial: Any

    @property
    def parameter(self) -> str:
        """The name of Optuna's parameter."""
        is_complement = isinstance(self.mark, Search) and self.mark.scale == "log of 1 - x"
        return f"1 - {self.name}" if is_complement else self.name

    @property
    def initial_parameter(self) -> Any:
        """The value of Optuna's parameter in the first trial."""
        if isinstance(self.mark, Choices):
            return _text(self.initial)
        return 1 - self.initial if self.mark.scale == "log of 1 - x" else self.initial

    def draw(self, trial: "Trial") -> Any:
        """Draw a value. Numbers have three significant digits."""
        if isinstance(self.mark, Choices):
            values = {_text(value): value for value in self.mark.values}
            return values[trial.suggest_categorical(self.parameter, list(values))]
        low, high, scale = self.mark
        if isinstance(low, int):
            return trial.suggest_int(self.parameter, low, int(high), log=scale == "log")
        if scale == "log of 1 - x":
            return float(f"{1 - float(f'{trial.suggest_float(self.parameter, 1 - high, 1 - low, log=True):.3g}'):.10g}")
        value = float(f"{trial.suggest_float(self.parameter, low, high, log=scale == 'log'):.3g}")
        return min(max(value, low), high)

    def extremes(self) -> Sequence[Any]:
        """Return all choices, or the ends of the range."""
        return self.mark.values if isinstance(self.mark, Choices) else self.mark[:2]


def _text(value: Any) -> str:
    """Return a choice as Optuna stores it."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def dimensions(config: RunConfig, names: Sequence[str]) -> list[Dimension]:
    """Return the options to search.

    Args:
        config: the configuration of the first trial.
        names: the names of the options; none for the default.

    Raises:
        ValueError: an option does not exist, has no range, or has no effect with the other options.
    """
    kind = options_class(config.agent)
    known = {option.name: option for option in options_of(kind) if option.search}
    options = kind(**config.agent_options)
    if names:
        return [_required(name.replace("-", "_"), known, options, config) for name in names]
    found = []
    for name in DEFAULT:
        if name in known and not (config.networks and BuiltIn in known[name].marks):
            value = getattr(options, name)
            with contextlib.suppress(ValueError):  # a value without a place on the scale
                dimension = Dimension(name, _extended(known[name], value), value)
                if dimension.mark == known[name].search and _problem(dimension, config) is None:
                    found.append(dimension)
    if not found:
        raise ValueError("`search` must name options: none of the default ones has an effect with these options.")
    return found


def _required(name: str, known: dict[str, Option], options: Any, config: RunConfig) -> Dimension:
    """Return an option that the user wants to search; raise `ValueError` if that is not possible."""
    if name not in known:
        meant = did_you_mean(name, known, "'{}'")
        names = ", ".join(sorted(known))
        raise ValueError(f"`search` must name options with a search range: {names}.{meant} Received: {name}")
    value = getattr(options, name)
    dimension = Dimension(name, _extended(known[name], value), value)
    if problem := _problem(dimension, config):
        raise ValueError(f"`search` names {name}, which cannot be searched here: {problem}")
    return dimension


def _extended(option: Option, value: Any) -> Search | Choices:
    """Return the range or the choices of an option, extended by a value.

    Raises:
        ValueError: the value has no place on the scale.
    """
    if isinstance(option.search, Choices):
        values = option.search.values
        return option.search if value in values else Choices(*values, value)
    assert option.search is not None
    low, high, scale = option.search
    is_number = isinstance(value, int | float) and math.isfinite(value)
    if not is_number or (scale == "log" and value <= 0) or (scale == "log of 1 - x" and value >= 1):
        raise ValueError(
            f"`{option.name}` is searched on the scale {scale!r}, which needs another initial value. Received: "
            f"{option.name}={value!r}"
        )
    return option.search if low <= value <= high else Search(min(low, value), max(high, value), scale)


def _problem(dimension: Dimension, config: RunConfig) -> str | None:
    """Return why the ends of a range, or the choices, are not valid with the other options; None if they are."""
    for value in dimension.extremes():
        try:
            dataclasses.replace(config, options=config.options | {dimension.name: value})
        except ValueError as error:
            return str(error)
    return None
