"""One compiled call that makes many updates."""

import functools
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdpg.compat.keras import flatten_layers
from tfdpg.networks import flat_weights, free_graphs
from tfdpg.spec import Packed

LARGEST_CHUNK = 50
"""The largest number of updates in one call. More of them save no measurable time and need more memory."""


class UpdateResult(NamedTuple):
    """The results of an update phase.

    Attributes:
        measured: the values of the metrics, `[updates, metrics, batch]`; NaN where an update did not measure one.
        weights: the weights of the acting network after the last update, flat.
        nonfinite: the names of networks whose weights became NaN or infinite; no further update is made after that.
        finite_updates: the number of updates after which all weights are known to be finite.
    """

    measured: np.ndarray
    weights: np.ndarray
    nonfinite: list[str]
    finite_updates: int


class CompiledUpdates:
    """Runs an agent's `update` many times in one compiled call, which is traced and compiled once.

    XLA compiles again for each new shape. Every call therefore receives a chunk of the same shape,
    `[chunk, batch, ...]`, and the number n of its minibatches that are used.

    Args:
        agent: the agent. Its options `jit_compile`, `run_eagerly` and `device` say how the updates run; eager updates
            run in the calling thread.
        chunk: the number of minibatches in a chunk.
    """

    def __init__(self, agent: Any, chunk: int):
        options = agent.options
        networks = agent.networks
        acting = agent.actor.weights_from
        jit_compile = options.jit_compile
        if jit_compile == "auto":
            jit_compile = should_use_xla(networks.values())
        self._names = tuple(networks)
        self._chunk = chunk
        self._device = options.device

        def run(packed: tuple[tf.Tensor, ...], n: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            def step(i: tf.Tensor, measured: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
                batch = agent.unpack(tuple(part[i] for part in packed))
                values = agent.update(batch, agent.counter.assign_add(1))
                return i + 1, measured.write(i, batch.mask_metrics(tf.stack([values[name] for name in agent.metrics])))

            measured = tf.TensorArray(tf.float32, chunk, element_shape=[len(agent.metrics), agent.batch_elements])
            _, measured = tf.while_loop(lambda i, _: i < n, step, [0, measured], parallel_iterations=1)
            weights = tf.zeros(0) if acting is None else flat_weights(acting)
            return measured.stack(), weights, tf.stack([is_finite(network) for network in networks.values()])

        eager = options.run_eagerly
        self.function: Any = run if eager else tf.function(run, jit_compile=bool(jit_compile), autograph=False)
        self._runs = run if eager else None
        self._counts = functools.cache(tf.constant)
        # On one core, XLA's thread pool and a thread that was busy until now take turns at every operation, which costs
        # up to a third of a call. XLA's thread pool and a thread that was asleep do not.
        self._thread: Executor | None = None if eager else ThreadPoolExecutor(1, "updates")

    def __call__(
        self,
        updates: int,
        sample: Callable[[int, int], Packed],
        update_priorities: Callable[[np.ndarray], None] = lambda measured: None,
    ) -> UpdateResult:
        """Make `updates` updates, at least one.

        Args:
            updates: the number of updates.
            sample: receives the number of updates already made and a number k; returns the next k minibatches, packed,
                each array `[k, batch, width]`.
            update_priorities: receives the metrics of these minibatches, `[k, metrics, batch]`, before the next ones
                are sampled.
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
            if not nonfinite:
                update_priorities(values[:n])
                done += n
            if nonfinite or done == updates:
                return UpdateResult(np.concatenate(measured), weights, nonfinite, done)

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
    """Return whether all weights of a network are finite, a bool tensor of shape `[]`."""
    floats = [weight.value for weight in network.weights if weight.value.dtype.is_floating]
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(weight)) for weight in floats])


def should_use_xla(networks: Iterable[keras.Model]) -> bool:
    """Return whether XLA makes updates of these networks faster; it does not if they have convolutions."""
    layers = [layer for network in networks for layer in flatten_layers(network)]
    return not any(isinstance(layer, CONVOLUTIONS) for layer in layers)


CONVOLUTIONS = tuple(
    getattr(keras.layers, name)
    for name in dir(keras.layers)
    if "Conv" in name and isinstance(getattr(keras.layers, name), type)
)
