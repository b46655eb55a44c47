"""The exported functions of a deterministic actor-critic."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdpg.acting import Recall
from tfdpg.export.memory import over_episodes, step_signatures
from tfdpg.export.signature import Outputs, Signature, action_input, judged, refuse_keys
from tfdpg.exported import LEVELS
from tfdpg.networks import Head, bounded, flat_values, head_of
from tfdpg.spec import Spec


def signatures(spec: Spec, networks: Mapping[str, Any], recall: Recall | None = None) -> dict[str, Signature]:
    """What every agent exports.

    `pi(x) → pi` gives actions inside the box, `[batch, act_dim]`; `q1(x, a) → q1` and `q2` give action values,
    `[batch]`. Without a second critic, `q2` is the same estimate as `q1`. `pi_and_q(x) → pi, q1, q2` is all three at
    once. With a memory, `pi` is a step of it (see `step_signatures`), and values are those of sequences (see
    `over_episodes`), which a step has not: there is no `pi_and_q`.

    Args:
        spec: the spaces.
        networks: `pi`, `q1` and, if there is one, `q2`.
        recall: what the policy recalls of an episode; None where there is no memory.
    """
    pi = networks["pi"]
    values = {name: _values(spec, name, networks.get(name, networks["q1"]), recall) for name in ("q1", "q2")}
    if recall is not None:
        return step_signatures(spec, pi, recall) | values
    acts = {"pi": Signature(lambda observation: {"pi": bounded(spec, pi(observation))}, {})} | values
    return acts | {"pi_and_q": judged(acts)}


def _values(spec: Spec, name: str, critic: Any, recall: Recall | None) -> Signature:
    """The action values that a critic gives."""
    if recall is not None:
        return over_episodes(recall, critic, _values(spec, name, critic.torso, None))
    head = head_of(critic)
    value = flat_values if head is None else head.mean
    return Signature(lambda observation, a: {name: value(critic([observation, a]))}, action_input(spec))


def return_signature(spec: Spec, critic: Any, head: Head, recall: Recall | None = None) -> Signature:
    """`z(x, a, levels)` → the distribution of the return, its quantiles and its conditional values at risk.

    `levels` is `[batch, L]`, or `[1, L]` for all rows; both outputs are `[batch, L]`. For recurrent agents they
    are `[batch, time, L]` of sequences (see `over_episodes`).

    Raises:
        ValueError: a part of the observation is called `levels`.
    """
    refuse_keys(spec, {"levels": "z"})
    if recall is not None:
        return over_episodes(recall, critic, return_signature(spec, critic.torso, head))

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
