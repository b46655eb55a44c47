"""The command `tfdpg drift`."""

import sys
from collections.abc import Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import tyro

from tfdpg.arguments import natural, positive
from tfdpg.cli import run_paths
from tfdpg.cli.logs import Steps, read_steps
from tfdpg.cli.parsing import UsageError
from tfdpg.compat.tensorflow import import_tensorflow
from tfdpg.diagnosis.drift import CANNOT_TELL, DRIFT, NO_DRIFT, STATUS, Difference, compare_all, runs_of
from tfdpg.exported import latest_version, metadata, versions
from tfdpg.exported.statistics import Component, DataStatistics, action_columns, columns, read, summarize
from tfdpg.spec import Spec

SHOWN = 20
"""The number of components in a table, unless more have drifted."""


def drift(
    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    logs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="LOG...")],
    /,
    reference: tuple[Path, ...] = (),
    version: int | None = None,
    label: str | None = None,
    fail_above: float = 0.2,
    plot: Path | None = None,
    json: bool = False,
) -> int:
    """Compare logged observations with the training data of the policy, or with an earlier log.

    The exit status is 1 if a component of the observations has drifted, 0 if none has, and 2 if there are too few
    observations to tell, or the comparison is not possible.

    Args:
        path: an exported model. Of a model directory, the training data of the version that answered are taken, or
            those of the newest version if the log does not say which one answered.
        logs: prediction logs or directories of them, or recorded steps of `tfdpg evaluate --record`.
        reference: compare with these logs, of a time at which all was well, instead of the training data. Drift of the
            actions then counts, too.
        version: use only the requests that this version of the model answered.
        label: use only the requests for this label, such as canary.
        fail_above: the population stability index above which a component has drifted.
        plot: write a picture of the worst components to this file.
        json: print one JSON object instead of text.
    """
    try:
        comparisons = _compared(path, logs, reference, version, label, fail_above, plot)
        if plot is not None:
            from tfdpg.diagnosis import drift_picture

            drift_picture.draw({each.title: each.differences for each in comparisons}).savefig(plot, dpi=150)
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        raise UsageError(str(error)) from error  # exit status 1 is for drift
    verdicts = {each.verdict for each in comparisons}
    overall = next(each for each in (DRIFT, CANNOT_TELL, NO_DRIFT) if each in verdicts)
    if json:
        print(dumps({"verdict": overall, "fail_above": fail_above, "logs": [each.to_json() for each in comparisons]}))
    else:
        print("\n\n".join(each.text(fail_above) for each in comparisons))
    if plot is not None:
        print(f"wrote {plot}", file=sys.stderr if json else sys.stdout)
    return STATUS[overall]


class Comparison(NamedTuple):
    """The requests that one version answered, and what they are compared with.

    Attributes:
        model: the name of the model; "" if it is not logged.
        version: the version; -1 if it is not logged.
        labels: the labels that clients requested.
        clients: the number of clients.
        rows: the number of observations.
        origin: what they are compared with, as a text.
        observations: the components of observations, the worst first.
        actions: those of actions, the worst first.
        actions_count: whether the drift of actions counts.
    """

    model: str
    version: int
    labels: list[str]
    clients: int
    rows: int
    origin: str
    observations: list[Difference]
    actions: list[Difference]
    actions_count: bool

    @property
    def differences(self) -> list[Difference]:
        """The components of observations, and then those of actions."""
        return [*self.observations, *self.actions]

    @property
    def verdict(self) -> str:
        """The verdict on all components that count."""
        verdicts = {each.verdict for each in (self.differences if self.actions_count else self.observations)}
        return next(each for each in (DRIFT, CANNOT_TELL, NO_DRIFT) if each in verdicts)

    @property
    def title(self) -> str:
        """The number of observations, and which model answered."""
        version = f"version {self.version} of {self.model}" if self.version >= 0 else self.model
        labels = f" ({', '.join(self.labels)})" if self.labels else ""
        clients = f" of {self.clients} clients" if self.clients > 1 else ""
        return f"{version or 'log'}{labels}: {self.rows:,} observations{clients}"

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        facts = {"model": self.model, "version": self.version if self.version >= 0 else None, "labels": self.labels}
        facts |= {"clients": self.clients, "observations": self.rows, "compared_with": self.origin}
        components = {kind: [each.to_json() for each in getattr(self, kind)] for kind in ("observations", "actions")}
        return facts | {"verdict": self.verdict, "components": components}

    def text(self, limit: float) -> str:
        """Return a table of the components, and the verdict."""
        rows = [("", "PSI", "", "outside", "missing", "mean", "deviation")]
        rows += [*_rows(self.observations), ("", "", "", "", "", "", ""), *_rows(self.actions)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(f"{part:{width}}" for part, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([self.title, f"compared with {self.origin}", *lines, self._conclusion(limit)])

    def _conclusion(self, limit: float) -> str:
        counted = self.differences if self.actions_count else self.observations
        named = [each.name for each in counted if each.verdict == self.verdict]
        which = ", ".join(named[:5]) + (f" and {len(named) - 5} more" if len(named) > 5 else "")
        above = f"--fail-above {limit:g}"
        if self.verdict == DRIFT:
            return f"drift of {which} (PSI, {above})"
        if self.verdict == CANNOT_TELL:
            return f"cannot tell for {which}: more observations are needed ({above})"
        return f"no drift (PSI, {above})"


def _remark(each: Difference) -> str:
    if each.is_stuck:
        return "drift: stuck"
    return "in range" if each.is_in_range else "" if each.verdict == NO_DRIFT else each.verdict


def _rows(differences: Sequence[Difference]) -> list[tuple[str, ...]]:
    """Return the rows of a table: the worst components, and all that have drifted."""
    drifted = sum(each.verdict == DRIFT for each in differences)
    count = max(SHOWN, drifted) if len(differences) > SHOWN + 1 else len(differences)
    rows: list[tuple[str, ...]] = [
        (
            each.name,
            f"{each.psi:.3f}",
            _remark(each),
            f"{each.outside:.1%}",
            f"{each.logged.missing:.1%}",
            f"{each.logged.mean:.4g} (was {each.reference.mean:.4g})",
            f"{each.logged.deviation:.4g} (was {each.reference.deviation:.4g})",
        )
        for each in differences[:count]
    ]
    if count < len(differences):
        rows.append((f"and {len(differences) - count} more", f"≤ {differences[count].psi:.3f}", *[""] * 5))
    return rows


def _compared(
    path: Path,
    logs: Sequence[Path],
    reference: Sequence[Path],
    version: int | None,
    label: str | None,
    limit: float,
    plot: Path | None,
) -> list[Comparison]:
    """Return a comparison for each version that answered."""
    positive("fail_above", limit)
    if version is not None:
        natural("version", version)
    if not logs:
        raise ValueError("LOG is missing: prediction logs, or recorded steps.")
    run_paths.check_model(path)
    import_tensorflow()
    if plot is not None:
        from tfdpg.diagnosis import picture

        picture.check(plot)
    newest = latest_version(path)
    spec = Spec.from_json(metadata(newest))
    steps = read_steps(logs, spec, version, label)
    if not steps.origins:
        raise ValueError(f"LOG must have observations. Received: {', '.join(map(str, logs))}, without any")
    earlier = _of_steps(read_steps(reference, spec), spec) if reference else None
    groups: dict[tuple[str, int], list[int]] = {}
    for row, (model, answered, _) in enumerate(steps.origins):
        groups.setdefault((model, answered), []).append(row)
    comparisons = []
    for (_, answered), rows in sorted(groups.items()):
        if earlier is not None:
            origin = f"{earlier.rows:,} observations in {', '.join(map(str, reference))}"
            comparisons.append(_comparison(_selected(steps, rows), spec, earlier, origin, "log", limit))
            continue
        directory = path / str(answered) if path != newest and answered in versions(path) else newest
        own = Spec.from_json(metadata(directory))  # with the names that this version has for numbers
        own.check(spec, str(directory))
        statistics = read(directory)
        origin = f"{statistics.rows:,} of the {statistics.stored:,} training steps of {directory}"
        comparisons.append(_comparison(_selected(steps, rows), own, statistics, origin, "training", limit))
    return comparisons


def _selected(steps: Steps, rows: Sequence[int]) -> Steps:
    observations = {name: values[rows] for name, values in steps.observations.items()}
    clients = [steps.clients[row] for row in rows]
    return Steps(observations, steps.actions[rows], clients, [steps.origins[row] for row in rows])


def _comparison(
    steps: Steps, spec: Spec, statistics: DataStatistics, origin: str, of: Literal["training", "log"], limit: float
) -> Comparison:
    """Compare the steps that one version answered with statistics.

    Args:
        steps: the steps.
        spec: the spaces.
        statistics: what they are compared with.
        origin: a description of that.
        of: what that is, see `compare`.
        limit: the largest index that is no drift.
    """
    found = columns(steps.observations, spec), action_columns(steps.actions, spec)
    differences = []
    for part, expected in zip(found, (statistics.observations, statistics.actions), strict=True):
        if missing := sorted(part.keys() - expected.keys()):
            raise ValueError(
                f"DataStatistics must have every component of the spaces. Received: {origin}, without {missing[0]}"
            )
        differences.append(compare_all(part, expected, (statistics.rows, statistics.span), of, limit))
    model, answered, _ = steps.origins[0]
    return Comparison(
        model,
        answered,
        sorted({label for _, _, label in steps.origins} - {""}),
        len(set(steps.clients)),
        len(steps.clients),
        origin,
        observations=differences[0],
        actions=differences[1],
        actions_count=of == "log",
    )


def _of_steps(steps: Steps, spec: Spec) -> DataStatistics:
    """Return the statistics of logged steps."""
    order = np.argsort(np.unique(steps.clients, return_inverse=True)[1], kind="stable")

    def summaries(found: Mapping[str, np.ndarray]) -> dict[str, Component]:
        return {name: summarize(column[order], runs_of(column[order])) for name, column in found.items()}

    observations = summaries(columns(steps.observations, spec))
    return DataStatistics(
        len(order), len(order), len(order), observations, summaries(action_columns(steps.actions, spec))
    )
