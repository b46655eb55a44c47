"""Histograms of how late the steps of real-time runs were."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tfdpg import files
from tfdpg.cli.run_paths import describe_contents, is_run
from tfdpg.plotting import curves, figures
from tfdpg.plotting.curves import LearningCurve
from tfdpg.training.lateness import EDGES_MS, LATENESS, read_histograms

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = ("overhead between steps (ms)", "delay of steps (ms)")
"""The labels of the x axes."""


class Histograms(NamedTuple):
    """The overheads and the delays of a run, as numbers of steps of shape `[bins]` each."""

    overheads: np.ndarray
    delays: np.ndarray


def find(paths: Sequence[Path]) -> list[Path]:
    """Return the files with histograms at or below each path.

    Raises:
        ValueError: `paths` is empty.
        FileNotFoundError: a path has none.
    """
    if not paths:
        raise ValueError("`tfdpg plot` needs run directories, or directories of them: tfdpg plot runs")
    found: dict[Path, None] = {}
    for path in paths:
        named = [path] if path.is_file() else sorted(path.rglob(LATENESS))
        if not named:
            reason = None if is_run(path) else describe_contents(path)
            reason = reason or f"it has no {LATENESS}, so it was no real-time run (`--realtime`) or has no epoch yet"
            raise FileNotFoundError(f"No real-time run in {path}: {reason}")
        for file in named:
            for entry in (file.with_name("run.json"), *([] if file == path else [file])):
                files.check_entry(entry)
        found |= dict.fromkeys(named)
    return list(found)


def read(found: Sequence[Path]) -> dict[str, Histograms]:
    """Read files with histograms.

    Returns:
        The histograms by their label, which contains what distinguishes the run from the others.
    """
    counts = {}
    runs = []
    for file in found:
        run = file.parent if is_run(file.parent) else file
        counts[run] = Histograms(*read_histograms(file))
        runs.append(LearningCurve(run, curves.settings(run), *counts[run]))
    return {label: counts[run.path] for label, (run,) in curves.label_runs(runs, separate=True).items()}


def draw(histograms: dict[str, Histograms], title: str = "") -> "Figure":
    """Draw histograms of the overheads and of the delays, on logarithmic axes.

    Args:
        histograms: the histograms of each run, by its label.
        title: the title of the figure.
    """
    import matplotlib as mpl
    import seaborn as sns
    from matplotlib.figure import Figure

    # the first bin begins at 0, which a logarithmic axis does not have
    edges = np.array([EDGES_MS[1] ** 2 / EDGES_MS[2], *EDGES_MS[1:]])
    counts = np.sum([np.add(*each) for each in histograms.values()], axis=0)
    last = 1 + int(np.flatnonzero(counts).max(initial=19))
    with mpl.rc_context(figures.PLAIN_TEXT), sns.axes_style("whitegrid", figures.STYLE):
        figure = Figure(figsize=(8, 5 + 0.22 * len(histograms)), layout="constrained")
        colours = sns.color_palette("colorblind")
        both = figure.subplots(2, 1, sharex=True)
        for axes, name, which in zip(both, TITLES, Histograms._fields, strict=True):
            for number, (label, each) in enumerate(histograms.items()):
                values = getattr(each, which)
                style = {"color": colours[number % len(colours)], "linewidth": 1.5, "label": label}
                style["linestyle"] = figures.DASHES[number // len(colours) % len(figures.DASHES)]
                axes.stairs(values[:last] / max(1, values.sum()), edges[: last + 1], **style)
            axes.set(xscale="log", yscale="log", xlabel=name, ylabel="share of steps", xlim=edges[[0, last]])
            axes.xaxis.set_major_formatter("{x:,.10g}")
            axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.4g} %")
            axes.tick_params(labelbottom=True)
            sns.despine(ax=axes, left=True)
        figure.suptitle(title, x=0.01, ha="left", weight="bold")
        figure.legend(*both[0].get_legend_handles_labels(), loc="outside lower left", frameon=False, fontsize="small")
    return figure
