"""An exported function: what it takes besides the observation, and what it computes."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdpg.networks import network_inputs
from tfdpg.spec import Spec

Outputs = dict[str, tf.Tensor]


class Signature(NamedTuple):
    """An exported function.

    Attributes:
        compute: from the observation, as networks take it, and the other inputs by name to the outputs by name.
        inputs: the inputs besides the observation; `a` is the action.
        examples: values of those other than `a`, for raw observations `[n, ...]` by name: `[n, ...]` each.
        axes: the free axes before an observation's own: 1 is a batch, 2 a batch of sequences; 0 takes no observation.
    """

    compute: Callable[..., Outputs]
    inputs: Mapping[str, tf.TensorSpec]
    examples: Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]] = lambda observations: {}
    axes: int = 1

    def concrete(self, spec: Spec) -> Any:
        """The function in a graph; it takes raw inputs by name."""
        leaves = {
            leaf.name: tf.TensorSpec([*[None] * self.axes, *leaf.shape], leaf.dtype, name=leaf.name)
            for leaf in (spec.leaves if self.axes else ())
        }

        def call(*tensors: tf.Tensor) -> Outputs:
            inputs = dict(zip([*leaves, *self.inputs], tensors, strict=True))
            observation = network_inputs(spec, {name: inputs[name] for name in leaves}) if leaves else None
            return self.compute(observation, **{name: inputs[name] for name in self.inputs})

        # by position: a name with a slash holds as that of a `TensorSpec`, and not as that of an argument
        return tf.function(call, autograph=False).get_concrete_function(*leaves.values(), *self.inputs.values())

    def reference(self, spec: Spec) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
        """What it must compute, straight from the networks."""

        def compute(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            observation = tensors(spec, inputs) if self.axes else None
            outputs = self.compute(observation, **{name: tf.constant(inputs[name]) for name in self.inputs})
            return {name: output.numpy() for name, output in outputs.items()}

        return compute


def tensors(spec: Spec, arrays: Mapping[str, np.ndarray]) -> Any:
    """Raw observations by name, as networks take them."""
    return network_inputs(spec, {leaf.name: tf.constant(arrays[leaf.name], leaf.dtype) for leaf in spec.leaves})


def action_input(spec: Spec) -> dict[str, tf.TensorSpec]:
    """`a`, as `pi` gives it: float32 `[batch, act_dim]`, or int64 `[batch]` if Discrete."""
    if spec.actions is not None:
        return {"a": tf.TensorSpec([None], tf.int64, name="a")}
    return {"a": tf.TensorSpec([None, spec.act_dim], tf.float32, name="a")}


def judged(signatures: Mapping[str, Signature]) -> Signature:
    """`pi_and_q(x) → pi, q1, q2`: what a policy without a memory does, and what the critics say of it, in one call."""

    def compute(observation: Any) -> Outputs:
        outputs = signatures["pi"].compute(observation)
        values = [signatures[name].compute(observation, outputs["pi"]) for name in ("q1", "q2")]
        return {name: tensor for part in (outputs, *values) for name, tensor in part.items()}

    return Signature(compute, {})


def refuse_keys(spec: Spec, names: Mapping[str, str]) -> None:
    """Raises `ValueError` if a part of the observation is called like an input of a signature, by its name here."""
    for leaf in spec.leaves:
        if spec.is_dict and leaf.name in names:
            signature = names[leaf.name]
            raise ValueError(
                f"The key {leaf.name!r} of the observation space is an input of the exported signature `{signature}`."
            )
