"""The result of a search: a table of the best settings, the command to paste, and a plot of parameter importance."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tfdpg.cli.run_options import RunConfig, train_command
from tfdpg.plotting.figures import STYLE
from tfdpg.tuning.runs import Run, score

if TYPE_CHECKING:
    import optuna
    from matplotlib.figure import Figure

PLOT = "importance.svg"
"""The file in the directory of a search with the plot of parameter importance."""


class Setting(NamedTuple):
    """The options of a trial.

    Attributes:
        number: the number of the trial.
        is_initial: whether these are the initial values.
        score: the score of the trial.
        values: the values of the options that were searched.
        config: the configuration.
        runs: the runs with new seeds, by seed.
    """

    number: int
    is_initial: bool
    score: float
    values: dict[str, Any]
    config: RunConfig
    runs: Mapping[int, Run]

    @property
    def name(self) -> str:
        """The name in the table."""
        return f"trial {self.number}" + " (initial)" * self.is_initial

    def scores(self) -> np.ndarray:
        """Return the scores with new seeds; minus infinity for a run that was not completed."""
        return np.array([score(run.scores()) if run.is_complete() else -math.inf for run in self.runs.values()])

    def rank(self) -> float:
        """Return the mean score with new seeds, or without these the score of the trial."""
        return float(np.mean(self.scores())) if self.runs else self.score


def write_report(directory: Path, study: "optuna.Study", settings: Sequence[Setting], seeds: Sequence[int]) -> None:
    """Print the best settings and the command to paste, and write the plot of parameter importance.

    The study's attribute `best` then has the number, the options and the command of the best setting.
    """
    ranked = sorted(settings, key=lambda setting: setting.rank(), reverse=True)
    best = ranked[0]
    command = train_command(best.config)
    study.set_user_attr("best", {"trial": best.number, "options": best.values, "command": command})
    print(f"\nscores: the trial's in the search, and mean ± standard error with the new seeds\n\n{table(ranked)}\n")
    if seeds:
        print(comparison(best, ranked))
    print(f"The best command:\n\n{command}\n")
    if (figure := importance(study)) is None:
        print("There are too few different trials for a plot of parameter importance.", flush=True)
    else:
        figure.savefig(directory / PLOT)
        print(f"wrote {directory / PLOT}", flush=True)


def table(ranked: Sequence[Setting]) -> str:
    """Return a table with the score, the mean and standard error with new seeds, and the options of each setting."""
    rows = [["", "search", "new seeds", *ranked[0].values]]
    for setting in ranked:
        values = [" ".join(map(str, v)) if isinstance(v, tuple) else str(v) for v in setting.values.values()]
        rows.append([setting.name, f"{setting.score:.2f}", mean_and_error(setting.scores()), *values])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *cells in rows:
        right = "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        lines.append(f"{name:{widths[0]}}  {right}")
    return "\n".join(lines)


def mean_and_error(values: np.ndarray) -> str:
    """Return the mean of some numbers and its standard error as text."""
    failed = int(np.isinf(values).sum())
    if failed or not len(values):
        return f"{failed} of {len(values)} failed" if failed else "-"
    error = f" ± {values.std(ddof=1) / math.sqrt(len(values)):.2f}" if len(values) > 1 else ""
    return f"{values.mean():.2f}{error}"


def comparison(best: Setting, settings: Sequence[Setting]) -> str:
    """Return a sentence that compares the best setting with the initial values, seed by seed."""
    initial = next((setting for setting in settings if setting.is_initial), None)
    if initial is None:
        return "The trial with the initial values was not completed, so there is no comparison with them."
    if best is initial:
        return "No setting has a higher mean with new seeds than the initial values."
    ours, theirs = best.scores(), initial.scores()
    if np.isinf(ours).any() or np.isinf(theirs).any():
        return f"Trial {best.number} is the best. Some runs with new seeds failed, so there is no mean difference."
    wins = int((ours > theirs).sum())
    return (
        f"Trial {best.number} is the best. Its scores with new seeds minus those of the initial values with the same "
        f"seeds: {mean_and_error(ours - theirs)} (higher with {wins} of {len(ours)} seeds)."
    )


def importance(study: "optuna.Study") -> "Figure | None":
    """Draw the importance of the options that were searched. Return None if the trials do not determine it.

    Optuna takes only completed trials. Those that were pruned are the worse ones, and without them the options that
    make the difference would look unimportant, so they count with their last scores.
    """
    import optuna
    import seaborn as sns
    from matplotlib.figure import Figure

    states = [optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED]
    trials = [trial for trial in study.get_trials(states=states) if trial.value is not None]
    if len({trial.value for trial in trials}) < 2:
        return None
    all_trials = optuna.create_study(direction="maximize")
    for trial in trials:
        made = {"params": trial.params, "distributions": trial.distributions, "value": trial.value}
        all_trials.add_trial(optuna.trial.create_trial(**made))
    found = optuna.importance.get_param_importances(all_trials)
    with sns.axes_style("whitegrid", STYLE), sns.plotting_context("notebook"):
        figure = Figure(figsize=(6.4, 1.2 + 0.4 * len(found)), layout="constrained")
        axes = figure.subplots()
        names = [name.removeprefix("1 - ") for name in reversed(found)]
        bars = axes.barh(names, list(reversed(found.values())), color=sns.color_palette("colorblind")[0])
        axes.bar_label(bars, fmt="{:.2f}", padding=4)
        axes.set(xlabel="importance for the score (PED-ANOVA; sums to 1)", xlim=(0, 1.1 * max(found.values())))
        axes.grid(axis="y", visible=False)
        sns.despine(ax=axes, left=True, bottom=True)
    return figure
