"""The picture of a diagnosis."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfdpg.diagnosis.evidence import Evidence
from tfdpg.diagnosis.statistics import discounted_returns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0173b2", "#de8f05", "#029e73")
"""The first colours of seaborn's palette for colour-blind readers."""


def check(file: str | Path) -> None:
    """Raise an error if Matplotlib is not installed or does not know the format of a file.

    Args:
        file: the image to write.
    """
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError as error:
        raise ImportError("The picture needs Matplotlib: pip install 'tfdpg[plot]'") from error
    if Path(file).suffix.lower().removeprefix(".") not in FigureCanvasBase.filetypes:
        raise ValueError(f"`plot` must end in one of .{', .'.join(FigureCanvasBase.filetypes)}. Received: {file}")


def draw(title: str, evidence: Evidence) -> "Figure":
    """Draw the evidence in six panels; a panel without data says so."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 7.5), layout="constrained")
    with mpl.rc_context({"text.parse_math": False}):  # a `$` in the id of an environment is a dollar sign
        figure.suptitle(
            f"{title}: {evidence.env_steps:,} environment steps, {evidence.updates:,} updates", weight="bold"
        )
    panels: list[Callable[[Any, Evidence], bool]] = [_curve, _returns, _values, _actions, _rewards, _layers]
    for axes, panel in zip(figure.subplots(2, 3).ravel(), panels, strict=True):
        if not panel(axes, evidence):
            axes.text(0.5, 0.5, "no data", ha="center", va="center", color="0.5", transform=axes.transAxes)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize="small")
    return figure


def _curve(axes: Any, evidence: Evidence) -> bool:
    axes.set(title="Evaluations during training", xlabel="environment steps (thousands)", ylabel="return")
    curves = evidence.curves
    if "val_return" not in curves or not np.isfinite(curves["val_return"]).any():
        return False
    steps = curves.get("env_steps", np.arange(1.0, len(curves["val_return"]) + 1) * 1000) / 1000
    axes.plot(steps, curves["val_return"], color=COLOURS[0], label="mean of an evaluation")
    if "val_return_std" in curves:
        low, high = (curves["val_return"] + sign * curves["val_return_std"] for sign in (-1, 1))
        axes.fill_between(steps, low, high, color=COLOURS[0], alpha=0.2, linewidth=0, label="± std over episodes")
    return True


def _returns(axes: Any, evidence: Evidence) -> bool:
    axes.set(title="Episodes of the diagnosis", ylabel="return")
    groups = {"greedy": evidence.greedy, "exploring": evidence.exploring, "random actions": evidence.random}
    for place, episodes in enumerate(groups.values()):
        totals = [each.total for each in episodes]
        axes.plot(place + np.linspace(-0.15, 0.15, len(totals)), totals, "o", color=COLOURS[place], alpha=0.7)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set_xlim(-0.5, len(groups) - 0.5)
    return bool(evidence.greedy)


def _values(axes: Any, evidence: Evidence) -> bool:
    axes.set(title="Values against returns", xlabel="discounted return", ylabel="action value")
    if not evidence.greedy or not evidence.greedy[0].values or evidence.has_shaper:
        return False
    for colour, name in zip(COLOURS, evidence.greedy[0].values, strict=False):
        returns, values = [], []
        for each in evidence.greedy:
            last = 0.0 if each.terminated else each.values[name][-1]
            steps = len(each.reward) if each.terminated else len(each.reward) - 1
            returns.append(discounted_returns(each.reward[:steps], evidence.gamma, last))
            values.append(each.values[name][:steps])
        x, y = np.concatenate(returns), np.concatenate(values)
        part = np.linspace(0, len(x) - 1, min(len(x), 1000)).astype(int) if len(x) else []
        axes.plot(x[part], y[part], ".", markersize=3, color=colour, alpha=0.5, label=name, rasterized=True)
    low, high = axes.get_xlim()
    axes.plot([low, high], [low, high], color="0.5", linewidth=1, label="value = return")
    return True


def _actions(axes: Any, evidence: Evidence) -> bool:
    axes.set(title="Actions", ylabel="share")
    if not evidence.greedy:
        return False
    action = np.concatenate([each.action for each in evidence.greedy])
    groups = {"greedy": action}
    if evidence.replay is not None:
        groups["replay buffer"] = evidence.replay.action
    if evidence.first_action is not None:
        axes.set_xlabel("number of the action")
        if evidence.replay is not None:
            groups["replay buffer"] = evidence.first_action + evidence.replay.action.argmax(axis=1)
        numbers = np.concatenate([values.ravel() for values in groups.values()])
        bins = np.arange(numbers.min(), numbers.max() + 2) - 0.5
    else:
        axes.set_xlabel("components of actions (fraction of the action scale)")
        bins = np.linspace(-1, 1, 42)
    for colour, (label, values) in zip(COLOURS, groups.items(), strict=False):
        flat = np.clip(values.ravel(), bins[0], bins[-1])
        axes.hist(flat, bins, weights=np.full(flat.size, 1 / flat.size), color=colour, alpha=0.5, label=label)
    return True


def _rewards(axes: Any, evidence: Evidence) -> bool:
    axes.set(title="Rewards in the replay buffer", xlabel="reward of a step", ylabel="transitions")
    if evidence.replay is None:
        return False
    axes.hist(evidence.replay.reward, 40, color=COLOURS[0])
    return True


def _layers(axes: Any, evidence: Evidence) -> bool:
    axes.set(title="Hidden layers", ylabel="share of the units", ylim=(0, 1.05))
    if not evidence.layers:
        return False
    places = np.arange(len(evidence.layers))
    ranks = [layer.rank / layer.units for layer in evidence.layers]
    axes.bar(places - 0.2, ranks, 0.4, color=COLOURS[0], label="effective rank")
    axes.bar(places + 0.2, [layer.dormant for layer in evidence.layers], 0.4, color=COLOURS[1], label="dormant")
    axes.set_xticks(places, [f"{layer.network}\n{layer.units}" for layer in evidence.layers], fontsize="small")
    axes.set_xlabel("network, units of the layer")
    return True
