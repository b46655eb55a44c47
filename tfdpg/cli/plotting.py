"""Draw learning curves."""

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfdpg.cli.curves import LearningCurve, display_name, interpolate
from tfdpg.cli.scores import bootstrap_interval, interquartile_mean, mean, mean_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"env_steps": "environment steps (thousands)", "return": "training return"}
"""The axis labels of columns that every algorithm has, if they are not the names of the columns."""
RETURNS = ("val_return", "return")
"""The columns that contain returns."""
SUCCESS_RATES = ("val_success_rate", "success_rate")
"""The columns that have the same scale in every environment."""
FEW = 3
"""The number of seeds from which a mean and its interval are drawn instead of single curves."""
WIDTH = 88
"""The number of characters in a line of the legend."""
DASHES = ("-", "--", ":", "-.")
"""The line styles. The next one is used each time all colours have been used."""
PLAIN_TEXT: Any = {"text.parse_math": False}
"""Settings of Matplotlib with which a `$` in a title or a label is a dollar sign."""
STYLE = {"axes.edgecolor": "0.6", "axes.labelcolor": "0.2", "grid.color": "0.92", "grid.linewidth": 0.8}
STYLE |= {"xtick.color": "0.4", "ytick.color": "0.4", "text.color": "0.2"}


def check(out: Path, y: str, smooth: int, aggregate: bool, normalize: Sequence[str], separate: bool) -> None:
    """Check the options of `tfdpg plot`.

    Raises:
        ImportError: seaborn is not installed.
        ValueError: an option is not valid, or two options exclude each other.
    """
    try:
        import seaborn  # noqa: F401
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError as error:
        raise ImportError("`tfdpg plot` needs seaborn: pip install 'tfdpg[plot]'") from error
    if smooth < 1:
        raise ValueError(f"`smooth` must be a positive integer. Received: smooth={smooth}")
    if out.suffix.lower().removeprefix(".") not in FigureCanvasBase.filetypes:
        raise ValueError(f"`--out` must end in one of .{', .'.join(FigureCanvasBase.filetypes)}. Received: {out}")
    if normalize and not aggregate:
        raise ValueError("`--normalize` is for `--aggregate`, which pools the runs of several environments.")
    if aggregate and separate:
        raise ValueError("`--aggregate` pools runs, and `--separate` draws each by itself: give one of them.")
    pooled = (*RETURNS, *SUCCESS_RATES)
    if aggregate and y not in pooled:
        raise ValueError(
            f"`--aggregate` is for returns and success rates: `--y` must be {' or '.join(pooled)}. Received: {y}"
        )
    if normalize and y in SUCCESS_RATES:
        raise ValueError(f"`--normalize` is for returns: `--y` must be {' or '.join(RETURNS)}. Received: {y}")


def draw(
    curves: dict[str, list[LearningCurve]],
    x: str,
    y: str,
    title: str = "",
    *,
    show_counts: bool = True,
    aggregate: bool = False,
    scale: str = "",
    places: Mapping[str, int] | None = None,
) -> "Figure":
    """Draw learning curves: the mean and its confidence interval for three or more seeds, single curves for fewer.

    Args:
        curves: the runs of each configuration, by its label.
        x: the column on the x axis.
        y: the column on the y axis.
        title: the title of the figure.
        show_counts: whether the legend contains the number of seeds.
        aggregate: whether to draw the interquartile mean of each configuration over all of its environments. Each
            environment must have the same number of runs.
        scale: the unit of y.
        places: the place of each label's colour in the palette; None takes the colours in order.
    """
    import matplotlib as mpl
    import seaborn as sns
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with (
        mpl.rc_context(PLAIN_TEXT),
        sns.axes_style("whitegrid", STYLE),
        sns.plotting_context("notebook", rc={"lines.linewidth": 1.5}),
    ):
        columns = 2 if len(curves) > 4 and max(map(len, curves)) < 46 else 1
        labels = []
        for label, runs in curves.items():
            count = _count_text(runs, aggregate) if show_counts else ""
            labels.append(textwrap.fill(label + count, WIDTH // columns, break_on_hyphens=False))
        note = textwrap.fill(_note(curves, aggregate), WIDTH)
        rows = max(label.count("\n") + 1 for label in labels) * -(-len(labels) // columns) + note.count("\n")
        figure = Figure(figsize=(8, 4.4 + 0.22 * rows), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
        axes = figure.subplots()
        colours = sns.color_palette("colorblind")
        unit = 1000 if x == "env_steps" else 1
        for number, (name, label) in enumerate(zip(curves, labels, strict=True)):
            place = number if places is None else places[name]
            dashes = DASHES[place // len(colours) % len(DASHES)]
            style = {"color": colours[place % len(colours)], "linestyle": dashes, "label": label}
            _draw_curve(axes, curves[name], unit, aggregate, style)
        names = {name: label for runs in curves.values() for run in runs for name, label in run.labels.items()}
        x_name, y_name = _name(x, names), _name(y, names)
        axes.set(xlabel=x_name, ylabel=f"{y_name}\n({scale})" if scale else y_name)
        axes.xaxis.set_major_formatter("{x:,.10g}")
        axes.yaxis.set_major_formatter("{x:,.10g}")
        axes.margins(x=0.02)
        limit_bottom(axes, curves)
        axes.grid(axis="x", visible=False)
        sns.despine(ax=axes, left=True)
        axes.set_title(title, loc="left", weight="bold")
        style = {"frameon": False, "fontsize": "small", "title_fontsize": "small", "alignment": "left"}
        legend = figure.legend(loc="outside lower left", ncols=columns, title=note, **style)
        legend.get_title().set_color("0.4")
    return figure


def limit_bottom(axes: Any, curves: Mapping[str, Sequence[LearningCurve]]) -> None:
    """Let the y axis begin a little below the lowest run, line or marker, even if an interval reaches further down.

    Something that is drawn afterwards extends the axis again.
    """
    drawn = [run.y for runs in curves.values() for run in runs] + [line.get_ydata() for line in axes.lines]
    values = np.concatenate([np.asarray(each, float) for each in drawn])
    values = values[np.isfinite(values)]
    bottom, top = axes.get_ylim()
    if values.size:
        axes.set_ylim(bottom=max(bottom, values.min() - 0.05 * (top - values.min())), auto=None)


def _name(column: str, labels: Mapping[str, str]) -> str:
    """Return the label of a column: that of its metric, if the runs have one."""
    if column.startswith("val_"):
        return f"evaluation {column.removeprefix('val_').replace('_', ' ')}"
    return {**NAMES, **labels}.get(column, column.replace("_", " "))


def _draw_curve(axes: Any, runs: Sequence[LearningCurve], unit: int, aggregate: bool, style: dict[str, Any]) -> None:
    if len(runs) < FEW and not aggregate:
        for run in runs:
            axes.plot(run.x / unit, run.y, marker="o" if len(run.x) == 1 else "", **style)
            style = style | {"label": None}
        return
    x, values = interpolate(runs)
    statistic = interquartile_mean if aggregate else mean
    if _seeds(runs) >= FEW:
        tasks = [run.settings.get("env") for run in runs]
        low, high = bootstrap_interval(values, tasks, statistic) if aggregate else mean_interval(values)
        axes.fill_between(x / unit, low, high, color=style["color"], alpha=0.2, linewidth=0)
    axes.plot(x / unit, statistic(values), **style)


def _note(curves: dict[str, list[LearningCurve]], aggregate: bool) -> str:
    """Return what all curves have in common, and how they were computed."""
    groups = list(curves.values())
    settings = [run.settings for runs in groups for run in runs]
    common = []
    for name in ("agent", "env"):
        if len(groups) > 1 and name in settings[0] and len({each.get(name) for each in settings}) == 1:
            common.append(display_name(settings[0], name))
    have_interval = [_seeds(runs) >= FEW for runs in groups]
    if aggregate:
        what = f"interquartile mean over {', '.join(dict.fromkeys(run.settings['env'] for run in groups[0]))}"
        interval = " and 95 % bootstrap interval over the seeds of each, widened for few seeds"
        what += interval if all(have_interval) else "; below three seeds without an interval"
    elif any(have_interval):
        what = "mean and 95 % confidence interval over seeds (Student's t)"
        what += "" if all(have_interval) else "; below three seeds single curves"
    else:
        what = ""
    return ": ".join(filter(None, [", ".join(common), what]))


def _seeds(runs: Sequence[LearningCurve]) -> int:
    """Return the number of runs in the environment with the fewest."""
    return min(Counter(run.settings.get("env") for run in runs).values())


def _count_text(runs: Sequence[LearningCurve], aggregate: bool) -> str:
    seeds = _seeds(runs)
    tasks = len({run.settings.get("env") for run in runs})
    kind = "seed" if len({run.settings.get("seed") for run in runs}) == seeds else "run"
    count = f"{seeds} {kind}{'s' * (seeds > 1)}"
    return f" ({tasks} environments, {count} each)" if aggregate else f" ({count})"
