"""A minibatch of sequences, which asks networks with a memory; see `TransitionBatch` for one of transitions."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdpg.acting import RecurrentSpec
from tfdpg.networks.tensors import TransitionBatch, unpack_observation
from tfdpg.replay import SequenceLayout
from tfdpg.spec import Spec


class SequenceBatch(NamedTuple):
    """A minibatch of sequences: rows of burn-in, of steps to be learnt, and those from which they bootstrap.

    What an update sees of them is flat, `[n, ...]` with n = batch · steps. Steps after an episode's end have no weight.

    Attributes:
        observation: of all rows, `[batch, rows, ...]`.
        previous: the action and the reward before each, as far as they are seen, `[batch, rows, k]`.
        valid: which rows there are, bool `[batch, rows]`.
        state: what the policy remembered before the first of them, `[batch, state_width]`.
        bootstrap_offset: how many rows ahead each step bootstraps, 0 where there was none, `[batch, steps]`.
        burn_in: the rows before the first step.
        action: a, `[n, act_dim]`, in the environment's units.
        reward: the sum of the discounted rewards of m steps, `[n]`.
        discount: gamma^m (1 - terminated), `[n]`.
        weight: how much each counts in the critic's loss, `[n]`.
        acted: 1 where there was a step, else 0, `[n]`.
    """

    observation: Any
    previous: tf.Tensor
    valid: tf.Tensor
    state: tf.Tensor
    bootstrap_offset: tf.Tensor
    burn_in: int
    action: tf.Tensor
    reward: tf.Tensor
    discount: tf.Tensor
    weight: tf.Tensor
    acted: tf.Tensor

    def ask(self, network: Any, action: tf.Tensor | None = None, training: bool = False) -> tf.Tensor:
        """What a network says of the steps, or of them and actions, `[n, ...]`; burn-in has no gradient."""
        state = self._initial_state(network, action)
        first = self.burn_in
        if first:
            _, state = network.unroll(*self._part(slice(first)), state)
        remembered, _ = network.unroll(*self._part(slice(first, first + self.steps)), tf.stop_gradient(state), training)
        return network.apply_torso(_flat(remembered), action, training)

    def ask_next(self, network: Any, action: tf.Tensor | None = None) -> tf.Tensor:
        """What a network says of the rows ahead, or of them and actions, having seen all rows before."""
        remembered, _ = network.unroll(*self._part(slice(None)), self._initial_state(network, action))
        return network.apply_torso(_flat(self._bootstrap_rows(remembered)), action)

    def ask_both(
        self, network: Any, action: tf.Tensor, next_network: Any, next_action: tf.Tensor
    ) -> Sequence[tf.Tensor]:
        """What a network, in training, says of the steps and actions, and its target of the rows ahead and others."""
        return self.ask(network, action, training=True), self.ask_next(next_network, next_action)

    def mean(self, losses: tf.Tensor) -> tf.Tensor:
        """The mean over the steps that there were `[]`, each with its weight."""
        return tf.reduce_sum(self.weight * losses) / tf.reduce_sum(self.acted)

    def average(self, values: tf.Tensor) -> tf.Tensor:
        """The mean over the steps that there were `[]`."""
        return tf.reduce_sum(self.acted * values) / tf.reduce_sum(self.acted)

    def mask_metrics(self, metrics: tf.Tensor) -> tf.Tensor:
        """Metrics `[metrics, n]`, NaN where there was no step."""
        return tf.where(self.acted > 0, metrics, float("nan"))

    @property
    def steps(self) -> int:
        """The steps of each sequence."""
        shape: Any = self.bootstrap_offset.shape
        return shape[1]

    def _part(self, rows: slice) -> Any:
        """Some of the rows: observations, what came before, and which there are."""
        return keras.tree.map_structure(lambda x: x[:, rows], (self.observation, self.previous, self.valid))

    def _bootstrap_rows(self, rows: Any) -> tf.Tensor:
        """Of all rows those from which steps bootstrap, `[batch, steps, ...]`; a gather takes XLA longer."""
        first = self.burn_in
        steps = self.steps
        taken = rows[:, first + 1 : first + 1 + steps]
        for m in range(2, rows.shape[1] - first - steps + 1):
            taken = tf.where(
                tf.expand_dims(self.bootstrap_offset, -1) >= m, rows[:, first + m : first + m + steps], taken
            )
        return taken

    def _initial_state(self, network: Any, action: tf.Tensor | None) -> tf.Tensor:
        """What a network remembers before the first row: what the policy, which takes no action, did; else nothing."""
        return self.state if action is None else network.initial_state(self.previous)


Batch = TransitionBatch | SequenceBatch
"""What an update takes: it asks its networks, which have a memory or none, in one way."""


def unpack_sequences(
    spec: Spec, packed: tuple[tf.Tensor, ...], recurrent_spec: RecurrentSpec, burn_in: int, length: int
) -> SequenceBatch:
    """The sequences of one row of a packed chunk (see `tfdpg.replay.gather_sequences`)."""
    real: Any
    layout = SequenceLayout.of(spec, recurrent_spec.previous_width)
    real = packed[0]
    groups = {"float32": real[..., layout.observation], "uint8": packed[-1]}
    flat = unpack_observation(spec, tuple(_flat(groups[group]) for group in spec.groups))
    observation = keras.tree.map_structure(lambda x: tf.reshape(x, [*real.shape[:2], *x.shape[1:]]), flat)
    state = packed[1] if recurrent_spec.stored_width else tf.zeros([real.shape[0], recurrent_spec.state_width])
    learnt = real[:, burn_in : burn_in + length]
    bootstrap_offset = learnt[..., layout.bootstrap_index] - tf.range(burn_in, burn_in + length, dtype=tf.float32)
    reward, discount, weight = (_flat(learnt[..., i]) for i in (layout.reward, layout.discount, layout.weight))
    return SequenceBatch(
        observation,
        real[..., layout.previous],
        real[..., layout.valid] > 0,
        state,
        bootstrap_offset,
        burn_in,
        _flat(learnt[..., layout.action]),
        reward,
        discount,
        weight,
        _flat(tf.cast(bootstrap_offset > 0, tf.float32)),
    )


def _flat(x: Any) -> tf.Tensor:
    """`[batch, steps, ...]` as `[batch · steps, ...]`."""
    return tf.reshape(x, [-1, *x.shape[2:]])
