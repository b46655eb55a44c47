"""How near a format is to what it was made of, in its own runtime."""

from collections.abc import Mapping, Sequence

import numpy as np

from tfdpg.export.contract import UNITS
from tfdpg.export.memory import STEPS, follow
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
    judged = [references[name](inputs) for name in source.signatures for inputs in source.cases[name]]
    widest = max(scale(outputs[name]) for outputs in judged for name in returns if name in outputs)
    summands = dict.fromkeys(returns, widest)  # a value near 0 may be the mean of large atoms
    largest = {
        name: compare_signature(name, run, references[name], source.cases[name], half, summands) for name in names
    }
    if source.recall is not None:
        wanted = iter(_actions(source, _asked(references), source.observations))
        found = iter(_actions(source, run, source.observations))
        stepped = compare_signature("pi", lambda *_: next(found), lambda _: next(wanted), [{}] * STEPS, half)
        largest["pi"] = max(largest["pi"], stepped)
    return largest


def action_error(
    source: Source, run: Run, references: Mapping[str, Reference], observations: Inputs
) -> tuple[float, int]:
    """The largest error of the actions for raw observations, of all at once and of the first one alone.

    Returns:
        The error in half-ranges, or the share of observations with another action if Discrete; and how many they are.
    """
    errors, spec = [], source.spec
    for rows in (observations, {name: values[:1] for name, values in observations.items()}):
        wanted = _actions(source, _asked(references), rows)
        for outputs, right in zip(_actions(source, run, rows), wanted, strict=True):
            off = np.abs(outputs["pi"] - right["pi"])
            errors.append(np.mean(off > 0) if spec.actions is not None else np.max(off / spec.half_range))
    return float(np.max(errors)), _count(observations)


def _actions(source: Source, run: Run, observations: Inputs) -> list[dict[str, np.ndarray]]:
    """What `pi` gives; with a memory, at each step of episodes that see these observations in turn, without rewards."""
    if source.recall is None:
        return [run("pi", observations)]
    count, steps = _count(observations), []
    given = run("initial_state", {"batch": np.array(count, np.int32)})
    for t in range(STEPS):
        rows = {name: np.roll(values, -t, axis=0) for name, values in observations.items()}
        steps.append(run("pi", rows | given))
        given = follow(source.recall, steps[-1], np.zeros(count, np.float32))
    return steps


def _asked(references: Mapping[str, Reference]) -> Run:
    return lambda name, inputs: references[name](inputs)


def _count(observations: Inputs) -> int:
    return len(next(iter(observations.values())))
