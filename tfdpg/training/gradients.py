"""The vocabulary of updates, inside the compiled call: descend, where due, average."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdpg.losses import bc_loss, clip_action_gradient
from tfdpg.networks import Batch
from tfdpg.spec import Spec
from tfdpg.training.optimizers import trainable_variables


class descent:
    """One optimizer step on the trainable weights of a network, or of several, and on nothing else.

        with descent(critic, optimizer) as down:
            down(tf.reduce_mean(td_loss(critic([observation, action]), target)))

    The networks' own losses (regularizers; of a single network `add_loss` too) are added.

    Args:
        networks: what learns.
        optimizer: an optimizer built for its trainable weights.
    """

    def __init__(self, networks: keras.Model | Sequence[keras.Model], optimizer: keras.optimizers.Optimizer):
        self._networks = [networks] if isinstance(networks, keras.Model) else networks
        self._optimizer, self._loss = optimizer, tf.constant(0.0)
        self._variables = trainable_variables(self._networks)
        self._weights = [variable.value for variable in self._variables]
        self._tape = tf.GradientTape(watch_accessed_variables=False)

    def __enter__(self) -> "descent":
        self._tape.__enter__()
        self._tape.watch(self._weights)
        return self

    def __call__(self, loss: tf.Tensor) -> None:
        """Says which loss is to become smaller, a number `[]`."""
        self._loss = self._optimizer.scale_loss(loss + own_losses(self._networks))  # in mixed float16 precision only

    def __exit__(self, kind: type[BaseException] | None, *exception: Any) -> None:
        """Takes the step."""
        self._tape.__exit__(kind, *exception)
        if kind is None:
            self._optimizer.apply(self._tape.gradient(self._loss, self._weights), self._variables)


@contextlib.contextmanager
def descents(
    networks: Mapping[str, keras.Model], optimizers: Mapping[str, keras.optimizers.Optimizer]
) -> Iterator[Callable[[Sequence[tf.Tensor]], None]]:
    """Such a step of several networks, each with its own optimizer and a loss that may be made of what all say.

    with descents({"q1": q1, "q2": q2}, optimizers) as down:
        down([loss1, loss2])
    """
    with contextlib.ExitStack() as stack:
        steps = [stack.enter_context(descent(network, optimizers[name])) for name, network in networks.items()]

        def down(losses: Sequence[tf.Tensor]) -> None:
            for step, loss in zip(steps, losses, strict=True):
                step(loss)

        yield down


def own_losses(networks: Sequence[keras.Model]) -> Any:
    """The losses of a network; of several, which may share layers, the regularization of each variable once."""
    if len(networks) == 1:
        return sum(networks[0].losses)
    variables = trainable_variables(networks)
    return sum(variable.regularizer(variable) for variable in variables if variable.regularizer is not None)


def where_due(is_due: tf.Tensor, update: Callable[[], Any], size: int = 0) -> tf.Tensor:
    """Runs `update` if `is_due`, as a loop of one pass or none, which XLA runs in place.

    Out of a conditional, XLA copies every weight that one of its branches changes, twice, whichever branch runs.

    Args:
        is_due: a bool, `[]`.
        update: changes weights, and gives a metric `[size]` if `size` is not 0.
        size: the number of elements in the metric.

    Returns:
        The metric, NaN if `update` was not due.
    """
    passes, nothing = tf.cast(is_due, tf.int32), tf.fill([size], math.nan)

    def run(i: tf.Tensor, metric: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        result = update()
        return i + 1, result if size else metric

    return tf.while_loop(lambda i, _: i < passes, run, [0, nothing], parallel_iterations=1)[1]


def polyak_average(target: keras.Model, online: keras.Model, polyak: float) -> None:
    """Moves every trainable weight: target ← polyak * target + (1 - polyak) * online.

    The others, statistics of normalisation layers, are copied.
    """
    for old, new in zip(target.trainable_weights, online.trainable_weights, strict=True):
        old.assign(polyak * old + (1 - polyak) * new)
    for old, new in zip(target.non_trainable_weights, online.non_trainable_weights, strict=True):
        old.assign(new)


def average_all(targets: Mapping[str, keras.Model], networks: Mapping[str, keras.Model], polyak: float) -> None:
    """Polyak averaging of each target network with its online network, by their names."""
    for name, target in targets.items():
        polyak_average(target, networks[name], polyak)


def climb(
    value: Callable[[tf.Tensor], tf.Tensor], action: tf.Tensor, limit: float | None, half_range: np.ndarray
) -> tf.Tensor:
    """−Q(s, a), `[batch]`, whose gradient by the action may be clipped.

    Args:
        value: from actions to their values `[batch]`.
        action: π(s), `[batch, act_dim]`.
        limit: the largest norm of each sample's ∇_a Q, with a in half-ranges; None does not clip.
        half_range: half the width of the action box, `[act_dim]`.
    """
    if limit is None:
        return -value(action)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        fixed = tf.stop_gradient(action)
        tape.watch(fixed)
        q = value(fixed)
    gradient = clip_action_gradient(tape.gradient(q, fixed), limit, half_range)
    rise = tf.reduce_sum(tf.stop_gradient(gradient) * (action - fixed), axis=-1)  # 0, with the clipped gradient
    return -(tf.stop_gradient(q) + rise)


def policy_loss(spec: Spec, q: tf.Tensor, action: tf.Tensor, batch: Batch, bc_weight: float) -> tf.Tensor:
    """−Q(s, π(s)), with behaviour cloning of the batch's actions if it has a weight, `[batch]`."""
    if bc_weight == 0:
        return -q
    action, data_action = ((a - spec.center) / spec.half_range for a in (action, batch.action))
    return bc_loss(q, action, data_action, bc_weight, batch.average)
