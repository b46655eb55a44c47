"""`tfdpg tune`."""

import functools
import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tfdpg.agents.classes import display_name, options_class
from tfdpg.cli.run_options import EnvironmentArguments, Run, RunConfig, RunFlags, flags_class
from tfdpg.cli.training import parse_with_recipe
from tfdpg.environments import parse_kwargs
from tfdpg.options import options_of
from tfdpg.training.options import FitOptions
from tfdpg.tuning import initial_options, require_optuna, start
from tfdpg.tuning.options import TuneOptions


def tune_flags(agent: str, recipe: Mapping[str, Any] = MappingProxyType({})) -> type:
    """Return a dataclass with the flags of `tfdpg tune AGENT`.

    Args:
        agent: the name of the algorithm.
        recipe: values that replace the defaults of the options.
    """
    names = {option.name for kind in (Run, EnvironmentArguments) for option in options_of(kind)}
    names |= {"recipe", *initial_options(agent)}
    options = list(options_of(TuneOptions))
    for kind in (RunFlags, FitOptions, options_class(agent)):
        for option in options_of(kind):
            if option.name in names:
                options.append(option._replace(default=recipe.get(option.name, option.default)))
    doc = f"Search for the options of {display_name(agent)} with the highest return. The same command resumes a search."
    return flags_class("TuneFlags", doc, options)


def parse_tune_flags(agent: str, arguments: Sequence[str]) -> tuple[TuneOptions, RunConfig]:
    """Parse the arguments after `tfdpg tune AGENT`. Return the options of the search and of its first trial."""
    values = parse_with_recipe(functools.partial(tune_flags, agent), agent, arguments, f"tfdpg tune {agent}")
    options = TuneOptions(**{option.name: values.pop(option.name) for option in options_of(TuneOptions)})
    run = {option.name: values.pop(option.name) for option in options_of(Run)}
    del values["recipe"]
    env_kwargs = parse_kwargs(values.pop("env_kwargs"))
    return options, RunConfig(agent=agent, seed=options.seed, env_kwargs=env_kwargs, options=values, **run)


def tune(agent: str, arguments: Sequence[str]) -> None:
    """Run or resume a search."""
    options, config = parse_tune_flags(agent, arguments)
    require_optuna()
    try:
        start(config, options)
    except (KeyboardInterrupt, SystemExit) as end:
        end.add_note(f"Resume the search with: {shlex.join(['tfdpg', 'tune', agent, *arguments])}")
        raise
