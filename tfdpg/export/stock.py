"""`policy.npz`: a stock policy for runtimes without TensorFlow, verified like the signatures."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tfdpg.acting import MLPActor, MLPCritic, Recall, load_actor, load_critics, save_actor
from tfdpg.export.verify import ATOL, Inputs, Reference, compare, scale
from tfdpg.exported import STOCK, packed_inputs
from tfdpg.spec import Spec


def write_stock(
    directory: Path,
    spec: Spec,
    actor: MLPActor,
    critics: Mapping[str, MLPCritic],
    recall: Recall | None,
    references: Mapping[str, Reference],
    cases: Mapping[str, Sequence[Inputs]],
) -> None:
    """Writes `policy.npz`, and compares what it holds with the networks.

    Args:
        directory: the SavedModel.
        spec: the spaces.
        actor: the policy.
        critics: by the names of their signatures.
        recall: what the policy recalls; None where it has no memory.
        references: what signatures must compute.
        cases: inputs of the signatures.

    Raises:
        ExportError: actions or values differ.
    """
    save_actor(directory / STOCK, actor, critics)
    written = load_actor(directory / STOCK, spec, recall)
    expected = [_joined(references["pi"](inputs)) for inputs in cases["pi"]]
    atol = ATOL * max(map(scale, expected))
    for inputs, wanted in zip(cases["pi"], expected, strict=True):
        compare(f"pi of {STOCK}", written.greedy(packed_inputs(spec, recall, inputs)), wanted, atol)
    for name, critic in load_critics(directory / STOCK, spec).items():
        for inputs in cases[name]:
            asked = packed_inputs(spec, None, inputs), inputs["a"]
            summands = max(map(scale, (critic.output(*asked), critic.atoms)))  # a mean is rounded as they are
            compare(f"{name} of {STOCK}", critic(*asked), references[name](inputs)[name], ATOL * summands)


def _joined(outputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """What is given, with the parts of a state behind it."""
    parts = list(outputs.values())
    return np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]
