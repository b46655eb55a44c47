"""Statistics of observations and actions: those of the training data are in each export, as `statistics.json`.

This module does not import TensorFlow.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfdpg.exported.versions import ExportError
from tfdpg.files import content_errors, read_text
from tfdpg.spec import Spec

STATISTICS = "statistics.json"
"""The file in the directory of a version, beside `tfdpg.json`, which has its checksum."""
LEVELS = (0.01, *(tenth / 10 for tenth in range(1, 10)), 0.99)
"""The levels of the quantiles: deciles, and 1 % and 99 %."""
MOST_VALUES = 20
"""Components with at most so many different values are counted by value, and others between quantiles."""
MOST_NUMBERS = 1000
"""Of arrays with more numbers, such as images, the mean of each array is a component."""
MOST_LAGS = 256
"""The largest number of steps over which correlation is looked for."""


class Component(NamedTuple):
    """Statistics of one component of the observations or actions.

    Attributes:
        mean: the mean of the finite values; NaN if there are none.
        deviation: their standard deviation.
        missing: the share of values that are NaN or infinite, in [0, 1].
        quantiles: the quantiles of the finite values at `LEVELS`, float32 `[11]`.
        values: the different values in ascending order, if there are at most `MOST_VALUES`; otherwise None.
        counts: the number of rows in each bin, `[bins]`. The bins are the `values` and all other values, or, without
            `values`, up to the first quantile, up to the second, ..., and above the last. The last bin has missing
            values.
        steps: the number of successive steps that tell as much about the mean as one independent observation, at
            least 1.
    """

    mean: float
    deviation: float
    missing: float
    quantiles: np.ndarray
    values: np.ndarray | None
    counts: np.ndarray
    steps: float

    def bins(self, column: np.ndarray) -> np.ndarray:
        """Return the number of the bin of each value."""
        last = len(self.counts) - 1
        if self.values is None:
            found = np.searchsorted(self.quantiles, column, side="left")
        else:
            found = np.searchsorted(self.values, column)
            is_known = self.values[np.minimum(found, last - 2)] == column
            found = np.where(is_known, found, last - 1)
        return np.where(np.isfinite(column), found, last)


class DataStatistics(NamedTuple):
    """Statistics of the components of observations and actions.

    Attributes:
        rows: the number of rows from which they were computed.
        span: the number of successive steps from which these rows were chosen, at equal distances.
        stored: the number of steps in the replay buffer, of which these are the newest.
        observations: the components of observations by name, such as `x[4]` or `arm__joints[2]`.
        actions: the components of actions by name: `a[0]`, `a[1]`, ..., or `a` for a Discrete space.
    """

    rows: int
    span: int
    stored: int
    observations: dict[str, Component]
    actions: dict[str, Component]


def columns(observations: Mapping[str, np.ndarray], spec: Spec) -> dict[str, np.ndarray]:
    """Return the components of observations by name.

    Args:
        observations: arrays `[n, *shape]` by leaf name.
        spec: the spaces.

    Returns:
        float32 arrays `[n]`, by the user's names if there are any. Of arrays with more than `MOST_NUMBERS` numbers,
        such as images, there is only the mean.
    """
    found = {}
    for leaf in spec.leaves:
        array = np.asarray(observations[leaf.name])
        if math.prod(leaf.shape) > MOST_NUMBERS:
            found[f"mean of {leaf.name}"] = array.reshape(len(array), -1).mean(axis=1, dtype=np.float64)
        elif spec.observation_names is not None and leaf.group == "float32":
            found |= dict(zip(spec.observation_names[leaf.columns], array.reshape(len(array), -1).T, strict=True))
        else:
            found |= _numbered(leaf.name, array, leaf.shape)
    with np.errstate(over="ignore"):  # a number beyond the range of float32 is infinite, and counts as missing
        return {name: column.astype(np.float32) for name, column in found.items()}


def action_columns(actions: np.ndarray, spec: Spec) -> dict[str, np.ndarray]:
    """Return the components of actions `[n, *act_shape]` or `[n, act_dim]` by name, float32 `[n]` each.

    Actions that stand for none (`Spec.no_action`) are NaN.
    """
    actions = np.asarray(actions, np.float32)
    actions = np.where(actions == spec.no_action, np.float32(np.nan), actions)
    return _numbered("a", actions.reshape(len(actions), -1), spec.act_shape)


def _numbered(name: str, array: np.ndarray, shape: Sequence[int]) -> dict[str, np.ndarray]:
    flat = array.reshape(len(array), -1)
    if not shape:
        return {name: flat[:, 0]}
    return {f"{name}{list(map(int, index))}": flat[:, i] for i, index in enumerate(np.ndindex(*shape))}


def summarize(column: np.ndarray, runs: np.ndarray) -> Component:
    """Return the statistics of a component.

    Args:
        column: its values, float32 `[n]`, with n at least 1.
        runs: its values in successive steps, `[steps, number of runs]`, from which `Component.steps` is estimated.
    """
    finite = np.sort(column[np.isfinite(column)])
    if len(finite):
        quantiles = np.quantile(finite, LEVELS).astype(np.float32)
        mean, deviation = finite.mean(dtype=np.float64), finite.std(dtype=np.float64)
    else:
        quantiles = np.zeros(len(LEVELS), np.float32)
        mean = deviation = math.nan
    is_new = np.append(True, finite[1:] != finite[:-1])[: len(finite)]
    values = finite[is_new] if np.count_nonzero(is_new) <= MOST_VALUES and len(finite) else None
    bins = len(LEVELS) + 2 if values is None else len(values) + 2
    empty = Component(
        float(mean), float(deviation), 1 - len(finite) / len(column), quantiles, values, np.zeros(bins), 1
    )
    numbers = empty.bins(column)
    counts = np.bincount(numbers, minlength=bins)
    steps = _steps(empty.bins(runs.ravel()).reshape(runs.shape), numbers.mean(), numbers.var())
    return empty._replace(counts=counts, steps=steps)


def _steps(numbers: np.ndarray, mean: float, variance: float) -> float:
    """Return the integrated autocorrelation time of the numbers of bins, in steps, `[steps, number of runs]`.

    It is 1 + 2 (r_1 + r_2 + ...), where r_k is the correlation of numbers k steps apart. The sum ends before the first
    r_k below 0.05, which sampling error dominates, and at half the length of a run. Variables of which n successive
    steps were taken have as much information about their mean as n / _steps independent ones. Source: Sokal 1997,
    "Monte Carlo Methods in Statistical Mechanics: Foundations and New Algorithms", section 3.
    """
    if not variance or len(numbers) < 2:
        return 1.0
    centred = numbers - mean
    total = 1.0
    for lag in range(1, min(MOST_LAGS, len(numbers) // 2 + 1)):
        correlation = float((centred[lag:] * centred[:-lag]).mean() / variance)
        if correlation < 0.05:
            break
        total += 2 * correlation
    return total


def to_text(statistics: DataStatistics) -> str:
    """Return statistics as JSON, with a line for each component. `read` restores them."""
    lines = []
    for kind in ("observations", "actions"):
        parts = [f"    {json.dumps(name)}: {_encoded(each)}" for name, each in getattr(statistics, kind).items()]
        lines.append(f'  "{kind}": {{\n' + ",\n".join(parts) + "\n  }")
    numbers = {"rows": statistics.rows, "span": statistics.span, "stored": statistics.stored, "levels": LEVELS}
    heads = [f'  "{name}": {json.dumps(value)}' for name, value in numbers.items()]
    return "{\n" + ",\n".join([*heads, *lines]) + "\n}\n"


def _encoded(each: Component) -> str:
    def shortest(numbers: np.ndarray) -> list[float]:
        return [float(str(number)) for number in numbers.astype(np.float32)]

    has_any = math.isfinite(each.mean)
    values = {} if each.values is None else {"values": shortest(each.values)}
    return json.dumps(
        {
            "mean": each.mean if has_any else None,
            "deviation": each.deviation if has_any else None,
            "missing": each.missing,
            "quantiles": shortest(each.quantiles),
            **values,
            "counts": each.counts.tolist(),
            "steps": round(each.steps, 2),
        }
    )


def read(version: Path) -> DataStatistics:
    """Read the statistics of an export, whose files `metadata` has checked.

    Args:
        version: the directory of a version.

    Raises:
        ExportError: there are none.
        ValueError: the file has other content. The message names it.
    """
    file = version / STATISTICS
    if file.is_symlink() or not file.is_file():
        raise ExportError(
            f"{version} has no {STATISTICS}: the replay buffer was empty when the policy was exported, it held the "
            "outputs of `preprocess`, or an earlier version of tfdpg exported the policy. Compare with an earlier log: "
            "--reference LOG"
        )
    text = read_text(file)
    with content_errors(file):
        try:
            content = json.loads(text)
            kinds = [
                {str(name): _decoded(each) for name, each in content[kind].items()}
                for kind in ("observations", "actions")
            ]
            rows, span, stored = (int(content[name]) for name in ("rows", "span", "stored"))
            if not 1 <= rows <= span <= stored:
                raise ValueError("`rows`, `span` and `stored` must be positive and in ascending order")
            return DataStatistics(rows, span, stored, *kinds)
        except (LookupError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"it does not contain the statistics of an export ({error!r})") from error


def _decoded(entry: Mapping[str, Any]) -> Component:
    numbers = [entry[name] for name in ("mean", "deviation", "missing", "steps")]
    mean, deviation, missing, steps = (math.nan if number is None else float(number) for number in numbers)
    quantiles = np.array(entry["quantiles"], np.float32)
    values = np.array(entry["values"], np.float32) if "values" in entry else None
    counts = np.array(entry["counts"], np.int64)
    bins = len(LEVELS) + 2 if values is None else len(values) + 2
    is_sorted = all((np.diff(each) >= 0).all() for each in (quantiles, values) if each is not None)
    shapes = [quantiles.shape, counts.shape, () if values is None else values.shape]
    if shapes != [(len(LEVELS),), (bins,), () if values is None else (bins - 2,)] or bins < 3 or not is_sorted:
        raise ValueError("the quantiles, values or counts of a component are not as many, or in another order")
    if (counts < 0).any() or not counts.sum() or not steps >= 1 or not 0 <= missing <= 1:
        raise ValueError("the counts of a component are not those of rows")
    return Component(mean, deviation, missing, quantiles, values, counts, steps)
