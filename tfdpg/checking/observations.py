"""What random steps show about the observations of an environment: form, range, scale, and missing readings."""

import dataclasses
import functools
import operator
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from tfdpg.checking.report import Fact, number
from tfdpg.checking.spaces import SOME_ACTIONS, findings_from
from tfdpg.findings import Finding, outside
from tfdpg.replay.buffer import group_widths
from tfdpg.spec import Packed, Spec, nested_spaces
from tfdpg.training.environment.step_parsing import API, batched

NOT_FINITE = "Find what divides by 0 or overflows; `fit` rejects such numbers."
MISSING = (
    "This looks like a missing reading, such as that of a sensor without a value: return the last reading in its "
    "place, and add an entry to the observation that says whether it is new. `fit` rejects NaN."
)
NEVER_READ = "Remove it from the observation, or find out why it has no value; `fit` rejects NaN."
STAYS = "Find the operation that first gives NaN, such as 0 / 0 or the root of a negative number; `fit` rejects NaN."
LARGE_FEATURE = 100.0
"""A feature of the observations is large if its root mean square is above this."""
SMALL_FEATURE = 1e-3
"""A feature of the observations is small if its root mean square is below this, but not 0."""
MAX_SHOWN = 5
"""The maximum number of features in a finding."""

Path = tuple[Any, ...]
"""The keys and positions that lead to a part of a nested observation."""


@dataclasses.dataclass
class _NotFinite:
    """What was seen of an entry that was not finite at least once.

    Attributes:
        first: the first such number and when it was returned: "nan at step 3".
        times: the number of observations in which the entry was not finite.
        is_infinite: whether it was infinite once.
        returns: whether it was finite again later in an episode.
    """

    first: str
    times: int = 0
    is_infinite: bool = False
    returns: bool = False


class Observations:
    """Checks observations and keeps their statistics.

    Args:
        space: the observation space. If agents do not support it, the parts of it that they support are checked.
    """

    def __init__(self, space: spaces.Space):
        self._paths: dict[str, Path] | None = None
        try:
            self._spec = Spec(space, SOME_ACTIONS)
        except ValueError:  # `space_facts` reports it
            self._spec, self._paths = _supported_part(space)
        width = group_widths(self._spec)[0] if self._spec else 0
        self._malformed: Finding | None = None
        self._count = 0
        self._finite_count = np.zeros(width)
        self._mean = np.zeros(width)
        self._squares = np.zeros(width)
        self._low: Packed = ()
        self._high: Packed = ()
        self._not_finite: dict[int, _NotFinite] = {}
        self._missing = np.zeros(width, bool)  # in the last observation of this episode

    def pack(self, observation: Any, when: str) -> Packed:
        """Pack an observation, or keep what is wrong with its form and return an empty tuple.

        Args:
            observation: the observation.
            when: the step or reset that returned it, for the finding: "step 3".
        """
        if self._spec is None:
            return ()
        try:
            if self._paths is not None:
                observation = {name: _part(observation, path) for name, path in self._paths.items()}
            return self._spec.pack(batched(self._spec, observation))
        except ValueError as error:
            what = " ".join(str(error).removesuffix(API).split()).rstrip(".")
            remedy = f"Correct the space, or the observation that is returned at {when}."
            self._malformed = self._malformed or Finding(f"{what}.", remedy)
            return ()

    def add(self, observation: Any, step: int | None = None) -> None:
        """Check an observation, and add it to the statistics if its form is right.

        Args:
            observation: the observation.
            step: the number of the step that returned it, from 1; None for a reset.
        """
        when = "a reset" if step is None else f"step {step:,}"
        packed = self.pack(observation, when)
        if not packed:
            return
        if step is None:
            self._missing[:] = False
        if packed[0].dtype == np.float32:
            packed = self._add_numbers(packed[0][0].astype(np.float64), when), *packed[1:]
        self._count += 1
        self._low = tuple(map(np.fmin, self._low or packed, packed))
        self._high = tuple(map(np.fmax, self._high or packed, packed))

    def _add_numbers(self, values: np.ndarray, when: str) -> np.ndarray:
        """Add the numbers of an observation to the statistics; return them, `[1, n]`, with NaN where not finite."""
        is_finite = np.isfinite(values)
        if not is_finite.all() or self._missing.any():
            self._record_not_finite(values, is_finite, when)
        self._finite_count += is_finite
        apart = np.where(is_finite, values - self._mean, 0.0)
        self._mean += apart / np.maximum(self._finite_count, 1)
        self._squares += apart * np.where(is_finite, values - self._mean, 0.0)
        return np.where(is_finite, values, np.nan)[None]

    def _record_not_finite(self, values: np.ndarray, is_finite: np.ndarray, when: str) -> None:
        for column in np.flatnonzero(self._missing & is_finite).tolist():
            self._not_finite[column].returns = True
        for column in np.flatnonzero(~is_finite).tolist():
            entry = self._not_finite.setdefault(column, _NotFinite(f"{values[column]} at {when}"))
            entry.times += 1
            entry.is_infinite |= bool(np.isinf(values[column]))
        self._missing = ~is_finite

    def report(self, numpy_warning: str) -> Iterator[Fact | Finding]:
        """Yield the findings and the ranges of the observations.

        Args:
            numpy_warning: a warning of NumPy about a division or an overflow in the environment; "" if there was none.
        """
        if self._malformed is not None:
            yield self._malformed
        if self._spec is None or not self._count:
            return
        yield from self._report_not_finite(self._spec, numpy_warning)
        low, high = map(self._spec.unpack, (self._low, self._high))
        is_scaled = np.zeros(len(self._mean), bool)
        for leaf in self._spec.leaves:
            name = leaf.name
            if not isinstance(leaf.space, spaces.Box) or np.isnan(low[name]).all():
                continue
            yield Fact("seen", f"{name} from {number(np.nanmin(low[name]))} to {number(np.nanmax(high[name]))}")
            if found := outside(leaf.space, np.concatenate([low[name], high[name]]), name):
                yield found
            elif len(leaf.shape) < 3 and leaf.group == "float32":
                is_scaled[leaf.columns] = True
        yield from self._report_scales(self._spec, is_scaled)

    def _report_not_finite(self, spec: Spec, numpy_warning: str) -> Iterator[Finding]:
        """Yield a finding for each reason for which entries are not finite."""
        groups: dict[str, list[str]] = {}
        for column, entry in sorted(self._not_finite.items()):
            if entry.is_infinite or numpy_warning:
                remedy = f"NumPy warns: {numpy_warning}. {NOT_FINITE}" if numpy_warning else NOT_FINITE
            elif entry.times == self._count:
                remedy = NEVER_READ
            else:
                remedy = MISSING if entry.returns else STAYS
            name = spec.entry_name(column)
            text = f"{name} = {entry.first} ({entry.times:,} of {self._count:,} observations)"
            groups.setdefault(remedy, []).append(text)
        for remedy, texts in groups.items():
            yield Finding(f"The environment's observation is not finite: {_some(texts)}.", remedy)

    def _report_scales(self, spec: Spec, is_scaled: np.ndarray) -> Iterator[Finding]:
        """Yield a finding for the features that are large, and one for those that are small.

        Args:
            spec: the spaces.
            is_scaled: which columns hold features whose scale matters, bool.
        """
        deviation = np.sqrt(self._squares / np.maximum(self._finite_count, 1))
        size = np.hypot(self._mean, deviation)
        for what, mask, order in (
            ("large", size > LARGE_FEATURE, -size),
            ("small", (size < SMALL_FEATURE) & (size > 0), size),
        ):
            texts = []
            for column in sorted(np.flatnonzero(mask & is_scaled).tolist(), key=order.__getitem__):
                span = f"{number(self._low[0][0, column])} to {number(self._high[0][0, column])}"
                scale = f"offset {number(self._mean[column])}, scale {number(deviation[column])}, {span}"
                texts.append(f"{spec.entry_name(column)} ({scale})")
            if texts:
                yield Finding(
                    f"Features of the observations are {what}: {_some(texts)}.",
                    "Networks learn best from numbers near 1: pass `normalize_observations=True`, or subtract the "
                    "offset and divide by the scale in the environment.",
                )


def _some(texts: Sequence[str]) -> str:
    others = f" and {len(texts) - MAX_SHOWN} more" if len(texts) > MAX_SHOWN else ""
    return f"{', '.join(texts[:MAX_SHOWN])}{others}"


def _supported_part(space: spaces.Space) -> tuple[Spec | None, dict[str, Path]]:
    """Return a spec of the parts of a nested space that agents support, and the paths of these parts by name."""
    found = {}
    paths = {}
    for path, part in nested_spaces(space, checks_keys=False):
        if _is_supported(part):
            name = re.sub(r"\W", "_", "__".join(map(str, path)), flags=re.ASCII)
            while name in found or not _is_supported(spaces.Dict({name: part})):
                name = f"x_{name}"
            found[name] = part
            paths[name] = path
    return (Spec(spaces.Dict(found), SOME_ACTIONS) if found else None), paths


def _is_supported(space: spaces.Space) -> bool:
    return not list(findings_from(lambda: Spec(space, SOME_ACTIONS)))


def _part(observation: Any, path: Path) -> Any:
    try:
        return functools.reduce(operator.getitem, path, observation)
    except (LookupError, TypeError):
        raise ValueError(f"The observation has no part {list(path)}") from None
