"""Run the reference inputs of an export through its runtimes, and compare with the reference outputs."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfdpg.acting import greedy_forward, load_critics, load_numpy_policy
from tfdpg.export.references import Call, References, read_references, stepped
from tfdpg.export.source import Source
from tfdpg.export.verify import (
    ATOL,
    HALF_PRECISION,
    RTOL,
    Inputs,
    Run,
    equal_choices,
    in_float32,
    in_session,
    rounded_outputs,
    scale,
)
from tfdpg.exported import METADATA, NUMPY_POLICY, ExportError, Policy, latest_version
from tfdpg.exported.policy import packed_inputs
from tfdpg.files import is_version
from tfdpg.formats.convert import FORMATS
from tfdpg.formats.served import Server, check_url, connect
from tfdpg.imports import require

OTHER_CHOICES = 0.1
"""The share of rows in which networks in half precision may choose another integer."""
VERSION = "version"
"""What takes the place of a signature where the number of the served version is checked."""


class Check(NamedTuple):
    """The comparison of a signature in one runtime.

    Attributes:
        runtime: the runtime.
        signature: the signature.
        difference: the difference of the number that is closest to its tolerance, or furthest above it; None if there
            are no numbers to compare.
        tolerance: the tolerance of this number.
        problem: what is wrong besides the difference; empty if nothing is.
    """

    runtime: str
    signature: str
    difference: float | None
    tolerance: float | None
    problem: str = ""

    @property
    def passed(self) -> bool:
        """Whether the outputs are equal within the tolerance."""
        if self.problem or self.difference is None or self.tolerance is None:
            return not self.problem
        return self.difference <= self.tolerance

    def numbers(self) -> str:
        """Return the difference and the tolerance as text; empty if there are none."""
        return "" if self.difference is None else f"difference {self.difference:.2g}, tolerance {self.tolerance:.2g}"

    def result(self) -> str:
        """Return the result as text."""
        return "passed" if self.passed else f"FAILED: {self.problem}" if self.problem else "FAILED"


class Report(NamedTuple):
    """What `verify` found.

    Attributes:
        observations: the number of reference observations.
        checks: the comparisons.
        unchecked: for each runtime that could not be used, the reason.
    """

    observations: int
    checks: list[Check]
    unchecked: dict[str, str]

    @property
    def status(self) -> int:
        """The exit status of the command."""
        return 1 if not all(check.passed for check in self.checks) else 2 if self.unchecked else 0

    def text(self) -> str:
        """Return a line for each check, and a line with the result."""
        rows = [(check.runtime, check.signature, check.numbers(), check.result()) for check in self.checks]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        failed: dict[str, list[str]] = {}
        for check in self.checks:
            if not check.passed:
                failed.setdefault(check.runtime, []).append(check.signature)
        if failed:
            lines.append("failed: " + ", ".join(f"{name} ({', '.join(each)})" for name, each in failed.items()))
        if self.unchecked:
            lines.append(f"not checked: {', '.join(self.unchecked)}")
        if not failed and not self.unchecked:
            lines.append(f"passed: {len(rows)} checks with {self.observations} observations")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        checks = [check._asdict() | {"passed": check.passed} for check in self.checks]
        verdict = ("passed", "failed", "not checked")[self.status]
        return {"observations": self.observations, "checks": checks, "unchecked": self.unchecked, "verdict": verdict}


class Runtime(NamedTuple):
    """A runtime that computes signatures of an export.

    Attributes:
        name: its name in the report.
        signatures: the signatures that it computes.
        start: starts it.
        max_error: of a quantized policy, the largest mean error of its actions, in units of the action scale.
    """

    name: str
    signatures: Collection[str]
    start: Callable[[], contextlib.AbstractContextManager[Run]]
    max_error: float | None = None


def verify(model: Path, others: Sequence[Path], servers: Sequence[str], trusted: bool) -> Report:
    """Compare an export, other exports of the same policy, and servers with the reference outputs of the export.

    Args:
        model: an export of any format; of a model directory, its newest version.
        others: other exports, or files of them.
        servers: URLs of served models.
        trusted: whether to load SavedModels without checking their operations, and to compile and run C code.

    Raises:
        FileNotFoundError: there is no export.
        ExportError: the export has no references, or a file is damaged.
        ValueError: a URL is not that of a served model.
    """
    for url in servers:
        check_url(url)
    policy = Policy(export_at(model)[0], trusted)
    references = read_references(policy)
    report = Report(references.observations, [], {})
    with in_float32():  # as the references were computed
        for runtime in runtimes(model, trusted, is_model=True):
            _try(report, policy, references, runtime)
        for path in others:
            try:
                found = runtimes(path, trusted)
            except Exception as error:  # a forged file may raise anything
                report.unchecked[str(path)] = _reason(error)
                continue
            for runtime in found:
                _try(report, policy, references, runtime)
    for url in servers:
        _try_server(report, policy, references, url)
    return report


def export_at(path: Path) -> tuple[Path, str | None]:
    """Return the directory of an export, and the name of the file in it that the path names, if it names one."""
    if path.is_file() and (path.parent / METADATA).exists():
        return path.parent, path.name
    if path.is_file():
        raise FileNotFoundError(
            f"{path.parent / METADATA} is missing. Keep it beside {path.name}: it describes the file"
        )
    return (path if (path / METADATA).exists() else latest_version(path)), None


def runtimes(path: Path, trusted: bool, is_model: bool = False) -> list[Runtime]:
    """Return the runtimes of an export.

    Args:
        path: the export, or one of its files, whose signatures alone are then computed.
        trusted: see `verify`.
        is_model: whether names in the report need not contain the path.

    Raises:
        FileNotFoundError: there is no export.
        ExportError: a file is damaged.
    """
    directory, file = export_at(path)
    policy = Policy(directory, trusted)
    facts = policy.metadata
    format = facts.get("export_format", "tf_saved_model")
    place = "" if is_model else f" {path}"
    named = facts["signatures"].items()
    signatures = [name for name, each in named if file in (None, each["file"])]
    if format == "tf_saved_model":
        found = [Runtime(f"SavedModel{place}", signatures, lambda: in_session(directory, trusted))]
        if NUMPY_POLICY in facts["files"]:
            computed = {"pi", *load_critics(directory / NUMPY_POLICY, policy.spec)}
            found.append(Runtime(f"NumPy{place}", computed, lambda: _in_numpy(policy)))
        return found
    if format not in FORMATS:
        raise ExportError(f"{directory / METADATA} has the format {format!r}, which this version of tfdpg cannot run")
    if not signatures:
        raise ExportError(f"{path} contains no signature")

    @contextlib.contextmanager
    def start() -> Iterator[Run]:
        if format == "c" and not trusted:
            raise ExportError("it is C code, which is compiled and run only with --trusted")
        require(f"Verifying {format}", format, *FORMATS[format].modules[-1:])  # the last one is the runtime
        size = facts["signatures"]["pi"]["inputs"][0]["shape"][0]
        source = Source(directory, size if isinstance(size, int) else None, trusted)
        with FORMATS[format].run(source, directory) as run:
            yield run

    max_error = facts["quantized"]["max_error"] if "quantized" in facts else None
    return [Runtime(f"{format}{place}", signatures, start, max_error)]


@contextlib.contextmanager
def _in_numpy(policy: Policy) -> Iterator[Run]:
    """Return a function that computes the signatures in `policy.npz`."""
    spec, recurrent_spec = policy.spec, policy.recurrent_spec
    path = policy.directory / NUMPY_POLICY
    act = greedy_forward(spec, recurrent_spec, load_numpy_policy(path, spec, recurrent_spec))
    critics = load_critics(path, spec)

    def run(name: str, inputs: Inputs) -> dict[str, Any]:
        if name in critics:
            return {name: critics[name](packed_inputs(spec, None, inputs), inputs["a"])}
        outputs = act(packed_inputs(spec, recurrent_spec, inputs))
        if recurrent_spec is None:
            return {"pi": outputs}
        ends = np.cumsum([spec.act_dim, *(width for _, width in recurrent_spec.parts)])[:-1]
        pi, *state = np.split(outputs, ends, axis=1)
        pi = pi if spec.actions is None else pi[:, 0].astype(np.int64)
        return {"pi": pi} | dict(zip(dict(recurrent_spec.parts), state, strict=True))

    yield run


def _try(report: Report, policy: Policy, references: References, runtime: Runtime) -> None:
    """Add the checks of a runtime to the report."""
    try:
        with runtime.start() as run:
            names = [name for name in references.calls if name in runtime.signatures]
            if not names:
                raise ExportError("it has none of the signatures of the references")
            report.checks.extend(_check(policy, references, runtime, run, name) for name in names)
    except Exception as error:  # a forged file may raise anything
        report.unchecked[runtime.name] = _reason(error)


def _try_server(report: Report, policy: Policy, references: References, url: str) -> None:
    """Add the checks of a server to the report, with that of its version if the URL names a version or a label."""
    try:
        with connect(url, policy.metadata["signatures"]) as server:
            runtime = Runtime(url, list(references.calls), lambda: contextlib.nullcontext(server.run))
            checks = [_check(policy, references, runtime, server.run, name) for name in references.calls]
            report.checks.extend(_version(server, policy, url))
            report.checks.extend(checks)
    except (OSError, ValueError, ImportError) as error:
        report.unchecked[url] = _reason(error)


def _reason(error: Exception) -> str:
    """Return the message of an error in one line."""
    return " ".join(str(error).split()) or repr(error)


def _version(server: Server, policy: Policy, url: str) -> Iterator[Check]:
    """Compare the number of the version that answers with that of the export, if the URL chooses a version."""
    number = policy.directory.resolve().name
    if server.is_pinned and is_version(number):
        found = server.version()
        if found is None:
            problem = "the server does not say which version answers"
        else:
            problem = "" if found == int(number) else f"version {found} answers, and not {number}"
        yield Check(url, VERSION, None, None, problem)


def _check(policy: Policy, references: References, runtime: Runtime, run: Run, name: str) -> Check:
    """Compare the outputs of a signature with the references."""
    call = references.calls[name]
    try:
        if name == "pi" and policy.recurrent_spec is not None and references.rewards is not None:
            first = _initial_state(references, runtime, run)
            found = stepped(policy.recurrent_spec, first, call.inputs, references.rewards)
        else:
            found = run(name, call.inputs)
        difference, tolerance = _worst(policy, references, runtime, call, found)
    except (OSError, ImportError):
        raise
    except Exception as error:  # of the runtime, which does not take the inputs
        return Check(runtime.name, name, None, None, _reason(error))
    return Check(runtime.name, name, difference, tolerance)


def _initial_state(references: References, runtime: Runtime, run: Run) -> Run:
    """Return `run`, with the initial state of the references if the runtime has no such signature."""
    known = references.calls.get("initial_state")
    if "initial_state" in runtime.signatures or known is None:
        return run

    def run_with_state(name: str, inputs: Inputs) -> dict[str, np.ndarray]:
        if name != "initial_state":
            return run(name, inputs)
        return {key: values[: int(inputs["batch"])] for key, values in known.outputs.items()}

    return run_with_state


def _worst(
    policy: Policy, references: References, runtime: Runtime, call: Call, found: Mapping[str, np.ndarray]
) -> tuple[float, float]:
    """Return the difference that is largest in comparison with its tolerance, and this tolerance.

    Raises:
        ValueError: an output is missing, is of another shape, or contains other numbers that are not finite.
    """
    if missing := sorted(set(call.outputs) - set(found)):
        raise ValueError(f"it does not return {missing[0]!r}")
    found = {name: np.asarray(values) for name, values in found.items()}
    for name, wanted in call.outputs.items():
        if found[name].shape != wanted.shape:
            raise ValueError(f"{name!r} must have the shape {list(wanted.shape)}. Received: {list(found[name].shape)}")
        if not np.array_equal(np.isfinite(found[name]), np.isfinite(wanted)):
            raise ValueError(f"{name!r} contains numbers that are not finite")
    if runtime.max_error is not None and "pi" in call.outputs:
        return _mean_error(policy, found["pi"], call.outputs["pi"]), runtime.max_error
    pairs = []
    rows: Any = ...
    if references.in_half_precision:
        rounded = rounded_outputs(policy.spec)
        rows = equal_choices(found, call.outputs, rounded)
        if rows is not ...:
            pairs.append((1 - float(np.mean(rows)), OTHER_CHOICES))
    for name, wanted in call.outputs.items():
        tolerance = _scale(policy, references, name, wanted) * (
            HALF_PRECISION if references.in_half_precision else ATOL
        )
        tolerances = tolerance + RTOL * np.abs(wanted, dtype=float)
        differences = np.where(found[name] == wanted, 0, np.abs(found[name].astype(float) - wanted))
        pairs += zip(differences[rows].ravel().tolist(), tolerances[rows].ravel().tolist(), strict=True)
    finite = [pair for pair in pairs if np.isfinite(pair[0])]
    return max(finite, key=lambda pair: pair[0] / pair[1], default=(0.0, ATOL))


def _scale(policy: Policy, references: References, name: str, wanted: np.ndarray) -> float:
    """Return the size of the numbers from which an output is computed, on which its rounding error depends."""
    facts = policy.metadata["signatures"].values()
    returns = {one["name"] for each in facts for one in each["outputs"] if one.get("unit") == "return"}
    if name not in returns:
        return scale(wanted)
    # a value near 0 may be a sum of large numbers
    outputs = [each.outputs for each in references.calls.values()]
    return max(scale(values) for each in outputs for key, values in each.items() if key in returns)


def _mean_error(policy: Policy, found: np.ndarray, wanted: np.ndarray) -> float:
    """Return the mean error of a quantized policy's actions, in the unit of `ActionError.mean`."""
    rows = np.isfinite(wanted)
    found, wanted = np.where(rows, found, 0), np.where(rows, wanted, 0)
    error = np.abs(found - wanted)
    return float(np.mean(error > 0 if policy.spec.actions is not None else error / policy.spec.action_scale))
