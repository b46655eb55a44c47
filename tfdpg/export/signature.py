"""An exported function: what it takes besides the observation, and what it computes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdpg.networks import network_inputs
from tfdpg.spec import Spec

Outputs = dict[str, tf.Tensor]


class Signature(NamedTuple):
    """An exported function.

    `outputs` is what is exported: `compute`, with the rule on non-finite numbers.

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

    def outputs(self, spec: Spec, observation: Any, **inputs: tf.Tensor) -> Outputs:
        """Compute the outputs, in a graph or eagerly.

        A row with NaN or an infinity in one of its inputs gets NaN in all outputs, but for parts of a recurrent state,
        which are returned as they were given, and integers, which are `spec.no_action`. The networks see 0 in place of
        such numbers, so other rows cannot be affected. Signatures of sequences apply the rule to each step themselves,
        and `levels` has no rows.

        Args:
            spec: the spaces.
            observation: as networks take it; None where the signature takes no observation.
            inputs: the other inputs, by name.
        """
        rows = {name: values for name, values in inputs.items() if self.inputs[name].shape.rank}
        floats = [x for x in keras.tree.flatten([observation, rows]) if x is not None and x.dtype.is_floating]
        if self.axes != 1 or not floats:
            return self.compute(observation, **inputs)
        finite = finite_rows(floats, 1)
        rows = {name: with_zeros(values) for name, values in rows.items()}
        outputs = self.compute(keras.tree.map_structure(with_zeros, observation), **inputs | rows)
        return {
            name: where_finite(finite, values, inputs.get(name, spec.no_action if values.dtype.is_integer else np.nan))
            for name, values in outputs.items()
        }

    def concrete(self, spec: Spec) -> Any:
        """The function in a graph; it takes raw inputs by name."""
        leaves = {
            leaf.name: tf.TensorSpec([*[None] * self.axes, *leaf.shape], leaf.dtype, name=leaf.name)
            for leaf in (spec.leaves if self.axes else ())
        }

        def call(*tensors: tf.Tensor) -> Outputs:
            inputs = dict(zip([*leaves, *self.inputs], tensors, strict=True))
            observation = network_inputs(spec, {name: inputs[name] for name in leaves}) if leaves else None
            return self.outputs(spec, observation, **{name: inputs[name] for name in self.inputs})

        # by position: a name with a slash holds as that of a `TensorSpec`, and not as that of an argument
        return tf.function(call, autograph=False).get_concrete_function(*leaves.values(), *self.inputs.values())

    def reference(self, spec: Spec) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
        """What it must compute, straight from the networks."""

        def compute(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            observation = tensors(spec, inputs) if self.axes else None
            outputs = self.outputs(spec, observation, **{name: tf.constant(inputs[name]) for name in self.inputs})
            return {name: output.numpy() for name, output in outputs.items()}

        return compute


def is_finite(x: tf.Tensor) -> tf.Tensor:
    """Which numbers are finite; a comparison, since LiteRT has no operation IsFinite."""
    return tf.abs(x) <= x.dtype.max


def finite_rows(arrays: Sequence[Any], axes: int) -> tf.Tensor:
    """Find the rows in which all numbers are finite.

    Args:
        arrays: floats `[..., n]`, whose first `axes` axes are the rows.
        axes: the number of axes of the result.

    Returns:
        A mask, bool `[batch]` or `[batch, time]`.
    """
    masks = [is_finite(x) for x in arrays]
    masks = [tf.reduce_all(x, list(range(axes, x.shape.rank))) if x.shape.rank > axes else x for x in masks]
    finite = masks[0]
    for mask in masks[1:]:
        finite = finite & mask
    return finite


def with_zeros(x: tf.Tensor) -> tf.Tensor:
    """A tensor with 0 in place of NaN and infinities."""
    return tf.where(is_finite(x), x, tf.zeros_like(x)) if x.dtype.is_floating else x


def where_finite(finite: tf.Tensor, values: tf.Tensor, other: Any) -> tf.Tensor:
    """Values `[..., n]` in the rows of a mask `[...]`, and others, of the same shape or a number, in the rest."""
    for _ in range(values.shape.rank - finite.shape.rank):
        finite = tf.expand_dims(finite, -1)
    return tf.where(finite, values, tf.cast(other, values.dtype))


def tensors(spec: Spec, arrays: Mapping[str, np.ndarray]) -> Any:
    """Raw observations by name, as networks take them."""
    return network_inputs(spec, {leaf.name: tf.constant(arrays[leaf.name], leaf.dtype) for leaf in spec.leaves})


def action_input(spec: Spec) -> dict[str, tf.TensorSpec]:
    """`a`, as `pi` gives it: float32 `[batch, act_dim]`, or int64 `[batch]` if Discrete."""
    if spec.actions is not None:
        return {"a": tf.TensorSpec([None], tf.int64, name="a")}
    return {"a": tf.TensorSpec([None, spec.act_dim], tf.float32, name="a")}


def pi_and_q_signature(signatures: Mapping[str, Signature]) -> Signature:
    """`pi_and_q(x) → pi, q1, q2`: what a policy without a memory does, and what the critics say of it, in one call."""

    def compute(observation: Any) -> Outputs:
        outputs = signatures["pi"].compute(observation)
        values = [signatures[name].compute(observation, a=outputs["pi"]) for name in ("q1", "q2")]
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
