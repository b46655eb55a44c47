"""From packed arrays to what networks take, inside the compiled call."""

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdpg.replay import Layout
from tfdpg.spec import Spec


class Transitions(NamedTuple):
    """A minibatch. Observations are as networks take them: one tensor, or a dict of them.

    Attributes:
        observation: s, `[batch, ...]`.
        action: a, `[batch, act_dim]`, in the environment's units.
        reward: the sum of the discounted rewards of m steps, `[batch]`.
        discount: gamma^m (1 - terminated), `[batch]`.
        weight: how much it counts in the critic's loss, `[batch]`.
        next_observation: the observation m steps on, `[batch, ...]`.
    """

    observation: Any
    action: tf.Tensor
    reward: tf.Tensor
    discount: tf.Tensor
    weight: tf.Tensor
    next_observation: Any


def network_inputs(spec: Spec, leaves: dict[str, tf.Tensor]) -> Any:
    """Tensors by leaf name, in the structure that networks take."""
    return leaves if spec.is_dict else leaves["x"]


def unpack_observation(spec: Spec, packed: tuple[tf.Tensor, ...]) -> Any:
    """The tensors `[batch, *shape]` of packed observations (see `Spec.pack`), as networks take them."""
    leaves = {}
    for leaf in spec.leaves:
        columns = packed[spec.groups.index(leaf.group)][:, leaf.columns]
        leaves[leaf.name] = tf.cast(tf.reshape(columns, [-1, *leaf.shape]), leaf.dtype)
    return network_inputs(spec, leaves)


def unpack_transitions(spec: Spec, packed: tuple[tf.Tensor, ...]) -> Transitions:
    """The minibatch of one row of a packed chunk (see `tfdpg.replay.Layout`)."""
    layout, real = Layout.of(spec), packed[0]

    def observation(columns: slice, image: slice) -> Any:
        parts = {"float32": real[:, columns], "uint8": packed[-1][:, image]}
        return unpack_observation(spec, tuple(parts[group] for group in spec.groups))

    return Transitions(
        observation(layout.observation, slice(0, layout.image_width)),
        real[:, layout.action],
        real[:, layout.reward],
        real[:, layout.discount],
        real[:, layout.weight],
        observation(layout.next_observation, slice(layout.image_width, 2 * layout.image_width)),
    )


def bounded(spec: Spec, action: tf.Tensor) -> tf.Tensor:
    """A policy's output, `[batch, act_dim]`, inside the action box; the stock policy's is already."""
    return tf.clip_by_value(action, spec.low, spec.high)


def flat_values(values: tf.Tensor) -> tf.Tensor:
    """A critic's output, `[batch]` or `[batch, 1]`, as `[batch]`."""
    return values if values.shape.rank == 1 else tf.squeeze(values, axis=-1)


def in_half_precision(network: keras.Model) -> bool:
    """Whether a layer of the network computes in float16 or bfloat16."""
    return any(layer.compute_dtype in ("float16", "bfloat16") for layer in network._flatten_layers())
