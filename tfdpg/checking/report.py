"""The report of `tfdpg check`: facts, then findings."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tfdpg.findings import Finding


class Fact(NamedTuple):
    """A line of the report."""

    title: str
    text: str


def report(name: str, facts: Sequence[Fact], findings: Sequence[Finding]) -> str:
    """Return the text of a report. A title that several facts in a row share is shown once."""
    lines = [name, ""]
    last = ""
    for title, text in facts:
        lines.append(f"{'' if title == last else title:14}{text}")
        last = title
    lines += [""] if facts else []
    lines.append(f"{len(findings) or 'no'} finding{'' if len(findings) == 1 else 's'}")
    for what, remedy in findings:
        lines += [f"- {what}", f"  {remedy}"]
    return "\n".join(lines)


def number(value: Any) -> str:
    """Format a number with about four digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 and np.isfinite(value) else f"{value:.4g}"


def bounds(low: Any, high: Any) -> str:
    """Format the bounds of an array, once if all elements have the same."""
    low = np.ravel(low)
    high = np.ravel(high)
    if (low == low[:1]).all() and (high == high[:1]).all():
        low, high = low[:1], high[:1]
    if len(low) > 4:
        return f"different bounds, from {number(low.min())} to {number(high.max())}"
    return " × ".join(f"[{number(a)}, {number(b)}]" for a, b in zip(low, high, strict=True))
