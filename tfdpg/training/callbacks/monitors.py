"""Preparation of Keras callbacks for an agent: which are supported, and whether they maximise or minimise a log."""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import keras

from tfdpg.arguments import reject
from tfdpg.components import Metric
from tfdpg.training.callbacks import ExportBest, StepFile, StopAtReturn, not_logged
from tfdpg.training.callbacks.progress import ProgressBar
from tfdpg.training.callbacks.scalars import ScalarWriter
from tfdpg.training.evaluation import INFO

MODE_CALLBACKS = (keras.callbacks.EarlyStopping, keras.callbacks.ModelCheckpoint, keras.callbacks.ReduceLROnPlateau)
"""Keras callbacks that monitor a log and have a `mode`."""


def prepare(
    callbacks: Sequence[Any],
    logs: Collection[str],
    metrics: Iterable[Metric],
    optimizers: Iterable[keras.optimizers.Optimizer],
) -> None:
    """Prepare callbacks for an agent before the first step.

    Callbacks without a `mode` maximise returns, and minimise losses and TD errors. A `ModelCheckpoint` with a path that
    ends in `.weights.h5` saves only weights.

    Args:
        callbacks: the callbacks, in the order in which they are called.
        logs: the names of the logs of an epoch.
        metrics: the agent's metrics.
        optimizers: the agent's optimizers.

    Raises:
        ValueError: a callback is not supported, monitors a log that does not exist, or needs a `mode`.
    """
    extended = False
    minimized = {"loss", *(metric.name for metric in metrics if metric.loss or metric.priority)}
    averaging = [optimizer for optimizer in optimizers if optimizer.use_ema]
    for callback in callbacks:
        _refuse_unusable(callback, averaging)
        if isinstance(callback, keras.callbacks.ModelCheckpoint) and callback.filepath.endswith(".h5"):
            if not callback.filepath.endswith(".weights.h5"):
                raise reject("filepath", "a path that ends in .weights.h5, or in .keras", callback.filepath)
            callback.save_weights_only = True
        if _monitors(callback) and not (callback.monitor in logs or OF_ENVIRONMENT.match(callback.monitor) or extended):
            raise not_logged(callback, logs)
        if isinstance(callback, MODE_CALLBACKS) and callback.mode == "auto":
            callback.mode = _direction(callback, minimized)
        extended |= _may_log(callback)


OF_ENVIRONMENT = re.compile("(val_)?(success_rate$|info_)")
"""The names of logs that depend on what the environment has in `info`."""


class BatchCallbacks:
    """Calls the methods of callbacks for batches, which are update phases, where callbacks have such methods.

    Args:
        callbacks: Keras' list of the callbacks.

    Attributes:
        read_variables: whether a callback may read variables of the agent in these methods; tfdpg's own do not.
    """

    def __init__(self, callbacks: keras.callbacks.CallbackList):
        self._callbacks = [callback for callback in callbacks.callbacks if _has_batch_methods(callback)]
        self.read_variables = not all(type(callback) in BATCH_CALLBACKS for callback in self._callbacks)
        if self.read_variables:
            self._callbacks = [callbacks]  # it converts logs, as Keras' `fit` does

    def begin(self, step: int) -> None:
        """Call `on_train_batch_begin`."""
        for callback in self._callbacks:
            callback.on_train_batch_begin(step)

    def end(self, step: int, logs: dict[str, Any]) -> None:
        """Call `on_train_batch_end`."""
        for callback in self._callbacks:
            callback.on_train_batch_end(step, logs)


BATCH_METHODS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
BATCH_CALLBACKS = (ProgressBar, StepFile, ScalarWriter)
"""tfdpg's callbacks with methods for batches."""


def _has_batch_methods(callback: keras.callbacks.Callback) -> bool:
    """Return whether a callback has such a method of its own, which may also be an attribute of the object."""
    return any(
        getattr(getattr(callback, name), "__func__", None) is not getattr(keras.callbacks.Callback, name)
        for name in BATCH_METHODS
    )


def as_callback_list(given: Any) -> list[keras.callbacks.Callback]:
    """Return the `callbacks` argument of `fit` as a list.

    Args:
        given: None, one callback, or several.

    Raises:
        ValueError: it is something else.
    """
    several = [] if given is None else [given] if isinstance(given, keras.callbacks.Callback) else given
    if not isinstance(several, list | tuple) or not all(isinstance(each, keras.callbacks.Callback) for each in several):
        raise reject("callbacks", "Keras callbacks (instances of keras.callbacks.Callback)", given)
    return list(several)


def _refuse_unusable(callback: keras.callbacks.Callback, averaging: Collection[Any]) -> None:
    if isinstance(callback, keras.callbacks.SwapEMAWeights) and not averaging:
        raise ValueError(
            "keras.callbacks.SwapEMAWeights needs optimizers that keep moving averages. Give the agent optimizers with "
            "use_ema=True."
        )
    if isinstance(callback, keras.callbacks.OrbaxCheckpoint):
        raise ValueError(
            "keras.callbacks.OrbaxCheckpoint cannot be used: it saves one Keras model, but an agent has several models "
            "and a replay buffer. Use tfdpg.callbacks.Checkpoint, which saves everything that resuming requires."
        )


def _monitors(callback: Any) -> bool:
    """Return whether a callback uses the log that it monitors."""
    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        return callback.save_best_only
    return isinstance(callback, (*MODE_CALLBACKS, ExportBest, StopAtReturn))


def _direction(callback: Any, minimized: Collection[str]) -> str:
    """Return the `mode` for the log that a callback monitors."""
    name = callback.monitor.removeprefix("val_")
    if name == "success_rate" or ("return" in name and not name.endswith("_std")):
        return "max"
    if name in minimized or name == f"{INFO}cost":
        return "min"
    raise reject("mode", f"'min' or 'max' for {type(callback).__name__} on {callback.monitor!r}", callback.mode)


def _may_log(callback: Any) -> bool:
    """Return whether a callback is the user's, and may add logs that later callbacks monitor."""
    if isinstance(callback, keras.callbacks.LambdaCallback):
        return True
    own = not type(callback).__module__.startswith(("keras.", "tfdpg."))
    return own and type(callback).on_epoch_end is not keras.callbacks.Callback.on_epoch_end
