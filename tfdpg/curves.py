"""What runs measured, and what tells their configurations from one another."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfdpg.agents.options import OPTIONS
from tfdpg.distributed.options import Distribution
from tfdpg.options import options_of
from tfdpg.run_options import Run
from tfdpg.run_paths import held, is_model
from tfdpg.training.options import FitOptions

BOOKKEEPING = {"verbose", "save_every", "keep_checkpoints", "write_interval", "initial_epoch", "replay_dir"}
BOOKKEEPING |= {"epochs", "validation_episodes"}
"""Options in which runs of one configuration may differ, beside the seed."""


class LearningCurve(NamedTuple):
    """What a run measured.

    Attributes:
        path: its directory.
        settings: the options of the run, with the defaults of those that its file does not have.
        x: ascending, `[points]`.
        y: `[points]`.
    """

    path: Path
    settings: dict[str, Any]
    x: np.ndarray
    y: np.ndarray


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The run directories at and below `paths`, in their order.

    Raises:
        ValueError: no path is given.
        FileNotFoundError: there is none at or below one of them.
    """
    if not paths:
        raise ValueError("`tfdpg plot` needs run directories, or directories of them: tfdpg plot runs")
    found: dict[Path, None] = {}
    for path in paths:
        begun = sorted(file.parent for file in path.rglob("run.json"))
        runs = [run for run in begun if _has_epochs(run / "progress.csv")]
        if not runs:
            other = held(path) if not path.is_dir() or is_model(path) else None
            why = f"{listed(begun)} has no epoch yet" if begun else other
            missing = "no directory at or below it has run.json and progress.csv"
            raise FileNotFoundError(f"No run to plot in {path}: {why or missing}")
        found |= dict.fromkeys(runs)
    return list(found)


def _has_epochs(file: Path) -> bool:
    return file.exists() and file.read_text().count("\n") > 1


def read(run: Path, x: str, y: str, smooth: int) -> LearningCurve:
    """The columns `x` and `y` of a run, whose `y` is averaged over the last `smooth` points.

    Raises:
        ValueError: a column is not there, or a file is damaged.
    """
    import pandas as pd

    table: Any = pd.read_csv(run / "progress.csv")
    for column in (x, y):
        if column not in table:
            raise ValueError(f"{run}/progress.csv has no column {column!r}. It has: {', '.join(table.columns)}")
    table = table[list(dict.fromkeys((x, y)))].apply(pd.to_numeric).dropna()
    table = table.drop_duplicates(x, keep="last").sort_values(x)  # a run that went on has rows of lost steps too
    return LearningCurve(run, settings(run), table[x].values, table[y].rolling(smooth, min_periods=1).mean().values)


def settings(run: Path) -> dict[str, Any]:
    """All options of a run by their names, those of its environment as `env:name`.

    What its file does not have, since the option is newer, has its default.

    Raises:
        ValueError: the file is damaged.
    """
    try:
        config = json.loads((run / "run.json").read_text())
        options, kwargs, spread = (config.pop(name, None) or {} for name in ("options", "env_kwargs", "distributed"))
        config |= {name: str(config[name]) for name in ("agent", "env")}
        kinds = [Run, FitOptions, Distribution]
        kinds += [OPTIONS[name] for name in OPTIONS if name.lower() == config["agent"]]
        plain = [option for kind in kinds for option in options_of(kind) if not option.is_object]
        known = {option.name: option.default for option in plain}
        known["actors"] = None  # without `--actors`
        environment = {f"env:{name}": value for name, value in kwargs.items()}
        return {name: _hashable(value) for name, value in (known | config | options | spread | environment).items()}
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise ValueError(f"{run}/run.json is damaged: {error}") from error


def _hashable(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    return str(value) if isinstance(value, dict) else value


def labelled(runs: Sequence[LearningCurve], separate: bool) -> dict[str, list[LearningCurve]]:
    """The runs of each configuration, or each by itself, with a label that tells it from the others."""
    ignored = BOOKKEEPING if separate else BOOKKEEPING | {"seed"}
    groups: dict[Any, list[LearningCurve]] = {}
    for run in runs:
        configuration = frozenset(item for item in run.settings.items() if item[0] not in ignored)
        groups.setdefault((configuration, run.path if separate else None), []).append(run)
    configurations = [dict(configuration) for configuration, _ in groups]
    labels = [_label(configuration, configurations) for configuration in configurations]
    return dict(zip(distinct(labels, (str(group[0].path) for group in groups.values())), groups.values(), strict=True))


def _label(own: dict[str, Any], configurations: Sequence[dict[str, Any]]) -> str:
    """The agent, its environment, and the options in which it differs from others of the same agent."""
    others = [each for each in configurations if each["agent"] == own["agent"]]
    differing = sorted(
        name
        for name in own
        if name not in ("agent", "env") and any(each.get(name, ...) != own[name] for each in others)
    )
    options = [f"{name.removeprefix('env:')}={own[name]}" for name in differing]
    return ", ".join([own["agent"].upper(), own["env"], *options])


def distinct(labels: Sequence[str], details: Iterable[str]) -> list[str]:
    """The labels, with what tells those apart that are equal."""
    return [
        f"{label} ({detail})" if labels.count(label) > 1 else label
        for label, detail in zip(labels, details, strict=True)
    ]


def listed(paths: Iterable[Path]) -> str:
    """Paths as an error names them."""
    return ", ".join(map(str, paths))


def together(runs: Sequence[LearningCurve]) -> tuple[np.ndarray, np.ndarray]:
    """The runs at common places, as far as all of them go: x `[points]`, and values `[runs, points]`."""
    first, last = max(run.x[0] for run in runs), min(run.x[-1] for run in runs)
    if first > last:
        raise ValueError(f"The runs {listed(run.path for run in runs)} have no part of the x axis in common.")
    places = np.unique(np.concatenate([run.x for run in runs]))
    places = places[(first <= places) & (places <= last)]
    return places, np.stack([np.interp(places, run.x, run.y) for run in runs])


def interval(values: np.ndarray, resamples: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """The 95 % bootstrap interval of the mean over seeds, `[seeds, points]` to two of `[points]`."""
    seeds = len(values)
    drawn = np.random.default_rng(0).multinomial(seeds, np.full(seeds, 1 / seeds), resamples) / seeds
    low, high = np.percentile(drawn @ values, [2.5, 97.5], axis=0)
    return low, high
