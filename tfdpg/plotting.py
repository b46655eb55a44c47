"""Learning curves of runs."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfdpg.curves import LearningCurve, distinct, find_runs, interval, labelled, listed, read, together

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"env_steps": "environment steps", "return": "training return", "q1": "value (q1)", "q2": "value (q2)"}
NAMES |= {"loss_q": "critic loss", "loss_pi": "policy loss", "td_error": "TD error"}
"""What axes call columns of progress.csv, where it is not the column's name in words."""

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
    title: str = "",
    label: Sequence[str] = (),
) -> None:
    """See `tfdpg plot --help`.

    Raises:
        ImportError: seaborn is not installed.
        FileNotFoundError: there is no run.
        ValueError: no run is left, a column is not there, labels are too few or too many, or `out` is no image.
    """
    found = find_runs(paths)
    try:
        import seaborn  # noqa: F401
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError as error:
        raise ImportError("`tfdpg plot` needs seaborn: pip install 'tfdpg[plot]'") from error
    if smooth < 1:
        raise ValueError(f"`smooth` must be a positive integer. Received: smooth={smooth}")
    if out.suffix.lower().removeprefix(".") not in FigureCanvasBase.filetypes:
        raise ValueError(f"`--out` must end in one of .{', .'.join(FigureCanvasBase.filetypes)}. Received: {out}")
    runs = [run for run in found if _is_wanted(run, select, exclude)]
    if not runs:
        raise ValueError(
            f"None of the {len(found)} runs in {listed(paths)} matches. Received: select={list(select)}, "
            f"exclude={list(exclude)}"
        )
    curves = labelled([read(run, x, y, smooth) for run in runs], separate)
    if label and len(label) != len(curves):
        raise ValueError(
            f"`--label` must give a label for each of {len(curves)} curves: {'; '.join(curves)}. "
            f"Received: {len(label)} labels"
        )
    if label:
        curves = dict(zip(distinct(label, map(str, range(len(label)))), curves.values(), strict=True))
    figure = draw(curves, _name(x), _name(y), title, counted=not separate)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=200)


def _is_wanted(run: Path, select: Sequence[str], exclude: Sequence[str]) -> bool:
    return (not select or any(part in str(run) for part in select)) and not any(part in str(run) for part in exclude)


def _name(column: str) -> str:
    if column.startswith("val_"):
        return f"evaluation {column.removeprefix('val_').replace('_', ' ')}"
    return NAMES.get(column, column.replace("_", " "))


def draw(curves: dict[str, list[LearningCurve]], x: str, y: str, title: str = "", *, counted: bool = True) -> "Figure":
    """A picture of learning curves: from three seeds on their mean and its interval, before that each by itself.

    Args:
        curves: the runs of each configuration, by their label.
        x: what the x axis is called.
        y: what the y axis is called.
        title: stands above.
        counted: say how many seeds there are.
    """
    import seaborn as sns
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import EngFormatter, FuncFormatter

    with sns.axes_style("whitegrid", STYLE), sns.plotting_context("notebook", rc={"lines.linewidth": 1.5}):
        columns = 2 if len(curves) > 4 and max(map(len, curves)) < 46 else 1
        shown = {_wrapped(label, runs, counted, WIDTH // columns): runs for label, runs in curves.items()}
        rows = max(label.count("\n") + 1 for label in shown) * -(-len(shown) // columns)
        figure = Figure(figsize=(8, 4.4 + 0.22 * rows), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
        axes = figure.subplots()
        colours = sns.color_palette("colorblind")
        for number, (label, runs) in enumerate(shown.items()):
            look = {
                "color": colours[number % len(colours)],
                "linestyle": DASHES[number // len(colours) % len(DASHES)],
            }
            _draw_curve(axes, runs, label, look)
        axes.set(xlabel=x, ylabel=y)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}".replace("-", "\N{MINUS SIGN}")))
        axes.margins(x=0.02)
        axes.grid(axis="x", visible=False)
        sns.despine(ax=axes, left=True)
        axes.set_title(title, loc="left", weight="bold")
        look = {"frameon": False, "fontsize": "small", "title_fontsize": "small", "alignment": "left"}
        legend = figure.legend(loc="outside lower left", ncols=columns, title=_note(curves), **look)
        legend.get_title().set_color("0.4")
    return figure


def _note(curves: dict[str, list[LearningCurve]]) -> str:
    """What the lines are."""
    banded = [len(runs) >= FEW for runs in curves.values()]
    if not any(banded):
        return ""
    return "mean and 95 % bootstrap interval over seeds" + ("" if all(banded) else "; below three seeds single curves")


def _wrapped(label: str, runs: Sequence[LearningCurve], counted: bool, width: int) -> str:
    """A label, with how many runs it is for, on as many lines as it takes."""
    if counted:
        kind = "seed" if len({run.settings.get("seed") for run in runs}) == len(runs) else "run"
        label += f" ({len(runs)} {kind}{'s' * (len(runs) > 1)})"
    return textwrap.fill(label, width, break_on_hyphens=False)


def _draw_curve(axes: Any, runs: Sequence[LearningCurve], label: str, look: dict[str, Any]) -> None:
    if len(runs) < FEW:
        for number, run in enumerate(runs):
            marker = "o" if len(run.x) == 1 else ""
            axes.plot(run.x, run.y, label=label if number == 0 else None, marker=marker, **look)
        return
    x, values = together(runs)
    low, high = interval(values)
    axes.fill_between(x, low, high, color=look["color"], alpha=0.2, linewidth=0)
    axes.plot(x, values.mean(axis=0), label=label, **look)
