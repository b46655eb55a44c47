"""One compiled call that makes many updates."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdpg.compat.keras import flatten_layers
from tfdpg.compat.tensorflow import call_concrete
from tfdpg.components import Metric, Networks
from tfdpg.networks import (
    FlatState,
    NotFlat,
    are_assigned,
    flat_weights,
    free_graphs,
    in_flat_state,
    is_on_cpu,
    lean_products,
    while_loop,
)
from tfdpg.spec import Packed
from tfdpg.training.agent_data import AgentData
from tfdpg.training.threads import let_python_run_first

LARGEST_CHUNK = 50
"""The largest number of updates in one call. More of them save no measurable time and need more memory."""
SHARED_CHUNK = 2
"""The same while another thread stores steps: its actions have newer weights, and it waits less for sampled rows."""


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
        networks: the networks and optimizers of the agent.
        data: its data. The options `jit_compile`, `run_eagerly` and `device` say how the updates run.
        metrics: the metrics of an update.
        update: makes the next update with a minibatch, and returns its metrics.
        chunk: the number of minibatches in a chunk.
        state: passes the variables that updates change, if the agent's code allows it; None passes each one as it is.

    Attributes:
        function: the compiled function.
        delays_policy: whether `state` is used, and the weights for acting change only in `tfdpg.components.run_if`.
        reason_not_flat: why the agent's code does not allow `state`; empty if it does.
    """

    def __init__(
        self,
        networks: Networks,
        data: AgentData,
        metrics: Sequence[Metric],
        update: Callable[[Any], dict[str, tf.Tensor]],
        chunk: int,
        state: FlatState | None,
    ):
        self._networks = networks.components
        self._data = data
        self._options = data.options
        self._metrics = metrics
        self._update = update
        self._chunk = chunk
        self._state = state
        self._counts = functools.cache(tf.constant)
        self._concrete: Any = None
        self.delays_policy = False
        self.reason_not_flat = ""
        jit_compile = uses_xla(networks, self._options.jit_compile)
        self._is_lean = jit_compile and not self._options.run_eagerly and is_on_cpu(self._options.device)
        self._compile = functools.partial(tf.function, self._run, jit_compile=jit_compile, autograph=False)
        self.function: Any = self._run if self._options.run_eagerly else self._compile()
        if self._is_lean:
            let_python_run_first()

    def _run(self, packed: tuple[tf.Tensor, ...], n: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Make n updates; return their metrics, the flat weights for acting, and whether networks are finite."""
        data = self._data
        acting = data.actor.weights_from

        def step(i: tf.Tensor, measured: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            batch = data.unpack_for_update(tuple(part[i] for part in packed))
            with lean_products(self._is_lean):
                values = self._update(batch)
            self.delays_policy = in_flat_state() and not are_assigned(() if acting is None else acting.weights)
            row = tf.stack([values[metric.name] for metric in self._metrics])
            return i + 1, measured.write(i, batch.mask_metrics(row))

        shape = [len(self._metrics), data.batch_elements]
        measured = tf.TensorArray(tf.float32, self._chunk, element_shape=shape)
        with contextlib.nullcontext() if self._state is None else self._state.unpacked():
            _, measured = while_loop(lambda i, _: i < n, step, [0, measured])
            weights = tf.zeros(0) if acting is None else flat_weights(acting)
            finite = tf.stack([is_finite(network) for network in self._networks.values()])
        return measured.stack(), weights, finite

    def __call__(
        self,
        updates_before: int,
        updates: int,
        sample: Callable[[int, int], Packed],
        update_priorities: Callable[[np.ndarray], None] = lambda measured: None,
    ) -> UpdateResult:
        """Make `updates` updates, at least one.

        Args:
            updates_before: the number of updates ever made.
            updates: the number of updates.
            sample: receives the number of updates ever made and a number k; returns the next k minibatches, packed,
                each array `[k, batch, width]`.
            update_priorities: receives the metrics of these minibatches, `[k, metrics, batch]`, before the next ones
                are sampled.
        """
        measured = []
        done = 0
        while True:
            n = min(updates - done, self._chunk)
            packed = tuple(self._padded(part) for part in sample(updates_before + done, n))
            values, weights, finite = self._call(packed, n)
            measured.append(values[:n])
            nonfinite = [name for name, all_finite in zip(self._networks, finite, strict=True) if not all_finite]
            if not nonfinite:
                update_priorities(values[:n])
                done += n
            if nonfinite or done == updates:
                return UpdateResult(
                    measured[0] if len(measured) == 1 else np.concatenate(measured), weights, nonfinite, done
                )

    def compile(self, sample: Callable[[int], Packed]) -> None:
        """Compile the updates by a call that makes none; `sample` returns packed minibatches of the right shapes.

        A second call makes updates, after which all variables have their former values again: it provides the memory
        that updates need, so that the first ones do not take longer than later ones. It is left out if the compiled
        function changes anything that is not among its variables.
        """
        self._call(sample(self._chunk), 0)
        variables = {id(variable.handle): variable for variable in self._concrete.variables}
        if any(id(each) not in variables for each in self._concrete.captured_inputs):
            return
        replay = self._data.device_replay
        changed = [variable for variable in variables.values() if replay is None or variable is not replay.rows]
        before = [(variable, np.array(variable)) for variable in changed]
        self._call(sample(self._chunk), self._chunk)
        for variable, value in before:
            variable.assign(value)

    def _call(self, packed: tuple[np.ndarray, ...], n: int) -> list[np.ndarray]:
        with tf.device(self._options.device):
            arguments = tuple(map(tf.constant, packed)), self._counts(n)
            if self._options.run_eagerly:
                return [result.numpy() for result in self._run(*arguments)]
            if self._concrete is None:
                with free_graphs():
                    self._concrete = self._traced(arguments)
            if self._state is not None:
                self._state.read_variables()
            return [result.numpy() for result in call_concrete(self._concrete, arguments)]

    def _traced(self, arguments: Sequence[Any]) -> Any:
        """Return the concrete function, with flat tensors if the agent's code allows it."""
        if self._state is not None:
            try:
                return self._state.trace(self.function, arguments)
            except NotFlat as error:
                self.reason_not_flat = str(error)
            self._state = None
            self.function = self._compile()
        return self.function.get_concrete_function(*arguments)

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


def uses_xla(networks: Networks, jit_compile: bool | str) -> bool:
    """Return whether XLA compiles updates, according to the option `jit_compile`."""
    return should_use_xla(networks.components.values()) if jit_compile == "auto" else bool(jit_compile)


def should_use_xla(networks: Iterable[keras.Model]) -> bool:
    """Return whether XLA makes updates of these networks faster; it does not if they have convolutions."""
    layers = [layer for network in networks for layer in flatten_layers(network)]
    return not any(isinstance(layer, CONVOLUTIONS) for layer in layers)


CONVOLUTIONS = tuple(
    getattr(keras.layers, name)
    for name in dir(keras.layers)
    if "Conv" in name and isinstance(getattr(keras.layers, name), type)
)
