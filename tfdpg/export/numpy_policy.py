"""`policy.npz`: a stock policy for runtimes without TensorFlow, verified like the signatures."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tfdpg.acting import NumpyCritic, NumpyPolicy, RecurrentSpec, load_critics, load_numpy_policy, save_numpy_policy
from tfdpg.export.verify import ATOL, Inputs, Reference, compare, scale
from tfdpg.exported import NUMPY_POLICY, packed_inputs
from tfdpg.spec import Spec


def write_numpy_policy(
    directory: Path,
    spec: Spec,
    actor: NumpyPolicy,
    critics: Mapping[str, NumpyCritic],
    recurrent_spec: RecurrentSpec | None,
    references: Mapping[str, Reference],
    cases: Mapping[str, Sequence[Inputs]],
) -> None:
    """Writes `policy.npz`, and compares what it holds with the networks.

    Args:
        directory: the SavedModel.
        spec: the spaces.
        actor: the policy.
        critics: by the names of their signatures.
        recurrent_spec: what the policy recalls; None where it has no memory.
        references: what signatures must compute.
        cases: inputs of the signatures.

    Raises:
        ExportError: actions or values differ.
    """
    save_numpy_policy(directory / NUMPY_POLICY, actor, critics)
    written = load_numpy_policy(directory / NUMPY_POLICY, spec, recurrent_spec)
    expected = [_joined(references["pi"](inputs)) for inputs in cases["pi"]]
    atol = ATOL * max(map(scale, expected))
    for inputs, wanted in zip(cases["pi"], expected, strict=True):
        compare(f"pi of {NUMPY_POLICY}", written.greedy(packed_inputs(spec, recurrent_spec, inputs)), wanted, atol)
    for name, critic in load_critics(directory / NUMPY_POLICY, spec).items():
        for inputs in cases[name]:
            critic_inputs = packed_inputs(spec, None, inputs), inputs["a"]
            wanted = references[name](inputs)[name]
            compare(f"{name} of {NUMPY_POLICY}", critic(*critic_inputs), wanted, ATOL * critic.summand(scale(wanted)))


def _joined(outputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """What is given, with the parts of a state behind it."""
    parts = list(outputs.values())
    return np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]
