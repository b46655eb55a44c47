"""`tfdpg train`: new runs and old ones, one after the other or side by side."""

import contextlib
import dataclasses
import itertools
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tfdpg import run_lock
from tfdpg import run_paths as paths
from tfdpg.agents.options import OPTIONS
from tfdpg.cli import report
from tfdpg.cli.flags import current, resume_flags, training_flags, values_of
from tfdpg.cli.jobs import Jobs
from tfdpg.cli.parsing import MisuseError, flags_of, parse
from tfdpg.compat.tensorflow import import_tensorflow
from tfdpg.distributed.options import Distribution
from tfdpg.environments import make, parse_kwargs
from tfdpg.options import options_of
from tfdpg.recipes import RECIPES
from tfdpg.run_options import Run, RunConfig, RunFlags, read_config, resuming


class Training(NamedTuple):
    """A run to train.

    Attributes:
        name: what it is called beside others.
        directory: where it is.
        config: what it is.
        words: those after `tfdpg` that train it alone.
        begin: trains it, in this process.
    """

    name: str
    directory: Path
    config: RunConfig
    words: list[str]
    begin: Callable[[], None]


def train(agent: str, words: Sequence[str]) -> None:
    """Trains one run for each seed."""
    flags, configs = configured(agent, words)
    make(flags.env, **configs[0].env_kwargs).close()
    with _parent(agent, flags) as parent:
        for config in configs:
            paths.check_free(parent / f"seed-{config.seed}", flags.overwrite)
        alone = ["train", agent, *words, "--run-dir", str(parent), "--jobs", "1", "--seeds"]
        _train_all([_new(parent, config, flags.overwrite, alone) for config in configs], parent, flags.jobs)


def configured(agent: str, words: Sequence[str]) -> tuple[RunFlags, list[RunConfig]]:
    """What words after `tfdpg train AGENT` ask for: what only the command line has, and a run for each seed."""
    values = values_of(parse(training_flags(agent, _recipe(agent, words)), words, f"tfdpg train {agent}"))
    flags = RunFlags(**{option.name: values.pop(option.name) for option in options_of(RunFlags)})
    spread = _chosen_distribution(values)
    shared: dict[str, Any] = {option.name: getattr(flags, option.name) for option in options_of(Run)}
    shared |= {"env_kwargs": parse_kwargs(flags.env_kwargs), "options": values, "distributed": spread}
    return flags, [RunConfig(agent=agent.lower(), seed=seed, **shared) for seed in _drawn(flags.seeds)]


def _recipe(agent: str, words: Sequence[str]) -> dict[str, Any]:
    """The recipe that words name, which the defaults of the other flags come from; nothing where there is none.

    Raises:
        MisuseError: it is for another agent.
    """
    said = " ".join(words).replace("--recipe=", "--recipe ").split(" ")
    given = [second for first, second in itertools.pairwise(said) if first == "--recipe"]
    recipe = RECIPES.get(given[-1], {}) if given else {}
    if foreign := sorted(set(recipe) - {option.name for option in options_of(OPTIONS[agent.upper()])}):
        raise MisuseError(f"--recipe {given[-1]} is not for {agent.upper()}, which has no option {foreign[0]!r}.")
    return recipe


def _new(parent: Path, config: RunConfig, overwrite: bool, words: list[str]) -> Training:
    def begin() -> None:
        from tfdpg import runs

        runs.start(directory, config, overwrite)

    name = f"seed-{config.seed}"
    directory = parent / name
    return Training(name, directory, config, [*words, str(config.seed)], begin)


def resume(words: Sequence[str]) -> None:
    """Goes on with a run, or with all runs in a directory."""
    if not words or words[0].startswith("-"):
        if {"-h", "--help"} & set(words):
            parse(resume_flags(None), words, "tfdpg train --resume RUN")
        raise MisuseError("`--resume` takes a run, or a directory of runs: tfdpg train --resume RUN [--epochs N]")
    path, flags = Path(words[0]), words[1:]
    trainings = [_old(path, directory, flags) for directory in paths.runs_at(path)]
    _train_all([training for training, _ in trainings], path, max(jobs for _, jobs in trainings))


def _old(path: Path, directory: Path, words: Sequence[str]) -> tuple[Training, int]:
    """A run to go on with, and how many are to go on side by side."""
    saved = read_config(directory, trusted="--trusted" in words)
    run_lock.check(directory)
    options = resume_flags(saved)
    kept = flags_of(training_flags(saved.agent)).keys() - flags_of(options)
    refused = {flag: f"--{flag} cannot change: a run keeps what it was started with." for flag in kept}
    refused["overwrite"] = "--overwrite is for new runs: one that goes on is not replaced."
    values = values_of(parse(options, words, f"tfdpg train --resume {path}", refused))
    now, run_options = current(saved), {option.name for option in options_of(Run)}
    changes = {name: values[name] for name in values if name in now and values[name] != now[name]}
    of_run = {name: changes.pop(name) for name in run_options & set(changes)}
    config = dataclasses.replace(saved, options=saved.options | changes, **of_run)

    def begin() -> None:
        from tfdpg import runs

        runs.resume(directory, config, values["trusted"])

    name = directory.relative_to(path).as_posix() if directory != path else directory.name
    alone = ["train", "--resume", str(directory), *words, "--jobs", "1"]
    return Training(name, directory, config, alone, begin), values["jobs"]


def _train_all(trainings: Sequence[Training], parent: Path, jobs: int) -> None:
    """Trains runs, and tells how they went."""
    is_quiet = all(training.config.options.get("verbose") == 0 for training in trainings)
    side_by_side: Jobs | None = None
    jobs, several = min(jobs, len(trainings)), len(trainings) > 1
    failed: RuntimeError | None = None
    if jobs > 1:
        try:
            side_by_side = Jobs(jobs)
            side_by_side.run({training.name: training.words for training in trainings})
        except (KeyboardInterrupt, SystemExit) as end:
            config = max((training.config for training in trainings), key=lambda config: len(config.foreign))
            end.add_note(f"Go on with all: {resuming(parent, config, '--jobs', str(jobs))}")
            raise
        except RuntimeError as error:
            failed = error
    else:
        import_tensorflow()
        for number, training in enumerate(trainings, 1):
            if not is_quiet:
                count = f" ({number} of {len(trainings)})" if several else ""
                print(f"seed {training.config.seed}{count}: {training.directory}", flush=True)
            training.begin()
    missed = side_by_side.failed if side_by_side else ()
    if several and not is_quiet:
        print(report.table([(training.name, training.directory) for training in trainings], missed))
    if failed:
        raise failed


def _parent(agent: str, flags: RunFlags) -> contextlib.AbstractContextManager[Path]:
    default = paths.parent_of(agent, flags.env)
    if flags.run_dir == Path("auto"):
        return paths.next_free(default)
    return contextlib.nullcontext(flags.run_dir or default)


def _drawn(seeds: Sequence[int | str]) -> list[int]:
    """Seeds, drawn where they are to be."""
    drawn = [seed if isinstance(seed, int) else secrets.randbelow(2**31) for seed in seeds]
    if not drawn or len(set(drawn)) < len(drawn):
        raise ValueError(f"`--seeds` must be one or more different integers, or random. Received: {list(seeds)}")
    return drawn


def _chosen_distribution(values: dict[str, Any]) -> dict[str, Any] | None:
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
