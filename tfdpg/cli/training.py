"""`tfdpg train`: new runs and old ones, one after the other or side by side."""

import contextlib
import dataclasses
import itertools
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tfdpg.agents.options import OPTIONS
from tfdpg.cli import report, run_lock
from tfdpg.cli import run_paths as paths
from tfdpg.cli.flags import current, resume_flags, training_flags, values_of
from tfdpg.cli.jobs import Jobs
from tfdpg.cli.parsing import UsageError, flags_of, parse
from tfdpg.cli.run_options import Run, RunConfig, RunFlags, read_config, resume_command
from tfdpg.compat.tensorflow import import_tensorflow
from tfdpg.distributed.options import Distribution
from tfdpg.environments import make, parse_kwargs
from tfdpg.options import options_of
from tfdpg.recipes import RECIPES


class TrainingJob(NamedTuple):
    """A run to train.

    Attributes:
        name: what it is called beside others.
        directory: where it is.
        config: what it is.
        words: those after `tfdpg` that train it alone.
        run: trains it, in this process.
    """

    name: str
    directory: Path
    config: RunConfig
    words: list[str]
    run: Callable[[], None]


def train(agent: str, words: Sequence[str]) -> None:
    """Trains one run for each seed."""
    flags, configs = parse_training_flags(agent, words)
    make(flags.env, **configs[0].env_kwargs).close()
    with _parent(agent, flags) as parent:
        for config in configs:
            paths.check_free(parent / f"seed-{config.seed}", flags.overwrite)
        single_job_words = ["train", agent, *words, "--run-dir", str(parent), "--jobs", "1", "--seeds"]
        _train_all(
            [_new_job(parent, config, flags.overwrite, single_job_words) for config in configs], parent, flags.jobs
        )


def parse_training_flags(agent: str, words: Sequence[str]) -> tuple[RunFlags, list[RunConfig]]:
    """What words after `tfdpg train AGENT` ask for: what only the command line has, and a run for each seed."""
    values = values_of(parse(training_flags(agent, _recipe(agent, words)), words, f"tfdpg train {agent}"))
    flags = RunFlags(**{option.name: values.pop(option.name) for option in options_of(RunFlags)})
    distribution = _take_distribution_options(values)
    shared: dict[str, Any] = {option.name: getattr(flags, option.name) for option in options_of(Run)}
    shared |= {"env_kwargs": parse_kwargs(flags.env_kwargs), "options": values, "distributed": distribution}
    return flags, [RunConfig(agent=agent.lower(), seed=seed, **shared) for seed in _draw_seeds(flags.seeds)]


def _recipe(agent: str, words: Sequence[str]) -> dict[str, Any]:
    """The recipe that words name, which the defaults of the other flags come from; nothing where there is none.

    Raises:
        UsageError: it is for another agent.
    """
    parts = " ".join(words).replace("--recipe=", "--recipe ").split(" ")
    given = [second for first, second in itertools.pairwise(parts) if first == "--recipe"]
    recipe = RECIPES.get(given[-1], {}) if given else {}
    if foreign := sorted(set(recipe) - {option.name for option in options_of(OPTIONS[agent.upper()])}):
        raise UsageError(f"--recipe {given[-1]} is not for {agent.upper()}, which has no option {foreign[0]!r}.")
    return recipe


def _new_job(parent: Path, config: RunConfig, overwrite: bool, words: list[str]) -> TrainingJob:
    def run() -> None:
        from tfdpg.cli import runs

        runs.start(directory, config, overwrite)

    name = f"seed-{config.seed}"
    directory = parent / name
    return TrainingJob(name, directory, config, [*words, str(config.seed)], run)


def resume(words: Sequence[str]) -> None:
    """Goes on with a run, or with all runs in a directory."""
    if not words or words[0].startswith("-"):
        if {"-h", "--help"} & set(words):
            parse(resume_flags(None), words, "tfdpg train --resume RUN")
        raise UsageError("`--resume` takes a run, or a directory of runs: tfdpg train --resume RUN [--epochs N]")
    path = Path(words[0])
    flags = words[1:]
    training_jobs = [_resumed_job(path, directory, flags) for directory in paths.runs_at(path)]
    _train_all([job for job, _ in training_jobs], path, max(jobs for _, jobs in training_jobs))


def _resumed_job(path: Path, directory: Path, words: Sequence[str]) -> tuple[TrainingJob, int]:
    """A run to go on with, and how many are to go on side by side."""
    saved = read_config(directory, trusted="--trusted" in words)
    run_lock.check(directory)
    options = resume_flags(saved)
    fixed_flags = flags_of(training_flags(saved.agent)).keys() - flags_of(options)
    refused = {flag: f"--{flag} cannot change: a run keeps what it was started with." for flag in fixed_flags}
    refused["overwrite"] = "--overwrite is for new runs: one that goes on is not replaced."
    values = values_of(parse(options, words, f"tfdpg train --resume {path}", refused))
    current_values = current(saved)
    run_options = {option.name for option in options_of(Run)}
    changes = {name: values[name] for name in values if name in current_values and values[name] != current_values[name]}
    run_changes = {name: changes.pop(name) for name in run_options & set(changes)}
    config = dataclasses.replace(saved, options=saved.options | changes, **run_changes)

    def run() -> None:
        from tfdpg.cli import runs

        runs.resume(directory, config, values["trusted"])

    name = directory.relative_to(path).as_posix() if directory != path else directory.name
    single_job_words = ["train", "--resume", str(directory), *words, "--jobs", "1"]
    return TrainingJob(name, directory, config, single_job_words, run), values["jobs"]


def _train_all(training_jobs: Sequence[TrainingJob], parent: Path, jobs: int) -> None:
    """Trains runs, and tells how they went."""
    is_quiet = all(job.config.options.get("verbose") == 0 for job in training_jobs)
    side_by_side: Jobs | None = None
    jobs = min(jobs, len(training_jobs))
    is_several = len(training_jobs) > 1
    failed: RuntimeError | None = None
    if jobs > 1:
        try:
            side_by_side = Jobs(jobs)
            side_by_side.run({job.name: job.words for job in training_jobs})
        except (KeyboardInterrupt, SystemExit) as end:
            config = max((job.config for job in training_jobs), key=lambda config: len(config.external_references))
            end.add_note(f"Go on with all: {resume_command(parent, config, '--jobs', str(jobs))}")
            raise
        except RuntimeError as error:
            failed = error
    else:
        import_tensorflow()
        for number, job in enumerate(training_jobs, 1):
            if not is_quiet:
                count = f" ({number} of {len(training_jobs)})" if is_several else ""
                print(f"seed {job.config.seed}{count}: {job.directory}", flush=True)
            job.run()
    failed_names = side_by_side.failed if side_by_side else ()
    if is_several and not is_quiet:
        print(report.table([(job.name, job.directory) for job in training_jobs], failed_names))
    if failed:
        raise failed


def _parent(agent: str, flags: RunFlags) -> contextlib.AbstractContextManager[Path]:
    default = paths.parent_of(agent, flags.env)
    if flags.run_dir == Path("auto"):
        return paths.next_free(default)
    return contextlib.nullcontext(flags.run_dir or default)


def _draw_seeds(seeds: Sequence[int | str]) -> list[int]:
    """Seeds, drawn where they are to be."""
    drawn = [seed if isinstance(seed, int) else secrets.randbelow(2**31) for seed in seeds]
    if not drawn or len(set(drawn)) < len(drawn):
        raise ValueError(f"`--seeds` must be one or more different integers, or random. Received: {list(seeds)}")
    return drawn


def _take_distribution_options(values: dict[str, Any]) -> dict[str, Any] | None:
    """The options of `tfdpg.distributed.fit`, which are taken out of `values`; None without `--actors`.

    Raises:
        ValueError: an option without `--actors`, which all of them need.
    """
    options = options_of(Distribution)
    chosen = {option.name: values.pop(option.name) for option in options}
    if chosen["actors"] is not None:
        return chosen
    for option in options:
        if option.name != "actors" and chosen[option.name] != option.default:
            raise ValueError(f"`--{option.name.replace('_', '-')}` needs `--actors`, the number of rollout workers.")
    return None
