"""Learning curves of runs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


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
) -> None:
    """See `tfdpg plot --help`.

    Raises:
        ImportError: seaborn is not installed.
        ValueError: no run is left, or a column is not there.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        import pandas as pd
        import seaborn as sns
        from matplotlib import pyplot as plt
    except ImportError as error:
        raise ImportError("`tfdpg plot` needs seaborn: pip install 'tfdpg[plot]'") from error
    if smooth < 1:
        raise ValueError(f"`smooth` must be a positive integer. Received: smooth={smooth}")
    runs = [run for run in find_runs(paths) if _is_wanted(run, select, exclude)]
    if not runs:
        raise ValueError(f"No run with a progress.csv in {', '.join(map(str, paths))} matches.")
    curves = pd.concat([_curve(run, x, y, smooth, separate) for run in runs], ignore_index=True)
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    sns.lineplot(curves, x=x, y=y, hue="curve", estimator="mean", errorbar=("ci", 95), seed=0, ax=axes)
    axes.grid(alpha=0.3)
    axes.legend(title="")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
    plt.close(figure)


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The run directories at and below `paths`."""
    found = {file.parent for path in paths for file in path.rglob("run.json")}
    return sorted(run for run in found if (run / "progress.csv").exists())


def _is_wanted(run: Path, select: Sequence[str], exclude: Sequence[str]) -> bool:
    return (not select or any(part in str(run) for part in select)) and not any(part in str(run) for part in exclude)


def _curve(run: Path, x: str, y: str, smooth: int, separate: bool) -> "pd.DataFrame":
    import pandas as pd

    table: Any = pd.read_csv(run / "progress.csv")
    for column in (x, y):
        if column not in table:
            raise ValueError(f"{run}/progress.csv has no column {column!r}. It has: {', '.join(table.columns)}")
    table = table.apply(pd.to_numeric)
    values = table[y].rolling(smooth, min_periods=1).mean()
    return pd.DataFrame({x: table[x], y: values, "curve": str(run) if separate else configuration(run)})


def configuration(run: Path) -> str:
    """A name that runs of one configuration share: the path up to the seed, unless configurations differ."""
    config, parent = _without_seed(run / "run.json"), run.parent
    if any(_without_seed(other) != config for other in parent.glob("*/run.json")):
        return str(run)
    return str(parent)


def _without_seed(file: Path) -> dict[str, Any]:
    try:
        return {name: value for name, value in json.loads(file.read_text()).items() if name != "seed"}
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{file} is damaged: {error}") from error
