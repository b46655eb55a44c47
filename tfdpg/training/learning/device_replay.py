"""A copy of the replay buffer in the memory of a device, from which compiled updates take their minibatches."""

from typing import NoReturn

import numpy as np
import tensorflow as tf

from tfdpg.replay import transition_outcomes
from tfdpg.replay.buffer import NONE
from tfdpg.replay.minibatches import MinibatchBuilder
from tfdpg.spec import Packed

BLOCK = 1 << 16
"""The largest number of rows that are sent at once."""


class DeviceReplay:
    """The observations and actions of a replay buffer on a device.

    A sampled minibatch is only the slots of its rows, and of the rows after its n steps, with the reward, discount and
    weight of each. The compiled update reads the rows on the device.

    Args:
        builder: samples minibatches of transitions from the replay buffer.
        device: the device of the updates.

    Raises:
        ValueError: the rows do not fit in the memory of the device.
    """

    def __init__(self, builder: MinibatchBuilder, device: str):
        """See the class.

        Attributes:
            rows: observation and action of each row, a float32 variable `[replay_size, obs_width + act_dim]`.
        """
        if builder.n_step is None:
            raise ValueError(f"`replay_device` needs minibatches of transitions. Received: replay_device={device!r}")
        self._n_step = builder.n_step
        self._gamma = builder.gamma
        self._buffer = buffer = builder.buffer
        self._device = device
        shape = buffer.replay_size, buffer.obs_width + buffer.step_width
        try:
            with tf.device(device):
                self.rows = tf.Variable(tf.zeros(shape), trainable=False, name="replay")
        except (tf.errors.ResourceExhaustedError, tf.errors.InternalError) as error:
            raise ValueError(
                f"The replay buffer needs {4 * shape[0] * shape[1]:,} bytes of the memory of {device}, which has no "
                f"room for them. Choose a smaller `replay_size`, or leave out `replay_device`. Received: "
                f"replay_size={buffer.replay_size}, replay_device={device!r}"
            ) from error
        self._forget()

    def _forget(self) -> None:
        """Take all rows of the replay buffer as new."""
        self._successor = self._buffer.successor
        self._sent = 0  # the number of rows ever stored, when rows were sent last
        self._open = np.empty(0, np.int64)  # the rows that had no action yet at that time

    def update(self) -> None:
        """Send the rows that changed since the last call."""
        buffer = self._buffer
        if self._successor is not buffer.successor:  # the buffer was cleared
            self._forget()
        if buffer.added == self._sent:
            return
        numbers = np.concatenate([self._open, np.arange(max(self._sent, buffer.oldest), buffer.added)])
        slots = numbers[numbers >= buffer.oldest] % buffer.replay_size
        with tf.device(self._device):
            for start in range(0, len(slots), BLOCK):
                part = slots[start : start + BLOCK]
                self.rows.scatter_update(tf.IndexedSlices(tf.constant(buffer.rows[part, :-1]), tf.constant(part)))
        self._open = buffer.current[buffer.current != NONE]
        self._sent = buffer.added

    def pack(self, slots: np.ndarray, weights: np.ndarray | None) -> Packed:
        """Pack sampled minibatches for `gather`.

        Args:
            slots: slots of rows with a successor, `[...]`.
            weights: weights in the critic's loss, `[...]`; None for 1.

        Returns:
            The slots of the rows and of those after the steps, int64 `[..., 2]`, and reward, discount and weight,
            float32 `[..., 3]`. TensorFlow keeps int32 tensors of compiled functions in the memory of the CPU.
        """
        last, outcome = transition_outcomes(self._buffer, slots.ravel(), self._n_step, self._gamma, weights)
        both = np.stack([slots.ravel(), last], axis=1).astype(np.int64, copy=False)
        return both.reshape(*slots.shape, 2), outcome.reshape(*slots.shape, 3)

    def example(self, minibatches: int, batch_size: int) -> Packed:
        """Return minibatches of the first row, which have the shapes of sampled ones."""
        shape = minibatches, batch_size
        return np.zeros((*shape, 2), np.int64), np.ones((*shape, 3), np.float32)

    def gather(self, slots: tf.Tensor, outcome: tf.Tensor) -> tuple[tf.Tensor]:
        """Return packed transitions as `tfdpg.replay.gather_transitions` does, `[batch, width]`.

        Args:
            slots: `[batch, 2]`.
            outcome: `[batch, 3]`.
        """
        first = tf.gather(self.rows, slots[:, 0])
        last = tf.gather(self.rows, slots[:, 1])
        return (tf.concat([first, outcome, last[:, : self._buffer.obs_width]], axis=1),)

    def refuse(self, what: str) -> NoReturn:
        """Raise the error for what is not possible with the replay buffer on a device."""
        raise ValueError(f"{what} is not possible with `replay_device`. Received: replay_device={self._device!r}")
