"""Minibatches of sequences for recurrent networks; see `TransitionBatch` for minibatches of transitions."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdpg.acting import RecurrentSpec
from tfdpg.networks.critics import Critics, ask_both
from tfdpg.networks.tensors import TransitionBatch, checked, flat_rows, noisy, unpack_rows
from tfdpg.replay import SequenceLayout
from tfdpg.spec import Spec


class SequenceBatch(NamedTuple):
    """A minibatch of sequences: burn-in rows, the steps to learn from, and the rows from which these bootstrap.

    The values that updates use are flat, `[n, ...]` with n = batch · steps. Steps after the end of an episode have
    weight 0.

    Attributes:
        observation: observations of all rows, `[batch, rows, ...]`.
        previous: previous actions and rewards of all rows, if the networks receive them, `[batch, rows, k]`.
        valid: mask of the valid rows, bool `[batch, rows]`.
        state: recurrent state of the policy before the first row, `[batch, state_width]`.
        bootstrap_offset: number of rows from each step to the row from which it bootstraps, `[batch, steps]`; 0 for
            padding.
        burn_in: number of rows before the first step to learn from.
        action: a, `[n, act_dim]`, in the environment's units.
        reward: sum of the discounted rewards of m steps, `[n]`.
        discount: gamma^m (1 - terminated), `[n]`.
        weight: weight in the critic's loss, `[n]`.
        acted: 1 for a step, 0 for padding, `[n]`.
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
        """Call a network for the steps, or for the steps and actions. No gradient flows through the burn-in.

        Args:
            network: a recurrent network, such as one of `Agent.networks`, or `Critics`.
            action: the actions, `[n, act_dim]`, for a critic; None for a policy.
            training: whether the network is called in training mode.

        Returns:
            The output of the network for each step, `[n]` or `[n, k]`; those of critics are stacked on the first axis.
        """
        if isinstance(network, Critics):
            return network.stack(lambda q: self.ask(q, action, training))
        state = self._initial_state(network, action)
        first = self.burn_in
        if first:
            _, state = network.unroll(*self._part(slice(first)), state)
        remembered, _ = network.unroll(*self._part(slice(first, first + self.steps)), tf.stop_gradient(state), training)
        return network.apply_torso(flat_rows(remembered), action, training)

    def ask_next(self, network: Any, action: tf.Tensor | None = None) -> tf.Tensor:
        """Call a network for the rows from which the steps bootstrap, after all rows before them.

        Args:
            network: a recurrent network, such as one of `Agent.targets`, or `Critics`.
            action: the actions at these rows, `[n, act_dim]`, for a critic; None for a policy.

        Returns:
            The output of the network for each step, `[n]` or `[n, k]`; those of critics are stacked on the first axis.
        """
        if isinstance(network, Critics):
            return network.stack(lambda q: self.ask_next(q, action))
        remembered, _ = network.unroll(*self._part(slice(None)), self._initial_state(network, action))
        return network.apply_torso(flat_rows(self._bootstrap_rows(remembered)), action)

    def ask_both(
        self, network: Any, action: tf.Tensor, next_network: Any, next_action: tf.Tensor
    ) -> Sequence[tf.Tensor]:
        """Call a network, in training mode, for the steps, and its target for the rows from which they bootstrap.

        Args:
            network: a recurrent critic, or `Critics`.
            action: the actions of the steps, `[n, act_dim]`.
            next_network: the target network, or `network` itself.
            next_action: the actions at the rows from which the steps bootstrap, `[n, act_dim]`.

        Returns:
            The two outputs; those of critics are stacked on the first axis.
        """
        if isinstance(network, Critics):
            return ask_both(self, network, action, next_network, next_action)
        return self.ask(network, action, training=True), self.ask_next(next_network, next_action)

    def ask_following(self, network: Callable[["SequenceBatch"], tf.Tensor], output: tf.Tensor) -> tf.Tensor:
        """Return the output of a network at the next step of the sequence, through which gradients flow.

        Args:
            network: returns the output at the steps of a minibatch, which this class does not call.
            output: its output for this minibatch, `[n, k]`.

        Returns:
            The outputs, `[n, k]`; at the last step of each sequence and of each episode that at the step itself.
        """
        steps = tf.reshape(output, [-1, self.steps, output.shape[-1]])
        following = tf.concat([steps[:, 1:], steps[:, -1:]], axis=1)
        acted = tf.reshape(self.acted, [-1, self.steps])
        continues = tf.concat([acted[:, 1:], acted[:, -1:]], axis=1)
        return flat_rows(tf.where(tf.expand_dims(continues, -1) > 0, following, steps))

    def with_noise(self, stddev: float, key: tf.Tensor) -> "SequenceBatch":
        """Return the minibatch with Gaussian noise in the observations of all rows; see `TransitionBatch.with_noise`.

        Args:
            stddev: standard deviation of the noise, as a fraction of that of each feature in the valid rows.
            key: key of the random numbers, int64 `[2]`; see `stateless_normal`.
        """
        return self._replace(observation=noisy(self.observation, stddev, key, self.valid))

    def mean(self, losses: tf.Tensor) -> tf.Tensor:
        """Return the mean of a loss over the valid steps, weighted with the importance weights, `[]` or `[critics]`.

        Args:
            losses: a loss for each step, `[n]`, or one of each critic, `[critics, n]`.
        """
        return tf.reduce_sum(self.weight * checked(losses, self.weight), axis=-1) / tf.reduce_sum(self.acted)

    def average(self, values: tf.Tensor) -> tf.Tensor:
        """Return the unweighted mean over the valid steps, `[]`.

        Args:
            values: a number for each step, `[n]`.
        """
        return tf.reduce_sum(self.acted * checked(values, self.acted)) / tf.reduce_sum(self.acted)

    def mask_metrics(self, metrics: tf.Tensor) -> tf.Tensor:
        """Replace metrics `[metrics, n]` by NaN for padding."""
        return tf.where(self.acted > 0, metrics, float("nan"))

    @property
    def steps(self) -> int:
        """Number of steps to learn from in each sequence."""
        shape: Any = self.bootstrap_offset.shape
        return shape[1]

    def _part(self, rows: slice) -> Any:
        """Return observation, previous step and mask of some rows."""
        return keras.tree.map_structure(lambda x: x[:, rows], (self.observation, self.previous, self.valid))

    def _bootstrap_rows(self, rows: Any) -> tf.Tensor:
        """Select the rows from which steps bootstrap, `[batch, steps, ...]`; XLA is slower with a gather."""
        first = self.burn_in
        steps = self.steps
        taken = rows[:, first + 1 : first + 1 + steps]
        for m in range(2, rows.shape[1] - first - steps + 1):
            taken = tf.where(
                tf.expand_dims(self.bootstrap_offset, -1) >= m, rows[:, first + m : first + m + steps], taken
            )
        return taken

    def _initial_state(self, network: Any, action: tf.Tensor | None) -> tf.Tensor:
        """Return a network's state before the first row: the stored state for the policy, zeros for critics."""
        return self.state if action is None else network.initial_state(self.previous)


Batch = TransitionBatch | SequenceBatch
"""A minibatch of an update; both classes have the same interface, for networks that are recurrent or not."""


def unpack_sequences(
    spec: Spec, packed: tuple[tf.Tensor, ...], recurrent_spec: RecurrentSpec, burn_in: int, length: int
) -> SequenceBatch:
    """Unpack the sequences of one minibatch (see `tfdpg.replay.gather_sequences`)."""
    real: Any
    layout = SequenceLayout.of(spec, recurrent_spec.previous_width)
    real = packed[0]
    state = packed[1] if recurrent_spec.stored_width else tf.zeros([real.shape[0], recurrent_spec.state_width])
    learnt = real[:, burn_in : burn_in + length]
    bootstrap_offset = learnt[..., layout.bootstrap_index] - tf.range(burn_in, burn_in + length, dtype=tf.float32)
    reward, discount, weight = (flat_rows(learnt[..., i]) for i in (layout.reward, layout.discount, layout.weight))
    return SequenceBatch(
        unpack_rows(spec, real[..., layout.observation], packed[-1]),
        real[..., layout.previous],
        real[..., layout.valid] > 0,
        state,
        bootstrap_offset,
        burn_in,
        flat_rows(learnt[..., layout.action]),
        reward,
        discount,
        weight,
        flat_rows(tf.cast(bootstrap_offset > 0, tf.float32)),
    )
