"""Parse the arguments of a command line, and say in one line what is wrong with them.

Tyro parses the arguments and writes the help. The format of its error messages changes between versions, so this module
does not read them: it only uses the exit status, and finds the mistake by parsing each flag alone.
"""

import contextlib
import dataclasses
import functools
import inspect
import io
import keyword
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

import tyro

from tfdpg.hints import ARGUMENTS, did_you_mean
from tfdpg.ranges import Within, describe_type


class UsageError(Exception):
    """The command line is not valid. The first line of the message says why."""


def parse(target: Any, arguments: Sequence[str], prog: str, refused: Mapping[str, str] = MappingProxyType({})) -> Any:
    """Parse the arguments of a command line, as `tyro.cli` does; None may also be written `none`.

    Args:
        target: a dataclass with groups of flags, or a function whose parameters are the flags.
        arguments: the arguments after the command.
        prog: the command, for the help.
        refused: names of flags that the command does not have, and for each the message that says why.

    Raises:
        UsageError: the arguments are not valid.
        SystemExit: the help was printed.
    """
    arguments = _with_none(target, arguments)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return tyro.cli(target, args=arguments, prog=prog)
    except SystemExit as end:
        if end.code in (0, None):
            raise
    raise UsageError(f"{_mistake(target, arguments, refused)}\n`{prog} --help` lists all flags.")


def deferred_call(function: Callable[..., Any]) -> Callable[..., functools.partial[Any]]:
    """Return a function with the same parameters that returns the call as a `functools.partial`."""
    return functools.wraps(function)(lambda *args, **kwargs: functools.partial(function, *args, **kwargs))


def flags_of(target: Any) -> dict[str, Any]:
    """Return the type of each flag of a dataclass with groups or of a function, by the name without dashes."""
    flags = (each for each in _parameters(target) if each.kind is not each.POSITIONAL_ONLY)
    return {flag_name(each.name): each.annotation for each in flags}


def flag_name(name: str) -> str:
    """Return the name of a flag without dashes at its beginning. A parameter `from_` has it without the underscore."""
    return name.removesuffix("_").replace("_", "-")


def given_flags(arguments: Sequence[str]) -> set[str]:
    """Return the names of the flags on a command line, without dashes at the beginning."""
    return {_name(word.partition("=")[0]) for word in arguments} - {""}


def _parameters(target: Any) -> list[inspect.Parameter]:
    owners = [target]
    if dataclasses.is_dataclass(target):
        owners = [typing.get_args(group.type)[0] for group in dataclasses.fields(target)]
    return [parameter for owner in owners for parameter in inspect.signature(owner).parameters.values()]


def _with_none(target: Any, arguments: Sequence[str]) -> list[str]:
    """Write None as tyro expects it, where it is the value of a flag that takes None."""
    takes_none = {flag for flag, kind in flags_of(target).items() if types.NoneType in typing.get_args(_plain(kind))}
    words = []
    before = ""
    for word in arguments:
        flag, equals, value = word.partition("=")
        if equals and value.lower() == "none" and _name(flag) in takes_none:
            word = f"{flag}=None"
        elif word.lower() == "none" and _name(before) in takes_none:
            word = "None"
        words.append(word)
        before = word
    return words


def _name(word: str) -> str:
    """Return the name of a flag, without its dashes; "" for another word."""
    return word.removeprefix("--").replace("_", "-") if word.startswith("--") else ""


def _mistake(target: Any, arguments: Sequence[str], refused: Mapping[str, str]) -> str:
    """Return what is wrong with arguments that `target` does not accept."""
    kinds = flags_of(target)
    groups: list[list[str]] = [[]]
    for word in arguments:
        if word.startswith("--"):
            groups.append([])
        groups[-1].append(word)
    positional, *flags = groups
    given = set()
    for word, *values in flags:
        flag, _, value = word.removeprefix("--").partition("=")
        flag = flag.replace("_", "-")
        if _plain(kinds.get(flag.removeprefix("no-"))) is bool:
            flag = flag.removeprefix("no-")
        if flag in refused:
            return refused[flag]
        if flag not in kinds:
            return f"there is no flag --{flag}.{similar_flag(flag, kinds)}"
        name = flag.replace("-", "_")
        field: Any = (
            name + "_" * keyword.iskeyword(name),
            kinds[flag],
            *([False] if _plain(kinds[flag]) is bool else []),
        )
        alone = dataclasses.make_dataclass("Flag", [field])
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                positional += tyro.cli(alone, args=[word, *values], return_unknown_args=True)[1]
        except SystemExit:
            received = " ".join([value, *values]).strip() or "no value"
            return f"--{flag} must be {_describe(kinds[flag])}. Received: {received}"
        given.add(flag)
    for place, parameter in enumerate(_parameters(target)):
        is_positional = parameter.kind is parameter.POSITIONAL_ONLY
        is_given = place < len(positional) if is_positional else flag_name(parameter.name) in given
        if parameter.default is parameter.empty and not is_given:
            return _missing(target, parameter)
    return f"unexpected arguments: {' '.join(positional[len(_parameters(target)) - len(kinds) :] or arguments)}"


def similar_flag(flag: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown flag: a similar one, or where its task is done; "" if there is none."""
    name = flag.replace("-", "_")
    meant = did_you_mean(name, (each.replace("-", "_") for each in known), "--{}").replace("_", "-")
    return meant or (f" {ARGUMENTS[name]}" if name in ARGUMENTS else "")


def _plain(kind: Any) -> Any:
    """Return the type of a flag without marks."""
    return kind.__origin__ if typing.get_origin(kind) is Annotated else kind


def _describe(kind: Any) -> str:
    """Return the type of a flag as text, without the marks for tyro."""
    ranges = [mark for mark in getattr(kind, "__metadata__", ()) if isinstance(mark, Within)]
    plain = _plain(kind)
    return describe_type(Annotated[plain, ranges[0]] if ranges else plain).removeprefix("a sequence of ")


def _missing(target: Any, parameter: inspect.Parameter) -> str:
    """Return that a parameter is missing, and what it is."""
    marks = getattr(parameter.annotation, "__metadata__", ())
    flag = f"--{flag_name(parameter.name)}"
    name = next((mark.metavar for mark in marks if getattr(mark, "metavar", None)), flag)
    documented = re.search(rf"^ +{parameter.name}: (.*)", target.__doc__ or "", re.MULTILINE)
    help_text = documented[1] if documented else next((mark.help for mark in marks if hasattr(mark, "help")), "")
    return f"{name} is missing: {help_text.rstrip('.')}."
