"""What a policy recalls, by the names that its export has for it."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfdpg.acting import RecurrentSpec
from tfdpg.spec import Packed, Spec


def named_recurrent_inputs(recurrent_spec: RecurrentSpec, recurrent_inputs: Any) -> dict[str, Any]:
    """What is recalled (see `RecurrentSpec`), `[batch, n]`, by the names of the inputs of `pi`."""
    names = {"a_before": recurrent_inputs[:, : recurrent_spec.spec.act_dim]} if recurrent_spec.uses_action else {}
    start = recurrent_spec.previous_width
    if recurrent_spec.uses_reward:
        names["r_before"] = recurrent_inputs[:, start - 1]
    for name, width in recurrent_spec.parts:
        names[name] = recurrent_inputs[:, start : start + width]
        start += width
    return names


def recurrent_metadata(recurrent_spec: RecurrentSpec) -> dict[str, Any]:
    """What `tfdpg.json` says of a memory: what is seen of each step, and the parts of the state in their order."""
    remembers = ["observation", *["action"] * recurrent_spec.uses_action, *["reward"] * recurrent_spec.uses_reward]
    return {"remembers": remembers, "state": [{"name": name, "shape": [width]} for name, width in recurrent_spec.parts]}


def recurrent_spec_of(spec: Spec, metadata: Mapping[str, Any]) -> RecurrentSpec | None:
    """The inverse of `recurrent_metadata`; None where there is no memory."""
    if "state" not in metadata:
        return None
    remembers = metadata["remembers"]
    parts = [(part["name"], *part["shape"]) for part in metadata["state"]]
    if not all(isinstance(name, str) and isinstance(width, int) and width > 0 for name, width in parts):
        raise ValueError(f"`state` must have texts as names and positive integers as widths. Received: {parts}")
    return RecurrentSpec(spec, "action" in remembers, "reward" in remembers, tuple(parts), stored=False)


def packed_inputs(spec: Spec, recurrent_spec: RecurrentSpec | None, inputs: Mapping[str, np.ndarray]) -> Packed:
    """The inputs of `pi`, by name, as forward passes take them (see `tfdpg.acting.ForwardPass`)."""
    observation = {leaf.name: inputs[leaf.name] for leaf in spec.leaves}
    packed = spec.pack(observation if spec.is_dict else observation.popitem()[1])
    if recurrent_spec is None:
        return packed
    names = named_recurrent_inputs(recurrent_spec, recurrent_spec.initial_state(0))
    return (*packed, np.concatenate([inputs[name].reshape(len(packed[0]), -1) for name in names], axis=1))


def step(
    spec: Spec, recurrent_spec: RecurrentSpec | None, run: Callable[[str, Any], Mapping[str, Any]], packed: Packed
) -> np.ndarray:
    """The forward pass of a policy (see `tfdpg.acting.ForwardPass`), computed by its signature `pi`.

    Args:
        spec: the spaces.
        recurrent_spec: describes the recurrent state; None for a policy without one.
        run: computes a signature, from its name and its inputs by name.
        packed: observations, and the recurrent state if there is one.
    """
    inputs = spec.unpack(packed)
    if recurrent_spec is None:
        return run("pi", inputs)["pi"]
    outputs = run("pi", inputs | named_recurrent_inputs(recurrent_spec, packed[-1]))
    return np.concatenate([outputs["pi"], *(outputs[name] for name, _ in recurrent_spec.parts)], axis=1)
