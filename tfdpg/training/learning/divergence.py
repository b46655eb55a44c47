"""The error for losses or weights that are not finite. It names the first of them."""

from collections.abc import Sequence

import numpy as np

from tfdpg.components import Metric
from tfdpg.training.learning.updates import UpdateResult

REMEDIES = (
    "Lower the learning rates, clip gradients (`clip_norm`), scale rewards to about 1 (`reward_shaper`), or look for "
    "observations and rewards far outside their expected bounds. Earlier checkpoints are valid; no checkpoint of this "
    "agent is written."
)


def divergence(result: UpdateResult, metrics: Sequence[Metric], made: int, env_steps: int) -> FloatingPointError | None:
    """Return the error for updates whose losses or weights are not finite, or None.

    Args:
        result: the result of the updates.
        metrics: the metrics of an update.
        made: the number of updates before them.
        env_steps: the number of environment steps before them.
    """
    losses = _first_losses(result, metrics, made)
    last = made + len(result.measured)
    if result.nonfinite:
        names = " and ".join(f"`{name}`" for name in result.nonfinite)
        what = f"The weights of {names} became NaN or infinite in updates {made + result.finite_updates + 1} to {last}"
        began = f" The first losses that are not finite: {losses}." if losses else ""
    elif losses:
        what = f"Losses became NaN or infinite in updates {made + 1} to {last}"
        began = f" The first: {losses}.{_unmeasured(result.measured, metrics)}"
    else:
        return None
    return FloatingPointError(f"{what}, at environment step {env_steps}.{began} {REMEDIES}")


def _unmeasured(measured: np.ndarray, metrics: Sequence[Metric]) -> str:
    """Return advice for losses that some update left unmeasured, since they are NaN and the weights are finite."""
    missing: np.ndarray = np.all(np.isnan(measured), axis=2)
    names = [f"`{metric.name}`" for i, metric in enumerate(metrics) if metric.loss and missing[:, i].any()]
    return f" If an update may leave {names[0]} unmeasured, declare it with `delayed=True`." if names else ""


def _first_losses(result: UpdateResult, metrics: Sequence[Metric], made: int) -> str:
    """Describe the losses that are not finite in the first update that has any; an empty string if none has."""
    missing = np.isnan(result.measured)
    no_step = missing.all(axis=1, keepdims=True)
    if result.nonfinite:  # an update whose quantities are all missing has failed
        no_step &= ~np.all(no_step, axis=2, keepdims=True)
    bad = ~np.isfinite(result.measured) & ~no_step
    for i, metric in enumerate(metrics):
        if not metric.loss:
            bad[:, i] = False
        elif metric.delayed:
            bad[:, i] &= ~missing[:, i].all(axis=1, keepdims=True)
    updates = np.flatnonzero(bad.any(axis=(1, 2))).tolist()
    if not updates:
        return ""
    values = result.measured[updates[0]]
    where = bad[updates[0]]
    each = [f"`{metrics[i].name}` = {values[i, where[i]][0]}" for i in np.flatnonzero(where.any(axis=1)).tolist()]
    return f"{' and '.join(each)} in update {made + updates[0] + 1}"
