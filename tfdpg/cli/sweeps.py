"""`tfdpg train --sweep`: parse the values of the options to vary, and name the directories of the settings."""

import itertools
import typing
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from tfdpg.agents.classes import display_name, options_class
from tfdpg.cli.parsing import UsageError, flags_of, given_flags, parse, similar_flag
from tfdpg.cli.run_options import BOOKKEEPING, RunConfig, flags_class, training_flags
from tfdpg.options import Option, options_of
from tfdpg.ranges import UNIONS
from tfdpg.training.options import FitOptions


def settings(
    agent: str, sweep: Sequence[str], arguments: Sequence[str], options: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the options of each setting of a sweep: all combinations of the swept values.

    Args:
        agent: the name of the algorithm.
        sweep: the texts after `--sweep`, each of the form `name=value,value,...`.
        arguments: the arguments after `tfdpg train AGENT`.
        options: the options that all settings share, by name. Their order is that of the swept options, so that the
            order on the command line does not matter.

    Raises:
        UsageError: a text has another form, names no option of the algorithm or of `fit` that can be swept, has fewer
            than two different values, or a value that the flag of the option does not accept; or an option is named
            twice, or has a flag, too.
    """
    if not sweep and "sweep" in given_flags(arguments):
        raise UsageError("--sweep must be NAME=VALUE,VALUE,... for each option. Received: no value")
    values: dict[str, list[Any]] = {}
    for text in sweep:
        name = _name(text)
        _, equals, listed = text.partition("=")
        texts = listed.split(",")
        if not (name and equals and all(each.strip() for each in texts)):
            raise UsageError(f"--sweep must be NAME=VALUE,VALUE,... for each option. Received: {text}")
        flag = name.replace("_", "-")
        option = _option(agent, name)
        if name in values:
            raise UsageError(f"--sweep must name each option once. Received: {name} twice")
        if flag in given_flags(arguments):
            raise UsageError(f"--{flag} and --sweep {name}=... exclude each other: the sweep sets {name}.")
        if len(texts) == 1:
            raise UsageError(f"--sweep needs two or more values of {name}. --{flag} {listed} sets one.")
        values[name] = [_value(agent, option, each) for each in texts]
        if repeated := [each for i, each in enumerate(texts) if values[name][i] in values[name][:i]]:
            raise UsageError(f"--sweep must have different values of {name}. Received: {repeated[0]} again in {text}")
    names = sorted(values, key=lambda name: list(options).index(name) if name in options else len(options))
    combinations = itertools.product(*(values[name] for name in names))
    return [{**options, **dict(zip(names, each, strict=True))} for each in combinations]


def swept_options(runs: Sequence[RunConfig]) -> list[str]:
    """Return the names of the options in which the runs of a sweep differ, apart from bookkeeping such as `epochs`."""
    options = {name: value for name, value in runs[0].options.items() if name not in BOOKKEEPING}
    return [name for name, value in options.items() if any(run.options.get(name, value) != value for run in runs)]


def _name(text: str) -> str:
    return text.partition("=")[0].removeprefix("--").replace("-", "_")


def _option(agent: str, name: str) -> Option:
    """Return the option of an algorithm or of `fit` with this name, if it can be swept."""
    options = {option.name: option for kind in (FitOptions, options_class(agent)) for option in options_of(kind)}
    shown = {each: option for each, option in options.items() if not option.is_object and each not in BOOKKEEPING}
    flag = name.replace("_", "-")
    if name == "seed":
        raise UsageError("--sweep does not take seed: --seeds trains each setting with several seeds.")
    if name not in shown:
        flags = flags_of(training_flags(agent))
        if flag in flags:
            owner = display_name(agent)
            raise UsageError(f"--sweep takes options of {owner} and of `fit` that change what is learned, not {name}.")
        raise UsageError(f"--sweep {name}: there is no flag --{flag}.{similar_flag(flag, flags)}")
    if shown[name].kind is bool:
        raise UsageError(f"--sweep does not take {name}, which is on or off: use --{flag} and --no-{flag}.")
    return shown[name]


def _value(agent: str, option: Option, text: str) -> Any:
    """Parse a value as the flag of an option does. The elements of a list have spaces between them."""
    kinds = typing.get_args(option.kind) if typing.get_origin(option.kind) in UNIONS else [option.kind]
    is_list = any(typing.get_origin(kind) in (Sequence, tuple) for kind in kinds)
    words = text.split() if is_list else [text.strip()]
    flag = f"--{option.name.replace('_', '-')}"
    parsed = parse(flags_class("Swept", "", [option]), [flag, *words], f"tfdpg train {agent}")
    return next(vars(group)[option.name] for group in vars(parsed).values())


def directory_name(setting: Mapping[str, Any]) -> str:
    """Return the name of the directory of a setting: `n_step-3_gamma-0.98`.

    Characters that are not safe in the name of a directory are written as in a URL.
    """
    return "_".join(f"{name}-{_text(value)}" for name, value in setting.items())


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "-".join(map(_text, value))
    return urllib.parse.quote(str(value), safe="")


def check_resumed(runs: Sequence[RunConfig], arguments: Sequence[str]) -> None:
    """Raise `UsageError` if a flag would change an option in which the runs of a sweep differ."""
    for name in swept_options(runs):
        flag = name.replace("_", "-")
        if flag in given_flags(arguments):
            raise UsageError(f"--{flag} cannot change, because the runs of the sweep differ in it.")
