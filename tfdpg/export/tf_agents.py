"""A policy as TF-Agents' `PolicySaver` writes it, so that clients of one go on.

Source: `tf_agents/policies/policy_saver.py` of TF-Agents 0.19, which names inputs and outputs by their places in
`(TimeStep, policy_state)` and `PolicyStep`, joined by slashes.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from gymnasium import spaces

from tfdpg.acting import RecurrentSpec
from tfdpg.arguments import reject
from tfdpg.export.signature import Outputs, Signature
from tfdpg.exported import named_recurrent_inputs
from tfdpg.networks import network_inputs
from tfdpg.spec import Leaf, Spec

FIRST = 0
"""The step type that an episode begins with; 1 is one within, 2 its last."""
STEP = {"step_type": tf.int32, "reward": tf.float32, "discount": tf.float32}
"""What comes with an observation."""


class TimeStep(NamedTuple):
    """To TensorFlow the same as TF-Agents': it compares such tuples by their names."""

    step_type: Any
    reward: Any
    discount: Any
    observation: Any


class PolicyStep(NamedTuple):
    """To TensorFlow the same as TF-Agents'."""

    action: Any
    state: Any
    info: Any


def with_signatures_of(
    library: str | None, spec: Spec, signatures: Mapping[str, Signature], recurrent_spec: RecurrentSpec | None = None
) -> dict[str, Signature]:
    """The signatures of an export, and those that another library's clients ask for.

    `action(0/step_type, 0/reward, 0/discount, 0/observation) → action`, `[batch, *act_shape]`; a Dict observation has
    `0/observation/<key>` for each key. Of a policy without a memory only the observation counts. One with a memory
    also takes `1/0`, `1/1`, ... and gives `state/0`, ...: the parts of its state, and the action before if it
    remembers actions. `get_initial_state(batch_size)` gives them as `0`, `1`, ...; the reward that it remembers is
    `0/reward`, and where `0/step_type` is 0 it begins anew.

    Args:
        library: "tf-agents", or None.
        spec: the spaces.
        signatures: what the export has anyway.
        recurrent_spec: what the policy recalls of an episode; None where it has no memory.

    Raises:
        ValueError: another library.
    """
    if library is None:
        return dict(signatures)
    if library != "tf-agents":
        raise reject("signatures", 'None or "tf-agents"', library)
    more = {"action": _action(spec, signatures["pi"], recurrent_spec)}
    if recurrent_spec is not None:
        more["get_initial_state"] = _initial_state(signatures["initial_state"], recurrent_spec)
    return {**signatures, **more}


def methods(spec: Spec, signatures: Mapping[str, Signature]) -> dict[str, Any]:
    """What `tf.saved_model.load` is to give beside them: `action(time_step, policy_state)`, `get_initial_state`.

    Args:
        spec: the spaces.
        signatures: what `with_signatures_of` gave.
    """
    signature = signatures["action"]
    observation = {leaf.name: signature.inputs[_place(spec, leaf)] for leaf in spec.leaves}
    time_step = TimeStep(
        **{name: signature.inputs[f"0/{name}"] for name in STEP},
        observation=observation if spec.is_dict else observation["x"],
    )
    state = [tensor for name, tensor in signature.inputs.items() if name.startswith("1/")]

    def act(time_step: TimeStep, policy_state: Any = ()) -> PolicyStep:
        given = {f"0/{name}": getattr(time_step, name) for name in STEP}
        given |= {f"1/{i}": values for i, values in enumerate(policy_state)}
        for leaf in spec.leaves:
            given[_place(spec, leaf)] = time_step.observation[leaf.name] if spec.is_dict else time_step.observation
        outputs = signature.compute(None, **given)
        return PolicyStep(outputs["action"], [outputs[f"state/{i}"] for i in range(len(state))] or (), ())

    def initial_state(batch_size: Any) -> Any:
        return list(signatures["get_initial_state"].compute(None, batch_size).values()) if state else ()

    action = tf.function(act, autograph=False)
    get_initial_state = tf.function(initial_state, autograph=False)
    action.get_concrete_function(time_step=time_step, policy_state=state or ())
    if not state:
        action.get_concrete_function(time_step=time_step)
    get_initial_state.get_concrete_function(tf.TensorSpec([], tf.int32, name="batch_size"))
    return {"action": action, "get_initial_state": get_initial_state}


def _action(spec: Spec, pi: Signature, recurrent_spec: RecurrentSpec | None) -> Signature:
    names = [] if recurrent_spec is None else _state(recurrent_spec)
    inputs = {f"0/{name}": tf.TensorSpec([None], dtype, name=f"0/{name}") for name, dtype in STEP.items()}
    inputs |= {_place(spec, leaf): _tensor(spec, leaf) for leaf in spec.leaves}
    inputs |= {f"1/{i}": tf.TensorSpec(pi.inputs[name].shape, name=f"1/{i}") for i, name in enumerate(names)}

    def compute(_: None, **given: Any) -> Outputs:
        raw = {leaf.name: tf.cast(given[_place(spec, leaf)], leaf.dtype) for leaf in spec.leaves}
        recurrent_inputs = {name: given[f"1/{i}"] for i, name in enumerate(names)}
        if recurrent_spec is not None:
            recurrent_inputs |= {"r_before": given["0/reward"]} if recurrent_spec.uses_reward else {}
            start = named_recurrent_inputs(recurrent_spec, tf.constant(recurrent_spec.initial_state(1)))
            is_first = given["0/step_type"] == FIRST
            recurrent_inputs = {
                name: _where(is_first, start[name], values) for name, values in recurrent_inputs.items()
            }
        outputs = pi.outputs(spec, network_inputs(spec, raw), **recurrent_inputs)
        state = dict(outputs)
        if (
            recurrent_spec is not None and recurrent_spec.uses_action
        ):  # the action before a non-finite observation stays the one before
            state["a_before"] = tf.where(tf.math.is_nan(outputs["pi"]), recurrent_inputs["a_before"], outputs["pi"])
        action = tf.reshape(outputs["pi"], [-1, *spec.act_shape])
        return {"action": action} | {f"state/{i}": state[name] for i, name in enumerate(names)}

    def examples(observations: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        count = len(next(iter(observations.values())))
        given: dict[str, np.ndarray] = {
            "0/step_type": np.arange(1, count + 1, dtype=np.int32) % 3
        }  # 1: neither an episode's first nor last
        given |= {"0/reward": np.linspace(-1, 1, count, dtype=np.float32), "0/discount": np.ones(count, np.float32)}
        for leaf in spec.leaves:
            given[_place(spec, leaf)] = observations[leaf.name].astype(_tensor(spec, leaf).dtype.as_numpy_dtype)
        example_state = pi.examples(observations)
        return given | {f"1/{i}": example_state[name] for i, name in enumerate(names)}

    return Signature(compute, inputs, examples, axes=0)


def _initial_state(initial_state: Signature, recurrent_spec: RecurrentSpec) -> Signature:
    def compute(_: None, batch_size: Any) -> Outputs:
        outputs = initial_state.compute(None, batch_size)
        return {str(i): outputs[name] for i, name in enumerate(_state(recurrent_spec))}

    inputs = {"batch_size": tf.TensorSpec([], tf.int32, name="batch_size")}
    return Signature(compute, inputs, lambda rows: {"batch_size": initial_state.examples(rows)["batch"]}, axes=0)


def _state(recurrent_spec: RecurrentSpec) -> list[str]:
    """What a client carries, in its order; the reward comes with the time step."""
    return [name for name, _ in recurrent_spec.parts] + ["a_before"] * recurrent_spec.uses_action


def _place(spec: Spec, leaf: Leaf) -> str:
    return f"0/observation/{leaf.name}" if spec.is_dict else "0/observation"


def _tensor(spec: Spec, leaf: Leaf) -> tf.TensorSpec:
    """As TF-Agents has it: Discrete is int64 there."""
    dtype = tf.int64 if isinstance(leaf.space, spaces.Discrete) else leaf.dtype
    return tf.TensorSpec([None, *leaf.shape], dtype, name=_place(spec, leaf))


def _where(is_first: tf.Tensor, start: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    return tf.where(tf.reshape(is_first, [-1, *[1] * (len(values.shape) - 1)]), start, values)
