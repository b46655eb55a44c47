"""Unpack packed minibatches inside compiled functions, and call networks for them."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdpg.networks.critics import Critics, ask_both
from tfdpg.networks.randomness import stateless_normal
from tfdpg.replay import TransitionLayout, WindowLayout
from tfdpg.spec import Spec


class TransitionBatch(NamedTuple):
    """A minibatch of transitions. An observation is one tensor, or a dict of tensors for a Dict or Tuple space.

    A transition spans m steps, where m is the option `n_step`, or less at the end of an episode.

    Attributes:
        observation: s, `[batch, ...]`.
        action: a, `[batch, act_dim]`, in the environment's units.
        reward: sum of the discounted rewards of m steps, `[batch]`.
        discount: gamma^m (1 - terminated), `[batch]`.
        weight: weight in the critic's loss, `[batch]`.
        next_observation: the observation m steps later, `[batch, ...]`.
    """

    observation: Any
    action: tf.Tensor
    reward: tf.Tensor
    discount: tf.Tensor
    weight: tf.Tensor
    next_observation: Any

    def ask(self, network: keras.Model | Critics, *inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Call a network for s, or for s and further inputs.

        Args:
            network: a Keras model, such as one of `Agent.networks`, or `Critics`.
            inputs: the inputs after the observation, such as an action `[batch, act_dim]`.
            training: whether the network is called in training mode, which matters for normalisation and dropout.

        Returns:
            The output of the network, `[batch]` or `[batch, k]`; those of n critics are stacked, `[n, batch]`.
        """
        if isinstance(network, Critics):
            return network.stack(lambda q: self.ask(q, *inputs, training=training), with_weights=not training)
        return network([self.observation, *inputs] if inputs else self.observation, training=training)

    def ask_next(self, network: keras.Model | Critics, *inputs: tf.Tensor) -> tf.Tensor:
        """Call a network for the next observation, or for the next observation and further inputs.

        Args:
            network: a Keras model, such as one of `Agent.targets`, or `Critics`.
            inputs: the inputs after the observation, such as an action `[batch, act_dim]`.

        Returns:
            The output of the network, `[batch]` or `[batch, k]`; those of n critics are stacked, `[n, batch]`.
        """
        if isinstance(network, Critics):
            return network.stack(lambda q: self.ask_next(q, *inputs), with_weights=True)
        return network([self.next_observation, *inputs] if inputs else self.next_observation)

    def ask_both(self, network: Any, action: Any, next_network: Any, next_action: Any) -> Sequence[tf.Tensor]:
        """Call a network, in training mode, for s and `action`, and its target for the next observation.

        A network that is its own target computes both in one pass, so that batch normalisation uses the statistics of
        both, as in CrossQ (Bhatt et al. 2019, section 3).

        Args:
            network: a Keras model, usually a critic, or `Critics`.
            action: the action at s, `[batch, act_dim]`, or a sequence of an action and further inputs.
            next_network: the target network, or `network` itself; for `Critics` theirs.
            next_action: the action at the next observation, as `action`.

        Returns:
            The two outputs; those of n critics are stacked, `[n, batch]`.
        """
        if isinstance(network, Critics):
            return ask_both(self, network, action, next_network, next_action)
        inputs, next_inputs = (keras.tree.flatten(each) for each in (action, next_action))
        if next_network is not network:
            return self.ask(network, *inputs, training=True), self.ask_next(next_network, *next_inputs)
        parts = [self.observation, *inputs], [self.next_observation, *next_inputs]
        both = keras.tree.map_structure(lambda *halves: tf.concat(halves, axis=0), *parts)
        return tf.split(network(both, training=True), 2)

    def ask_following(self, network: Callable[["TransitionBatch"], tf.Tensor], output: tf.Tensor) -> tf.Tensor:
        """Return the output of a network at the next observation, through which gradients flow.

        Args:
            network: returns the output at the observations of a minibatch, `[batch, k]`.
            output: its output for this minibatch, which this class does not need.
        """
        return network(self._replace(observation=self.next_observation))

    def with_noise(self, stddev: float, key: tf.Tensor) -> "TransitionBatch":
        """Return the minibatch with Gaussian noise in its observations, except in those of integers, such as images.

        Args:
            stddev: standard deviation of the noise, as a fraction of that of each feature in the minibatch.
            key: key of the random numbers, int64 `[2]`; see `stateless_normal`.
        """
        valid = tf.ones_like(self.weight, tf.bool)
        return self._replace(observation=noisy(self.observation, stddev, key, valid))

    def mean(self, losses: tf.Tensor) -> tf.Tensor:
        """Return the mean of a loss, weighted with the importance weights of prioritised replay, `[]` or `[n]`.

        Args:
            losses: a loss for each transition, `[batch]`, or n of them, `[n, batch]`.

        Raises:
            ValueError: losses of another shape.
        """
        return tf.reduce_mean(self.weight * checked(losses, self.weight), axis=-1)

    def average(self, values: tf.Tensor) -> tf.Tensor:
        """Return the unweighted mean, `[]`.

        Args:
            values: a number for each transition, `[batch]`.
        """
        return tf.reduce_mean(checked(values, self.weight))

    def mask_metrics(self, metrics: tf.Tensor) -> tf.Tensor:
        """Return metrics `[metrics, batch]` unchanged: there is no padding."""
        return metrics


class WindowBatch(NamedTuple):
    """A minibatch of trajectory windows: T steps and the state after them.

    Attributes:
        observation: s_0, ..., s_T, `[batch, T + 1, ...]`.
        action: a_0, ..., a_{T-1} as sampled, `[batch, T, act_dim]`, in the environment's units.
        record: record of the distribution they were sampled from, `[batch, T, n]`; see `PolicyDistribution`.
        reward: `[batch, T]`.
        discount: gamma (1 - terminated), `[batch, T]`.
        acted: 1 for a step, 0 at the end of a truncated episode and for padding, `[batch, T]`.
    """

    observation: Any
    action: tf.Tensor
    record: tf.Tensor
    reward: tf.Tensor
    discount: tf.Tensor
    acted: tf.Tensor

    def ask(self, network: keras.Model, training: bool = False) -> tf.Tensor:
        """Call a network for s_0, ..., s_T; returns `[batch, T + 1, n]`."""
        return over_steps(network, self.observation, training=training)

    def mean(self, losses: tf.Tensor) -> tf.Tensor:
        """Return the mean of `[batch, T]` over the steps where `acted` is 1, `[]`."""
        return tf.reduce_sum(tf.where(self.acted > 0, losses, 0.0)) / tf.maximum(tf.reduce_sum(self.acted), 1)

    def mask_metrics(self, metrics: tf.Tensor) -> tf.Tensor:
        """Return metrics `[metrics, batch]` unchanged: each window has at least one step."""
        return metrics


class CriticEstimate(NamedTuple):
    """A critic's values on windows.

    Attributes:
        q: Q(s_t, a_t), `[batch, T]`.
        v: V(s_0), ..., V(s_T), `[batch, T + 1]`.
        other: a'_t, an action sampled from the policy, `[batch, T, act_dim]`; None for discrete actions.
        q_other: Q(s_t, a'_t), `[batch, T]`; for discrete actions Q(s_t, ·), `[batch, T, actions]`.
    """

    q: tf.Tensor
    v: tf.Tensor
    other: tf.Tensor | None
    q_other: tf.Tensor


class WindowActions(NamedTuple):
    """The actions in windows, with the values that the policy gradient needs.

    Attributes:
        behaviour: parameters of the distribution they were sampled from, `[batch, T, n]`.
        action: `[batch, T, act_dim]`.
        rho: importance weights, `[batch, T]`.
        target: return estimates for the policy gradient, `[batch, T]`.
        v: V(s_t), `[batch, T]`.
    """

    behaviour: tf.Tensor
    action: tf.Tensor
    rho: tf.Tensor
    target: tf.Tensor
    v: tf.Tensor


def network_inputs(spec: Spec, leaves: dict[str, tf.Tensor]) -> Any:
    """Return tensors by leaf name as networks receive them: one tensor, or a dict for a Dict or Tuple space."""
    return leaves if spec.is_dict else leaves["x"]


def noisy(observation: Any, stddev: float, key: tf.Tensor, valid: tf.Tensor) -> Any:
    """Add Gaussian noise to observations, independently for each number.

    Args:
        observation: a tensor, or a dict of tensors, `[*rows, ...]`. Those of integers, such as images, remain as they
            are.
        stddev: standard deviation of the noise, as a fraction of that of each feature in the valid rows.
        key: key of the random numbers, int64 `[2]`; see `stateless_normal`.
        valid: mask of the valid rows, bool `[*rows]`.
    """
    parts = keras.tree.flatten(observation)
    sizes = [math.prod(part.shape) if part.dtype.is_floating else 0 for part in parts]
    noises = tf.split(stateless_normal((sum(sizes),), key), sizes)
    added = [
        part + stddev * _spread(part, valid) * tf.reshape(noise, part.shape) if size else part
        for part, noise, size in zip(parts, noises, sizes, strict=True)
    ]
    return keras.tree.pack_sequence_as(observation, added)


def _spread(values: tf.Tensor, valid: tf.Tensor) -> tf.Tensor:
    """Return the standard deviation of each feature of `[*rows, ...]` over the valid rows."""
    rows = valid.shape
    weights = tf.reshape(tf.cast(valid, values.dtype), [*rows, *[1] * (len(values.shape) - len(rows))])
    return tf.sqrt(tf.nn.weighted_moments(values, list(range(len(rows))), weights)[1])


def unpack_observation(spec: Spec, packed: tuple[tf.Tensor, ...]) -> Any:
    """Unpack packed observations (see `Spec.pack`) to tensors `[batch, *shape]`, as networks receive them."""
    leaves = {}
    for leaf in spec.leaves:
        columns = packed[spec.groups.index(leaf.group)][:, leaf.columns]
        leaves[leaf.name] = tf.cast(tf.reshape(columns, [-1, *leaf.shape]), leaf.dtype)
    return network_inputs(spec, leaves)


def unpack_transitions(spec: Spec, packed: tuple[tf.Tensor, ...]) -> TransitionBatch:
    """Unpack one minibatch of transitions (see `tfdpg.replay.TransitionLayout`)."""
    layout = TransitionLayout.of(spec)
    real = packed[0]

    def observation(columns: slice, image: slice) -> Any:
        parts = {"float32": real[:, columns], "uint8": packed[-1][:, image]}
        return unpack_observation(spec, tuple(parts[group] for group in spec.groups))

    return TransitionBatch(
        observation(layout.observation, slice(0, layout.image_width)),
        real[:, layout.action],
        real[:, layout.reward],
        real[:, layout.discount],
        real[:, layout.weight],
        observation(layout.next_observation, slice(layout.image_width, 2 * layout.image_width)),
    )


def unpack_rows(spec: Spec, real: tf.Tensor, images: tf.Tensor) -> Any:
    """Unpack the observations of windows or sequences.

    Args:
        spec: the spaces of the environment.
        real: the float32 columns, `[batch, rows, ...]`; also where there are none.
        images: the uint8 columns, `[batch, rows, ...]`; ignored where there are none.
    """
    groups = {"float32": real, "uint8": images}
    flat = unpack_observation(spec, tuple(flat_rows(groups[group]) for group in spec.groups))
    return keras.tree.map_structure(lambda x: tf.reshape(x, [*real.shape[:2], *x.shape[1:]]), flat)


def flat_rows(x: Any) -> tf.Tensor:
    """Reshape `[batch, rows, ...]` to `[batch · rows, ...]`."""
    return tf.reshape(x, [-1, *x.shape[2:]])


def unpack_windows(spec: Spec, packed: tuple[tf.Tensor, ...], record_width: int) -> WindowBatch:
    """Unpack one minibatch of windows (see `tfdpg.replay.gather_windows`)."""
    real: Any
    layout = WindowLayout.of(spec, spec.act_dim + record_width)
    real = packed[0]
    observation = unpack_rows(spec, real[..., layout.observation], packed[-1])
    action, record = tf.split(real[:, :-1, layout.step], [spec.act_dim, record_width], axis=-1)
    numbers = (real[:, :-1, column] for column in (layout.reward, layout.discount, layout.acted))
    return WindowBatch(observation, action, record, *numbers)


def over_steps(network: keras.Model, inputs: Any, training: bool = False, values: bool = False) -> tf.Tensor:
    """Call a network for inputs `[batch, steps, ...]`.

    Returns:
        `[batch, steps, n]`; `[batch, steps]` if `values` is set.
    """
    first = keras.tree.flatten(inputs)[0]
    leading = [tf.shape(first)[i] if size is None else size for i, size in enumerate(first.shape[:2])]
    output = network(keras.tree.map_structure(flat_rows, inputs), training=training)
    output = flat_values(output) if values else output
    return tf.reshape(output, [*leading, *output.shape[1:]])


def bounded(spec: Spec, action: tf.Tensor) -> tf.Tensor:
    """Clip a policy's actions, `[batch, act_dim]`, to the action box, which a custom policy may leave."""
    return tf.clip_by_value(action, spec.low, spec.high)


def chosen_actions(spec: Spec, outputs: tf.Tensor) -> tf.Tensor:
    """The actions that an evaluation policy chooses, for its outputs; see `tfdpg.acting.greedy_actions`."""
    if spec.actions is None:
        actions = bounded(spec, outputs)
        return actions if spec.integer_type is None else tf.round(actions)
    return tf.argmax(outputs, axis=-1) + int(spec.low[0])


def flat_values(values: tf.Tensor) -> tf.Tensor:
    """Reshape the output of a critic to `[batch]`.

    Args:
        values: `[batch]` or `[batch, 1]`.
    """
    return values if values.shape.rank == 1 else tf.squeeze(values, axis=-1)


def smallest(outputs: tf.Tensor | Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the minimum over critics, min_i Q_i, `[batch]`.

    Args:
        outputs: the stacked values of critics, `[n, batch]`; or a sequence of outputs, `[batch]` or `[batch, 1]`.
    """
    if isinstance(outputs, tf.Tensor):
        return tf.reduce_min(outputs, axis=0)
    return tf.reduce_min([flat_values(output) for output in outputs], axis=0)


def checked(losses: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Return losses, or raise `ValueError` if they are not one for each of the weights `[n]` on the last axis."""
    if losses.shape[-1:] != weight.shape:
        raise ValueError(
            f"A loss must have one value for each of the {weight.shape[0]} elements of the minibatch, on its last "
            f"axis: return it before the mean is taken. Received: the shape {losses.shape}"
        )
    return losses


def in_half_precision(network: keras.Model) -> bool:
    """Return whether a layer of the network computes in float16 or bfloat16."""
    return any(layer.compute_dtype in ("float16", "bfloat16") for layer in network._flatten_layers())
