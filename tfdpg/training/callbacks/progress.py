"""What training prints: a bar that grows on a terminal or in a notebook, and a line for each epoch elsewhere."""

import functools
import os
import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

PROGRESS = ("env_steps", "updates", "return", "episode_length", "loss_q", "loss_pi", "q1", "val_return")
"""What is printed; `History` and `CSVLogger` have everything."""
COUNTS = ("env_steps", "updates")
"""What is no mean; Keras gives callbacks floats."""

BAR = 20
"""The characters of a full bar."""
INTERVAL = 0.1
"""Seconds between two drawings."""
ASCII = str.maketrans("━─·−", "=.--")
"""For an output that cannot take the characters on the left."""


class ProgressBar(keras.callbacks.Callback):
    """A bar in environment steps (`verbose=1`), or a line when an epoch is over (`verbose=2`).

    While an epoch runs, the bar shows the means of its rounds so far, and counts as they are. At its end, bar and line
    show its logs, the same numbers that `History` has.
    """

    def set_params(self, params: dict[str, Any]) -> None:
        """Takes the number of epochs, that of steps in each, and `verbose`."""
        self._epochs = params["epochs"]
        self._steps = params["steps"]
        self._verbose = params["verbose"]

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Lets XLA have its say before there is a bar."""
        self._draws_bar = self._verbose == 1 and keras.config.is_interactive_logging_enabled()
        self._width = 0
        if self._draws_bar:
            trigger_xla_messages()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Names the epoch."""
        self._epoch = f"Epoch {epoch + 1}/{self._epochs}"
        self._began = time.perf_counter()
        self._last_drawn = -np.inf
        self._done = 0
        self._sums: dict[str, tuple[float, int]] = {}
        if self._draws_bar:
            _print(self._epoch)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Draws the numbers so far, unless it has just done so."""
        self._done = batch + 1
        now = time.perf_counter()
        if not self._draws_bar:
            return
        for name, value in (logs or {}).items():
            total, count = self._sums.get(name, (0.0, 0)) if name not in COUNTS else (0.0, 0)
            self._sums[name] = total + value, count + 1
        if now - self._last_drawn < INTERVAL:
            return
        self._last_drawn = now
        seconds = now - self._began
        so_far = {name: total / count for name, (total, count) in self._sums.items()}
        left = seconds / self._done * (self._steps - self._done)
        self._draw([self._bar(f"{format_duration(left)} left"), *format_logs(so_far)], _columns())

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Draws or prints the numbers of the epoch."""
        seconds = format_duration(time.perf_counter() - self._began)
        numbers = format_logs(logs or {})
        if self._draws_bar:
            self._draw([self._bar(seconds), *numbers], None)
            self.on_train_end()
        else:
            _print(" · ".join([self._epoch, seconds, *numbers]))

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Ends the line."""
        if self._width:
            _print()
            self._width = 0

    def _bar(self, seconds: str) -> str:
        total = f"{self._steps:,}"
        full = BAR * self._done // self._steps
        return f"{self._done:{len(total)},}/{total} {'━' * full}{'─' * (BAR - full)} {seconds}"

    def _draw(self, parts: list[str], columns: int | None) -> None:
        """Draws over the line, leaving out at its end what does not fit."""
        line = " · ".join(parts)
        while columns is not None and len(line) > columns and len(parts) > 1:
            parts = parts[:-1]
            line = " · ".join(parts)
        _print("\r" + line.ljust(self._width), end="")
        self._width = len(line)


def resolve(verbose: Any) -> int:
    """0, 1 or 2 for `verbose`; "auto" is 1 where a line can be drawn over, as Keras' own bar has it, and else 2."""
    if verbose != "auto":
        return verbose
    # an object in place of standard output need not have `isatty`
    drawable = getattr(sys.stdout, "isatty", bool)() or "ipykernel" in sys.modules or "PYCHARM_HOSTED" in os.environ
    return 1 if drawable and keras.config.is_interactive_logging_enabled() else 2


def format_logs(logs: Mapping[str, float]) -> list[str]:
    """The logs of `PROGRESS` that were measured, each as its name and number."""
    measured = {name: logs[name] for name in PROGRESS if name in logs and not np.isnan(logs[name])}
    return [f"{name} {format_number(int(value) if name in COUNTS else value)}" for name, value in measured.items()]


def format_number(value: float) -> str:
    """A number as people write it: 1,000, −1,324.8, 11.91, 0.0123, 1.2e-05."""
    size = abs(value)
    if isinstance(value, int):
        text = f"{size:,}"
    elif 1 <= size < 1e7:
        text = f"{size:,.{1 if size >= 100 else 2}f}".rstrip("0").rstrip(".")
    else:
        text = f"{size:.3g}"
    return f"−{text}" if value < 0 else text


def format_duration(seconds: float) -> str:
    """13s, 2:05 or 1:02:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}" if minutes else f"{rest}s"


@functools.cache
def trigger_xla_messages() -> None:
    """Compiles a trifle: what XLA writes to standard error once in a process comes now, and not in the midst of a bar.

    `TF_CPP_MIN_LOG_LEVEL` would be too late where TensorFlow or Keras were imported before tfdpg.
    """
    tf.function(tf.math.is_finite, jit_compile=True)(tf.constant(0.0))


def _columns() -> int | None:
    """The characters that a line may have; None where it may have any."""
    return shutil.get_terminal_size().columns - 1 if getattr(sys.stdout, "isatty", bool)() else None


def _print(text: str = "", end: str = "\n") -> None:
    """Prints where Keras does: on standard output, or in absl's log where interactive logging is off."""
    if not keras.config.is_interactive_logging_enabled():
        logging.info(text)
        return
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = text.translate(ASCII)
    print(text, end=end, flush=True)
