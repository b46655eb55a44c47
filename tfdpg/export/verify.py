"""Verification of an export with the loader that TensorFlow Serving uses."""

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

from tfdpg.exported import ExportError, loadable

RTOL, ATOL = 1e-4, 1e-5
"""ATOL is of the largest value or of 1: a value near 0 may be a sum of large ones, whose rounding it has."""
HALF_PRECISION = 2e-2
"""In place of ATOL, for networks that compute in half precision: rounding depends on what is fused."""
BATCHES = (1, 7)

Inputs = Mapping[str, np.ndarray]
Reference = Callable[[Inputs], dict[str, np.ndarray]]
"""From the inputs of a signature, by name, to what it must return."""
Run = Callable[[str, Inputs], dict[str, np.ndarray]]
"""From the name of a signature and its inputs to what it returns, in a session."""


def verify(
    directory: Path,
    references: Mapping[str, Reference],
    cases: Mapping[str, Sequence[Inputs]],
    in_half_precision: bool = False,
    checks: Sequence[Callable[[Run], None]] = (),
) -> None:
    """Runs every signature in a graph and session and compares.

    The loader of `tf.saved_model.load` resolves variables through Python objects and so proves nothing about
    serving.

    Args:
        directory: the SavedModel, which this process wrote.
        references: what each signature must compute; `serving_default` does what `pi` does.
        cases: the inputs to run each signature on.
        in_half_precision: whether some of the networks compute in half precision.
        checks: compare more than single calls.

    Raises:
        ExportError: names the signature and the largest difference.
    """
    with in_session(directory, trusted=True) as run:
        for name, batches in cases.items():
            compare_signature(name, run, references.get(name, references["pi"]), batches, in_half_precision)
        for check in checks:
            check(run)


def compare_signature(
    name: str,
    run: Run,
    reference: Reference,
    batches: Sequence[Inputs],
    in_half_precision: bool = False,
    summands: Mapping[str, float] = MappingProxyType({}),
) -> float:
    """Compares what a signature returns with what it must, and gives the largest difference.

    Args:
        name: the signature.
        run: computes it.
        reference: what it must compute.
        batches: its inputs.
        in_half_precision: see `verify`.
        summands: how large the numbers may be whose sum an output is, by its name.

    Raises:
        ExportError: they differ by more than rounding.
    """
    expected = [reference(inputs) for inputs in batches]
    largest = 0.0
    scales = {key: max(summands.get(key, 1), *(scale(outputs[key]) for outputs in expected)) for key in expected[0]}
    for inputs, outputs in zip(batches, expected, strict=True):
        found = run(name, inputs)
        if missing := sorted(set(outputs) - set(found)):
            raise ExportError(f"The signature {name!r} does not return {missing}; it returns {sorted(found)}")
        rows = _equal_choices(found, outputs) if in_half_precision else ...
        for key, wanted in outputs.items():
            atol = scales[key] * (HALF_PRECISION if in_half_precision else ATOL)
            compare(name, found[key][rows], wanted[rows], atol)
            finite = np.isfinite(wanted[rows])
            differences = np.abs(np.asarray(found[key])[rows][finite] - wanted[rows][finite])
            largest = max(largest, np.max(differences, initial=0))
    return float(largest)


def check_nonfinite(name: str, inputs: Inputs, observation: Collection[str], run: Run) -> None:
    """Check the rule on non-finite observations, on a batch whose first observation is one.

    The first row must be answered with NaN, and with the recurrent state that it was given; the other rows must be
    computed as they are beside a finite observation.

    Args:
        name: the signature, of one step for each row.
        inputs: a batch of several rows.
        observation: the names of the parts of an observation.
        run: computes the signature.

    Raises:
        ExportError: the signature does something else.
    """
    for key in observation:
        if inputs[key].dtype.kind != "f":
            continue
        finite = {**inputs, key: inputs[key].copy()}
        finite[key][0] = 0  # what a network sees in place of numbers that are not finite, also one that mixes rows
        nonfinite = {**inputs, key: inputs[key].copy()}
        nonfinite[key][0] = np.nan
        clean = run(name, finite)
        found = run(name, nonfinite)
        for output, values in found.items():
            if output in inputs:
                holds = np.array_equal(values[0], inputs[output][0])
            else:  # an integer has no NaN
                holds = values.dtype.kind != "f" or np.isnan(values[0]).all()
            if not holds:
                raise ExportError(
                    f"The signature {name!r} must answer an observation that is not finite with NaN, and with the "
                    f"state that it was given. Received: {output}={values[0]!r}. An older model must be exported again."
                )
            compare(f"{name} beside an observation that is not finite", values[1:], clean[output][1:], ATOL)


def open_session(
    directory: Path, config: Any = None, trusted: bool = False
) -> tuple[tf.compat.v1.Session, Mapping[str, Any]]:
    """A SavedModel in a session of its own, and its SignatureDefs by name.

    Args:
        directory: the SavedModel.
        config: a `ConfigProto`; None takes the default.
        trusted: whether to load it whatever its operations do.

    Raises:
        ExportError: it does not load, or an operation is refused.
    """
    graph = tf.Graph()
    session = tf.compat.v1.Session(graph=graph, config=config)
    try:
        with loadable(directory, trusted) as path, quiet("tensorflow", logging.ERROR), graph.as_default():
            return session, dict(tf.compat.v1.saved_model.load(session, ["serve"], path).signature_def)
    except ExportError:
        session.close()
        raise
    except Exception as error:
        session.close()
        raise ExportError(f"The exported model does not load in a session: {error}") from error


@contextlib.contextmanager
def in_session(directory: Path, trusted: bool = False) -> Iterator[Run]:
    """Computes the signatures of a SavedModel; outside of the session's graph, networks are called as ever.

    Args:
        directory: the SavedModel.
        trusted: see `open_session`.
    """
    session, signatures = open_session(directory, trusted=trusted)
    with contextlib.closing(session):

        def run(name: str, inputs: Inputs) -> dict[str, np.ndarray]:
            signature = signatures[name]
            feed = {signature.inputs[key].name: values for key, values in inputs.items()}
            return session.run({key: output.name for key, output in signature.outputs.items()}, feed)

        yield run


@contextlib.contextmanager
def quiet(library: str, below: int) -> Iterator[None]:
    """Holds back what a library logs below a level."""
    logger = logging.getLogger(library)
    level = logger.level
    logger.setLevel(below)
    try:
        yield
    finally:
        logger.setLevel(level)


def scale(wanted: np.ndarray) -> float:
    """The largest finite value, or 1."""
    return float(np.max(np.abs(wanted), initial=1, where=np.isfinite(wanted)))


def _equal_choices(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> Any:
    """The rows in which the same whole numbers were chosen: in half precision two that nearly tie may change places."""
    chosen = [name for name, values in wanted.items() if np.issubdtype(values.dtype, np.integer)]
    return np.all([found[name] == wanted[name] for name in chosen], axis=0) if chosen else ...


def compare(name: str, found: np.ndarray, expected: np.ndarray, atol: float, rtol: float = RTOL) -> None:
    """Raises `ExportError`, which names the signature, unless what it returns is what the agent does."""
    if found.shape != expected.shape:
        raise ExportError(f"The signature {name!r} returns shape {found.shape}; the agent's is {expected.shape}")
    differs = ~np.isclose(found, expected, rtol, atol)
    if differs.any():
        worst = np.max(np.abs(found[differs] - expected[differs]))
        raise ExportError(f"The signature {name!r} differs from the agent by up to {worst} (rtol {rtol}, atol {atol})")
