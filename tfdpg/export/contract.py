"""What `tfdpg.json` says of signatures: the inputs in their order, the outputs, and what their numbers mean."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdpg.acting import RecurrentSpec
from tfdpg.spaces import compact
from tfdpg.spec import Leaf, Spec

Tensors = Mapping[str, Any]
"""Tensors, or what has a dtype and a shape as they have, by name."""

UNITS = {
    **dict.fromkeys(("a", "pi", "a_before", "loc", "scale"), "action"),
    **dict.fromkeys(("r", "r_before"), "reward"),
    **dict.fromkeys(("q1", "q2", "v", "atoms", "means", "stddevs", "quantiles", "cvar"), "return"),
    **dict.fromkeys(("probs", "weights", "levels"), "probability"),
    "batch": "count",
}
"""What the numbers of an input or output are, where it is neither a part of the observation nor of a state."""


def in_order(names: Iterable[str], spec: Spec, recurrent_spec: RecurrentSpec | None) -> list[str]:
    """Inputs or outputs: the observation first, then what is recalled in its order, then actions and the rest."""
    parts = () if recurrent_spec is None else dict(recurrent_spec.parts)
    order = [leaf.name for leaf in spec.leaves] + ["pi", "q1", "q2", "a_before", "r_before", *parts]
    order += ["a", "r", "levels"]
    return sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name))


def signature_facts(
    inputs: Tensors, outputs: Tensors, spec: Spec, recurrent_spec: RecurrentSpec | None
) -> dict[str, Any]:
    """The `inputs` and `outputs` of a signature; see `tensor_facts`."""
    lengths = {leaf.name: len(leaf.shape) for leaf in spec.leaves}
    over_time = any(name in lengths and len(each.shape) == lengths[name] + 2 for name, each in inputs.items())
    tensors = {"inputs": inputs, "outputs": outputs}
    return {key: tensor_facts(each, spec, recurrent_spec, over_time) for key, each in tensors.items()}


def tensor_facts(
    tensors: Tensors, spec: Spec, recurrent_spec: RecurrentSpec | None, over_time: bool
) -> list[dict[str, Any]]:
    """The inputs or outputs of a signature, in their order.

    Args:
        tensors: by name.
        spec: the spaces.
        recurrent_spec: what the policy recalls; None where it has no memory.
        over_time: whether they are sequences.

    Returns:
        For each `name`, `dtype`, `shape` with words for free axes, `unit`, and `low` and `high` where it is bounded.
    """
    leaves = {leaf.name: leaf for leaf in spec.leaves}
    facts = []
    for name in in_order(tensors, spec, recurrent_spec):
        dtype = tensors[name].dtype.name
        shape = _shape(tensors[name].shape, over_time)
        about = {"name": name, "dtype": dtype, "shape": shape}
        if recurrent_spec is not None and name in dict(recurrent_spec.parts):
            about["unit"] = "state"
        elif name in leaves:
            about |= {"unit": "observation"} | _bounds(*_range(leaves[name]))
        elif name in UNITS:
            about["unit"] = UNITS[name]
        if about.get("unit") == "action" and name != "scale":
            about |= _bounds(spec.low, spec.high)
        facts.append(about)
    return facts


def _shape(shape: tf.TensorShape, over_time: bool) -> list[Any]:
    words = iter(["batch", "time", "levels"] if over_time else ["batch", "levels"])
    if shape.rank is None:  # `levels`, and what comes of them, which may also be without a batch
        return [*words]
    return [next(words) if size is None else size for size in shape]


def _range(leaf: Leaf) -> Any:
    space: Any = leaf.space
    return leaf.integer_bounds or (space.low, space.high)


def _bounds(low: Any, high: Any) -> dict[str, Any]:
    return {"low": compact(np.asarray(low)), "high": compact(np.asarray(high))}
