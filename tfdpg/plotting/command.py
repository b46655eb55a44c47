"""The command `tfdpg plot`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from tfdpg.plotting import curves, figures, histograms, scores
from tfdpg.plotting import trajectories as recorded
from tfdpg.plotting.tables import RETURN, STEPS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(
    run_dirs: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN...")],
    /,
    out: Path | None = None,
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
    lateness: bool = False,
    trajectories: bool = False,
) -> None:
    """Plot learning curves. With three or more runs of a configuration, plot their mean and 95 % confidence interval.

    Args:
        run_dirs: run directories, CSV files with the results of any program, or directories of either.
        out: the image to write: .png, .pdf, .svg, ... None is curves.png, or lateness.png or trajectories.png with the
            flag of this name.
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
        lateness: plot histograms of the overhead between steps and of the delay of steps of real-time runs instead.
        trajectories: plot the steps of episodes that `tfdpg evaluate --record` wrote instead.
    """
    if lateness and trajectories:
        raise ValueError("`--lateness` and `--trajectories` exclude each other.")
    instead = "lateness" if lateness else "trajectories" if trajectories else ""
    find = {"": curves.find_runs, "lateness": histograms.find, "trajectories": recorded.find}[instead]
    found = find(run_dirs)
    out = out or Path(f"{instead or 'curves'}.png")
    x_name, y_name = (columns.partition(",")[0] for columns in (x, y))
    figures.check(out, y_name, smooth, aggregate, normalize, separate)
    chosen = []
    for run in found:
        if any(part in str(run) for part in select or [""]) and not any(part in str(run) for part in exclude):
            chosen.append(run)
    if not chosen:
        raise ValueError(
            f"None of the {len(found)} runs in {', '.join(map(str, run_dirs))} matches. Received: "
            f"select={list(select)}, exclude={list(exclude)}"
        )
    if instead:
        of_curves = {"x": x != STEPS, "y": y != RETURN, "smooth": smooth != 1, "separate": separate}
        of_curves |= {"aggregate": aggregate, "label": bool(label) and trajectories}
        for name in (name for name, is_given in of_curves.items() if is_given):
            what = "histograms" if lateness else "steps"
            raise ValueError(f"`--{name}` does nothing where `--{instead}` draws {what}.")
    if trajectories:
        figure = recorded.draw(chosen, title)
    elif lateness:
        figure = histograms.draw(_with_labels(histograms.read(chosen), label, "histograms"), title)
    else:
        figure = _learning_curves(chosen, x, y, smooth, separate, aggregate, normalize, title, label)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=200)
    print(f"wrote {out}")


def _learning_curves(
    chosen: Sequence[Path],
    x: str,
    y: str,
    smooth: int,
    separate: bool,
    aggregate: bool,
    normalize: Sequence[str],
    title: str,
    label: Sequence[str],
) -> "Figure":
    """Draw the learning curves of runs."""
    runs = [curves.read(run, x, y, smooth) for run in chosen]
    x_name, y_name = (columns.partition(",")[0] for columns in (x, y))
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
    groups = _with_labels(groups, label, "curves")
    return figures.draw(groups, x_name, y_name, title, show_counts=not separate, aggregate=aggregate, scale=scale)


def _with_labels(groups: dict[str, Any], given: Sequence[str], what: str) -> dict[str, Any]:
    """Return the groups by the labels of `--label`, if there are any."""
    if not given:
        return groups
    if len(given) != len(groups):
        raise ValueError(
            f"`--label` must give a label for each of {len(groups)} {what}: {'; '.join(groups)}. "
            f"Received: {len(given)} labels"
        )
    labels = curves.unique_labels(given, map(str, range(len(given))))
    return dict(zip(labels, groups.values(), strict=True))
