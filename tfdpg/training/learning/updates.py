"""Many updates in one compiled call."""

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdpg.networks import flat_weights, free_graphs
from tfdpg.spec import Packed

LARGEST_CHUNK = 50
"""More updates in one call save nothing measurable, and cost memory."""

Update = Callable[[Any, Any], dict[str, tf.Tensor]]
"""From a minibatch and the update's number (from 1, int64) to its metrics, each `[batch]`."""


class UpdateResult(NamedTuple):
    """What a round of updates gives back.

    Attributes:
        measured: the values of the metrics, `[updates, metrics, batch]`; NaN where an update did not measure one.
        weights: the weights of the acting network after the last update, flat.
        nonfinite: the names of the networks with weights that are NaN or infinite then; no update is made after that.
        finite_updates: how many of the updates are known to have left all weights finite.
    """

    measured: np.ndarray
    weights: np.ndarray
    nonfinite: list[str]
    finite_updates: int


class CompiledUpdates:
    """Runs an update many times in one compiled call that is traced and compiled once.

    XLA compiles again for each new shape, so every call takes a chunk of the same `[chunk, batch, ...]`
    and a number n of minibatches in it that count.

    Args:
        update: the algorithm's update.
        unpack: makes a minibatch of one row of a packed chunk.
        counter: the number of updates ever made, which the call advances.
        metrics: the names of the metrics.
        chunk: the number of minibatches in a chunk.
        batch_elements: the number of elements in a minibatch that metrics are of.
        networks: what learns, by name.
        acting: the network whose weights go back to the acting side; None sends none.
        jit_compile: whether XLA compiles it.
        run_eagerly: whether it runs line by line instead, in the thread that calls.
        device: where it runs.
    """

    def __init__(
        self,
        update: Update,
        unpack: Callable[[tuple[tf.Tensor, ...]], Any],
        counter: tf.Variable,
        *,
        metrics: Sequence[str],
        chunk: int,
        batch_elements: int,
        networks: Mapping[str, keras.Model],
        acting: keras.Model | None,
        jit_compile: bool,
        run_eagerly: bool = False,
        device: str | None = None,
    ):
        self._metrics = tuple(metrics)
        self._names = tuple(networks)
        self._chunk = chunk
        self._device = device

        def run(packed: tuple[tf.Tensor, ...], n: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            def step(i: tf.Tensor, measured: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
                batch = unpack(tuple(part[i] for part in packed))
                values = update(batch, counter.assign_add(1))
                return i + 1, measured.write(i, batch.mask_metrics(tf.stack([values[name] for name in self._metrics])))

            measured = tf.TensorArray(tf.float32, chunk, element_shape=[len(self._metrics), batch_elements])
            _, measured = tf.while_loop(lambda i, _: i < n, step, [0, measured], parallel_iterations=1)
            weights = tf.zeros(0) if acting is None else flat_weights(acting)
            return measured.stack(), weights, tf.stack([is_finite(network) for network in networks.values()])

        self.function: Any = run if run_eagerly else tf.function(run, jit_compile=jit_compile, autograph=False)
        self._runs = run if run_eagerly else None
        self._counts = functools.cache(tf.constant)
        # On one core, XLA's pool and a caller that has just been busy take turns at every operation, which costs up to
        # a third of a call; XLA's pool and a thread that has slept do not.
        self._thread: Executor | None = None if run_eagerly else ThreadPoolExecutor(1, "updates")

    def __call__(
        self,
        updates: int,
        sample: Callable[[int, int], Packed],
        update_priorities: Callable[[np.ndarray], None] = lambda measured: None,
    ) -> UpdateResult:
        """Makes `updates` updates, at least one.

        Args:
            updates: how many.
            sample: gives, after so many of them, the next k minibatches, packed, each array `[k, batch, width]`.
            update_priorities: takes what was measured on them, `[k, metrics, batch]`, before the next are drawn.
        """
        measured = []
        done = 0
        while True:
            n = min(updates - done, self._chunk)
            packed = tuple(self._padded(part) for part in sample(done, n))
            if self._thread is None:
                values, weights, finite = self._call(packed, n)
            else:
                values, weights, finite = self._thread.submit(self._call, packed, n).result()
            measured.append(values[:n])
            nonfinite = [name for name, all_finite in zip(self._names, finite, strict=True) if not all_finite]
            if nonfinite:
                return UpdateResult(np.concatenate(measured), weights, nonfinite, done)
            update_priorities(values[:n])
            done += n
            if done == updates:
                return UpdateResult(np.concatenate(measured), weights, [], done)

    def _call(self, packed: tuple[np.ndarray, ...], n: int) -> list[np.ndarray]:
        with tf.device(self._device):
            arguments = tuple(map(tf.constant, packed)), self._counts(n)
            if self._runs is None:
                with free_graphs():
                    self._runs = self.function.get_concrete_function(*arguments)
            return [result.numpy() for result in self._runs(*arguments)]

    def _padded(self, part: np.ndarray) -> np.ndarray:
        if len(part) == self._chunk:
            return part
        padded = np.zeros((self._chunk, *part.shape[1:]), part.dtype)
        padded[: len(part)] = part
        return padded


def is_finite(network: keras.Model) -> tf.Tensor:
    """Whether all weights of a network are finite numbers, a bool `[]`."""
    floats = [weight.value for weight in network.weights if weight.value.dtype.is_floating]
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(weight)) for weight in floats])


def should_use_xla(networks: Sequence[keras.Model]) -> bool:
    """Whether XLA makes updates of these networks faster: on unless there are convolutions."""
    layers = [layer for network in networks for layer in network._flatten_layers()]
    return not any(isinstance(layer, CONVOLUTIONS) for layer in layers)


CONVOLUTIONS = tuple(
    getattr(keras.layers, name)
    for name in dir(keras.layers)
    if "Conv" in name and isinstance(getattr(keras.layers, name), type)
)
