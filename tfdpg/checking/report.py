"""A report: facts, then findings."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tfdpg.findings import Finding


class Fact(NamedTuple):
    """A line of the report: what it is about, and what is so."""

    title: str
    text: str


def report(name: str, facts: Sequence[Fact], findings: Sequence[Finding]) -> str:
    """The lines of a report; a title that repeats stands once."""
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
    """A number in four digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 and np.isfinite(value) else f"{value:.4g}"


def bounds(low: Any, high: Any) -> str:
    """The bounds of an array of numbers, once where all have the same."""
    low = np.ravel(low)
    high = np.ravel(high)
    if (low == low[:1]).all() and (high == high[:1]).all():
        low, high = low[:1], high[:1]
    if len(low) > 4:
        return f"bounds of their own, from {number(low.min())} to {number(high.max())}"
    return " × ".join(f"[{number(a)}, {number(b)}]" for a, b in zip(low, high, strict=True))
