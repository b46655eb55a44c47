"""What was asked for: words of a command line as options, and the first line of what is wrong with them."""

import contextlib
import dataclasses
import functools
import inspect
import io
import re
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any

import tyro

from tfdpg.hints import did_you_mean
from tfdpg.ranges import Within, describe_type

QUOTED = r"'([^']*)'"


class UsageError(Exception):
    """A command line that is not understood; the first line says what of it."""


def parse(target: Any, words: Sequence[str], prog: str, refused: Mapping[str, str] | None = None) -> Any:
    """What words say, as `tyro.cli` gives it.

    Args:
        target: a dataclass with groups of flags, or a function whose parameters are the flags.
        words: the words after the command.
        prog: the command.
        refused: flags that are none here, and why.

    Raises:
        UsageError: they are not understood.
        SystemExit: after the help.
    """
    if not {"-h", "--help"} & set(words):
        known = flags_of(target)
        for word in words:
            _check_flag(word, known, refused or {}, prog)
    shown = io.StringIO()
    try:
        with contextlib.redirect_stderr(shown):
            return tyro.cli(target, args=list(words), prog=prog)
    except SystemExit as end:
        if end.code in (0, None):
            raise
        raise UsageError(f"{_plain_message(_message(shown.getvalue()), target)}\n{_help_hint(prog)}") from None


def deferred_call(function: Callable[..., Any]) -> Callable[..., functools.partial[Any]]:
    """A function with the parameters of another, which gives the call of that one."""
    return functools.wraps(function)(lambda *args, **kwargs: functools.partial(function, *args, **kwargs))


def flags_of(target: Any) -> dict[str, Any]:
    """The flags of a dataclass with groups, or of a function, and their types."""
    if dataclasses.is_dataclass(target):
        groups = [typing.get_args(group.type)[0] for group in dataclasses.fields(target)]
        kinds = {field.name: field.type for group in groups for field in dataclasses.fields(group)}
    else:
        parameters = inspect.signature(target).parameters.values()
        kinds = {
            each.name: each.annotation for each in parameters if each.kind is not inspect.Parameter.POSITIONAL_ONLY
        }
    return {name.replace("_", "-"): kind for name, kind in kinds.items()}


def _check_flag(word: str, known: Collection[str], refused: Mapping[str, str], prog: str) -> None:
    flag = word.removeprefix("--").partition("=")[0].replace("_", "-")
    if not word.startswith("--") or flag in ("", *known) or flag.removeprefix("no-") in known:
        return
    if flag.startswith("tyro-"):
        return  # tyro's own, which print completions for shells
    if flag in refused:
        raise UsageError(refused[flag])
    meant = did_you_mean(flag.replace("-", "_"), (each.replace("-", "_") for each in known), "--{}").replace("_", "-")
    raise UsageError(f"there is no flag --{flag}.{meant}\n{_help_hint(prog)}")


def _help_hint(prog: str) -> str:
    return f"`{prog} --help` shows the flags that there are."


def _plain_message(message: str, target: Any) -> str:
    """What tyro says of a flag that is missing, or of another type, in plain words."""
    if missing := re.match(r"Missing from [^:]*: (--\S+ )?(\S+) (.*?)\.? \(required\)", message):
        flag, kind, meaning = missing.groups()
        return f"{(flag or kind).strip()} is missing: {meaning}."
    if wrong := re.match(r"Error parsing --(?P<flag>\S+): (?P<came>.*)", message) or re.match(
        rf"invalid choice (?P<came>{QUOTED}) for argument '--(?P<flag>[^']+)'", message
    ):
        flag = wrong["flag"]
        came = " ".join(re.findall(QUOTED, wrong["came"]))
        words = describe_type(_without_help(flags_of(target)[flag])).removeprefix("a sequence of ")
        return f"--{flag} must be {words}. Received: {came}"
    return message


def _without_help(kind: Any) -> Any:
    ranges = [mark for mark in getattr(kind, "__metadata__", ()) if isinstance(mark, Within)]
    plain = kind.__origin__ if typing.get_origin(kind) is Annotated else kind
    return Annotated[plain, ranges[0]] if ranges else plain


def _message(box: str) -> str:
    """What tyro's box says under its title, up to the first rule, on one line."""
    lines = [line.strip("│╭╮╰╯─ ") for line in re.sub(r"\x1b\[[\d;]*m", "", box).strip().splitlines()[1:]]
    text = "\n".join("" if set(line) <= {"-"} else line for line in lines)
    return " ".join(text.strip().partition("\n\n")[0].split())
