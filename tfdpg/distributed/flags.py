"""The options of `tfdpg.distributed.fit` as those of a command that may also train without workers."""

import inspect
from typing import Any, NamedTuple

from tfdpg.distributed.interface import fit
from tfdpg.distributed.plan import OPTIONS


class Flag(NamedTuple):
    """An option: its name, type and default."""

    name: str
    kind: Any
    default: Any


def flags() -> list[Flag]:
    """The options that `Agent.fit` does not have. The default of `actors` is None: train without workers."""
    parameters = inspect.signature(fit).parameters
    declared = [Flag(name, parameters[name].annotation, parameters[name].default) for name in OPTIONS]
    return [Flag("actors", int | None, None) if flag.name == "actors" else flag for flag in declared]


def chosen(values: dict[str, Any]) -> dict[str, Any] | None:
    """The options to train with; None without `actors`.

    Args:
        values: the options by name, and others, from which they are removed.

    Raises:
        ValueError: an option without `actors`, which all of them need.
    """
    own = {flag.name: values.pop(flag.name) for flag in flags()}
    changed = [flag.name for flag in flags() if own[flag.name] != flag.default]
    if own["actors"] is None and changed:
        raise ValueError(f"`--{changed[0].replace('_', '-')}` needs `--actors`, the number of rollout workers.")
    return own if changed else None
