"""`policy.npz`: a stock policy for runtimes without TensorFlow, verified like the signatures."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tfdpg.acting import MLPActor, Recall, load_actor, save_actor
from tfdpg.export.verify import ATOL, Inputs, Reference, compare, scale
from tfdpg.exported import STOCK, packed_inputs
from tfdpg.spec import Spec


def write_stock(
    directory: Path, spec: Spec, actor: MLPActor, recall: Recall | None, pi: Reference, cases: Sequence[Inputs]
) -> None:
    """Writes `policy.npz`, and compares what it holds with the policy.

    Args:
        directory: the SavedModel.
        spec: the spaces.
        actor: the policy.
        recall: what it recalls; None where it has no memory.
        pi: what it must compute.
        cases: inputs of the signature `pi`.

    Raises:
        ExportError: the actions differ.
    """
    save_actor(directory / STOCK, actor)
    written = load_actor(directory / STOCK, spec, recall)
    expected = [_joined(pi(inputs)) for inputs in cases]
    atol = ATOL * max(map(scale, expected))
    for inputs, wanted in zip(cases, expected, strict=True):
        compare(STOCK, written.greedy(packed_inputs(spec, recall, inputs)), wanted, atol)


def _joined(outputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """The actions, with the parts of the state behind them."""
    return np.concatenate(list(outputs.values()), axis=1) if len(outputs) > 1 else outputs["pi"]
