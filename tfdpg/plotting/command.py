"""The command `tfdpg plot`."""

from pathlib import Path
from typing import Annotated

import tyro

from tfdpg.plotting import curves, figures, scores
from tfdpg.plotting.tables import RETURN, STEPS


def plot(
    run_dirs: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN...")],
    /,
    out: Path = Path("curves.png"),
    x: str = STEPS,
    y: str = RETURN,
    smooth: int = 1,
    select: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    separate: bool = False,
    aggregate: bool = False,
    normalize: tuple[str, ...] = (),
    title: str = "",
    label: tuple[str, ...] = (),
) -> None:
    """Plot learning curves. With three or more runs of a configuration, plot their mean and 95 % confidence interval.

    Args:
        run_dirs: run directories, CSV files with the results of any program, or directories of either.
        out: the image to write: .png, .pdf, .svg, ...
        x: column for the x axis; of several with commas between them, the first that a file has. The usual names of
            steps in files of other programs are known.
        y: column for the y axis, likewise.
        smooth: width of the moving average, in points.
        select: plot only runs whose path contains one of these texts.
        exclude: do not plot runs whose path contains one of these texts.
        separate: plot one curve for each run.
        aggregate: pool the environments of a configuration; plot the interquartile mean and 95 % bootstrap interval.
        normalize: the returns that become 0 and 1 in an environment with --aggregate, as ENV=LOW:HIGH; the default is
            random actions and TD3 after 1,000,000 steps for Ant, HalfCheetah, Hopper, Humanoid and Walker2d.
        title: title of the figure.
        label: names of the curves in the legend, in the order of the paths; the default is the options in which they
            differ.
    """
    found = curves.find_runs(run_dirs)
    x_name, y_name = (columns.partition(",")[0] for columns in (x, y))
    figures.check(out, y_name, smooth, aggregate, normalize, separate)
    runs = []
    for run in found:
        if any(part in str(run) for part in select or [""]) and not any(part in str(run) for part in exclude):
            runs.append(curves.read(run, x, y, smooth))
    if not runs:
        raise ValueError(
            f"None of the {len(found)} runs in {', '.join(map(str, run_dirs))} matches. Received: "
            f"select={list(select)}, exclude={list(exclude)}"
        )
    scale = ""
    if aggregate:
        curves.check_environments(runs)
    if aggregate and y_name in figures.RETURNS:
        ranges = scores.ranges_of([run.settings["env"] for run in runs], scores.parse_ranges(normalize))
        runs = [curves.normalise(run, ranges) for run in runs]
        if ranges:
            scale = "normalised" if normalize else "0: random, 1: TD3 at 1M steps"
    groups = curves.label_runs(runs, separate, aggregate)
    if aggregate:
        curves.check_pooled(groups)
    if label:
        if len(label) != len(groups):
            raise ValueError(
                f"`--label` must give a label for each of {len(groups)} curves: {'; '.join(groups)}. "
                f"Received: {len(label)} labels"
            )
        labels = curves.unique_labels(label, map(str, range(len(label))))
        groups = dict(zip(labels, groups.values(), strict=True))
    figure = figures.draw(groups, x_name, y_name, title, show_counts=not separate, aggregate=aggregate, scale=scale)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=200)
    print(f"wrote {out}")
