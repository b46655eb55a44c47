"""The signatures that TF-Agents' `PolicySaver` writes, so that its clients need not be changed.

Source: `tf_agents/policies/policy_saver.py` of TF-Agents 0.19, which names inputs and outputs by their positions in
`(TimeStep, policy_state)` and `PolicyStep`, joined by slashes.
"""

from collections import namedtuple
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from gymnasium import spaces

from tfdpg.acting import RecurrentSpec
from tfdpg.arguments import reject
from tfdpg.export.signatures import Outputs, Signature, example_rewards, where_rows
from tfdpg.exported import named_recurrent_inputs
from tfdpg.networks import network_inputs
from tfdpg.spec import Leaf, Spec

FIRST = 0
"""The step type of the first step of an episode; 1 is a step within an episode, 2 its last step."""
STEP = {"step_type": tf.int32, "reward": tf.float32, "discount": tf.float32}
"""The parts of a `TimeStep` besides the observation."""


TimeStep = namedtuple("TimeStep", [*STEP, "observation"])
PolicyStep = namedtuple("PolicyStep", ["action", "state", "info"])
"""Equivalent to TF-Agents' classes for TensorFlow, which compares such tuples by their names."""


def with_signatures_of(
    library: str | None, spec: Spec, signatures: Mapping[str, Signature], recurrent_spec: RecurrentSpec | None = None
) -> dict[str, Signature]:
    """Add the signatures that clients of another library call.

    `action(0/step_type, 0/reward, 0/discount, 0/observation) → action`, `[batch, *act_shape]`; a Dict observation
    has the input `0/observation/<key>` for each key, and a Tuple `0/observation/<index>` for each item. A policy
    without recurrent layers uses only the observation. A recurrent policy also takes `1/0`, `1/1`, ... and returns
    `state/0`, `state/1`, ...: the parts of its state, and the previous action if it receives it.
    `get_initial_state(batch_size)` returns them as `0`, `1`, .... The previous reward is `0/reward`. Where
    `0/step_type` is 0, the recurrent state is reset first.

    Args:
        library: "tf-agents", or None.
        spec: the spaces.
        signatures: the other signatures of the export.
        recurrent_spec: describes the policy's recurrent state; None for a policy without recurrent layers.

    Raises:
        ValueError: the library is unknown.
    """
    if library is None:
        return dict(signatures)
    if library != "tf-agents":
        raise reject("signatures", 'None or "tf-agents"', library)
    more = {"action": _action(spec, signatures["pi"], recurrent_spec)}
    if recurrent_spec is not None:
        more["get_initial_state"] = _initial_state(signatures["initial_state"], _state_names(recurrent_spec))
    return {**signatures, **more}


def methods(spec: Spec, signatures: Mapping[str, Signature]) -> dict[str, Any]:
    """Return the methods that a loaded policy of TF-Agents has: `action(time_step, policy_state)`, `get_initial_state`.

    Args:
        spec: the spaces.
        signatures: the result of `with_signatures_of`.
    """
    signature = signatures["action"]
    observation = {leaf.name: signature.inputs[place(leaf)] for leaf in spec.leaves}
    time_step = TimeStep(*(signature.inputs[f"0/{name}"] for name in STEP), spec.nested(observation))
    state = [tensor for name, tensor in signature.inputs.items() if name.startswith("1/")]

    def act(time_step: TimeStep, policy_state: Any = ()) -> PolicyStep:
        given = {f"0/{name}": getattr(time_step, name) for name in STEP}
        given |= {f"1/{i}": values for i, values in enumerate(policy_state)}
        parts = spec.by_name(time_step.observation)
        given |= {place(leaf): parts[leaf.name] for leaf in spec.leaves}
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
    names = [] if recurrent_spec is None else _state_names(recurrent_spec)
    inputs = {f"0/{name}": tf.TensorSpec([None], dtype, name=f"0/{name}") for name, dtype in STEP.items()}
    inputs |= {place(leaf): _tensor(leaf) for leaf in spec.leaves}
    inputs |= {f"1/{i}": tf.TensorSpec(pi.inputs[name].shape, name=f"1/{i}") for i, name in enumerate(names)}

    def compute(_: None, **given: Any) -> Outputs:
        raw = {leaf.name: tf.cast(given[place(leaf)], leaf.dtype) for leaf in spec.leaves}
        recurrent_inputs = {name: given[f"1/{i}"] for i, name in enumerate(names)}
        if recurrent_spec is not None:
            recurrent_inputs |= {"r_before": given["0/reward"]} if recurrent_spec.uses_reward else {}
            start = named_recurrent_inputs(recurrent_spec, tf.constant(recurrent_spec.initial_state(1)))
            is_first = given["0/step_type"] == FIRST
            recurrent_inputs = {
                name: where_rows(is_first, start[name], values) for name, values in recurrent_inputs.items()
            }
        outputs = pi.outputs(spec, network_inputs(spec, raw), **recurrent_inputs)
        state = dict(outputs)
        if "a_before" in names:  # a non-finite observation does not change the previous action
            state["a_before"] = tf.where(tf.math.is_nan(outputs["pi"]), recurrent_inputs["a_before"], outputs["pi"])
        action = tf.reshape(outputs["pi"], [-1, *spec.act_shape])
        return {"action": action} | {f"state/{i}": state[name] for i, name in enumerate(names)}

    def examples(observations: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        reward = example_rewards(observations, 1)
        given: dict[str, np.ndarray] = {"0/step_type": np.arange(1, len(reward) + 1, dtype=np.int32) % 3}
        given |= {"0/reward": reward, "0/discount": np.ones_like(reward)}
        for leaf in spec.leaves:
            given[place(leaf)] = observations[leaf.name].astype(_tensor(leaf).dtype.as_numpy_dtype)
        example_state = pi.examples(observations)
        return given | {f"1/{i}": example_state[name] for i, name in enumerate(names)}

    return Signature(compute, inputs, examples, axes=0)


def _initial_state(initial_state: Signature, names: list[str]) -> Signature:
    def compute(_: None, batch_size: Any) -> Outputs:
        outputs = initial_state.compute(None, batch_size)
        return {str(i): outputs[name] for i, name in enumerate(names)}

    inputs = {"batch_size": tf.TensorSpec([], tf.int32, name="batch_size")}
    return Signature(compute, inputs, lambda rows: {"batch_size": initial_state.examples(rows)["batch"]}, axes=0)


def _state_names(recurrent_spec: RecurrentSpec) -> list[str]:
    """Return the names of the recurrent inputs that a client keeps, in order; the reward is part of the time step."""
    return [name for name, _ in recurrent_spec.parts] + ["a_before"] * recurrent_spec.uses_action


def place(leaf: Leaf) -> str:
    """Return the name of the input for a part of the observation."""
    return "/".join(map(str, ("0/observation", *leaf.path)))


def _tensor(leaf: Leaf) -> tf.TensorSpec:
    """Return the input of a part of the observation with TF-Agents' type, which is int64 for Discrete spaces."""
    dtype = tf.int64 if isinstance(leaf.space, spaces.Discrete) else leaf.dtype
    return tf.TensorSpec([None, *leaf.shape], dtype, name=place(leaf))
