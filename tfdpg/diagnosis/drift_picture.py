"""The picture of `tfdpg drift`."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfdpg.diagnosis.drift import Difference
from tfdpg.diagnosis.picture import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = 12
"""The number of components of each log that are drawn, the worst ones."""
ACROSS = 4


def draw(comparisons: Mapping[str, Sequence[Difference]]) -> "Figure":
    """Draw the shares of values in each bin, in a log and in its reference.

    Args:
        comparisons: the components of each log by its title.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    worst = {title: sorted(each, key=lambda one: -one.psi)[:PANELS] for title, each in comparisons.items()}
    heights = [math.ceil(len(each) / ACROSS) for each in worst.values()]
    figure = Figure(figsize=(13, 2.8 * sum(heights) + 0.4), layout="constrained")
    with mpl.rc_context({"text.parse_math": False}):  # a `$` in a name is a dollar sign
        parts: Any = figure.subfigures(len(worst), 1, height_ratios=heights, squeeze=False)
        for part, height, (title, differences) in zip(parts.ravel(), heights, worst.items(), strict=True):
            part.suptitle(title)
            panels = part.subplots(height, ACROSS, squeeze=False).ravel()
            for axes, each in zip(panels, differences, strict=False):
                _bars(axes, each)
            for axes in panels[len(differences) :]:
                axes.axis("off")
            panels[0].legend(fontsize="small")
    return figure


def _bars(axes: Any, each: Difference) -> None:
    places = np.arange(each.shares.shape[1])
    axes.set_title(f"{each.name}: PSI {each.psi:.2f}", fontsize="medium")
    axes.bar(places - 0.2, each.shares[1], 0.4, color=COLOURS[0], label="reference")
    axes.bar(places + 0.2, each.shares[0], 0.4, color=COLOURS[1], label="log")
    if each.reference.values is None:
        labels = [f"≤ {edge:.3g}" for edge in each.edges] + [f"> {each.edges[-1]:.3g}", "missing"]
    else:
        labels = [f"{value:.3g}" for value in each.edges] + ["others", "missing"]
    axes.set_xticks(places, labels[: len(places)], rotation=60, ha="right", fontsize="x-small")
    axes.set_ylabel("share", fontsize="small")
