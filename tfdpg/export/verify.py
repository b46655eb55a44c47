"""Verification of exports: in the loader that TensorFlow Serving uses, and in the runtimes of other formats."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdpg.acting import RecurrentSpec
from tfdpg.export.signatures import count, example_rewards, flat, next_step_inputs, previous_inputs, tensors
from tfdpg.export.source import Source
from tfdpg.exported import ExportError, loadable
from tfdpg.networks import Preprocessed, Recurrent, chosen_actions
from tfdpg.spec import Spec

RTOL, ATOL = 1e-4, 1e-5
"""The tolerances in float32. ATOL is relative to the largest value or to 1, because a value near 0 may be a sum of
large ones and then has their rounding error."""
HALF_PRECISION = 2e-2
"""The tolerance in place of ATOL for networks in half precision, whose rounding depends on how operations are fused."""
BATCHES = (1, 7)
STEPS = 5
"""The number of steps of the episodes that are compared."""

Inputs = Mapping[str, np.ndarray]
Reference = Callable[[Inputs], dict[str, np.ndarray]]
"""Computes the expected outputs of a signature from its inputs by name."""
Run = Callable[[str, Inputs], dict[str, np.ndarray]]
"""Computes the outputs of a signature from its name and its inputs by name."""


def compare_signature(
    name: str,
    run: Run,
    reference: Reference,
    batches: Sequence[Inputs],
    in_half_precision: bool = False,
    rounded: Set[str] = frozenset(),
    summands: Mapping[str, float] = MappingProxyType({}),
) -> float:
    """Compare the outputs of a signature with the expected ones, and return the largest difference.

    Args:
        name: the signature.
        run: computes it.
        reference: computes the expected outputs.
        batches: its inputs.
        in_half_precision: whether some of the networks compute in half precision.
        rounded: the outputs that are rounded to integers.
        summands: the largest number in the sums from which an output is computed, by the output's name.

    Raises:
        ExportError: the difference is larger than a rounding error; the message names the signature.
    """
    expected = [reference(inputs) for inputs in batches]
    largest = 0.0
    scales = {key: max(summands.get(key, 1), *(scale(outputs[key]) for outputs in expected)) for key in expected[0]}
    for inputs, outputs in zip(batches, expected, strict=True):
        found = run(name, inputs)
        if missing := sorted(set(outputs) - set(found)):
            raise ExportError(f"The signature {name!r} does not return {missing}. Received: {sorted(found)}")
        rows = equal_choices(found, outputs, rounded) if in_half_precision else ...
        for key, wanted in outputs.items():
            atol = scales[key] * (HALF_PRECISION if in_half_precision else ATOL)
            largest = max(largest, compare(name, np.asarray(found[key])[rows], wanted[rows], atol))
    return largest


def differences(
    source: Source, run: Run, references: Mapping[str, Reference], names: Sequence[str], in_half_precision: bool = False
) -> dict[str, float]:
    """Return for each signature the largest difference between a format's runtime and the expected outputs.

    Args:
        source: the SavedModel, which contains the inputs.
        run: computes the signatures in the format's runtime.
        references: the expected outputs of all signatures of the SavedModel.
        names: the signatures to compare.
        in_half_precision: see `compare_signature`.

    Raises:
        ExportError: a difference is larger than a rounding error.
    """
    units = {one["name"]: one.get("unit") for name in source.cases for one in source.facts(name)["outputs"]}
    returns = [name for name, unit in units.items() if unit == "return"]
    expected = [references[name](inputs) for name, batches in source.cases.items() for inputs in batches]
    widest = max(scale(outputs[name]) for outputs in expected for name in returns if name in outputs)
    summands = dict.fromkeys(returns, widest)  # a value near 0 may be the mean of large atoms
    rounded = rounded_outputs(source.spec)
    largest = {
        name: compare_signature(name, run, references[name], source.cases[name], in_half_precision, rounded, summands)
        for name in names
    }
    if source.recurrent_spec is not None:
        wanted = iter(_actions(source, as_run(references), source.observations))
        found = iter(_actions(source, run, source.observations))
        cases: list[Inputs] = [{}] * STEPS
        stepped = compare_signature(
            "pi", lambda *_: next(found), lambda _: next(wanted), cases, in_half_precision, rounded
        )
        largest["pi"] = max(largest["pi"], stepped)
    return largest


class ActionError(NamedTuple):
    """The error of the actions of a quantized policy.

    Attributes:
        largest: the largest error of an action's component, in units of the action scale. For Discrete actions, the
            largest fraction of observations, over the steps, for which the quantized policy chooses another action.
        mean: the mean error, in the same units.
        observations: the number of observations.
    """

    largest: float
    mean: float
    observations: int


def action_error(source: Source, run: Run, references: Mapping[str, Reference], observations: Inputs) -> ActionError:
    """Measure the error of the actions for raw observations, for all in one call and for the first one alone."""
    spec = source.spec
    largest = []
    means = []
    for rows in (observations, {name: values[:1] for name, values in observations.items()}):
        expected = _actions(source, as_run(references), rows)
        for outputs, wanted in zip(_actions(source, run, rows), expected, strict=True):
            difference = np.abs(outputs["pi"] - wanted["pi"])
            errors = difference > 0 if spec.actions is not None else difference / spec.action_scale
            means.append(np.mean(errors))
            largest.append(means[-1] if spec.actions is not None else np.max(errors))
    steps = len(means) // 2  # the steps of all observations come before those of the first observation
    return ActionError(float(np.max(largest)), float(np.mean(means[:steps])), int(count(observations)))


def _actions(source: Source, run: Run, observations: Inputs) -> list[dict[str, np.ndarray]]:
    """Run `pi` on observations; a recurrent policy steps through episodes of them, with rewards of 0."""
    if source.recurrent_spec is None:
        return [run("pi", observations)]
    rewards = np.zeros((count(observations), STEPS), np.float32)
    return run_steps(source.recurrent_spec, run, _in_turn(observations), rewards)


def _in_turn(observations: Inputs) -> dict[str, np.ndarray]:
    """Return sequences of observations `[n, STEPS, ...]`; sequence i has the observations i, i + 1, ... in turn."""
    return {
        name: np.stack([np.roll(values, -t, axis=0) for t in range(STEPS)], axis=1)
        for name, values in observations.items()
    }


def run_steps(
    recurrent_spec: RecurrentSpec, run: Run, observations: Inputs, rewards: np.ndarray
) -> list[dict[str, np.ndarray]]:
    """Step through episodes, and return the outputs of `pi` at each step.

    Args:
        recurrent_spec: describes the recurrent state.
        run: computes `initial_state` and `pi`.
        observations: raw observations by input name, `[episodes, steps, ...]`.
        rewards: the rewards of the steps, `[episodes, steps]`.
    """
    steps = []
    given = run("initial_state", {"batch": count(observations)})
    for t in range(rewards.shape[1]):
        rows = {name: values[:, t] for name, values in observations.items()}
        steps.append(run("pi", rows | given))
        given = next_step_inputs(recurrent_spec, steps[-1], rewards[:, t])
    return steps


def check_steps(
    pi: Recurrent | Preprocessed, recurrent_spec: RecurrentSpec, examples: Inputs, tolerance: float, run: Run
) -> None:
    """Step through episodes by the signatures, and compare with the policy unrolled in one call.

    Args:
        pi: the policy.
        recurrent_spec: describes its recurrent state.
        examples: raw observations by input name.
        tolerance: the relative tolerance, and the absolute tolerance for small values.
        run: computes signatures.

    Raises:
        ExportError: they differ.
    """
    spec = recurrent_spec.spec
    rewards = np.stack([np.roll(example_rewards(examples, 1), -t) for t in range(STEPS)], axis=1)
    episodes = _in_turn(examples)
    steps = run_steps(recurrent_spec, run, episodes, rewards)
    action = np.stack([step["pi"] for step in steps], axis=1)
    previous = previous_inputs(recurrent_spec, action, rewards)
    valid = tf.ones(action.shape[:2], tf.bool)
    features, state = pi.unroll(tensors(spec, episodes), previous, valid, pi.initial_state(previous))
    expected = chosen_actions(spec, pi.apply_torso(flat(features))).numpy()
    found = np.concatenate([steps[-1][name] for name, _ in recurrent_spec.parts], axis=1)
    compare("pi, stepped from initial_state", action, expected.reshape(action.shape), tolerance, tolerance)
    compare("pi, stepped from initial_state", found, state.numpy(), tolerance, tolerance)


def check_nonfinite(name: str, inputs: Inputs, spec: Spec, run: Run) -> None:
    """Check the rule on non-finite observations, on a batch whose first observation is not finite.

    The outputs of the first row must be NaN, except that the recurrent state must be unchanged. The outputs of the
    other rows must be the same as beside a finite observation.

    Args:
        name: the signature, which computes one step for each row.
        inputs: a batch of several rows.
        spec: the spaces.
        run: computes the signature.

    Raises:
        ExportError: the signature does something else.
    """
    for key in (leaf.name for leaf in spec.leaves if leaf.dtype == "float32"):
        finite = {**inputs, key: inputs[key].copy()}
        finite[key][0] = 0  # what a network receives in place of non-finite numbers; this matters if it mixes rows
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
                    f"The signature {name!r} must answer an observation that is not finite with NaN, and return the "
                    f"recurrent state unchanged. Received: {output}={values[0]!r}. Models of older versions must be "
                    "exported again."
                )
            compare(f"{name} beside an observation that is not finite", values[1:], clean[output][1:], ATOL)


def check_missing(
    name: str, inputs: Inputs, spec: Spec, run: Run, reference: Reference, in_half_precision: bool = False
) -> None:
    """Check that missing numbers are held: the outputs for NaN and infinities are those of the networks.

    Args:
        name: the signature, which computes one step for each row.
        inputs: a batch of several rows.
        spec: the spaces.
        run: computes the signature.
        reference: computes the expected outputs.
        in_half_precision: see `compare_signature`.

    Raises:
        ExportError: the signature does something else.
    """
    missing: dict[str, np.ndarray] = {**inputs}
    for leaf in spec.leaves:
        missing[leaf.name] = inputs[leaf.name].copy()
        missing[leaf.name].reshape(len(inputs[leaf.name]), -1)[:2, ::2] = [[np.nan], [np.inf]]
    what = f"{name}, with missing numbers"
    compare_signature(what, lambda _, given: run(name, given), reference, [missing], in_half_precision)


def open_session(
    directory: Path, config: Any = None, trusted: bool = False
) -> tuple[tf.compat.v1.Session, Mapping[str, Any]]:
    """Load a SavedModel into a new session, and return the session and the SignatureDefs by name.

    Args:
        directory: the SavedModel.
        config: a `ConfigProto`; None for the default.
        trusted: whether to load it without checking its operations.

    Raises:
        ExportError: it does not load, or an operation is refused.
    """
    graph = tf.Graph()
    session = tf.compat.v1.Session(graph=graph, config=config)
    try:
        with loadable(directory, trusted) as path, quiet("tensorflow", logging.ERROR), graph.as_default():
            return session, dict(tf.compat.v1.saved_model.load(session, ["serve"], path).signature_def)
    except Exception as error:
        session.close()
        if isinstance(error, ExportError):
            raise
        raise ExportError(f"The exported model does not load in a session: {error}") from error


@contextlib.contextmanager
def in_session(directory: Path, trusted: bool = False) -> Iterator[Run]:
    """Load a SavedModel into a session, and return a function that computes its signatures.

    `tf.saved_model.load` would not show that a model can be served, because it resolves variables through Python
    objects.

    The session's graph is not the default graph, so networks can be called eagerly meanwhile.

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
def in_float32() -> Iterator[None]:
    """Let a GPU multiply matrices in float32 inside the context, not in TensorFloat-32.

    The rounding errors of TensorFloat-32, which is TensorFlow's default, are larger than the tolerances.
    """
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


@contextlib.contextmanager
def quiet(library: str, below: int) -> Iterator[None]:
    """Suppress a library's log messages below a level."""
    logger = logging.getLogger(library)
    level = logger.level
    logger.setLevel(below)
    try:
        yield
    finally:
        logger.setLevel(level)


def scale(wanted: np.ndarray) -> float:
    """Return the largest finite magnitude in an array, or 1 if it is larger."""
    return float(np.max(np.abs(wanted), initial=1, where=np.isfinite(wanted)))


def rounded_outputs(spec: Spec) -> frozenset[str]:
    """Return the names of the outputs that are rounded to integers."""
    return frozenset() if spec.integer_type is None else frozenset({"pi", "action"})


def equal_choices(found: Inputs, wanted: Inputs, rounded: Set[str]) -> Any:
    """Return the rows in which all integers are equal: half precision may swap two actions of almost equal value."""
    chosen = [name for name, values in wanted.items() if np.issubdtype(values.dtype, np.integer) or name in rounded]
    equal = [(found[name] == wanted[name]).reshape(len(wanted[name]), -1).all(axis=1) for name in chosen]
    return np.all(equal, axis=0) if chosen else ...


def compare(name: str, found: np.ndarray, expected: np.ndarray, atol: float, rtol: float = RTOL) -> float:
    """Compare an output of a signature with the agent's, and return the largest difference of finite numbers.

    Raises:
        ExportError: the shapes differ, or a difference is above the tolerance; the message names the signature.
    """
    if found.shape != expected.shape:
        raise ExportError(f"The signature {name!r} returns shape {found.shape}; the agent's is {expected.shape}")
    differs = ~np.isclose(found, expected, rtol, atol)
    if differs.any():
        worst = np.max(np.abs(found[differs] - expected[differs]))
        raise ExportError(f"The signature {name!r} differs from the agent by up to {worst} (rtol {rtol}, atol {atol})")
    finite = np.isfinite(expected)
    return float(np.max(np.abs(found[finite] - expected[finite]), initial=0))


def as_run(references: Mapping[str, Reference]) -> Run:
    """Return a function that computes the expected outputs of signatures by their names."""
    return lambda name, inputs: references[name](inputs)
