"""`tfdpg train`: start or resume runs, one after the other or at the same time."""

import contextlib
import dataclasses
import functools
import math
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfdpg import files
from tfdpg.agents.classes import display_name, full_name
from tfdpg.cli import run_lock
from tfdpg.cli import run_paths as paths
from tfdpg.cli.jobs import run_jobs
from tfdpg.cli.parsing import UsageError, flags_of, parse
from tfdpg.cli.run_options import (
    Run,
    RunConfig,
    RunFlags,
    current_options,
    read_run,
    resume_command,
    resume_flags,
    training_flags,
)
from tfdpg.compat.tensorflow import import_tensorflow
from tfdpg.distributed.options import Distribution
from tfdpg.environments import check_simulated, maker, parse_kwargs
from tfdpg.options import options_of
from tfdpg.recipes import AGENTS, RECIPES


class TrainingJob(NamedTuple):
    """A run to train.

    Attributes:
        name: the name of the run in the output of several runs.
        directory: the run directory.
        config: the configuration.
        arguments: the arguments after `tfdpg` that train only this run.
    """

    name: str
    directory: Path
    config: RunConfig
    arguments: list[str]


def train(agent: str, arguments: Sequence[str]) -> None:
    """Train one run for each seed."""
    flags, configs = parse_training_flags(agent, arguments)
    maker(flags.env)  # an unknown environment is reported before TensorFlow is imported
    if len(configs) > 1:  # an environment that cannot be made is reported once
        check_simulated("--seeds", flags.env, configs[0].env_kwargs)
    default = paths.parent_of(agent, flags.env)
    is_auto = flags.run_dir == Path("auto")
    parent_directory = paths.next_free(default) if is_auto else contextlib.nullcontext(flags.run_dir or default)

    def start_one(runs: Any, job: TrainingJob, began: float) -> None:
        runs.start(job.directory, job.config, began, flags.overwrite)

    with parent_directory as parent:
        jobs = []
        for config in configs:
            directory = parent / f"seed-{config.seed}"
            paths.check_free(directory, flags.overwrite)
            alone = ["train", agent, *arguments, "--run-dir", str(parent), "--jobs", "1", "--seeds", str(config.seed)]
            jobs.append(TrainingJob(directory.name, directory, config, alone))
        _train_all(jobs, parent, flags.jobs, start_one)


def parse_training_flags(agent: str, arguments: Sequence[str]) -> tuple[RunFlags, list[RunConfig]]:
    """Parse the arguments after `tfdpg train AGENT`. Return the flags, and the configuration of each run."""
    values = parse_with_recipe(functools.partial(training_flags, agent), agent, arguments, f"tfdpg train {agent}")
    flags = RunFlags(**{option.name: values.pop(option.name) for option in options_of(RunFlags)})
    distribution = {option.name: values.pop(option.name) for option in options_of(Distribution)}
    if distribution["actors"] is None:
        for option in options_of(Distribution):
            if option.name != "actors" and distribution[option.name] != option.default:
                flag = option.name.replace("_", "-")
                raise ValueError(f"`--{flag}` needs `--actors`, the number of rollout workers.")
        distribution = None
    seeds = [seed if isinstance(seed, int) else secrets.randbelow(2**31) for seed in flags.seeds]
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"`--seeds` must be one or more different integers, or random. Received: {list(flags.seeds)}")
    shared: dict[str, Any] = {option.name: getattr(flags, option.name) for option in options_of(Run)}
    shared |= {"env_kwargs": parse_kwargs(flags.env_kwargs), "options": values, "distributed": distribution}
    return flags, [RunConfig(agent=full_name(agent), seed=seed, **shared) for seed in seeds]


def parse_with_recipe(flags: Callable[..., type], agent: str, arguments: Sequence[str], prog: str) -> dict[str, Any]:
    """Parse arguments with `--recipe`, and return the values of the flags by name.

    Args:
        flags: a function from a recipe, by default none, to the flags.
        agent: the name of the algorithm.
        arguments: the arguments after the name of the agent.
        prog: the command, for the help.
    """
    values = _values(parse(flags(), arguments, prog))
    name = values["recipe"]
    if name is None:
        return values
    if AGENTS[name] != agent.upper():
        raise UsageError(f"--recipe {name} is for {AGENTS[name]}, not for {display_name(agent)}.")
    return _values(parse(flags(RECIPES[name]), arguments, prog))


def _values(flags: Any) -> dict[str, Any]:
    """Return the values of parsed flags, which are in groups, by the names of the flags."""
    return {name: value for group in vars(flags).values() for name, value in vars(group).items()}


def resume(arguments: Sequence[str]) -> None:
    """Resume a run, or all runs in a directory."""
    if not arguments or arguments[0].startswith("-"):
        if {"-h", "--help"} & set(arguments):
            parse(resume_flags(None), arguments, "tfdpg train --resume RUN")
        raise UsageError("`--resume` takes a run, or a directory of runs: tfdpg train --resume RUN [--epochs N]")
    path = Path(arguments[0])
    jobs = []
    values = {}
    for directory in paths.runs_at(path):
        job, values = _resumed_job(path, directory, arguments[1:])
        jobs.append(job)

    def resume_one(runs: Any, job: TrainingJob, began: float) -> None:
        runs.resume(job.directory, job.config, began, values["trusted"])

    _train_all(jobs, path, values["jobs"], resume_one)


def _resumed_job(path: Path, directory: Path, arguments: Sequence[str]) -> tuple[TrainingJob, dict[str, Any]]:
    """Return a run to resume, and the values of the flags."""
    saved, _ = read_run(directory, trusted="--trusted" in arguments)
    run_lock.check(directory)
    options = resume_flags(saved)
    fixed = flags_of(training_flags(saved.agent)).keys() - flags_of(options)
    refused = {flag: f"--{flag} cannot change: a run keeps what it was started with." for flag in fixed}
    refused["overwrite"] = "--overwrite is for new runs: a resumed run is not replaced."
    values = _values(parse(options, arguments, f"tfdpg train --resume {path}", refused))
    before = current_options(saved)
    changes = {name: values[name] for name in values if name in before and values[name] != before[name]}
    own = {option.name: changes.pop(option.name) for option in options_of(Run) if option.name in changes}
    config = dataclasses.replace(saved, options=saved.options | changes, **own)

    name = directory.relative_to(path).as_posix() if directory != path else directory.name
    return TrainingJob(
        name, directory, config, ["train", "--resume", str(directory), *arguments, "--jobs", "1"]
    ), values


def _train_all(
    jobs: Sequence[TrainingJob], parent: Path, max_parallel: int, train_one: Callable[[Any, TrainingJob, float], None]
) -> None:
    """Train runs, and print a table of their evaluation returns if there are several.

    Args:
        jobs: the runs.
        parent: the directory of the runs.
        max_parallel: number of processes. With 1, the runs are trained in this process, one after the other.
        train_one: trains a run in this process. Its first argument is the module `tfdpg.cli.runs`, which is not
            imported before it is needed because it imports TensorFlow. Its last argument is the time at which the
            run's time budget begins, by `time.monotonic`.

    Raises:
        RuntimeError: some of several processes failed. The message names their runs.
    """
    is_quiet = all(job.config.options.get("verbose") == 0 for job in jobs)
    max_parallel = min(max_parallel, len(jobs))
    failed = {}
    if max_parallel > 1:
        try:
            statuses = run_jobs({job.name: job.arguments for job in jobs}, max_parallel)
        except (KeyboardInterrupt, SystemExit) as end:
            config = max((job.config for job in jobs), key=lambda config: len(config.external_references))
            end.add_note(f"Resume all runs with: {resume_command(parent, config, '--jobs', str(max_parallel))}")
            raise
        failed = {name: status for name, status in statuses.items() if status != 0}
    else:
        began = time.monotonic()
        import_tensorflow()
        from tfdpg.cli import runs

        for number, job in enumerate(jobs, 1):
            if not is_quiet:
                count = f" ({number} of {len(jobs)})" if len(jobs) > 1 else ""
                print(f"seed {job.config.seed}{count}: {job.directory}", flush=True)
            train_one(runs, job, began)
            began = time.monotonic()
    if len(jobs) > 1 and not is_quiet:
        print(table([(job.name, job.directory) for job in jobs], failed))
    if failed:
        names = ", ".join(f"{name} (exit status {status})" for name, status in failed.items())
        raise RuntimeError(f"{len(failed)} of {len(jobs)} runs failed: {names}")


def table(runs: Sequence[tuple[str, Path]], failed: Collection[str] = ()) -> str:
    """Return a table of the final and the best evaluation return of each run, and their mean ± standard deviation.

    Args:
        runs: the name and the directory of each run.
        failed: the names of the runs that failed. The table marks them and leaves them out of the mean.
    """
    rows = [("evaluation return", "final", "best")]
    counted = []
    for name, directory in runs:
        final, best = "-", "-"
        if returns := _returns(directory):
            final, best = f"{returns[-1]:.2f}", f"{max(returns):.2f}"
            if name not in failed:
                counted.append((returns[-1], max(returns)))
        rows.append((name + " (failed)" * (name in failed), final, best))
    if len(counted) > 1:
        of = "" if len(counted) == len(runs) else f" of {len(counted)}"
        final, best = (f"{np.mean(column):.2f} ± {np.std(column, ddof=1):.2f}" for column in np.transpose(counted))
        rows.append((f"mean ± std{of}", final, best))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(f"{name:{widths[0]}}  {final:>{widths[1]}}  {best:>{widths[2]}}" for name, final, best in rows)


def _returns(run: Path) -> list[float]:
    """Read the returns of a run: those of evaluation, or those of training on a real machine, without missing ones."""
    columns = files.read_numbers(run / "progress.csv")
    values = columns.get("val_return", columns.get("return", []))
    return [value for value in values if not math.isnan(value)]
