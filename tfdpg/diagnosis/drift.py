"""Compare logged observations and actions with those of training: the arithmetic of `tfdpg drift`, in NumPy alone."""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from tfdpg.exported.statistics import MOST_LAGS, Component, summarize

Z = 1.645
"""The 95 % quantile of the normal distribution."""
DRIFT, NO_DRIFT, CANNOT_TELL = "drift", "no drift", "cannot tell"
STATUS = {NO_DRIFT: 0, DRIFT: 1, CANNOT_TELL: 2}
"""The exit status of each verdict."""
MOVED = 0.5
"""The smallest change of a mean, in standard deviations of the training data, that is drift."""
WIDER = 1.5
"""The smallest standard deviation, in those of the training data, that is drift."""
OUTSIDE = 0.05
"""The smallest share of values outside the 1 % and 99 % quantiles of the training data that is drift."""
MISSING = 0.01
"""The smallest increase of the share of missing values that is drift."""
ENOUGH = 30
"""The number of independent observations from which a component that has not moved is no drift."""
NARROWEST = {"training": 0.5, "log": 0.1}
"""The smallest width of the bins, in standard deviations, for comparisons with training data and with another log."""


def population_stability_index(counts: np.ndarray, expected: np.ndarray) -> float:
    """Return the population stability index of two samples that were counted in the same bins.

    PSI = sum_i (p_i - q_i) ln(p_i / q_i)

    where p_i and q_i are the shares of the samples in bin i. It is Jeffreys' divergence, the sum of the
    Kullback-Leibler divergences in both directions: 0 for equal shares, and usually called significant above 0.2. Half
    a count is added to each bin, so that empty bins have a logarithm.

    Args:
        counts: the numbers of the sample in question, `[bins]`.
        expected: those of the sample that it is compared with, `[bins]`.

    Source: Siddiqi 2006, "Credit Risk Scorecards", section "Scorecard stability"; Yurdakul 2018, "Statistical
    Properties of Population Stability Index".
    """
    p, q = ((each + 0.5) / (each + 0.5).sum() for each in (np.asarray(counts), np.asarray(expected)))
    return float(np.sum((p - q) * np.log(p / q)))


def verdict(psi: float, independent: np.ndarray, limit: float) -> str:
    """Say whether the population stability index of all production is above a limit.

    N times the index of two samples with N_1 and N_2 independent observations, with 1/N = 1/N_1 + 1/N_2, has
    approximately a noncentral chi-squared distribution with `bins - 1` degrees of freedom and noncentrality N times the
    true index. If the true index is the limit, its mean is bins - 1 + N * limit, and its variance
    2 (bins - 1) + 4 N * limit. An index that is more than 1.645 standard deviations away from this mean tells on which
    side of the limit the true one is, with a confidence of about 95 %.

    For drift, both samples may differ by chance, and few independent observations leave bins empty: the index is
    computed from their numbers, so that half an observation is added to each bin. For no drift, the log only has to be
    like the training data that there are, so that N = N_1.

    Args:
        psi: the index of the log.
        independent: the number of independent observations in each bin, of the log and of the reference, `[2, bins]`.
        limit: the limit, above 0.

    Returns:
        `DRIFT`, `NO_DRIFT` or `CANNOT_TELL`.

    Source: Yurdakul 2018, "Statistical Properties of Population Stability Index", for a true index of 0.
    """
    in_log, in_reference = independent.sum(axis=1)
    freedom = independent.shape[1] - 1

    def deviations(index: float, n: float) -> float:
        return (n * (index - limit) - freedom) / math.sqrt(2 * freedom + 4 * n * limit)

    if deviations(population_stability_index(*independent), 1 / (1 / in_log + 1 / in_reference)) > Z:
        return DRIFT
    return NO_DRIFT if deviations(psi, in_log) < -Z else CANNOT_TELL


def joined_bins(component: Component, narrowest: float) -> np.ndarray:
    """Return for each bin of a component the number of the bin that it becomes part of, `[bins]`.

    Quantiles that are closer than `narrowest` to the one before them are left out; the first and the last one stay. The
    bins of different values, of other values and of missing ones stay as they are.
    """
    bins = len(component.counts)
    if component.values is not None:
        return np.arange(bins)
    kept = [0]
    last = len(component.quantiles) - 1
    for i in range(1, last):
        if component.quantiles[i] - component.quantiles[kept[-1]] > narrowest:
            kept.append(i)
    if kept[-1] and component.quantiles[last] - component.quantiles[kept[-1]] <= narrowest:
        kept.pop()
    if component.quantiles[last] > component.quantiles[0]:
        kept.append(last)
    edges = np.zeros(last + 1, int)
    edges[kept] = 1
    before = np.append(0, np.cumsum(edges))  # of each bin the number of kept quantiles below it
    return np.append(before, before[-1] + 1)


class Difference(NamedTuple):
    """A component in a log, and in training.

    Attributes:
        name: the name of the component.
        psi: the population stability index.
        verdict: `DRIFT`, `NO_DRIFT` or `CANNOT_TELL`.
        outside: the share of values outside the 1 % and 99 % quantiles of the reference; NaN if all are missing.
        logged: the component in the log.
        reference: the component that it is compared with.
        shares: the shares of both in the bins of the index, `[2, bins]`, the log first.
        edges: the upper edges of these bins without the last ones, or the different values.
        is_in_range: whether the index is above the limit, but the values lie where those of the training data lie.
    """

    name: str
    psi: float
    verdict: str
    outside: float
    logged: Component
    reference: Component
    shares: np.ndarray
    edges: np.ndarray
    is_in_range: bool = False

    @property
    def is_stuck(self) -> bool:
        """Whether the component has drifted to a single value."""
        return self.verdict == DRIFT and is_constant(self.logged) and not is_constant(self.reference)

    def to_json(self) -> dict[str, Any]:
        """Return plain values; None for numbers that are not known."""
        known = {"psi": self.psi, "outside": self.outside, "missing": self.logged.missing, "mean": self.logged.mean}
        known |= {"deviation": self.logged.deviation, "expected_missing": self.reference.missing}
        known |= {"expected_mean": self.reference.mean, "expected_deviation": self.reference.deviation}
        numbers = {name: value if math.isfinite(value) else None for name, value in known.items()}
        return {"name": self.name, "verdict": self.verdict, **numbers}


def is_constant(component: Component) -> bool:
    """Return whether a component has always had the same value."""
    return component.deviation == 0


def is_stuck(column: np.ndarray, reference: Component, in_log: float) -> bool:
    """Return whether a component has a single value by a fault, and not by chance, at a confidence of 95 %.

    Args:
        column: the values in the log.
        reference: the component that they are compared with.
        in_log: the number of independent observations in the log. With each, the chance that all are in the same bin is
            multiplied by the share of the reference in this bin.
    """
    if not (column == column[0]).all() or is_constant(reference):
        return False
    share = reference.counts[reference.bins(column[:1])[0]] / reference.counts.sum()
    return float(share**in_log) < 0.05


def has_moved(logged: Component, reference: Component, outside: float) -> bool:
    """Return whether values in a log lie elsewhere than those of the training data, and not only closer together.

    Training explores and has seen earlier policies, so the observations of an exported policy usually lie closer
    together. The index alone would call this drift. A component has moved if its mean has, by more than half a standard
    deviation of the training data; if its standard deviation is more than 1.5 times as large; if more than 5 % of its
    values lie outside the 1 % and 99 % quantiles of the training data; or if more values are missing.
    """
    if not math.isfinite(logged.mean) or not math.isfinite(reference.mean):
        return True
    is_far = abs(logged.mean - reference.mean) > MOVED * reference.deviation or outside > OUTSIDE
    is_wider = logged.deviation > WIDER * reference.deviation
    return is_far or is_wider or logged.missing > reference.missing + MISSING


def compare(
    name: str,
    column: np.ndarray,
    reference: Component,
    size: tuple[int, int],
    of: Literal["training", "log"],
    limit: float,
) -> Difference:
    """Compare a component of a log with the same component of training, or of an earlier log.

    Args:
        name: the name of the component.
        column: its values in the log, float32 `[n]`.
        reference: the component that it is compared with.
        size: the number of rows from which `reference` was computed, and of the successive steps that have them.
        of: whether `reference` is of training, where a component that has not moved (`has_moved`) is no drift; or of a
            log, where the index alone decides.
        limit: the largest index that is no drift.
    """
    logged = summarize(column, column[:1, None])
    width = NARROWEST[of] * reference.deviation if math.isfinite(reference.deviation) else 0.0
    into = joined_bins(reference, width)
    counted = np.bincount(reference.bins(column), minlength=len(into))
    pairs = np.stack([np.bincount(into, weights=each) for each in (counted, reference.counts)])
    edges = np.unique(reference.quantiles[np.diff(into)[:-1] > 0]) if reference.values is None else reference.values
    if not pairs[:, -1].any():  # no value is missing
        pairs = pairs[:, :-1]
    psi = population_stability_index(*pairs)
    in_log = len(column) / reference.steps  # without drift, successive observations are as alike as in training
    in_reference = min(size[0], size[1] / reference.steps)
    low, high = reference.quantiles[[0, -1]]
    finite = column[np.isfinite(column)]
    outside = float(np.mean((finite < low) | (finite > high))) if len(finite) else math.nan
    shares = pairs / pairs.sum(axis=1, keepdims=True)
    independent = pairs / pairs.sum(axis=1, keepdims=True) * [[in_log], [in_reference]]
    decided = verdict(psi, independent, limit)
    if of == "training" and decided != NO_DRIFT and not has_moved(logged, reference, outside):
        decided = NO_DRIFT if in_log >= ENOUGH else CANNOT_TELL
    if is_stuck(column, reference, in_log):
        decided = DRIFT
    is_in_range = psi > limit and decided == NO_DRIFT
    return Difference(name, psi, decided, outside, logged, reference, shares, edges, is_in_range)


def compare_all(
    columns: Mapping[str, np.ndarray],
    reference: Mapping[str, Component],
    size: tuple[int, int],
    of: Literal["training", "log"],
    limit: float,
) -> list[Difference]:
    """Compare all components with `compare`, and return the results, the worst first.

    First come those that are stuck, since a fault of one sensor changes what the policy does, and so the values of all
    others. Then come the others that have drifted. Within these groups, the largest index comes first.
    """
    found = [compare(name, column, reference[name], size, of, limit) for name, column in columns.items()]
    return sorted(found, key=lambda each: (not each.is_stuck, each.verdict != DRIFT, -each.psi))


def runs_of(column: np.ndarray) -> np.ndarray:
    """Cut successive values `[n]` into the runs from which `summarize` estimates correlation, `[steps, runs]`."""
    length = min(2 * MOST_LAGS, max(1, len(column) // 2))
    runs = len(column) // length
    return column[: runs * length].reshape(runs, length).T
