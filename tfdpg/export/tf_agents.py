"""A policy as TF-Agents' `PolicySaver` writes it, so that clients of one go on.

Source: `tf_agents/policies/policy_saver.py` of TF-Agents 0.19, which names inputs and outputs by their places in
`(TimeStep, policy_state)` and `PolicyStep`, joined by slashes.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from gymnasium import spaces

from tfdpg.acting import Recall
from tfdpg.arguments import reject
from tfdpg.export.signature import Outputs, Signature
from tfdpg.exported import named
from tfdpg.networks import network_inputs
from tfdpg.spec import Leaf, Spec

FIRST = 0
"""The step type that an episode begins with; 1 is one within, 2 its last."""


def with_signatures_of(
    library: str | None, spec: Spec, signatures: Mapping[str, Signature], recall: Recall | None = None
) -> dict[str, Signature]:
    """The signatures of an export, and those that another library's clients ask for.

    `action(0/step_type, 0/reward, 0/discount, 0/observation) → action`; a Dict observation has `0/observation/<key>`
    for each key. A policy with a memory also takes `1/<part>` and gives `state/<part>`, and
    `get_initial_state(batch_size)` gives each `<part>`; the reward that it remembers is `0/reward`, and where
    `0/step_type` is 0 it begins anew. Otherwise only observations count.

    Args:
        library: "tf-agents", or None.
        spec: the spaces.
        signatures: what the export has anyway.
        recall: what the policy recalls of an episode; None where it has no memory.

    Raises:
        ValueError: another library.
    """
    if library not in (None, "tf-agents"):
        raise reject("signatures", 'None or "tf-agents"', library)
    if library is None:
        return dict(signatures)
    more = {"action": _action(spec, signatures["pi"], recall)}
    if recall is not None:
        more["get_initial_state"] = _initial_state(signatures["initial_state"])
    return {**signatures, **more}


def _action(spec: Spec, pi: Signature, recall: Recall | None) -> Signature:
    parts = {name: tensor for name, tensor in pi.inputs.items() if name != "r_before"}
    inputs = {"0/step_type": tf.int32, "0/reward": tf.float32, "0/discount": tf.float32}
    inputs = {name: tf.TensorSpec([None], dtype, name=name) for name, dtype in inputs.items()}
    inputs |= {_place(spec, leaf): _tensor(spec, leaf) for leaf in spec.leaves}
    inputs |= {f"1/{name}": tf.TensorSpec(part.shape, part.dtype, name=f"1/{name}") for name, part in parts.items()}

    def compute(_: None, **given: Any) -> Outputs:
        raw = {leaf.name: tf.cast(given[_place(spec, leaf)], leaf.dtype) for leaf in spec.leaves}
        recalled = {name: given[f"1/{name}"] for name in parts}
        if recall is not None:
            recalled |= {"r_before": given["0/reward"]} if recall.reward else {}
            start, begins = named(recall, tf.constant(recall.start(1))), given["0/step_type"] == FIRST
            recalled = {name: _where(begins, start[name], values) for name, values in recalled.items()}
        outputs = pi.compute(network_inputs(spec, raw), **recalled)
        action = tf.reshape(outputs["pi"], [-1, *spec.act_shape])
        return {"action": action} | {f"state/{name}": {"a_before": outputs["pi"], **outputs}[name] for name in parts}

    def examples(observations: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        count = len(next(iter(observations.values())))
        given = {"0/step_type": np.arange(1, count + 1, dtype=np.int32) % 3}  # 1 is neither the first nor the last
        given |= {"0/reward": np.linspace(-1, 1, count, dtype=np.float32), "0/discount": np.ones(count, np.float32)}
        for leaf in spec.leaves:
            given[_place(spec, leaf)] = observations[leaf.name].astype(_tensor(spec, leaf).dtype.as_numpy_dtype)
        past = pi.examples(observations)
        return given | {f"1/{name}": past[name] for name in parts}

    return Signature(compute, inputs, examples, axes=0)


def _initial_state(begin: Signature) -> Signature:
    """What episodes begin with; the reward comes with the time step."""

    def compute(_: None, batch_size: Any) -> Outputs:
        return {name: values for name, values in begin.compute(None, batch_size).items() if name != "r_before"}

    inputs = {"batch_size": tf.TensorSpec([], tf.int32, name="batch_size")}
    return Signature(compute, inputs, lambda rows: {"batch_size": begin.examples(rows)["batch"]}, axes=0)


def _place(spec: Spec, leaf: Leaf) -> str:
    return f"0/observation/{leaf.name}" if spec.is_dict else "0/observation"


def _tensor(spec: Spec, leaf: Leaf) -> tf.TensorSpec:
    """As TF-Agents has it: Discrete is int64 there."""
    dtype = tf.int64 if isinstance(leaf.space, spaces.Discrete) else leaf.dtype
    return tf.TensorSpec([None, *leaf.shape], dtype, name=_place(spec, leaf))


def _where(begins: tf.Tensor, start: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    return tf.where(tf.reshape(begins, [-1, *[1] * (len(values.shape) - 1)]), start, values)
