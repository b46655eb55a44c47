"""`policy.npz`: the weights of a built-in policy for processes without TensorFlow, verified like the signatures."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tfdpg.acting import NumpyCritic, NumpyPolicy, RecurrentSpec, greedy_forward
from tfdpg.acting.stored import load_critics, load_numpy_policy, save_numpy_policy
from tfdpg.export.verify import ATOL, Inputs, Reference, compare, scale
from tfdpg.exported.policy import NUMPY_POLICY, packed_inputs
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
    """Write `policy.npz`, load it, and compare the loaded policy and critics with the networks.

    Args:
        directory: the SavedModel.
        spec: the spaces.
        actor: the policy.
        critics: the critics, by the names of their signatures.
        recurrent_spec: describes the recurrent state; None for a policy without recurrent layers.
        references: the expected outputs of the signatures.
        cases: the inputs of the signatures.

    Raises:
        ExportError: actions or values differ.
    """
    save_numpy_policy(directory / NUMPY_POLICY, actor, critics)
    act = greedy_forward(spec, recurrent_spec, load_numpy_policy(directory / NUMPY_POLICY, spec, recurrent_spec))
    expected = [_joined(references["pi"](inputs)) for inputs in cases["pi"]]
    atol = ATOL * max(map(scale, expected))
    for inputs, wanted in zip(cases["pi"], expected, strict=True):
        compare(f"pi of {NUMPY_POLICY}", act(packed_inputs(spec, recurrent_spec, inputs)), wanted, atol)
    for name, critic in load_critics(directory / NUMPY_POLICY, spec).items():
        for inputs in cases[name]:
            critic_inputs = packed_inputs(spec, None, inputs), inputs["a"]
            wanted = references[name](inputs)[name]
            compare(f"{name} of {NUMPY_POLICY}", critic(*critic_inputs), wanted, ATOL * critic.summand(scale(wanted)))


def _joined(outputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Concatenate the outputs of `pi`: the action, and the parts of the recurrent state."""
    parts = list(outputs.values())
    return np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]
