"""The variables that updates change, as one flat tensor for each type.

A compiled call passes every variable that it reads or writes separately, which takes longer than the arithmetic of an
update of small networks. `FlatState` passes all of them as one variable. Inside the call it is split into tensors, and
Keras' variables stand for these (`keras.StatelessScope`), so that networks and optimizers are called as they are.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdpg.compat.keras import assign_directly, notify_of_reads, stop_notifying


class _Current(threading.local):
    scope: "_Scope | None" = None


_current = _Current()


class _Scope(keras.StatelessScope):
    """Keras' variables in `variables` have the values given; others are read and assigned as usual."""

    def __init__(self, variables: Sequence[Any], values: Iterable[tf.Tensor]):
        super().__init__(list(zip(variables, values, strict=True)), collect_losses=True)
        self.variables = variables

    def __enter__(self) -> "_Scope":
        super().__enter__()
        self._outer = _current.scope
        _current.scope = self
        return self

    def __exit__(self, *exception: Any) -> None:
        _current.scope = self._outer
        super().__exit__(*exception)

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Set the value of a variable, as `variable.assign` asks."""
        variable, value = update
        if self.get_current_value(variable) is None:
            assign_directly(variable, value)
        else:
            super().add_update(update)

    @property
    def values(self) -> list[Any]:
        """The present values of `variables`."""
        return [self.get_current_value(variable) for variable in self.variables]


def in_flat_state() -> bool:
    """Return whether Keras' variables stand for parts of a flat tensor now."""
    return _current.scope is not None


def while_loop(condition: Callable[..., Any], body: Callable[..., Sequence[Any]], values: Sequence[Any]) -> list[Any]:
    """`tf.while_loop`, one pass after the other, whose body may assign variables also inside `FlatState.unpacked`.

    Args:
        condition: receives the loop's values, and returns whether to run the body again.
        body: receives the loop's values, and returns the next ones.
        values: the first values.
    """
    scope = _current.scope
    if scope is None:
        return list(tf.while_loop(condition, body, list(values), parallel_iterations=1))
    n = len(values)

    def run(*everything: Any) -> list[Any]:
        with _Scope(scope.variables, everything[n:]) as inner:
            results = body(*everything[:n])
        return [*results, *inner.values]

    results = tf.while_loop(
        lambda *everything: condition(*everything[:n]), run, [*values, *scope.values], parallel_iterations=1
    )
    for update in zip(scope.variables, results[n:], strict=True):
        scope.add_update(update)
    return list(results[:n])


class FlatState:
    """Variables, and one flat tensor for each of their types, of which only one side holds the newest values.

    Args:
        variables: Keras' variables.
        device: where the flat tensors are; None is TensorFlow's choice.

    Attributes:
        is_newer: whether the flat tensors are newer than the variables.
    """

    def __init__(self, variables: Iterable[Any], device: str | None):
        groups: dict[str, list[Any]] = {}
        for variable in variables:
            groups.setdefault(variable.dtype, []).append(variable)
        self._groups = list(groups.values())
        self._device = device
        self._variables = [variable for group in self._groups for variable in group]
        self.is_newer = False
        with tf.device(device):
            self._flat = [tf.Variable(self._concat(group), trainable=False) for group in self._groups]

    def read_variables(self) -> None:
        """Let the flat tensors hold the newest values."""
        if not self.is_newer:
            self._assign_flat()
            self.is_newer = True

    def write_variables(self) -> None:
        """Let the variables hold the newest values."""
        if self.is_newer:
            with tf.device(self._device):
                for flat, group in zip(self._flat, self._groups, strict=True):
                    for variable, value in zip(group, _split(flat, group), strict=True):
                        variable.assign(value)
            self.is_newer = False

    def notify_of_reads(self, on_read: Callable[[bool], None]) -> None:
        """Call a function before a variable is read or assigned, until `stop_notifying` is called.

        Args:
            on_read: receives whether a function that is being compiled reads the variable. Its calls will not be
                noticed.
        """

        def notify() -> None:
            if tf.executing_eagerly():
                on_read(False)
                return
            with tf.init_scope():
                on_read(True)

        notify_of_reads(self._variables, notify)

    def stop_notifying(self) -> None:
        """End what `notify_of_reads` began."""
        stop_notifying(self._variables)

    @contextlib.contextmanager
    def unpacked(self) -> Iterator[None]:
        """In a compiled function: let the variables stand for the parts of the flat tensors, and assign these later."""
        parts = [part for flat, group in zip(self._flat, self._groups, strict=True) for part in _split(flat, group)]
        with _Scope(self._variables, parts):
            yield
            self._assign_flat()

    def _assign_flat(self) -> None:
        for flat, group in zip(self._flat, self._groups, strict=True):
            flat.assign(self._concat(group))

    @staticmethod
    def _concat(group: Sequence[Any]) -> tf.Tensor:
        return tf.concat([tf.reshape(variable.value, [-1]) for variable in group], axis=0)


def _split(flat: tf.Variable, group: Sequence[Any]) -> list[tf.Tensor]:
    parts = tf.split(flat.value(), [int(np.prod(variable.shape)) for variable in group])
    return [tf.reshape(part, variable.shape) for part, variable in zip(parts, group, strict=True)]
