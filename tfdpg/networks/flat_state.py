"""The variables that updates change, as one flat tensor for each type.

A compiled call passes every variable that it reads or writes separately, which takes longer than the arithmetic of an
update of small networks. `FlatState` passes all of them as one variable. Inside the call it is split into tensors, and
Keras' variables stand for these (`keras.StatelessScope`), so that networks and optimizers are called as they are.

Splitting copies the values. Where calls make few updates, this takes longer for a large variable than to pass it alone.
"""

import contextlib
import functools
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf

from tfdpg.compat.keras import assign_directly, base_optimizer, tf_variable
from tfdpg.compat.tensorflow import notify_of_reads, report_access, stop_notifying


class NotFlat(Exception):
    """An update uses a variable in a way that flat tensors cannot follow; the message says which and how."""


class _Current(threading.local):
    scope: "_Scope | None" = None
    reason = ""
    """Why the update that is traced now cannot use flat tensors, even if its code caught the exception."""


_current = _Current()


class _Scope(keras.StatelessScope):
    """Keras' variables in `variables` have the values given; others are read and assigned as usual."""

    def __init__(self, variables: Sequence[Any], values: Iterable[tf.Tensor]):
        super().__init__(list(zip(variables, values, strict=True)), collect_losses=True)
        self.variables = variables
        self._graph = tf.compat.v1.get_default_graph()
        self._present = {each: [value] for each, value in self.state_mapping.items()}  # tensors with a present value
        self.assigned: set[int] = set()  # the ids of variables that code assigned here, not in a loop inside
        self._replaced: list[tuple[Any, tf.Tensor, set[str]]] = []  # former ones, with the operations that took them
        if _current.scope is not None:  # a loop may read the losses of layers that were called before it
            self.losses = _current.scope.losses

    def __enter__(self) -> "_Scope":
        super().__enter__()
        self._outer = _current.scope
        _current.scope = self
        return self

    def __exit__(self, *exception: Any) -> None:
        _current.scope = self._outer
        super().__exit__(*exception)
        if exception[0] is None:
            self._check_replaced()

    def get_current_value(self, variable: Any) -> Any:
        """The value of a variable in `variables`; None for another."""
        value = super().get_current_value(variable)
        if value is not None:
            report_access(tf_variable(variable))
            graph: Any = tf.compat.v1.get_default_graph()
            while graph not in (self._graph, None):
                if type(graph) is tf.__internal__.FuncGraph:  # not one of its subclasses, which are branches and loops
                    _refuse(variable, "is read in a `tf.function`, which is not needed, because updates are compiled")
                graph = getattr(graph, "outer_graph", None)
        return value

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Set the value of a variable, as `variable.assign` asks."""
        variable, value = update
        if id(variable) not in self.state_mapping:
            assign_directly(variable, value)
        elif tf.compat.v1.get_default_graph() is not self._graph:
            _refuse(variable, "is assigned in a `tf.cond`, a loop or a `tf.function`; use `tfdpg.components.run_if`")
        else:
            self.assigned.add(id(variable))
            self.replace(variable, tf.identity(value))  # not the tensor of another variable

    def replace(self, variable: Any, value: tf.Tensor, is_equal: bool = False) -> None:
        """Let a variable have the value of another tensor, which may be equal to the present one."""
        present = self._present[id(variable)]
        if not is_equal:
            self._replaced += [(variable, old, {op.name for op in old.consumers()}) for old in present]
            present.clear()
        present.append(value)
        self.state_mapping[id(variable)] = value

    def _check_replaced(self) -> None:
        """Raise `NotFlat` if the tensor of a former value is used where a `tf.Variable` would have the present one."""
        for variable, old, before in self._replaced:
            late = {op.name for op in old.consumers()} - before
            if any("gradient_tape/" not in name for name in late):
                _refuse(variable, "is assigned between reading its `value` and using that")

    @property
    def values(self) -> list[Any]:
        """The present values of `variables`."""
        return [self.state_mapping[id(variable)] for variable in self.variables]


def _refuse(variable: Any, fault: str) -> NoReturn:
    _current.reason = _current.reason or f"{variable.path} {fault}"
    raise NotFlat(_current.reason)


def in_flat_state() -> bool:
    """Return whether Keras' variables stand for parts of a flat tensor now."""
    return _current.scope is not None


def are_assigned(variables: Iterable[Any]) -> bool:
    """Return whether code inside the present loop assigned one of these variables, other than in a loop inside it."""
    assigned = set() if _current.scope is None else _current.scope.assigned
    return any(id(variable) in assigned for variable in variables)


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
    is_equal: list[bool] = []

    def run_condition(*everything: Any) -> Any:
        with _Scope(scope.variables, everything[n:]):
            return condition(*everything[:n])

    def run(*everything: Any) -> list[Any]:
        with _Scope(scope.variables, everything[n:]) as inner:
            results = body(*everything[:n])
        is_equal[:] = [new is old for new, old in zip(inner.values, everything[n:], strict=True)]
        return [*results, *inner.values]

    results = tf.while_loop(run_condition, run, [*values, *scope.values], parallel_iterations=1)
    for change in zip(scope.variables, results[n:], is_equal, strict=True):
        scope.replace(*change)
    return list(results[:n])


LARGE = 16_000
"""The number of elements from which on a variable is cheaper to pass alone than to copy."""


class FlatState:
    """Variables, and one flat tensor for each of their types, of which only one side holds the newest values.

    Args:
        variables: Keras' variables.
        optimizers: the optimizers that assign some of them.
        device: where the flat tensors are; None is TensorFlow's choice.
        has_large_apart: whether each large variable has a flat tensor of its own.

    Attributes:
        is_newer: whether the flat tensors are newer than the variables.
    """

    def __init__(
        self,
        variables: Iterable[Any],
        optimizers: Iterable[keras.optimizers.Optimizer],
        device: str | None,
        has_large_apart: bool = False,
    ):
        groups: dict[Any, list[Any]] = {}
        for variable in variables:
            is_apart = has_large_apart and np.prod(variable.shape) >= LARGE
            groups.setdefault(id(variable) if is_apart else variable.dtype, []).append(variable)
        self._groups = list(groups.values())
        self._optimizers = list(optimizers)
        self._device = device
        self._variables = [variable for group in self._groups for variable in group]
        self.is_newer = False
        with tf.device(device):
            self._flat = [tf.Variable(self._concat(group), trainable=False) for group in self._groups]

    def trace(self, function: Any, arguments: Sequence[tf.Tensor]) -> Any:
        """Trace a `tf.function` whose code is inside `unpacked`.

        Returns:
            The concrete function for these arguments.

        Raises:
            NotFlat: variables would not change as they do outside of `unpacked`, or tracing ended with an error.
        """
        _current.reason = ""
        try:
            with warnings.catch_warnings(record=True) as issued:  # another attempt would issue them again
                warnings.simplefilter("always")
                concrete = function.get_concrete_function(*arguments)
            captured = {id(each) for each in concrete.captured_inputs}
            for variable in self._variables:
                if id(variable.handle) in captured:
                    _refuse(variable, "is used as a `tf.Variable`, not through Keras")
        except Exception as error:
            raise NotFlat(_current.reason or _described(error)) from error
        if _current.reason:
            raise NotFlat(_current.reason)
        for each in issued:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
        return concrete

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

        notify_of_reads([variable.value for variable in self._variables], notify)

    def stop_notifying(self) -> None:
        """End what `notify_of_reads` began."""
        stop_notifying([variable.value for variable in self._variables])

    @contextlib.contextmanager
    def unpacked(self) -> Iterator[None]:
        """In a compiled function: let the variables stand for the parts of the flat tensors, and assign these later."""
        parts = [part for flat, group in zip(self._flat, self._groups, strict=True) for part in _split(flat, group)]
        with _by_keras(self._optimizers), _Scope(self._variables, parts):
            yield
            self._assign_flat()

    def _assign_flat(self) -> None:
        for flat, group in zip(self._flat, self._groups, strict=True):
            flat.assign(self._concat(group))

    @staticmethod
    def _concat(group: Sequence[Any]) -> tf.Tensor:
        return tf.concat([tf.reshape(variable.value, [-1]) for variable in group], axis=0)


_BASE = base_optimizer()


class _AssignsByKeras(keras.optimizers.Optimizer):
    """A base of optimizers that assign variables through Keras, so that a `_Scope` receives the values."""

    assign = _BASE.assign
    assign_add = _BASE.assign_add
    assign_sub = _BASE.assign_sub
    _apply_weight_decay = _BASE._apply_weight_decay

    def _var_key(self, variable: Any) -> Any:
        return super()._var_key(tf_variable(variable))

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        if any(isinstance(gradient, tf.IndexedSlices) for gradient in grads):
            raise NotFlat(f"the optimizer {self.name} receives sparse gradients")
        _BASE._backend_update_step(self, grads, trainable_variables, learning_rate)


@contextlib.contextmanager
def _by_keras(optimizers: Sequence[keras.optimizers.Optimizer]) -> Iterator[None]:
    """Let optimizers assign variables through Keras inside the context, unless their own methods do otherwise."""
    inner = [each.inner_optimizer for each in optimizers if isinstance(each, keras.optimizers.LossScaleOptimizer)]
    kinds = [(optimizer, type(optimizer)) for optimizer in (*optimizers, *inner)]
    for optimizer, kind in kinds:
        object.__setattr__(optimizer, "__class__", _by_keras_too(kind))
    try:
        yield
    finally:
        for optimizer, kind in kinds:
            object.__setattr__(optimizer, "__class__", kind)


@functools.cache
def _by_keras_too(kind: type) -> type:
    return type(kind.__name__, (kind, _AssignsByKeras), {})


def _split(flat: tf.Variable, group: Sequence[Any]) -> list[tf.Tensor]:
    parts = tf.split(flat.value(), [int(np.prod(variable.shape)) for variable in group])
    return [tf.reshape(part, variable.shape) for part, variable in zip(parts, group, strict=True)]


def _described(error: Exception) -> str:
    """Return the first line of an error, with the line of code outside of libraries that led to it."""
    lines = [line for line in str(error).splitlines() if line and "Exception encountered when calling" not in line]
    places = [
        f" ({frame.f_code.co_filename}, line {number})"
        for frame, number in traceback.walk_tb(error.__traceback__)
        if frame.f_globals["__name__"].split(".")[0] not in ("contextlib", "keras", "tensorflow", "tfdpg")
    ]
    return f"{type(error).__name__}: {' '.join(lines[:1])}{' '.join(places[-1:])}"
