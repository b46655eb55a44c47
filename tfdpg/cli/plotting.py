"""Learning curves of runs."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfdpg.cli.curves import (
    LearningCurve,
    check_pooled,
    display_name,
    find_runs,
    interpolate,
    join_paths,
    label_runs,
    normalise,
    read,
    unique_labels,
)
from tfdpg.cli.scores import bootstrap_interval, interquartile_mean, mean, mean_interval, parse_ranges, ranges_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {
    "env_steps": "environment steps (thousands)",
    "return": "training return",
    "q1": "value (q1)",
    "q2": "value (q2)",
}
NAMES |= {"loss_q": "critic loss", "loss_pi": "policy loss", "td_error": "TD error"}
"""What axes call columns of progress.csv, where it is not the column's name in words."""

RETURNS = ("val_return", "return")
"""Columns whose scale is that of an environment's returns."""

FEW = 3
"""Seeds from which on a mean and its interval say more than the single curves."""

WIDTH = 88
"""Letters that a line of the legend has room for."""

DASHES = ("-", "--", ":", "-.")
"""How lines are drawn, one after the other, once colours repeat."""

STYLE = {"axes.edgecolor": "0.6", "axes.labelcolor": "0.2", "grid.color": "0.92", "grid.linewidth": 0.8}
STYLE |= {"xtick.color": "0.4", "ytick.color": "0.4", "text.color": "0.2"}


def plot(
    paths: Sequence[Path],
    out: Path,
    *,
    x: str,
    y: str,
    smooth: int,
    select: Sequence[str],
    exclude: Sequence[str],
    separate: bool,
    aggregate: bool = False,
    normalize: Sequence[str] = (),
    title: str = "",
    label: Sequence[str] = (),
) -> None:
    """See `tfdpg plot --help`.

    Raises:
        ImportError: seaborn is not installed.
        FileNotFoundError: there is no run.
        ValueError: no run is left, a column is not there, labels are too few or too many, runs cannot be pooled, or
            `out` is no image.
    """
    found = find_runs(paths)
    _check_plot(out, y, smooth, aggregate, normalize, separate)
    runs = [run for run in found if _is_wanted(run, select, exclude)]
    if not runs:
        raise ValueError(
            f"None of the {len(found)} runs in {join_paths(paths)} matches. Received: select={list(select)}, "
            f"exclude={list(exclude)}"
        )
    measured = [read(run, x, y, smooth) for run in runs]
    ranges = {}
    if aggregate:
        ranges = ranges_of([run.settings["env"] for run in measured], parse_ranges(normalize))
        measured = [normalise(run, ranges) for run in measured]
    curves = label_runs(measured, separate, aggregate)
    if aggregate:
        check_pooled(curves)
    if label and len(label) != len(curves):
        raise ValueError(
            f"`--label` must give a label for each of {len(curves)} curves: {'; '.join(curves)}. "
            f"Received: {len(label)} labels"
        )
    if label:
        curves = dict(zip(unique_labels(label, map(str, range(len(label)))), curves.values(), strict=True))
    scale = ("normalised" if normalize else "0: random, 1: TD3 at 1M steps") if ranges else ""
    figure = draw(curves, x, y, title, show_counts=not separate, aggregate=aggregate, scale=scale)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=200)


def _check_plot(out: Path, y: str, smooth: int, aggregate: bool, normalize: Sequence[str], separate: bool) -> None:
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
    if aggregate and y not in RETURNS:
        raise ValueError(f"`--aggregate` is of returns: `--y` must be {' or '.join(RETURNS)}. Received: {y}")


def _is_wanted(run: Path, select: Sequence[str], exclude: Sequence[str]) -> bool:
    return (not select or any(part in str(run) for part in select)) and not any(part in str(run) for part in exclude)


def _name(column: str) -> str:
    if column.startswith("val_"):
        return f"evaluation {column.removeprefix('val_').replace('_', ' ')}"
    return NAMES.get(column, column.replace("_", " "))


def draw(
    curves: dict[str, list[LearningCurve]],
    x: str,
    y: str,
    title: str = "",
    *,
    show_counts: bool = True,
    aggregate: bool = False,
    scale: str = "",
) -> "Figure":
    """A picture of learning curves: from three seeds on their mean and its interval, before that each by itself.

    Args:
        curves: the runs of each configuration, by their label.
        x: the column on the x axis.
        y: the column on the y axis.
        title: stands above.
        show_counts: say how many seeds there are.
        aggregate: the runs of a configuration are of several environments, equally many of each, and their
            interquartile mean is drawn.
        scale: what y is measured in.
    """
    import seaborn as sns
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import FuncFormatter

    def number(value: float, _: Any) -> str:
        return f"{value:,.10g}".replace("-", "\N{MINUS SIGN}")

    with sns.axes_style("whitegrid", STYLE), sns.plotting_context("notebook", rc={"lines.linewidth": 1.5}):
        columns = 2 if len(curves) > 4 and max(map(len, curves)) < 46 else 1
        counts = [_count_text(runs, aggregate) if show_counts else "" for runs in curves.values()]
        shown = {
            textwrap.fill(label + count, WIDTH // columns, break_on_hyphens=False): runs
            for (label, runs), count in zip(curves.items(), counts, strict=True)
        }
        note = textwrap.fill(_note(curves, aggregate), WIDTH)
        rows = max(label.count("\n") + 1 for label in shown) * -(-len(shown) // columns) + note.count("\n")
        figure = Figure(figsize=(8, 4.4 + 0.22 * rows), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
        axes = figure.subplots()
        colours = sns.color_palette("colorblind")
        for place, (label, runs) in enumerate(shown.items()):
            style = {
                "color": colours[place % len(colours)],
                "linestyle": DASHES[place // len(colours) % len(DASHES)],
            }
            _draw_curve(axes, runs, label, style, aggregate)
        axes.set(xlabel=_name(x), ylabel=f"{_name(y)}\n({scale})" if scale else _name(y))
        thousands = 1000 if x == "env_steps" else 1
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value / thousands, _)))
        axes.yaxis.set_major_formatter(FuncFormatter(number))
        axes.margins(x=0.02)
        axes.grid(axis="x", visible=False)
        sns.despine(ax=axes, left=True)
        axes.set_title(title, loc="left", weight="bold")
        style = {"frameon": False, "fontsize": "small", "title_fontsize": "small", "alignment": "left"}
        legend = figure.legend(loc="outside lower left", ncols=columns, title=note, **style)
        legend.get_title().set_color("0.4")
    return figure


def _note(curves: dict[str, list[LearningCurve]], aggregate: bool) -> str:
    """What all curves have in common, and what they are."""
    groups = list(curves.values())
    settings = [run.settings for runs in groups for run in runs]
    common = [
        display_name(settings[0], name)
        for name in ("agent", "env")
        if len(groups) > 1 and len({each.get(name) for each in settings}) == 1 and name in settings[0]
    ]
    banded = [_seeds(runs) >= FEW for runs in groups]
    if aggregate:
        tasks = ", ".join(dict.fromkeys(str(run.settings["env"]) for run in groups[0]))
        what = f"interquartile mean over {tasks}"
        interval = " and 95 % bootstrap interval over the seeds of each, widened for few seeds"
        what += interval if all(banded) else "; below three seeds without an interval"
    elif any(banded):
        what = "mean and 95 % confidence interval over seeds (Student's t)"
        what += "" if all(banded) else "; below three seeds single curves"
    else:
        what = ""
    return ": ".join(filter(None, [", ".join(common), what]))


def _seeds(runs: Sequence[LearningCurve]) -> int:
    """How many runs there are of the environment that has the fewest."""
    return min(Counter(run.settings.get("env") for run in runs).values())


def _count_text(runs: Sequence[LearningCurve], aggregate: bool) -> str:
    """How many runs a curve is of."""
    seeds = _seeds(runs)
    tasks = len({run.settings.get("env") for run in runs})
    kind = "seed" if len({run.settings.get("seed") for run in runs}) == seeds else "run"
    count = f"{seeds} {kind}{'s' * (seeds > 1)}"
    return f" ({tasks} environments, {count} each)" if aggregate else f" ({count})"


def _draw_curve(axes: Any, runs: Sequence[LearningCurve], label: str, style: dict[str, Any], aggregate: bool) -> None:
    if len(runs) < FEW and not aggregate:
        for number, run in enumerate(runs):
            marker = "o" if len(run.x) == 1 else ""
            axes.plot(run.x, run.y, label=label if number == 0 else None, marker=marker, **style)
        return
    x, values = interpolate(runs)
    statistic = interquartile_mean if aggregate else mean
    if _seeds(runs) >= FEW:
        tasks = [run.settings.get("env") for run in runs]
        low, high = bootstrap_interval(values, tasks, statistic) if aggregate else mean_interval(values)
        axes.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)
    axes.plot(x, statistic(values), label=label, **style)
