"""The exported functions of a stochastic actor-critic."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from tfdpg.export.signature import Outputs, Signature, action_input, pi_and_q_signature
from tfdpg.networks import ACERCritic, PolicyDistribution, chosen_actions
from tfdpg.spec import Spec


def acer_signatures(
    spec: Spec,
    policy: PolicyDistribution,
    critic: ACERCritic,
    reward_scale: float,
    networks: Mapping[str, keras.Model],
    evaluation: keras.Model,
) -> dict[str, Signature]:
    """What a stochastic policy exports.

    `pi(x) → pi` is the mode: a mean inside the box `[batch, act_dim]`, or the most probable action, int64 `[batch]`.
    `q1(x, a) → q1` and `q2`, which is the same, and `v(x) → v` give values `[batch]`; `pi_and_q(x) → pi, q1, q2`;
    `distribution(x)` gives `probs` `[batch, actions]`, or `loc` and `scale` `[batch, act_dim]`.

    Args:
        spec: the spaces.
        policy: what the output of `pi` means.
        critic: what the other networks do.
        reward_scale: what rewards were multiplied by before values were learnt of them.
        networks: by name.
        evaluation: the evaluation policy, whose actions are the mode of the distribution that `pi` gives.
    """
    pi = networks["pi"]

    def value(observation: Any) -> Outputs:
        return {"v": critic.v(networks, observation, pi(observation)) / reward_scale}

    def action_value(name: str) -> Signature:
        def compute(observation: Any, a: tf.Tensor) -> Outputs:
            return {name: critic.q(networks, observation, a, pi(observation)) / reward_scale}

        return Signature(compute, action_input(spec))

    functions = {
        "pi": Signature(lambda observation: {"pi": chosen_actions(spec, evaluation(observation))}, {}),
        "q1": action_value("q1"),
        "q2": action_value("q2"),
    }
    return functions | {
        "pi_and_q": pi_and_q_signature(functions),
        "v": Signature(value, {}),
        "distribution": Signature(lambda observation: policy.describe(pi(observation)), {}),
    }
