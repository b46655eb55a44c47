"""How near a format is to what it was made of, in its own runtime."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tfdpg.export.contract import UNITS
from tfdpg.export.recurrent import STEPS, next_step_inputs
from tfdpg.export.source import Source
from tfdpg.export.verify import Inputs, Reference, Run, compare_signature, scale


def differences(
    source: Source, run: Run, references: Mapping[str, Reference], names: Sequence[str]
) -> dict[str, float]:
    """The largest difference of each of some signatures from what it must compute.

    Args:
        source: has the inputs.
        run: computes the signatures in the format's own runtime.
        references: what all of them must compute.
        names: of the signatures.

    Raises:
        ExportError: one differs by more than rounding.
    """
    half = source.in_half_precision()
    returns = [name for name, unit in UNITS.items() if unit == "return"]
    expected_outputs = [references[name](inputs) for name in source.signatures for inputs in source.cases[name]]
    widest = max(scale(outputs[name]) for outputs in expected_outputs for name in returns if name in outputs)
    summands = dict.fromkeys(returns, widest)  # a value near 0 may be the mean of large atoms
    largest = {
        name: compare_signature(name, run, references[name], source.cases[name], half, summands) for name in names
    }
    if source.recurrent_spec is not None:
        wanted = iter(_actions(source, _as_run(references), source.observations))
        found = iter(_actions(source, run, source.observations))
        stepped = compare_signature("pi", lambda *_: next(found), lambda _: next(wanted), [{}] * STEPS, half)
        largest["pi"] = max(largest["pi"], stepped)
    return largest


class ActionError(NamedTuple):
    """How far the actions of a quantized policy are from those of the original one.

    Attributes:
        largest: the largest error of a number of an action, in units of the action scale; or, if actions are Discrete,
            the share of observations for which the action is another.
        mean: the mean error, in the same units.
        observations: the number of observations.
    """

    largest: float
    mean: float
    observations: int


def action_error(source: Source, run: Run, references: Mapping[str, Reference], observations: Inputs) -> ActionError:
    """Measures the error of the actions for raw observations, of all in one call and of the first one alone."""
    spec = source.spec
    largest = []
    means = []
    for rows in (observations, {name: values[:1] for name, values in observations.items()}):
        wanted = _actions(source, _as_run(references), rows)
        for outputs, right in zip(_actions(source, run, rows), wanted, strict=True):
            off = np.abs(outputs["pi"] - right["pi"])
            errors = off > 0 if spec.actions is not None else off / spec.action_scale
            means.append(np.mean(errors))
            largest.append(means[-1] if spec.actions is not None else np.max(errors))
    steps = len(means) // 2  # those of all observations; then come those of the first one
    return ActionError(float(np.max(largest)), float(np.mean(means[:steps])), _count(observations))


def _actions(source: Source, run: Run, observations: Inputs) -> list[dict[str, np.ndarray]]:
    """What `pi` gives; with a memory, at each step of episodes that see these observations in turn, without rewards."""
    if source.recurrent_spec is None:
        return [run("pi", observations)]
    count = _count(observations)
    steps = []
    given = run("initial_state", {"batch": np.array(count, np.int32)})
    for t in range(STEPS):
        rows = {name: np.roll(values, -t, axis=0) for name, values in observations.items()}
        steps.append(run("pi", rows | given))
        given = next_step_inputs(source.recurrent_spec, steps[-1], np.zeros(count, np.float32))
    return steps


def _as_run(references: Mapping[str, Reference]) -> Run:
    return lambda name, inputs: references[name](inputs)


def _count(observations: Inputs) -> int:
    return len(next(iter(observations.values())))
