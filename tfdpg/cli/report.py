"""What is told of several runs."""

import csv
import math
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np


def returns(run: Path) -> list[float]:
    """The evaluation returns of a run, epoch for epoch."""
    if not (run / "progress.csv").exists():
        return []
    with open(run / "progress.csv", newline="") as file:
        values = [float(row.get("val_return") or math.nan) for row in csv.DictReader(file)]
    return [value for value in values if not math.isnan(value)]


def table(runs: Sequence[tuple[str, Path]], failed: Collection[str] = ()) -> str:
    """The final and the best evaluation return of each run, and their mean ± sample standard deviation.

    Those that failed are marked, and left out of the mean.

    Args:
        runs: their names, and where they are.
        failed: the names of those that did.
    """
    found = [(name, returns(run)) for name, run in runs]
    pairs = {name: (values[-1], max(values)) for name, values in found if values}
    rows = [
        (name + " (failed)" * (name in failed), *(f"{value:.2f}" for value in pairs.get(name, ()))) for name, _ in found
    ]
    counted = [pair for name, pair in pairs.items() if name not in failed]
    if len(counted) > 1:
        columns = np.transpose(counted)
        of = "" if len(counted) == len(rows) else f" of {len(counted)}"
        rows.append(
            (f"mean ± std{of}", *(f"{np.mean(column):.2f} ± {np.std(column, ddof=1):.2f}" for column in columns))
        )
    rows = [("evaluation return", "final", "best"), *((*row, "-", "-")[:3] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows
    )
