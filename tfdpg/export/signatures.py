"""The exported functions of a deterministic actor-critic."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdpg.acting import RecurrentSpec
from tfdpg.export.recurrent import sequence_signature, step_signatures
from tfdpg.export.signature import Outputs, Signature, action_input, pi_and_q_signature, refuse_keys
from tfdpg.exported import LEVELS
from tfdpg.networks import Head, chosen_actions, flat_values, head_of
from tfdpg.spec import Spec


def signatures(
    spec: Spec, networks: Mapping[str, Any], policy: Any, recurrent_spec: RecurrentSpec | None = None
) -> dict[str, Signature]:
    """What every agent exports.

    `pi(x) → pi` gives actions inside the box, `[batch, act_dim]`; `q1(x, a) → q1` and `q2` give action values,
    `[batch]`. Without a second critic, `q2` is the same estimate as `q1`. `pi_and_q(x) → pi, q1, q2` is all three at
    once. With a memory, `pi` is a step of it (see `step_signatures`), and values are those of sequences (see
    `sequence_signature`), which a step has not: there is no `pi_and_q`.

    Args:
        spec: the spaces.
        networks: `q1` and, if there is one, `q2`.
        policy: the evaluation policy.
        recurrent_spec: what the policy recalls of an episode; None where there is no memory.
    """
    values = {name: _values(spec, name, networks.get(name, networks["q1"]), recurrent_spec) for name in ("q1", "q2")}
    if recurrent_spec is not None:
        return step_signatures(spec, policy, recurrent_spec) | values
    functions = {"pi": Signature(lambda observation: {"pi": chosen_actions(spec, policy(observation))}, {})} | values
    return functions | {"pi_and_q": pi_and_q_signature(functions)}


def _values(spec: Spec, name: str, critic: Any, recurrent_spec: RecurrentSpec | None) -> Signature:
    """The action values that a critic gives."""
    if recurrent_spec is not None:
        return sequence_signature(recurrent_spec, critic, _values(spec, name, critic.torso, None))
    head = head_of(critic)
    value = flat_values if head is None else head.mean
    return Signature(lambda observation, a: {name: value(critic([observation, a]))}, action_input(spec))


def return_signature(spec: Spec, critic: Any, head: Head, recurrent_spec: RecurrentSpec | None = None) -> Signature:
    """`z(x, a, levels)` → the distribution of the return, its quantiles and its conditional values at risk.

    `levels` is `[batch, L]`, or `[1, L]` for all rows; both outputs are `[batch, L]`. For recurrent agents they
    are `[batch, time, L]` of sequences (see `sequence_signature`).

    Raises:
        ValueError: a part of the observation is called `levels`.
    """
    refuse_keys(spec, {"levels": "z"})
    if recurrent_spec is not None:
        return sequence_signature(recurrent_spec, critic, return_signature(spec, critic.torso, head))

    def compute(observation: Any, a: tf.Tensor, levels: tf.Tensor) -> Outputs:
        output = critic([observation, a])
        levels = tf.broadcast_to(levels, [tf.shape(output)[0], tf.shape(levels)[-1]])
        risk = {"quantiles": head.quantiles(output, levels), "cvar": head.cvar(output, levels)}
        return head.describe(output) | risk

    inputs = action_input(spec) | {"levels": tf.TensorSpec([None, None], tf.float32, name="levels")}
    return Signature(compute, inputs, _example_levels)


def _example_levels(observations: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    count = len(next(iter(observations.values())))
    return {"levels": np.tile(np.array(LEVELS, np.float32), (count, 1))}
