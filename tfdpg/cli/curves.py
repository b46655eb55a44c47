"""What runs measured, and what tells their configurations from one another."""

import dataclasses
import io
import json
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfdpg import files
from tfdpg.agents.options import OPTIONS
from tfdpg.cli.parsing import UsageError
from tfdpg.cli.run_options import Run
from tfdpg.cli.run_paths import describe_contents, is_model
from tfdpg.cli.training import parse_training_flags
from tfdpg.distributed.options import Distribution
from tfdpg.options import options_of
from tfdpg.training.options import FitOptions

BOOKKEEPING = {"verbose", "save_every", "keep_checkpoints", "write_interval", "initial_epoch", "replay_dir"}
BOOKKEEPING |= {"epochs", "validation_episodes"}
"""Options in which runs of one configuration may differ, beside the seed."""
COMMAND = "# tfdpg train "
"""How a file of results begins: with the command that it comes from."""


class LearningCurve(NamedTuple):
    """What a run measured.

    Attributes:
        path: its directory, or its file of results.
        settings: the options of the run, with the defaults of those that its file does not have.
        x: ascending, `[points]`.
        y: `[points]`.
    """

    path: Path
    settings: dict[str, Any]
    x: np.ndarray
    y: np.ndarray


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The run directories at and below `paths`, in their order; where there are none, the files of results.

    Raises:
        ValueError: no path is given.
        FileNotFoundError: there is none at or below one of them.
    """
    if not paths:
        raise ValueError("`tfdpg plot` needs run directories, or directories of them: tfdpg plot runs")
    found: dict[Path, None] = {}
    for path in paths:
        run_dirs = sorted(file.parent for file in path.rglob("run.json"))
        for run in run_dirs:
            for name in ("run.json", "progress.csv"):
                files.check_entry(run / name)
        runs = [run for run in run_dirs if _has_epochs(run / "progress.csv")]
        tables = [path] if path.is_file() else sorted(file for file in path.rglob("*.csv") if file.is_file())
        runs = runs or [file for file in tables if command(file)]  # not both: a file beside its run is the same run
        if not runs:
            raise FileNotFoundError(f"No run to plot in {path}: {_missing(path, run_dirs)}")
        found |= dict.fromkeys(runs)
    return list(found)


def _has_epochs(file: Path) -> bool:
    return file.exists() and file.read_text().count("\n") > 1


def _missing(path: Path, run_dirs: Sequence[Path]) -> str:
    if run_dirs:
        return f"{join_paths(run_dirs)} has no epoch yet"
    if path.is_file():
        return f"it is a file whose first line is not `{COMMAND}...`"
    other = describe_contents(path) if not path.is_dir() or is_model(path) else None
    return other or "no directory at or below it has run.json and progress.csv"


def command(file: Path) -> list[str]:
    """The words after `tfdpg train` with which a file of results begins; none where it is no such file.

    Raises:
        ValueError: these are no words of a command line.
    """
    with file.open(errors="replace") as lines:
        first = lines.readline()
    try:
        return shlex.split(first.removeprefix(COMMAND)) if first.startswith(COMMAND) else []
    except ValueError as error:
        raise ValueError(f"{file} begins with a command that cannot be read: {error}") from error


def read(run: Path, x: str, y: str, smooth: int) -> LearningCurve:
    """The columns `x` and `y` of a run, whose `y` is averaged over the last `smooth` points.

    Raises:
        ValueError: a column is not there, or has no number yet, or a file is damaged.
    """
    return LearningCurve(run, settings(run), *points(run, x, y, smooth))


def points(run: Path, x: str, y: str, smooth: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Likewise, the columns alone. A last line without an end does not count: it may stop within a number."""
    import pandas as pd

    file = run / "progress.csv" if run.is_dir() else run
    try:
        text = file.read_text()
        table: Any = pd.read_csv(io.StringIO(text[: text.rfind("\n") + 1]), comment="#")
        numbers = {column: pd.to_numeric(table[column]) for column in (x, y) if column in table}
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {str(error).strip()}") from error
    for column in (x, y):
        if column not in numbers:
            raise ValueError(f"{file} has no column {column!r}. It has: {', '.join(table.columns)}")
    table = pd.DataFrame(numbers).dropna()
    if table.empty:
        raise ValueError(f"{file} has no line with numbers for {x!r} and {y!r} yet")
    table = table.drop_duplicates(x, keep="last").sort_values(x)  # a run that went on has rows of lost steps too
    return table[x].values, table[y].rolling(smooth, min_periods=1).mean().values


def settings(run: Path) -> dict[str, Any]:
    """All options of a run by their names, those of its environment as `env:name`.

    What its file does not have, since the option is newer, has its default.

    Raises:
        ValueError: the file is damaged.
    """
    try:
        config = json.loads((run / "run.json").read_text() if run.is_dir() else _config_text(run))
        options, kwargs, distribution = (
            config.pop(name, None) or {} for name in ("options", "env_kwargs", "distributed")
        )
        config |= {name: str(config[name]) for name in ("agent", "env")}
        kinds = [Run, FitOptions, Distribution]
        kinds += [OPTIONS[name] for name in OPTIONS if name.lower() == config["agent"]]
        plain = [option for kind in kinds for option in options_of(kind) if not option.is_object]
        known = {option.name: option.default for option in plain}
        known["actors"] = None  # without `--actors`
        environment = {f"env:{name}": value for name, value in kwargs.items()}
        return {
            name: _hashable(value) for name, value in (known | config | options | distribution | environment).items()
        }
    except (ValueError, TypeError, AttributeError, LookupError, UsageError) as error:
        if not run.is_dir():
            raise ValueError(f"{run} begins with a command that this tfdpg does not take: {error}") from error
        raise ValueError(f"{run}/run.json is damaged: {error}") from error


def _config_text(file: Path) -> str:
    """What `run.json` would be of the command of a file of results."""
    agent, *words = command(file)
    configs = parse_training_flags(agent, words)[1]
    if len(configs) > 1:
        raise ValueError(f"it is of one seed. Received: {len(configs)} seeds")
    return json.dumps(dataclasses.asdict(configs[0]))


def _hashable(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    return str(value) if isinstance(value, dict) else value


def label_runs(runs: Sequence[LearningCurve], separate: bool, pooled: bool = False) -> dict[str, list[LearningCurve]]:
    """The runs of each configuration, or each by itself, with a label that tells it from the others.

    Args:
        runs: what is shown.
        separate: each by itself.
        pooled: runs in several environments are of one configuration.
    """
    ignored = BOOKKEEPING if separate else BOOKKEEPING | {"seed"} | ({"env"} if pooled else set())
    groups: dict[Any, list[LearningCurve]] = {}
    for run in runs:
        configuration = frozenset(item for item in run.settings.items() if item[0] not in ignored)
        groups.setdefault((configuration, run.path if separate else None), []).append(run)
    configurations = [dict(configuration) for configuration, _ in groups]
    labels = [_label(configuration, configurations) for configuration in configurations]
    return dict(
        zip(unique_labels(labels, (str(group[0].path) for group in groups.values())), groups.values(), strict=True)
    )


def _label(own: dict[str, Any], configurations: Sequence[dict[str, Any]]) -> str:
    """What differs: the agent, the environment, and options, in which it is compared with those of the same agent."""
    of_agent = [each for each in configurations if each["agent"] == own["agent"]]
    named = {name: display_name(own, name) for name in ("agent", "env") if name in own}
    parts = [named[name] for name in named if any(each[name] != own[name] for each in configurations)]
    options = sorted(own.keys() - named.keys())
    differing = [name for name in options if any(each.get(name, ...) != own[name] for each in of_agent)]
    parts += [f"{name.removeprefix('env:')}={own[name]}" for name in differing]
    return ", ".join(parts or named.values())


def display_name(settings: dict[str, Any], name: str) -> str:
    """What pictures call the agent, or the environment, of a run."""
    return settings[name].upper() if name == "agent" else settings[name]


def unique_labels(labels: Sequence[str], details: Iterable[str]) -> list[str]:
    """The labels, with what tells those apart that are equal."""
    return [
        f"{label} ({detail})" if labels.count(label) > 1 else label
        for label, detail in zip(labels, details, strict=True)
    ]


def normalise(run: LearningCurve, ranges: Mapping[str, tuple[float, float]]) -> LearningCurve:
    """A run whose y is 0 and 1 where the range of its environment begins and ends; without a range, as it is."""
    low, high = ranges.get(run.settings["env"], (0.0, 1.0))
    return run._replace(y=(run.y - low) / (high - low))


def check_pooled(curves: Mapping[str, Sequence[LearningCurve]]) -> None:
    """Raises `ValueError` unless every curve is of the same environments, with equally many runs of each."""
    counts = {label: Counter(run.settings["env"] for run in runs) for label, runs in curves.items()}
    numbers = {number for count in counts.values() for number in count.values()}
    if len(numbers) > 1 or len({frozenset(count) for count in counts.values()}) > 1:
        found = [
            f"{label}: {', '.join(f'{count[env]} of {env}' for env in sorted(count))}"
            for label, count in counts.items()
        ]
        raise ValueError(
            "`--aggregate` needs the same environments in every curve, with equally many runs of each; --select and "
            f"--exclude choose among them. Received: {'; '.join(found)}"
        )


def join_paths(paths: Iterable[Path]) -> str:
    """Paths as an error names them."""
    return ", ".join(map(str, paths))


def interpolate(runs: Sequence[LearningCurve]) -> tuple[np.ndarray, np.ndarray]:
    """The runs at common places, as far as all of them go: x `[points]`, and values `[runs, points]`."""
    first = max(run.x[0] for run in runs)
    last = min(run.x[-1] for run in runs)
    if first > last:
        raise ValueError(f"The runs {join_paths(run.path for run in runs)} have no part of the x axis in common.")
    places = np.unique(np.concatenate([run.x for run in runs]))
    places = places[(first <= places) & (places <= last)]
    return places, np.stack([np.interp(places, run.x, run.y) for run in runs])
