"""`tfdpg train`: start or resume runs, one after the other or at the same time."""

import contextlib
import dataclasses
import functools
import math
import secrets
import shlex
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfdpg import files
from tfdpg.agents import from_export
from tfdpg.agents.classes import class_names, display_name, full_name, options_class
from tfdpg.cli import report_failure, run_lock, sweeps
from tfdpg.cli import run_paths as paths
from tfdpg.cli.jobs import run_jobs
from tfdpg.cli.parsing import UsageError, flags_of, parse
from tfdpg.cli.run_options import (
    Run,
    RunConfig,
    RunFlags,
    check_source,
    current_options,
    new_run,
    read_config,
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
    """Train one run for each setting of `--sweep` and each seed."""
    flags, configs = parse_training_flags(agent, arguments)
    swept = sweeps.swept_options(configs)
    maker(flags.env)  # an unknown environment is reported before TensorFlow is imported
    if len(configs) > 1:  # an environment that cannot be made is reported once
        check_simulated("--sweep" if swept else "--seeds", flags.env, configs[0].env_kwargs)
    default = paths.parent_of(agent, flags.env, swept)
    is_auto = flags.run_dir == Path("auto")
    parent_directory = paths.next_free(default) if is_auto else contextlib.nullcontext(flags.run_dir or default)

    def start_one(runs: Any, job: TrainingJob, began: float) -> None:
        runs.start(job.directory, job.config, began, flags.overwrite)

    with parent_directory as parent:
        if swept:
            _train_sweep(parent, configs, swept, flags, shlex.join(["tfdpg", "train", agent, *arguments]))
            return
        jobs = []
        for config in configs:
            directory = parent / f"seed-{config.seed}"
            paths.check_free(directory, flags.overwrite)
            alone = ["train", agent, *arguments, "--run-dir", str(parent), "--jobs", "1", "--seeds", str(config.seed)]
            jobs.append(TrainingJob(directory.name, directory, config, alone))
        _train_all(jobs, parent, flags.jobs, start_one)


def _train_sweep(
    parent: Path, configs: Sequence[RunConfig], swept: Sequence[str], flags: RunFlags, command: str
) -> None:
    """Make the directories of all runs of a sweep, and train the runs.

    The directories are made before the first run is trained, so that `--resume` also trains those that an interrupted
    sweep has not reached.
    """
    jobs = []
    for config in configs:
        setting = sweeps.directory_name({name: config.options[name] for name in swept})
        directory = parent / setting / f"seed-{config.seed}"
        check_source(directory, config)
        try:
            paths.check_free(directory, flags.overwrite)
        except FileExistsError as error:
            if paths.is_sweep(parent):
                error.add_note(f"To resume the sweep: {resume_command(parent, config)}")
            raise
        alone = ["train", "--resume", str(directory), "--trusted", "--jobs", "1"]
        jobs.append(TrainingJob(f"{setting}/{directory.name}", directory, config, alone))
    if min(flags.jobs, len(jobs)) == 1:
        import_tensorflow()
        from tfdpg.cli import runs

        for config in configs:
            if config.seed == configs[0].seed:
                runs.check_options(config)
    files.make_directory(parent)
    files.check_entry(parent / paths.SWEEP)
    with (parent / paths.SWEEP).open("a") as file:
        file.write(f"{command}\n")
    for job in jobs:
        with new_run(job.directory, job.config, flags.overwrite):
            pass

    def train_one(runs: Any, job: TrainingJob, began: float) -> None:
        runs.resume(job.directory, job.config, began, trusted=True)

    _train_all(jobs, parent, flags.jobs, train_one, is_sweep=True)


def parse_training_flags(agent: str, arguments: Sequence[str]) -> tuple[RunFlags, list[RunConfig]]:
    """Parse the arguments after `tfdpg train AGENT`. Return the flags, and the configuration of each run.

    The runs of a setting of `--sweep` follow each other.
    """
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
    shared |= {"env_kwargs": parse_kwargs(flags.env_kwargs), "distributed": distribution, "from_": flags.from_}
    configs = []
    exported = None if flags.from_ is None else from_export.read(flags.from_, class_names(agent))
    for options in sweeps.settings(agent, flags.sweep, arguments, values):
        if exported is not None:
            from_export.check_structure(exported, options_class(agent), options)
        for seed in seeds:
            configs.append(RunConfig(agent=full_name(agent), seed=seed, options=options, **shared))
    return flags, configs


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
    if values.get("from_") is not None:
        if name is not None:
            raise UsageError("--recipe and --from exclude each other: the options are those of the exported agent.")
        return _with_options_of_export(flags, agent, arguments, prog, Path(values["from_"]))
    if name is None:
        return values
    if AGENTS[name] != agent.upper():
        raise UsageError(f"--recipe {name} is for {AGENTS[name]}, not for {display_name(agent)}.")
    return _values(parse(flags(RECIPES[name]), arguments, prog))


def _with_options_of_export(
    flags: Callable[..., type], agent: str, arguments: Sequence[str], prog: str, model: Path
) -> dict[str, Any]:
    """Parse arguments with `--from`: the options of the exported agent are the defaults."""
    paths.check_model(model)
    kind = options_class(agent)
    exported = from_export.read(model, class_names(agent))
    recorded = from_export.recorded_options(exported, kind)
    values = _values(parse(flags(recorded), arguments, prog))
    given = {option.name: values[option.name] for option in options_of(kind) if option.name in values}
    from_export.check_structure(exported, kind, given)
    kept = from_export.without_effectless(kind, given, recorded)
    return {name: value for name, value in values.items() if name in kept or name not in given} | {
        "from_": str(exported.version)
    }


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
    directories = paths.runs_at(path)
    is_sweep = paths.is_sweep(path)
    if is_sweep:
        sweeps.check_resumed([read_config(directory, "--trusted" in arguments) for directory in directories], arguments)
    jobs = []
    values = {}
    for directory in directories:
        job, values = _resumed_job(path, directory, arguments[1:])
        jobs.append(job)

    def resume_one(runs: Any, job: TrainingJob, began: float) -> None:
        runs.resume(job.directory, job.config, began, values["trusted"])

    _train_all(jobs, path, values["jobs"], resume_one, is_sweep)


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
    jobs: Sequence[TrainingJob],
    parent: Path,
    max_parallel: int,
    train_one: Callable[[Any, TrainingJob, float], None],
    is_sweep: bool = False,
) -> None:
    """Train runs, and print a table of their evaluation returns if there are several.

    Args:
        jobs: the runs.
        parent: the directory of the runs.
        max_parallel: number of processes. With 1, the runs are trained in this process, one after the other.
        train_one: trains a run in this process. Its first argument is the module `tfdpg.cli.runs`, which is not
            imported before it is needed because it imports TensorFlow. Its last argument is the time at which the
            run's time budget begins, by `time.monotonic`.
        is_sweep: whether the table has a line for each setting, and a run that fails in this process does not stop the
            others, as one in its own process never does.

    Raises:
        RuntimeError: some runs failed, and others were trained. The message names those that failed.
    """
    is_quiet = all(job.config.options.get("verbose") == 0 for job in jobs)
    max_parallel = min(max_parallel, len(jobs))
    try:
        if max_parallel > 1:
            statuses = run_jobs({job.name: job.arguments for job in jobs}, max_parallel)
        else:
            statuses = _train_in_turn(jobs, train_one, is_quiet, is_sweep)
    except (KeyboardInterrupt, SystemExit) as end:
        if max_parallel > 1 or is_sweep:
            config = max((job.config for job in jobs), key=lambda config: len(config.external_references))
            in_parallel = ["--jobs", str(max_parallel)] * (max_parallel > 1)
            end.add_note(f"Resume all runs with: {resume_command(parent, config, *in_parallel)}")
        raise
    failed = {name: status for name, status in statuses.items() if status != 0}
    if len(jobs) > 1 and not is_quiet:
        print((sweep_table if is_sweep else table)([(job.name, job.directory) for job in jobs], failed))
    if failed:
        names = ", ".join(f"{name} (exit status {status})" for name, status in failed.items())
        raise RuntimeError(f"{len(failed)} of {len(jobs)} runs failed: {names}")


def _train_in_turn(
    jobs: Sequence[TrainingJob],
    train_one: Callable[[Any, TrainingJob, float], None],
    is_quiet: bool,
    may_fail: bool,
) -> dict[str, int]:
    """Train runs in this process, one after the other, and return the exit status of each by its name.

    With `may_fail`, an error of a run is reported, and the next run is trained.
    """
    began = time.monotonic()
    import_tensorflow()
    from tfdpg.cli import runs

    statuses = {}
    for number, job in enumerate(jobs, 1):
        if not is_quiet:
            count = f" ({number} of {len(jobs)})" if len(jobs) > 1 else ""
            print(f"seed {job.config.seed}{count}: {job.directory}", flush=True)
        try:
            train_one(runs, job, began)
            statuses[job.name] = 0
        except Exception as error:
            if not may_fail or isinstance(error, BrokenPipeError):
                raise
            statuses[job.name] = report_failure(error)
        began = time.monotonic()
    return statuses


def table(runs: Sequence[tuple[str, Path]], failed: Collection[str] = ()) -> str:
    """Return a table of the final and the best evaluation return of each run, and their mean ± standard deviation.

    Args:
        runs: the name and the directory of each run.
        failed: the names of the runs that failed. The table marks them and leaves them out of the mean.
    """
    rows: list[tuple[str, ...]] = [("evaluation return", "final", "best")]
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
        rows.append((f"mean ± std{of}", *_means(counted)))
    return _aligned(rows)


def sweep_table(runs: Sequence[tuple[str, Path]], failed: Collection[str] = ()) -> str:
    """Return a table of the mean ± standard deviation of the final and the best evaluation return of each setting.

    Args:
        runs: the name and the directory of each run. What is before the last `/` of a name is the setting.
        failed: the names of the runs that failed. The table counts them and leaves them out of the means.
    """
    rows: list[tuple[str, ...]] = [("evaluation return", "seeds", "final", "best")]
    settings: dict[str, list[tuple[str, Path]]] = {}
    for name, directory in runs:
        settings.setdefault(name.rpartition("/")[0] or name, []).append((name, directory))
    for setting, members in settings.items():
        found = [_returns(directory) for name, directory in members if name not in failed]
        counted = [(returns[-1], max(returns)) for returns in found if returns]
        of = "" if len(counted) == len(members) else f" of {len(members)}"
        rows.append((setting, f"{len(counted)}{of}", *_means(counted)))
    return _aligned(rows)


def _means(counted: Sequence[tuple[float, float]]) -> list[str]:
    """Return the mean and the sample standard deviation of each column as text; no deviation of a single row."""
    if not counted:
        return ["-", "-"]
    texts = []
    for column in zip(*counted, strict=True):
        deviation = f" ± {np.std(column, ddof=1):.2f}" if len(column) > 1 else ""
        texts.append(f"{np.mean(column):.2f}{deviation}")
    return texts


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    """Return the lines of a table, with the first column on the left and the others on the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *others in rows:
        columns = (f"{text:>{width}}" for text, width in zip(others, widths[1:], strict=True))
        lines.append("  ".join([f"{name:{widths[0]}}", *columns]))
    return "\n".join(lines)


def _returns(run: Path) -> list[float]:
    """Read the returns of a run: those of evaluation, or those of training on a real machine, without missing ones."""
    columns = files.read_numbers(run / "progress.csv")
    values = columns.get("val_return", columns.get("return", []))
    return [value for value in values if not math.isnan(value)]
