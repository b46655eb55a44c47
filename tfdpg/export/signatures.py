"""The exported functions: what each takes besides the observation, and what it computes."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdpg.networks import Head, bounded, flat_values, head_of, network_inputs
from tfdpg.spec import Spec

Outputs = dict[str, tf.Tensor]
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Where the signature `z` is verified, and what `Policy.z` asks for by itself."""


class Signature(NamedTuple):
    """An exported function.

    Attributes:
        compute: from the observation, as networks take it, and the other inputs by name to the outputs by name.
        inputs: the inputs besides the observation; `a` is the action.
        examples: values of those other than `a`, for a batch of any size n: `[n, ...]` each.
    """

    compute: Callable[..., Outputs]
    inputs: Mapping[str, tf.TensorSpec]
    examples: Callable[[int], dict[str, np.ndarray]] = lambda n: {}

    def concrete(self, spec: Spec) -> Any:
        """The function in a graph; it takes raw inputs by name."""
        leaves = {leaf.name: tf.TensorSpec([None, *leaf.shape], leaf.dtype, name=leaf.name) for leaf in spec.leaves}

        def call(**inputs: tf.Tensor) -> Outputs:
            observation = network_inputs(spec, {name: inputs[name] for name in leaves})
            return self.compute(observation, **{name: inputs[name] for name in self.inputs})

        return tf.function(call, autograph=False).get_concrete_function(**leaves, **self.inputs)

    def reference(self, spec: Spec) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
        """What it must compute, straight from the networks."""

        def compute(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            leaves = {leaf.name: tf.constant(inputs[leaf.name], leaf.dtype) for leaf in spec.leaves}
            others = {name: tf.constant(inputs[name]) for name in self.inputs}
            outputs = self.compute(network_inputs(spec, leaves), **others)
            return {name: output.numpy() for name, output in outputs.items()}

        return compute


def signatures(spec: Spec, networks: Mapping[str, keras.Model]) -> dict[str, Signature]:
    """What every agent exports.

    `pi(x) → pi` gives actions inside the box, `[batch, act_dim]`; `q1(x, a) → q1` and `q2` give action values,
    `[batch]`. Without a second critic, `q2` is the same estimate as `q1`.

    Args:
        spec: the spaces.
        networks: `pi`, `q1` and, if there is one, `q2`.
    """
    pi = networks["pi"]

    def values(name: str) -> Signature:
        critic = networks.get(name, networks["q1"])
        head = head_of(critic)
        value = flat_values if head is None else head.mean
        return Signature(lambda observation, a: {name: value(critic([observation, a]))}, action_input(spec))

    policy = Signature(lambda observation: {"pi": bounded(spec, pi(observation))}, {})
    return {"pi": policy, "q1": values("q1"), "q2": values("q2")}


def return_signature(spec: Spec, critic: keras.Model, head: Head) -> Signature:
    """`z(x, a, levels)` → the distribution of the return, its quantiles and its conditional values at risk.

    `levels` is `[L]`, or `[batch, L]` where requests are batched together; both outputs are `[batch, L]`.

    Raises:
        ValueError: a part of the observation is called `levels`.
    """
    if any(leaf.name == "levels" for leaf in spec.leaves):
        raise ValueError("The key 'levels' of the observation space is an input of the exported signature `z`.")

    def compute(observation: Any, a: tf.Tensor, levels: tf.Tensor) -> Outputs:
        output = critic([observation, a])
        levels = tf.reshape(levels, [-1, tf.shape(levels)[-1]])
        levels = tf.broadcast_to(levels, [tf.shape(output)[0], tf.shape(levels)[-1]])
        risk = {"quantiles": head.quantiles(output, levels), "cvar": head.cvar(output, levels)}
        return head.describe(output) | risk

    any_shape: Any = None
    inputs = action_input(spec) | {"levels": tf.TensorSpec(any_shape, tf.float32, name="levels")}
    return Signature(compute, inputs, lambda n: {"levels": np.tile(np.array(LEVELS, np.float32), (n, 1))})


def action_input(spec: Spec) -> dict[str, tf.TensorSpec]:
    """`a`, as `pi` gives it: float32 `[batch, act_dim]`, or int64 `[batch]` if Discrete."""
    if spec.actions is not None:
        return {"a": tf.TensorSpec([None], tf.int64, name="a")}
    return {"a": tf.TensorSpec([None, spec.act_dim], tf.float32, name="a")}
