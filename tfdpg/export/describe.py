"""What an exported model holds, for people."""

import json
from pathlib import Path

import tensorflow as tf

from tfdpg.export.contract import in_order
from tfdpg.exported import Policy, load

SKIPPED = ("observation_space", "action_space", "format", "files", "sha256")
"""What of `tfdpg.json` is shown in other words, or says nothing to people."""
STEPS = ("pi", "serving_default", "initial_state", "action", "get_initial_state")
"""What of a policy with a memory is of single steps, and not of sequences."""


def describe(directory: str | Path, trusted: bool = False) -> str:
    """What an exported model holds, for people: its signatures with shapes and types, and `tfdpg.json`.

    Args:
        directory: see `load`.
        trusted: see `load`.
    """
    policy = load(directory, trusted=trusted)
    lines = [str(policy.directory), "signatures:"]
    for name, signature in policy._model.signatures.items():
        _, inputs = signature.structured_input_signature
        inputs = {tensor.name: tensor for tensor in inputs.values()}  # arguments are called otherwise: no slashes
        is_step = policy.recurrent_spec is None or name in STEPS
        axes = ("batch",) if is_step else ("batch", "time")
        lines.append(
            f"  {name}({_tensors(policy, inputs, axes)}) -> {_tensors(policy, signature.structured_outputs, axes)}"
        )
    lines += [f"observation space: {policy.spec.observation_space}", f"action space: {policy.spec.action_space}"]
    lines += [f"{key}: {json.dumps(value)}" for key, value in policy.metadata.items() if key not in SKIPPED]
    return "\n".join(lines)


def _tensors(policy: Policy, specs: dict[str, tf.TensorSpec], axes: tuple[str, ...]) -> str:
    """Inputs or outputs in their order."""
    names = in_order(specs, policy.spec, policy.recurrent_spec)
    return ", ".join(f"{name}: {_described(specs[name], axes)}" for name in names)


def _described(spec: tf.TensorSpec, axes: tuple[str, ...]) -> str:
    if spec.shape.rank is None:
        return f"{spec.dtype.name}[levels] or [batch, levels]"
    names = [*axes, *["any"] * spec.shape.rank]
    shape = [names[axis] if size is None else str(size) for axis, size in enumerate(spec.shape)]
    return f"{spec.dtype.name}[{', '.join(shape)}]"
