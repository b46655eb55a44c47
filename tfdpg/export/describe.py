"""Descriptions of exported models: the signatures in `tfdpg.json`, and a text for people."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdpg.acting import RecurrentSpec
from tfdpg.export.labels import read_labels
from tfdpg.exported import check_safe, load
from tfdpg.exported.versions import AGENT_FACTS
from tfdpg.spaces import compact
from tfdpg.spec import Spec

UNITS = {
    **dict.fromkeys(("a", "pi", "a_before", "loc", "scale"), "action"),
    **dict.fromkeys(("r", "r_before"), "reward"),
    **dict.fromkeys(("atoms", "means", "stddevs", "quantiles", "cvar"), "return"),
    **dict.fromkeys(("probs", "weights", "levels"), "probability"),
    "batch": "count",
}
"""The units of inputs and outputs that are neither parts of the observation nor of the recurrent state."""
SKIPPED = (
    *("observation_space", "action_space", "format", "signatures", "files", "sha256"),
    *AGENT_FACTS,
)
"""The entries of `tfdpg.json` that `describe` omits or formats itself."""


def describe(directory: str | Path, trusted: bool = False) -> str:
    """Describe an exported model for people: its signatures with types and shapes, and `tfdpg.json`.

    Args:
        directory: see `load`.
        trusted: whether to describe the model without checking its operations.

    Raises:
        FileNotFoundError, ExportError: see `load`.
        ExportError: an operation is refused.
    """
    policy = load(directory)
    if not trusted:
        check_safe(policy.directory)
    labels = [
        label
        for label, version in read_labels(policy.directory.parent).items()
        if str(version) == policy.directory.name
    ]
    lines = [str(policy.directory), *([f"labels: {', '.join(labels)}"] if labels else []), "signatures:"]
    for name, signature in policy.metadata["signatures"].items():
        lines.append(f"  {name}({_formatted(signature['inputs'])}) -> {_formatted(signature['outputs'])}")
    lines += [f"observation space: {policy.spec.observation_space}", f"action space: {policy.spec.action_space}"]
    lines += [f"{key}: {json.dumps(value)}" for key, value in policy.metadata.items() if key not in SKIPPED]
    return "\n".join(lines)


def _formatted(tensors: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(f"{one['name']}: {one['dtype']}[{', '.join(map(str, one['shape']))}]" for one in tensors)


def signature_facts(
    function: Any, spec: Spec, recurrent_spec: RecurrentSpec | None, values: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """Describe the inputs and the outputs of a signature for `tfdpg.json`.

    Args:
        function: the signature, a concrete function.
        spec: the spaces.
        recurrent_spec: describes the policy's recurrent state; None for a policy without recurrent layers.
        values: the names of the signatures whose outputs, which have these names, are values.

    Returns:
        `inputs` and `outputs`. Each has a list with the `name`, `dtype`, `shape` (with the names of free axes), `unit`
        and, if it is bounded, `low` and `high` of the tensors. The observation comes first, then the action and values,
        the recurrent state, and the rest.
    """
    leaves = {leaf.name: leaf for leaf in spec.leaves}
    parts = () if recurrent_spec is None else dict(recurrent_spec.parts)
    order = [*leaves, "pi", *values, "a_before", "r_before", *parts, "a", "r", "levels"]
    inputs = {each.name: each for each in tf.nest.flatten(function.structured_input_signature)}
    units = UNITS | dict.fromkeys(values, "return")
    over_time = any(name in leaves and each.shape.rank == len(leaves[name].shape) + 2 for name, each in inputs.items())
    facts = {}
    for key, tensors in (("inputs", inputs), ("outputs", function.structured_outputs)):
        names = sorted(tensors, key=lambda name: (order.index(name) if name in order else len(order), name))
        facts[key] = []
        for name in names:
            about = {
                "name": name,
                "dtype": tensors[name].dtype.name,
                "shape": _shape(tensors[name].shape, over_time and name != "levels"),
            }
            if name in parts:
                about["unit"] = "state"
            elif name in leaves:
                space: Any = leaves[name].space
                about |= {"unit": "observation"} | _bounds(*leaves[name].integer_bounds or (space.low, space.high))
            elif name in units:
                about["unit"] = units[name]
            if about.get("unit") == "action" and name != "scale":
                about |= _bounds(spec.low, spec.high)
            facts[key].append(about)
    return facts


def _shape(shape: tf.TensorShape, over_time: bool) -> list[Any]:
    words = iter(["batch", "time", "levels"] if over_time else ["batch", "levels"])
    if shape.rank is None:  # outputs that have the shape of `levels`
        return [*words]
    return [next(words) if size is None else size for size in shape]


def _bounds(low: Any, high: Any) -> dict[str, Any]:
    return {"low": compact(np.asarray(low)), "high": compact(np.asarray(high))}
