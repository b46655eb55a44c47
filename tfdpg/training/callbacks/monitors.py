"""Keras' callbacks and an agent: which cannot work, and which way what they monitor is better."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import keras

from tfdpg.arguments import reject
from tfdpg.training.callbacks import ExportBest, StopAtReturn, not_logged

UNSUPPORTED = {
    "OrbaxCheckpoint": (
        "it saves one Keras model, and an agent is several with a replay. Use tfdpg.callbacks.Checkpoint, which "
        "saves everything needed to go on"
    ),
}
"""Keras callbacks that cannot work with an agent: why, and what to use."""

MODE_CALLBACKS = (keras.callbacks.EarlyStopping, keras.callbacks.ModelCheckpoint, keras.callbacks.ReduceLROnPlateau)
"""Keras callbacks that monitor a log, with a `mode`."""


def prepare(callbacks: Sequence[Any], logs: Collection[str], optimizers: Iterable[keras.optimizers.Optimizer]) -> None:
    """Makes callbacks ready for an agent, before the first step.

    What is monitored without a `mode` is maximised if it is a return, and minimised if it is a loss or an error; a
    `ModelCheckpoint` of `.weights.h5` saves weights, as its name says.

    Args:
        callbacks: in the order in which they are called.
        logs: the names of what an epoch will log.
        optimizers: the agent's.

    Raises:
        ValueError: a callback that cannot work with an agent, that monitors what will not be logged, or that needs a
            `mode`.
    """
    extended = False
    averaging = [optimizer for optimizer in optimizers if optimizer.use_ema]
    for callback in callbacks:
        _refuse_unusable(callback, averaging)
        if isinstance(callback, keras.callbacks.ModelCheckpoint) and callback.filepath.endswith(".h5"):
            if not callback.filepath.endswith(".weights.h5"):
                raise reject("filepath", "a path that ends in .weights.h5, or in .keras", callback.filepath)
            callback.save_weights_only = True
        if _monitors(callback) and callback.monitor not in logs and not extended:
            raise not_logged(callback, logs)
        if isinstance(callback, MODE_CALLBACKS) and callback.mode == "auto":
            callback.mode = _direction(callback)
        extended |= _may_log(callback)


def as_callback_list(given: Any) -> list[keras.callbacks.Callback]:
    """What `fit` was given as `callbacks`: None, one or several.

    Raises:
        ValueError: they are something else.
    """
    several = [] if given is None else [given] if isinstance(given, keras.callbacks.Callback) else given
    if not isinstance(several, list | tuple) or not all(isinstance(each, keras.callbacks.Callback) for each in several):
        raise reject("callbacks", "Keras callbacks (instances of keras.callbacks.Callback)", given)
    return list(several)


def _refuse_unusable(callback: keras.callbacks.Callback, averaging: Collection[Any]) -> None:
    if isinstance(callback, keras.callbacks.SwapEMAWeights) and not averaging:
        raise ValueError(
            "keras.callbacks.SwapEMAWeights needs optimizers that keep moving averages: give the agent some of your "
            "own, with use_ema=True."
        )
    for base in type(callback).__mro__:
        if base.__name__ in UNSUPPORTED and base.__module__.startswith("keras."):
            raise ValueError(f"keras.callbacks.{base.__name__} cannot be used: {UNSUPPORTED[base.__name__]}.")


def _monitors(callback: Any) -> bool:
    """Whether it looks at what it monitors."""
    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        return callback.save_best_only
    return isinstance(callback, (*MODE_CALLBACKS, ExportBest, StopAtReturn))


def _direction(callback: Any) -> str:
    """Which way what a callback monitors is better."""
    name = callback.monitor.removeprefix("val_")
    if "return" in name and not name.endswith("_std"):
        return "max"
    if name.startswith("loss") or name == "td_error":
        return "min"
    raise reject("mode", f"'min' or 'max' for {type(callback).__name__} on {callback.monitor!r}", callback.mode)


def _may_log(callback: Any) -> bool:
    """Whether it is somebody's own, and may add to an epoch's logs what later ones monitor."""
    if isinstance(callback, keras.callbacks.LambdaCallback):
        return True
    own = not type(callback).__module__.startswith(("keras.", "tfdpg."))
    return own and type(callback).on_epoch_end is not keras.callbacks.Callback.on_epoch_end
