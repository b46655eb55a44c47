"""The options of a training run: the flags that set them, and `run.json`, which stores them.

This module does not import TensorFlow.
"""

import contextlib
import dataclasses
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import tyro

from tfdpg import files
from tfdpg.agents import classes
from tfdpg.agents.classes import display_name, options_class
from tfdpg.agents.options import AgentOptions
from tfdpg.arguments import reject
from tfdpg.cli import ownership, run_lock
from tfdpg.cli import run_paths as paths
from tfdpg.cli.parsing import flag_name
from tfdpg.compat.tensorflow import import_tensorflow
from tfdpg.distributed.options import Distribution
from tfdpg.environments import check_followed, external_references
from tfdpg.exported import copy
from tfdpg.options import Not, Only, Option, Options, Structural, options_of
from tfdpg.ranges import Count, Natural, command_line_type
from tfdpg.recipes import RECIPES
from tfdpg.training.options import FitOptions

GROUPS = (
    "search, environment, training, run, schedule, exploration, algorithm, returns, networks, memory, optimisers, "
    "observations, replay, machine, rollout workers"
).split(", ")
"""The groups of flags in the order of the help: the required and the most common ones come first."""


class Environment(Options, group="environment"):
    """The environment that an agent trains on."""

    env: str
    """id of a registered Gymnasium environment, module:id or module:Class."""
    num_envs: Count = 1
    """number of sub-environments; more than one makes a vector environment."""
    vectorization: Literal["sync", "async"] = "sync"
    """"sync" steps the sub-environments one after the other, "async" steps each in its own process."""


class Run(Environment, group="run"):
    """What a run writes, and when it ends."""

    networks: str | None = None
    """module:function that takes the Spec and returns a dict with any of pi, q1, q2, v, encoder and the agent's other
    objects (pi_optimizer, act_noise_schedule, ...)."""
    target_return: float | None = None
    """stop when the mean return of an evaluation reaches this value."""
    evaluate: bool = False
    """evaluate with --realtime, too, between two episodes of the one environment. Without it, the score of a policy is
    the mean return of the training episodes of an epoch."""
    best_by: str = "return"
    """what the best policy of a run is chosen by: return, success (the success rate), the name of a number in `info`,
    or another log of an evaluation, such as terminated. The largest value is the best, and of `cost` the smallest;
    min:NAME and max:NAME say which."""
    save_every: Count = 1
    """epochs between two checkpoints."""
    keep_checkpoints: Count = 2
    """number of checkpoints to keep; older ones are removed."""
    write_interval: Count = 250
    """environment steps between two writes of metrics to TensorBoard."""
    demonstrations: str | None = None
    """file or directory with the data set from which a share of each minibatch comes, in a form that
    `agent.fit_offline` takes."""


def best_log(best_by: str, prefix: str) -> tuple[str, Literal["max", "min"]]:
    """Return the name of the log that `best_by` means, and whether its largest or its smallest value is the best.

    Args:
        best_by: the option.
        prefix: the beginning of the names of the logs: "val_" for evaluations, "" for training episodes.
    """
    direction, colon, name = best_by.rpartition(":")
    if direction not in ("", "min", "max") or not name or (colon and not direction):
        raise reject("best_by", "a name, min:NAME or max:NAME", best_by)
    log = {"success": "success_rate"}.get(name, name)
    if log not in EPISODE_LOGS:
        log = f"info_{name}"
    return f"{prefix}{log}", "min" if direction == "min" or (not direction and name == "cost") else "max"


EPISODE_LOGS = (
    "return",
    "return_std",
    "return_min",
    "return_max",
    "episode_length",
    "terminated",
    "truncated",
    "success_rate",
)
"""The logs of episodes in any environment."""


class EnvironmentArguments(Options, group="environment"):
    """The arguments of the environment, as given on the command line."""

    env_kwargs: tuple[str, ...] = ()
    """arguments of the environment, as name=value with Python literals."""


class RunFlags(Run, EnvironmentArguments, group="run"):
    """The flags of `tfdpg train AGENT` that are not options of the agent, of `fit` or of the rollout workers."""

    seeds: tuple[int | Literal["random"], ...] = (0,)
    """seeds; each makes one run. `random` draws a seed, and the run directory is named after it."""
    sweep: tuple[str, ...] = ()
    """options to vary, each as name=value,value,...: all combinations are trained with each seed, in
    <run_dir>/<name>-<value>_.../seed-<seed>. The values of an option that is a list have spaces between their elements:
    "hidden_units=64 64,256 256"."""
    run_dir: Path | None = None
    """parent of the run directories <run_dir>/seed-<seed>. The default is runs/<agent>-<env>, with the names of the
    swept options after it; `auto` takes the first of runs/<agent>-<env>, runs/<agent>-<env>-2, ... that does not
    exist."""
    from_: str | None = None
    """exported model whose networks, critics and observation statistics the agent begins with. Its options replace
    defaults."""
    recipe: Literal[tuple(RECIPES)] | None = None  # pyright: ignore[reportInvalidTypeForm]
    """recipe of `tfdpg.recipes` that replaces defaults; other flags override its values."""
    overwrite: Annotated[
        bool, Only("`--run-dir auto` takes a directory that does not exist", run_dir=Not(Path("auto")))
    ] = False
    """replace existing runs."""
    jobs: Count = 1
    """number of runs to train at the same time, each in its own process with an equal share of the cores. Set
    OMP_NUM_THREADS, TF_NUM_INTRAOP_THREADS and TF_NUM_INTEROP_THREADS to choose another share."""


class ResumeFlags(Options, group="run"):
    """The flags that only `tfdpg train --resume` has."""

    trusted: bool = False
    """import the modules and follow the links and the replay directory that the files of the run name; only links need
    this in a run that you trained on this machine and did not move, copy or change."""
    jobs: Count = 1
    """number of runs to train at the same time, each in its own process."""


class RunConfig(Run, group="run"):
    """The configuration of a run, which `run.json` stores."""

    agent: str
    """name of the algorithm: in lower case, or module:Class or /path/file.py:Class of one in a user's own file."""
    seed: Natural
    """seed of the agent."""
    env_kwargs: dict[str, Any]
    """arguments of the environment."""
    options: dict[str, Any]
    """options of the agent and of `fit` that are flags."""
    distributed: dict[str, Any] | None = None
    """options of `tfdpg.distributed.fit`; None trains without rollout workers."""
    from_: str | None = None
    """version of an exported model that the agent was made from. The run has a copy, and does not read it again."""

    def check(self) -> None:
        """Reject an unknown agent, and options that are not valid; those of an own agent once it is imported."""
        if not _is_json(self.env_kwargs):
            raise reject("env_kwargs", "a dict by name of numbers, strings, None, lists and dicts", self.env_kwargs)
        if classes.is_known(self.agent):
            kind = options_class(self.agent)
            if objects := sorted(set(self.options) & set(objects_of(kind))):
                raise ValueError(f"`options` has {objects[0]!r}, which is no flag")
            kind(**self.agent_options)
        FitOptions(**self.fit_options)
        best_log(self.best_by, "")
        if self.evaluate and not self.fit_options.get("realtime"):
            raise ValueError("`--evaluate` needs --realtime. Other runs evaluate in an environment of their own.")
        Distribution(**(self.distributed or {}))
        has_own_processes = self.distributed is not None or (self.num_envs > 1 and self.vectorization == "async")
        if self.options.get("step_timeout") is not None and not has_own_processes:
            raise ValueError(
                "`--step-timeout` needs environments in their own processes, because a step in the process of the "
                "agent cannot be interrupted: pass --num-envs and --vectorization async, or --actors."
            )

    @property
    def fit_options(self) -> dict[str, Any]:
        """The options of `fit`."""
        shown = {} if self.demonstrations is None else {"demonstrations": self.demonstrations}
        return shown | {name: value for name, value in self.options.items() if name in FIT_FLAGS}

    @property
    def agent_options(self) -> dict[str, Any]:
        """The options of the agent."""
        return {name: value for name, value in self.options.items() if name not in FIT_FLAGS}

    @property
    def external_references(self) -> list[str]:
        """The modules, paths and addresses that the run uses only if it is trusted."""
        agent = self.agent if classes.is_external(self.agent) else None
        named = agent, self.networks, self.demonstrations, self.options.get("replay_dir")
        named += ((self.distributed or {}).get("ray_address"),)
        return [*map(str, filter(None, named)), *external_references(self.env, self.env_kwargs)]

    def write(self, directory: Path) -> None:
        """Write `run.json` into a run directory."""
        values = dataclasses.asdict(self) | ({REPRODUCIBLE: False} if self.fit_options.get("realtime") else {})
        files.write_text(directory / "run.json", json.dumps(values, indent=2) + "\n")


def objects_of(kind: type[Options]) -> list[str]:
    """Return the names of the options that no flag can set."""
    return [option.name for option in options_of(kind) if option.is_object]


def _is_json(value: Any) -> bool:
    """Return whether JSON can represent a value; a tuple counts as a list."""
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_json(part) for name, part in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    return value is None or isinstance(value, bool | int | float | str)


FIT_FLAGS = [option.name for option in options_of(FitOptions) if not option.is_object]
"""The options of `fit` that are flags."""
BOOKKEEPING = {"verbose", "save_every", "keep_checkpoints", "write_interval", "initial_epoch", "replay_dir"}
BOOKKEEPING |= {"epochs", "minutes", "validation_episodes"}
"""The options in which runs of one configuration may differ, apart from the seed."""
REPRODUCIBLE = "reproducible"
"""The entry of `run.json` that is False if the same command does not train the same policy again."""


def check_source(directory: Path, config: RunConfig) -> None:
    """Raise `ValueError` if a run would replace the directory of the exported model that it begins with."""
    if config.from_ is not None and Path(config.from_).resolve().is_relative_to(directory.resolve()):
        raise ValueError(
            f"`--from` must not be a model in the run that is replaced, {directory}. Received: {config.from_}. Give "
            "the new run another directory with --run-dir."
        )


@contextlib.contextmanager
def new_run(directory: Path, config: RunConfig, overwrite: bool) -> Iterator[None]:
    """Make a run directory with its configuration and a copy of the model that it begins with, and hold its lock."""
    check_source(directory, config)
    files.make_directory(directory.parent)
    if overwrite and paths.is_run(directory):
        with run_lock.held(directory):
            files.remove(directory)
    files.make_directory(directory)
    with run_lock.held(directory):
        paths.check_free(directory)  # another process may have started a run here in the meantime
        config.write(directory)
        ownership.sign(directory / "run.json")
        if config.from_ is not None:
            copy(Path(config.from_), directory / paths.INITIAL)
        yield


def read_config(directory: Path, trusted: bool = False) -> RunConfig:
    """Read the configuration of a run, and import nothing. Every command reads it before other files of the run.

    Args:
        directory: the run directory.
        trusted: whether the run directory may contain symbolic links.

    Raises:
        ValueError: `run.json` is damaged.
        tfdpg.files.UnsafeFileError: the run directory contains a link, or something that is not a regular file.
    """
    files.check_tree(directory, trusted)
    try:
        values = json.loads((directory / "run.json").read_text())
        return RunConfig(**{name: value for name, value in values.items() if name != REPRODUCIBLE})
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{directory}/run.json is damaged: {error}") from error


def read_run(directory: Path, trusted: bool) -> tuple[RunConfig, bool]:
    """Read the configuration of a run, and import its algorithm if that is in a user's own file.

    Args:
        directory: the run directory.
        trusted: whether the run directory may contain symbolic links, and its algorithm is imported in any case.

    Returns:
        The configuration, and whether the run is the user's own, so that what it names is trusted.

    Raises:
        ValueError: as `read_config`, or the algorithm is not trusted or cannot be imported.
    """
    config = read_config(directory, trusted)
    is_own = ownership.is_own(directory)
    if classes.is_external(config.agent):
        check_followed([config.agent], trusted or is_own, directory / "run.json")
        import_tensorflow()
        classes.import_agent(config.agent)
        config = read_config(directory, trusted)  # checks the options
    return config, is_own


def resume_command(directory: Path, config: RunConfig, *flags: str) -> str:
    """Return the command that resumes a run, or all runs in a directory."""
    runs = paths.runs_in(directory)
    are_own = bool(runs) and all(map(ownership.is_own, runs))
    trusted = ["--trusted"] if config.external_references and not are_own else []
    return shlex.join(["tfdpg", "train", "--resume", str(directory), *trusted, *flags])


def train_command(config: RunConfig) -> str:
    """Return the command that starts a run like this one, with the options that differ from their defaults."""
    words = ["tfdpg", "train", config.agent, "--env", config.env]
    if config.env_kwargs:
        words += ["--env-kwargs", *(f"{name}={value!r}" for name, value in config.env_kwargs.items())]
    words += [] if config.from_ is None else ["--from", config.from_]
    values = vars(config) | config.options | (config.distributed or {})
    for kind in (Run, options_class(config.agent), FitOptions, Distribution):
        for option in options_of(kind):
            value = values.get(option.name, option.default)
            value = tuple(value) if isinstance(value, list) else value
            is_left_out = option.is_object or option.name in ("env", "seed", "verbose", "initial_epoch")
            if is_left_out or value == option.default:
                continue
            flag = option.name.replace("_", "-")
            if option.kind is bool:
                words.append(f"--{flag}" if value else f"--no-{flag}")
            else:
                words += [f"--{flag}", *map(str, value if isinstance(value, tuple) else [value])]
    return shlex.join([*words, "--seeds", str(config.seed)])


def training_flags(agent: str, recipe: Mapping[str, Any] = MappingProxyType({})) -> type:
    """Return a dataclass with the flags of `tfdpg train AGENT`, in which each group of flags is a dataclass.

    Args:
        agent: the name of the algorithm.
        recipe: values that replace the defaults of the options.
    """
    options = []
    for kind in (RunFlags, FitOptions, options_class(agent), Distribution):
        for option in options_of(kind):
            if option.name == "seed":
                continue  # `--seeds` sets seeds
            if option.name == "actors":
                option = option._replace(kind=int | None, default=None)  # None trains without rollout workers
            options.append(option._replace(default=recipe.get(option.name, option.default)))
    options.sort(key=lambda option: option.name == "initial_epoch")  # rarely needed, so the last of its group
    return flags_class("TrainingFlags", f"Train {display_name(agent)} on an environment.", options)


def resume_flags(config: RunConfig | None) -> type:
    """Return a dataclass with the flags of `tfdpg train --resume RUN`, whose defaults are the options of the run.

    If `config` is None, it has only the flags that the runs of all agents have.
    """
    fixed = {"networks", "initial_epoch", *(option.name for option in options_of(Environment))}
    options = list(options_of(ResumeFlags))
    values = {} if config is None else current_options(config)
    for kind in (Run, FitOptions, AgentOptions if config is None else options_class(config.agent)):
        for option in options_of(kind):
            if option.name not in fixed and Structural not in option.marks:
                options.append(option._replace(default=values.get(option.name, option.default)))
    doc = "Resume a run from its latest checkpoint, or all runs in a directory. New values of options are saved."
    if config is None:
        doc += " These flags apply to all runs; `tfdpg train --resume RUN --help` lists all flags of a run."
    return flags_class("ResumeFlags", doc, options)


def current_options(config: RunConfig) -> dict[str, Any]:
    """Return the options of a run, of `fit` and of its agent by name."""
    own = {option.name: getattr(config, option.name) for option in options_of(Run)}
    agent = options_class(config.agent)(**config.agent_options)
    return own | FitOptions(**config.fit_options).values() | agent.values()


def flags_class(name: str, doc: str, options: Sequence[Option]) -> type:
    """Return a dataclass with a flag for each option that is not an object, in which each group is a dataclass.

    Args:
        name: the name of the class.
        doc: its docstring, which the help begins with.
        options: the options.

    Raises:
        ValueError: two options have the same name.
    """
    names = [option.name for option in options if not option.is_object]
    if repeated := next((each for each in names if names.count(each) > 1), None):
        raise ValueError(f"The command line has a flag `{repeated}` already: rename the option of the agent.")
    groups: dict[str, list[Any]] = {title: [] for title in GROUPS}
    for option in options:
        if option.is_object:
            continue  # `--networks` sets objects
        about = tyro.conf.arg(name=flag_name(option.name), help=option.help)
        annotation = Annotated[command_line_type(option.kind), about]
        default = [] if option.default is dataclasses.MISSING else [option.default]
        groups.setdefault(option.group, []).append((option.name, annotation, *default))
    members = []
    for title, fields in groups.items():
        if fields:
            group = dataclasses.make_dataclass(title.title(), fields, kw_only=True)
            members.append((re.sub(r"^(?=\d)|\W", "_", title), tyro.conf.OmitArgPrefixes[group]))
    return dataclasses.make_dataclass(name, members, namespace={"__doc__": doc})
