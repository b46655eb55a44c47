"""The options of a training run, and what is kept of them. No TensorFlow is imported."""

import json
import shlex
from pathlib import Path
from typing import Any, Literal

from tfdpg import files
from tfdpg.agents.options import OPTIONS
from tfdpg.distributed.options import Distribution
from tfdpg.environments import external_references
from tfdpg.options import Option, Options, options_of
from tfdpg.ranges import Count, Natural
from tfdpg.recipes import RECIPES
from tfdpg.training.options import FitOptions


class Environment(Options, group="environment"):
    """What is stepped."""

    env: str
    """id of a registered Gymnasium environment, module:id or module:Class."""
    num_envs: Count = 1
    """environments to step together; more than one makes a vector environment."""
    vectorization: Literal["sync", "async"] = "sync"
    """whether these are stepped one after the other, or each in a process of its own."""


class Run(Environment, group="run"):
    """What is written, and when it ends."""

    networks: str | None = None
    """module:function that takes the Spec and returns a dict with any of pi, q1, q2, v, encoder and the agent's other
    objects (pi_optimizer, act_noise_schedule, ...)."""
    target_return: float | None = None
    """stop as soon as an evaluation returns this much."""
    save_every: Count = 1
    """epochs between two checkpoints."""
    keep_checkpoints: Count = 2
    """how many of the newest checkpoints are kept."""
    write_interval: Count = 250
    """environment steps between two writes of the rounds' logs to TensorBoard."""


class EnvironmentArguments(Options, group="environment"):
    """What an environment is made with, as the command line has it."""

    env_kwargs: tuple[str, ...] = ()
    """arguments of the environment, as name=value with Python literals."""


class RunFlags(Run, EnvironmentArguments, group="run"):
    """What only the command line has."""

    seeds: tuple[int | Literal["random"], ...] = (0,)
    """one run for each; `random` draws one, which its directory is named by."""
    run_dir: Path | None = None
    """where the runs go, as <run_dir>/seed-<seed>; the default is runs/<agent>-<env>, and `auto` is the first of
    runs/<agent>-<env>, runs/<agent>-<env>-2, ... that there is not yet."""
    recipe: Literal[tuple(RECIPES)] | None = None  # pyright: ignore[reportInvalidTypeForm]
    """a setting of options, of `tfdpg.recipes`, in place of their defaults; flags that are given overrule it."""
    overwrite: bool = False
    """replace runs that are there already."""
    jobs: Count = 1
    """how many run side by side, as processes; each takes its part of the cores, unless OMP_NUM_THREADS,
    TF_NUM_INTRAOP_THREADS and TF_NUM_INTEROP_THREADS say otherwise."""

    def check(self) -> None:
        """Refuses to replace what is free."""
        if self.run_dir == Path("auto"):
            self.refuse(["overwrite"], "`--run-dir auto` takes a directory that there is not yet")


class ResumeFlags(Options, group="run"):
    """What only `--resume` has."""

    trusted: bool = False
    """import the modules, and follow the links and the replay directory, that the run's files name."""
    jobs: Count = 1
    """how many run side by side, as processes, if there are several."""


class RunConfig(Run, group="run"):
    """Everything that a run was started with, as `run.json` has it."""

    agent: str
    """the algorithm, in lower case."""
    seed: Natural
    """the agent's."""
    env_kwargs: dict[str, Any]
    """arguments of the environment."""
    options: dict[str, Any]
    """the flags of the agent and of `fit`."""
    distributed: dict[str, Any] | None = None
    """those of `tfdpg.distributed.fit`; None trains without workers."""

    def check(self) -> None:
        """Refuses an agent that there is not, what no flag can give, and what the other groups refuse."""
        if self.agent.upper() not in OPTIONS:
            raise ValueError(f"There is no agent {self.agent!r}. Known: {', '.join(OPTIONS)}")
        if objects := sorted(set(self.options) & set(OBJECTS)):
            raise ValueError(f"`options` has {objects[0]!r}, which is no flag")
        OPTIONS[self.agent.upper()](**self.agent_options)
        FitOptions(**self.fit_options)
        Distribution(**(self.distributed or {}))
        has_own_processes = self.distributed is not None or (self.num_envs > 1 and self.vectorization == "async")
        if self.options.get("step_timeout") is not None and not has_own_processes:
            raise ValueError(
                "`--step-timeout` needs environments in processes of their own, since nothing can interrupt one that "
                "hangs in that of the training: pass --num-envs and --vectorization async, or --actors."
            )

    @property
    def fit_options(self) -> dict[str, Any]:
        """The options of `fit`, without objects."""
        return {name: value for name, value in self.options.items() if name in FIT_FLAGS}

    @property
    def agent_options(self) -> dict[str, Any]:
        """The options of the agent, without objects."""
        return {name: value for name, value in self.options.items() if name not in FIT_FLAGS}

    @property
    def distribution(self) -> Distribution | None:
        """How the training is distributed."""
        return None if self.distributed is None else Distribution(**self.distributed)

    @property
    def external_references(self) -> list[str]:
        """What it imports, or follows, and so does only if it is trusted."""
        named = self.networks, self.options.get("replay_dir"), (self.distributed or {}).get("ray_address")
        return [*map(str, filter(None, named)), *external_references(self.env, self.env_kwargs)]


def resume_command(directory: Path, config: RunConfig, *flags: str) -> str:
    """The command that goes on with a run, or with all runs in a directory."""
    trusted = ["--trusted"] if config.external_references else []
    return shlex.join(["tfdpg", "train", "--resume", str(directory), *trusted, *flags])


def train_command(config: RunConfig) -> str:
    """The command that begins a run like this one: its environment, its seed, and what is no default."""
    words = ["tfdpg", "train", config.agent, "--env", config.env]
    for name, value in config.env_kwargs.items():
        words += [*([] if "--env-kwargs" in words else ["--env-kwargs"]), f"{name}={value!r}"]
    values = {option.name: getattr(config, option.name) for option in options_of(Run)} | config.options
    values |= config.distributed or {}
    for kind in (Run, OPTIONS[config.agent.upper()], FitOptions, Distribution):
        for option in options_of(kind):
            value = values.get(option.name, option.default)
            value = tuple(value) if isinstance(value, list) else value
            if value != option.default and option.name not in ("env", "verbose", "initial_epoch"):
                words += _flag(option, value)
    return shlex.join([*words, "--seeds", str(config.seed)])


def _flag(option: Option, value: Any) -> list[str]:
    """An option and its value, as the command line takes them."""
    flag = option.name.replace("_", "-")
    if option.kind is bool:
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", *map(str, value if isinstance(value, tuple) else [value])]


def read_config(directory: Path, trusted: bool = False) -> RunConfig:
    """Read the configuration of a run, which every command does before it opens another of the run's files.

    Args:
        directory: the run directory.
        trusted: whether the symbolic links in the run directory may be followed.

    Raises:
        ValueError: `run.json` is damaged.
        tfdpg.files.UnsafeFileError: the run directory holds a link, or what is no file.
    """
    files.check_tree(directory, trusted)
    try:
        return RunConfig(**json.loads((directory / "run.json").read_text()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{directory}/run.json is damaged: {error}") from error


OBJECTS = sorted({option.name for kind in OPTIONS.values() for option in options_of(kind) if option.is_object})
"""The options of agents that no flag can give."""
FIT_FLAGS = [option.name for option in options_of(FitOptions) if not option.is_object]
"""The options of `fit` that are flags."""
