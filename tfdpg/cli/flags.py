"""The flags of `tfdpg train` and of `tfdpg train --resume`, which come from the options of what they set."""

import dataclasses
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any

import tyro

from tfdpg.agents.options import OPTIONS, AgentOptions
from tfdpg.cli.run_options import Environment, ResumeFlags, Run, RunConfig, RunFlags
from tfdpg.distributed.options import Distribution
from tfdpg.options import Option, Structural, options_of
from tfdpg.ranges import command_line_type
from tfdpg.training.options import FitOptions

GROUPS = (
    *("environment", "training", "run", "schedule", "exploration", "algorithm", "returns", "networks", "memory"),
    *("optimisers", "observations", "replay", "machine", "rollout workers"),
)
"""The groups of flags in the order of their help: first what is needed, and what is used most."""
FIXED_OPTIONS = {"networks", "initial_epoch", *(option.name for option in options_of(Environment))}
"""What a run keeps, beside what its agents do."""


def training_flags(agent: str, recipe: Mapping[str, Any] = MappingProxyType({})) -> type:
    """A dataclass with a dataclass for each group of flags of a run, of an agent, of `fit` and of its workers.

    Defaults are those of a recipe, where it has any.
    """
    options = []
    for option in (
        each for kind in (RunFlags, FitOptions, OPTIONS[agent.upper()], Distribution) for each in options_of(kind)
    ):
        if option.name == "actors":
            option = option._replace(kind=int | None, default=None)  # None trains without workers
        options.append(option._replace(default=recipe.get(option.name, option.default)))
    options.sort(key=lambda option: option.name == "initial_epoch")  # which few need
    return _dataclass("TrainingFlags", f"Train {agent.upper()} on an environment.", options)


def resume_flags(config: RunConfig | None) -> type:
    """Likewise of what may change in a run, which is the default; without a run, of what may change in all."""
    options = list(options_of(ResumeFlags))
    current_values = {} if config is None else current(config)
    for kind in (Run, FitOptions, AgentOptions if config is None else OPTIONS[config.agent.upper()]):
        for option in options_of(kind):
            if option.name not in FIXED_OPTIONS and Structural not in option.marks:
                options.append(option._replace(default=current_values.get(option.name, option.default)))
    doc = "Go on with a run from its latest checkpoint, or with all runs in a directory. What changes stays so."
    if config is None:
        doc += " These flags are for all runs; `tfdpg train --resume RUN --help` shows all that a run has."
    return _dataclass("ResumeFlags", doc, options)


def current(config: RunConfig) -> dict[str, Any]:
    """The options of a run by name: its own, those of `fit` and those of its agent."""
    own = {option.name: getattr(config, option.name) for option in options_of(Run)}
    agent = OPTIONS[config.agent.upper()](**config.agent_options)
    return own | FitOptions(**config.fit_options).values() | agent.values()


def values_of(flags: Any) -> dict[str, Any]:
    """What flags were given or left at, by their names."""
    return {name: value for group in vars(flags).values() for name, value in vars(group).items()}


def _dataclass(name: str, doc: str, options: Iterable[Option]) -> type:
    groups: dict[str, list[Any]] = {title: [] for title in GROUPS}
    for option in options:
        if option.is_object or option.name == "seed":
            continue  # objects come from `--networks`, and seeds from `--seeds`
        annotation = Annotated[command_line_type(option.kind), tyro.conf.arg(help=option.help)]
        default = {} if option.default is dataclasses.MISSING else {"default": option.default}
        groups[option.group].append((option.name, annotation, dataclasses.field(**default)))
    members = [
        (
            title.replace(" ", "_"),
            tyro.conf.OmitArgPrefixes[dataclasses.make_dataclass(title.title(), fields, kw_only=True)],
        )
        for title, fields in groups.items()
        if fields
    ]
    return dataclasses.make_dataclass(name, members, namespace={"__doc__": doc})
