"""Draw the recorded steps of episodes over time."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tfdpg import files
from tfdpg.plotting import figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_EPISODES = 10
"""The number of episodes that are drawn."""
MOST_SERIES = 40
"""The number of numbers in a step that are drawn."""
NAMES = {"observations": "x", "actions": "a", "rewards": "reward", "infos": "info"}


def find(paths: Sequence[Path]) -> list[Path]:
    """Return the files with recorded episodes in directories, see `tfdpg evaluate --record`.

    Raises:
        ValueError: `paths` is empty.
        FileNotFoundError: a path has none.
    """
    if not paths:
        raise ValueError("`tfdpg plot --trajectories` needs a directory: tfdpg plot DIR --trajectories")
    found = []
    for path in paths:
        of_path = [path] if path.suffix == ".npz" else sorted(path.glob("[0-9]*.npz"))
        if not of_path:
            raise FileNotFoundError(f"No recorded episode in {path}. Record some: tfdpg evaluate RUN --record {path}")
        for file in of_path:
            files.check_data(file, is_named=file == path)
        found += of_path
    return found


def read(file: Path) -> dict[str, np.ndarray]:
    """Return the series of an episode by name, `[steps]` each: observations, actions, the reward, numbers of `info`.

    Raises:
        ValueError: the file is damaged.
    """
    with files.content_errors(file), np.load(file) as arrays:
        series = {}
        given = [str(each) for each in arrays["observation_names"]] if "observation_names" in arrays.files else []
        for name in arrays.files:
            kind, _, part = name.partition("/")
            if kind not in NAMES:
                continue
            values = arrays[name]
            label = part if kind == "observations" and part else f"{NAMES[kind]} {part}".strip()
            columns = values.reshape(len(values), -1).T
            labels = [label if values.ndim == 1 else f"{label}[{i}]" for i in range(len(columns))]
            if kind == "observations" and len(given) >= len(labels) and values.dtype.kind == "f":
                labels, given = given[: len(labels)], given[len(labels) :]
            if len(columns) <= MOST_SERIES:
                series |= {key: column.astype(np.float64) for key, column in zip(labels, columns, strict=True)}
        return series


def draw(chosen: Sequence[Path], title: str = "") -> "Figure":
    """Draw each number of a step over the steps, one line for each of the first `MOST_EPISODES` episodes.

    Args:
        chosen: files of recorded episodes.
        title: the title of the figure.
    """
    import matplotlib as mpl
    import seaborn as sns
    from matplotlib.figure import Figure

    episodes = [read(file) for file in chosen[:MOST_EPISODES]]
    names = list(dict.fromkeys(name for series in episodes for name in series))
    shown = names[:MOST_SERIES]
    rows = -(-len(shown) // 2)
    with mpl.rc_context(figures.PLAIN_TEXT), sns.axes_style("whitegrid", figures.STYLE):
        figure = Figure(figsize=(10, 1 + 1.3 * rows), layout="constrained")
        grid = figure.subplots(rows, 2, squeeze=False, sharex=True)
        colours = sns.color_palette("colorblind")
        for place, axes in enumerate(grid.flat):
            axes.set_visible(place < len(shown))
            if place >= len(shown):
                continue
            for number, series in enumerate(episodes):
                values = series.get(shown[place], np.empty(0))
                axes.plot(np.arange(len(values)), values, color=colours[number % len(colours)], lw=1)
            axes.set_title(shown[place], loc="left", fontsize="small")
            axes.margins(x=0.01)
            sns.despine(ax=axes, left=True)
        for axes in grid[-1]:
            axes.set_xlabel("step")
        left_out = [f"{len(chosen) - MOST_EPISODES} more episodes"] * (len(chosen) > MOST_EPISODES)
        left_out += [f"{len(names) - MOST_SERIES} more numbers"] * (len(names) > MOST_SERIES)
        note = f" (not drawn: {', '.join(left_out)})" if left_out else ""
        figure.suptitle((title or f"{len(episodes)} episodes") + note, x=0.01, ha="left", weight="bold")
    return figure
