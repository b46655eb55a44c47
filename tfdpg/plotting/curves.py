"""Read the learning curves of runs, group them by configuration, and label what distinguishes the configurations."""

import dataclasses
import io
import json
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tfdpg import files
from tfdpg.agents import classes
from tfdpg.agents.options import OPTIONS, AgentOptions
from tfdpg.cli.parsing import UsageError
from tfdpg.cli.run_options import BOOKKEEPING, Run
from tfdpg.cli.run_paths import describe_contents, is_model
from tfdpg.cli.training import parse_training_flags
from tfdpg.distributed.options import Distribution
from tfdpg.options import options_of
from tfdpg.plotting import tables
from tfdpg.training.options import FitOptions

COMMAND = "# tfdpg train "
"""The first line of a file of results begins with this text. The rest of the line is the command of its run."""


class LearningCurve(NamedTuple):
    """The learning curve of a run.

    Attributes:
        path: the run directory, or the file of results.
        settings: the options of the run, see `settings`.
        x: shape `[points]`, ascending.
        y: shape `[points]`.
        labels: the labels of columns that are metrics of the agent.
    """

    path: Path
    settings: dict[str, Any]
    x: np.ndarray
    y: np.ndarray
    labels: Mapping[str, str] = MappingProxyType({})


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Return the runs at or below each path: directories with at least one epoch, or else files of results.

    In a directory without runs, these are the files that begin with a command of tfdpg, or else those that other
    programs usually write: progress.csv, progress.txt, or else all files whose names end in .csv.

    Raises:
        ValueError: `paths` is empty.
        FileNotFoundError: a path has neither.
    """
    if not paths:
        raise ValueError("`tfdpg plot` needs run directories, or directories of them: tfdpg plot runs")
    found: dict[Path, None] = {}
    for path in paths:
        run_dirs = sorted(file.parent for file in path.rglob("run.json"))
        for run in run_dirs:
            for name in ("run.json", "progress.csv", files.LABELS):
                files.check_entry(run / name)
        runs = [run for run in run_dirs if _has_epochs(run / "progress.csv")]
        if not runs:  # a file of results beside a run directory would be the same run again
            runs = [file for file in _files(path, "*.csv") if command(file)]
        if not (runs or run_dirs):
            runs = next(filter(None, (_files(path, name) for name in ("progress.csv", "progress.txt", "*.csv"))), [])
        if not runs:
            raise FileNotFoundError(f"No run to plot in {path}: {_missing(path, run_dirs)}")
        found |= dict.fromkeys(runs)
    return list(found)


def _files(path: Path, pattern: str) -> list[Path]:
    return [path] if path.is_file() else sorted(file for file in path.rglob(pattern) if file.is_file())


def _has_epochs(file: Path) -> bool:
    return file.exists() and files.read_text(file).count("\n") > 1


def _missing(path: Path, run_dirs: Sequence[Path]) -> str:
    if run_dirs:
        return f"{', '.join(map(str, run_dirs))} has no epoch yet"
    other = describe_contents(path) if not path.is_dir() or is_model(path) else None
    return other or "no directory at or below it has run.json and progress.csv, and there is no .csv file"


def command(file: Path) -> list[str]:
    """Return the words after `tfdpg train` in the first line of a file of results; `[]` for any other file.

    Raises:
        ValueError: the line is not a valid command line.
    """
    with file.open(errors="replace") as lines:
        first = lines.readline()
    try:
        return shlex.split(first.removeprefix(COMMAND)) if first.startswith(COMMAND) else []
    except ValueError as error:
        raise ValueError(f"{file} begins with a command that cannot be read: {error}") from error


def read(run: Path, x: str, y: str, smooth: int) -> LearningCurve:
    """Read the learning curve of a run directory or a file of results.

    Args:
        run: the run directory, or the file of results.
        x: column for the x axis, see `tfdpg.plotting.tables.column`.
        y: column for the y axis.
        smooth: number of points to average y over: a point and those before it.

    Raises:
        ValueError: a column does not exist or has no number yet, or a file is damaged.
    """
    return LearningCurve(run, settings(run), *points(run, x, y, smooth), metric_labels(run))


def metric_labels(run: Path) -> dict[str, str]:
    """Return the labels of the agent's metrics; none for a file of results, and for runs of earlier versions.

    Raises:
        ValueError: the file with the labels is damaged.
    """
    file = run / files.LABELS
    if not file.exists():
        return {}
    with files.content_errors(file):
        return {name: str(label) for name, label in dict(json.loads(files.read_text(file))).items()}


def points(run: Path, x: str, y: str, smooth: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return the two columns of `read`, of shape `[points]` each.

    A last line without a newline is ignored, since it may end within a number.
    """
    import pandas as pd

    file = run / "progress.csv" if run.is_dir() else run
    text = files.read_text(file)
    is_table = _is_table(run)
    with files.content_errors(file):
        content = io.StringIO(text[: text.rfind("\n") + 1])
        table: Any = pd.read_csv(content, comment="#", sep="\t" if file.suffix == ".txt" else ",")
        if is_table and tables.MONITOR <= {*table.columns}:
            lengths: Any = pd.to_numeric(table["l"])
            table[tables.STEPS] = lengths.cumsum()
        names = [tables.column(table.columns, wanted, is_table) for wanted in (x, y)]
        numbers: Any = pd.DataFrame({name: pd.to_numeric(table[name]) for name in names if name is not None})
    for name, wanted in zip(names, (x, y), strict=True):
        if name is None:
            raise tables.missing(file, wanted, table.columns, is_table)
    steps, values = names
    # a resumed run has two rows for the steps that it repeated
    numbers = numbers.dropna().drop_duplicates(steps, keep="last").sort_values(steps)
    if numbers.empty:
        raise ValueError(f"{file} has no line with numbers for {steps!r} and {values!r} yet")
    return numbers[steps].values, numbers[values].rolling(smooth, min_periods=1).mean().values


def _is_table(run: Path) -> bool:
    """Return whether a file is to be read without its command: it has none, or one that would import a user's file."""
    words = [] if run.is_dir() else command(run)
    return not run.is_dir() and not (words and not classes.is_external(words[0]))


def settings(run: Path) -> dict[str, Any]:
    """Return all options of a run by name, and the arguments of its environment as `env:name`.

    Options that its file does not contain have their defaults, so that runs made before an option existed belong to the
    same configuration as later runs.

    A file of another program has only a name.

    Raises:
        ValueError: the file is damaged.
    """
    if _is_table(run):
        return tables.settings(run)
    try:
        config = json.loads((run / "run.json").read_text()) if run.is_dir() else _config_of_results(run)
        options, kwargs, distribution = (
            config.pop(name, None) or {} for name in ("options", "env_kwargs", "distributed")
        )
        config |= {name: str(config[name]) for name in ("agent", "env")}
        kinds = Run, FitOptions, Distribution, OPTIONS.get(config["agent"].upper(), AgentOptions)
        defaults = {each.name: each.default for kind in kinds for each in options_of(kind) if not each.is_object}
        defaults["from_"] = None  # as in runs of versions without it
        defaults["actors"] = None  # without rollout workers
        environment = {f"env:{name}": value for name, value in kwargs.items()}
        values = defaults | config | options | distribution | environment
        return {name: _hashable(value) for name, value in values.items()}
    except (ValueError, TypeError, AttributeError, LookupError, UsageError) as error:
        if not run.is_dir():
            raise ValueError(f"{run} begins with a command that this tfdpg does not accept: {error}") from error
        raise ValueError(f"{run}/run.json is damaged: {error}") from error


def _config_of_results(file: Path) -> dict[str, Any]:
    """Return what `run.json` would contain for the command of a file of results."""
    agent, *words = command(file)
    configs = parse_training_flags(agent, words)[1]
    if len(configs) > 1:
        raise ValueError(f"it must have one seed. Received: {len(configs)} seeds")
    return dataclasses.asdict(configs[0])


def _hashable(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    return str(value) if isinstance(value, dict) else value


def label_runs(runs: Sequence[LearningCurve], separate: bool, pooled: bool = False) -> dict[str, list[LearningCurve]]:
    """Group runs by configuration.

    Args:
        runs: the learning curves.
        separate: whether each run is its own group.
        pooled: whether runs that differ only in their environment belong to one configuration.

    Returns:
        The runs of each group by a label, which contains the options that distinguish the group from the others.
    """
    ignored = BOOKKEEPING if separate else BOOKKEEPING | {"seed"} | ({"env"} if pooled else set())
    groups: dict[Any, list[LearningCurve]] = {}
    for run in runs:
        configuration = frozenset(item for item in run.settings.items() if item[0] not in ignored)
        groups.setdefault((configuration, run.path if separate else None), []).append(run)
    configurations = [dict(configuration) for configuration, _ in groups]
    labels = [_label(configuration, configurations) for configuration in configurations]
    unique = unique_labels(labels, (str(group[0].path) for group in groups.values()))
    return dict(zip(unique, groups.values(), strict=True))


def _label(own: dict[str, Any], configurations: Sequence[dict[str, Any]]) -> str:
    """Return what distinguishes a configuration: agent, environment, and options that differ for the same agent."""
    if "table" in own:
        return own["table"]
    of_agent = [each for each in configurations if each.get("agent") == own["agent"]]
    named = {name: display_name(own, name) for name in ("agent", "env") if name in own}
    parts = [named[name] for name in named if any(each.get(name, own[name]) != own[name] for each in configurations)]
    for name in sorted(own.keys() - named.keys()):
        if any(each.get(name, ...) != own[name] for each in of_agent):
            parts.append(f"{name.removeprefix('env:')}={own[name]}")
    return ", ".join(parts or named.values())


def display_name(settings: dict[str, Any], name: str) -> str:
    """Return the agent or the environment of a run as figures show it."""
    return classes.display_name(settings[name]) if name == "agent" else settings[name]


def unique_labels(labels: Sequence[str], details: Iterable[str]) -> list[str]:
    """Return the labels, with the detail added to those that occur more than once."""
    return [
        f"{label} ({detail})" if labels.count(label) > 1 else label
        for label, detail in zip(labels, details, strict=True)
    ]


def normalise(run: LearningCurve, ranges: Mapping[str, tuple[float, float]]) -> LearningCurve:
    """Rescale y so that the range of the run's environment becomes [0, 1]. Without a range, y stays as it is."""
    low, high = ranges.get(run.settings["env"], (0.0, 1.0))
    return run._replace(y=(run.y - low) / (high - low))


def check_environments(runs: Sequence[LearningCurve]) -> None:
    """Raise `ValueError` unless all runs say in which environment they were made."""
    if nameless := [run.path for run in runs if "env" not in run.settings]:
        raise ValueError(f"`--aggregate` is for runs of tfdpg, because {nameless[0]} does not name its environment.")


def check_pooled(curves: Mapping[str, Sequence[LearningCurve]]) -> None:
    """Raise `ValueError` unless all curves have the same environments, with equally many runs of each."""
    counts = {label: Counter(run.settings["env"] for run in runs) for label, runs in curves.items()}
    first, *others = counts.values()
    if len(set(first.values())) > 1 or any(count != first for count in others):
        texts = {label: ", ".join(f"{count[env]} of {env}" for env in sorted(count)) for label, count in counts.items()}
        raise ValueError(
            "`--aggregate` needs the same environments in every curve, with equally many runs of each; --select and "
            f"--exclude choose among them. Received: {'; '.join(f'{label}: {text}' for label, text in texts.items())}"
        )


def interpolate(runs: Sequence[LearningCurve]) -> tuple[np.ndarray, np.ndarray]:
    """Interpolate runs linearly at all of their x values that every run covers.

    Returns:
        x of shape `[points]`, and the values of shape `[runs, points]`.
    """
    first = max(run.x[0] for run in runs)
    last = min(run.x[-1] for run in runs)
    if first > last:
        raise ValueError(f"The runs {', '.join(str(run.path) for run in runs)} have no part of the x axis in common.")
    x = np.unique(np.concatenate([run.x for run in runs]))
    x = x[(first <= x) & (x <= last)]
    return x, np.stack([np.interp(x, run.x, run.y) for run in runs])
