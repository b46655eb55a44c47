"""Printed progress: a progress bar in terminals and notebooks, and a line for each epoch elsewhere."""

import functools
import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from tfdpg.training.trained_agent import AgentCallback, TrainedAgent

COUNTS = ("env_steps", "updates")
"""Logs that are counts, not means; they are printed as integers."""
OF_MACHINES = ("late_steps", "held_steps", "interventions")
"""Logs of real-time training that are printed."""
ENDS = ("terminated", "val_terminated")
"""Logs for which a row of a notebook has no room."""
UNUSUAL = (*ENDS, *OF_MACHINES)
"""Logs that are printed if they are not 0."""
WANTED, MADE = "updates_per_step_wanted", "updates_per_step"
"""Logs of real-time training that are printed together."""

BAR = 20
"""The number of characters of the bar."""
INTERVAL = 0.1
"""The number of seconds between two updates of the bar."""
NOTEBOOK_COLUMNS = 100
"""The number of characters that fit in a line of a notebook."""
ASCII = str.maketrans("━─·−", "=.--")
"""Replacements for an output whose encoding lacks these characters."""


def printed_logs(agent: TrainedAgent) -> list[str]:
    """Return the names of the logs that are printed; `History` and `CSVLogger` have all of them."""
    shown = [metric.name for metric in agent.metrics if metric.shown]
    of_training = [*COUNTS, "return", "episode_length", "terminated", *shown]
    return [*of_training, "val_return", "val_success_rate", "val_terminated", *OF_MACHINES]


class ProgressBar(AgentCallback):
    """A progress bar in environment steps (`verbose=1`), or a line after each epoch (`verbose=2`).

    During an epoch, the bar shows means over its update phases, and the current counts. At its end, both show the
    epoch's logs, the same numbers as in `History`.

    In a notebook, one bar is replaced in place, and the epochs are the rows of a table below it. A bar that returns to
    the start of its line would be a new output for each drawing when a notebook is executed without a browser.
    """

    def set_params(self, params: dict[str, Any]) -> None:
        """Set the number of epochs or None, the number of steps in each, and `verbose`."""
        self._epochs = params["epochs"]
        self._steps = params["steps"]
        self._verbose = params["verbose"]

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Let XLA print its messages before the first bar."""
        self._printed = printed_logs(self.agent)
        self._draws_bar = self._verbose == 1 and keras.config.is_interactive_logging_enabled()
        self._width = 0
        self._notebook_bar = _show_in_notebook() if self._draws_bar and _in_notebook() else None
        self._columns: list[str] = []
        self._remark = ""
        if self._draws_bar:
            trigger_xla_messages()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Print the number of the epoch."""
        self._epoch = f"Epoch {epoch + 1}" if self._epochs is None else f"Epoch {epoch + 1}/{self._epochs}"
        self._began = time.perf_counter()
        self._last_drawn = -np.inf
        self._done = 0
        self._sums: dict[str, tuple[float, int]] = {}
        if self._draws_bar and self._notebook_bar is None:
            _print(self._epoch)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Add the logs of an update phase, and draw the bar after every `INTERVAL` seconds."""
        self._done = min(batch + 1, self._steps)  # in real time, steps are taken while an epoch ends
        if not self._draws_bar:
            return
        now = time.perf_counter()
        for name, value in (logs or {}).items():
            total, count = self._sums.get(name, (0.0, 0)) if name not in COUNTS else (0.0, 0)
            self._sums[name] = total + value, count + 1
        if now - self._last_drawn < INTERVAL:
            return
        self._last_drawn = now
        seconds = now - self._began
        so_far = {name: total / count for name, (total, count) in self._sums.items()}
        left = seconds / max(1, self._done) * (self._steps - self._done)  # late updates come before the first step
        self._draw_bar(f"{format_duration(left)} left", *_named(format_logs(so_far, self._printed)))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Draw the bar or print the line with the epoch's logs."""
        seconds = format_duration(time.perf_counter() - self._began)
        numbers = format_logs(logs or {}, self._printed)
        if self._notebook_bar is not None:
            self._draw([self._bar(seconds)], NOTEBOOK_COLUMNS)
            numbers = {name: text for name, text in numbers.items() if name not in ENDS}
            self._print_row({"epoch": self._epoch.removeprefix("Epoch "), "time": seconds, **numbers})
        elif self._draws_bar:
            self._draw([self._bar(seconds), *_named(numbers)], None)
            self.on_train_end()
        else:
            _print(" · ".join([self._epoch, seconds, *_named(numbers)]))

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """End the line of the bar."""
        if self._width:
            _print()
            self._width = 0

    def show(self, text: str) -> None:
        """Print a line of text, below the bar if there is one."""
        self.on_train_end()
        self._last_drawn = -np.inf
        _print(text)

    def remark(self, text: str) -> None:
        """Show a text in the bar in place of the time that is left, until it is ""."""
        if self._draws_bar and text != self._remark:
            self._remark = text
            self._draw_bar(text)

    def _draw_bar(self, left: str, *numbers: str) -> None:
        columns = _columns() if self._notebook_bar is None else NOTEBOOK_COLUMNS
        self._draw([self._bar(self._remark or left), *numbers], columns)

    def _bar(self, seconds: str) -> str:
        total = f"{self._steps:,}"
        full = BAR * self._done // self._steps
        bar = f"{self._done:{len(total)},}/{total} {'━' * full}{'─' * (BAR - full)} {seconds}"
        return bar if self._notebook_bar is None else f"{self._epoch} · {bar}"

    def _draw(self, parts: list[str], columns: int | None) -> None:
        """Draw the bar, without the last parts that do not fit in `columns`; None draws all."""
        line = " · ".join(parts)
        while columns is not None and len(line) > columns and len(parts) > 1:
            parts = parts[:-1]
            line = " · ".join(parts)
        if self._notebook_bar is not None:
            self._notebook_bar.update({"text/plain": line}, raw=True)
            return
        _print("\r" + line.ljust(self._width), end="")
        self._width = len(line)

    def _print_row(self, cells: dict[str, str]) -> None:
        """Print a row of the table of epochs, after its header if this is the first row."""
        if not self._columns:
            self._columns = list(cells)
            _print(_row(self._columns, self._columns))
        _print(_row(self._columns, [cells.get(name, "") for name in self._columns]))


def resolve(verbose: Any) -> int:
    """Return 0, 1 or 2 for `verbose`; "auto" is 1 in terminals and notebooks, as for Keras' own bar, otherwise 2."""
    if verbose != "auto":
        return verbose
    # an object in place of standard output need not have `isatty`
    drawable = getattr(sys.stdout, "isatty", bool)() or "ipykernel" in sys.modules or "PYCHARM_HOSTED" in os.environ
    return 1 if drawable and keras.config.is_interactive_logging_enabled() else 2


def format_logs(logs: Mapping[str, float], printed: Iterable[str]) -> dict[str, str]:
    """Return the formatted numbers of those logs that are printed, in that order; NaN is empty."""
    numbers = {name: logs[name] for name in printed if name in logs and (logs[name] or name not in UNUSUAL)}
    texts = {
        name: "" if np.isnan(value) else format_number(int(value) if name in COUNTS else value)
        for name, value in numbers.items()
    }
    if logs.get(WANTED):
        texts["updates/step"] = f"wanted {format_number(logs[WANTED])}, made {format_number(logs[MADE])}"
    return texts


def _named(numbers: Mapping[str, str]) -> list[str]:
    """Return the names and the numbers that are not empty."""
    return [f"{name} {number}" for name, number in numbers.items() if number]


def _row(columns: Sequence[str], cells: Sequence[str]) -> str:
    """Return a line of a table, with a column for each name."""
    return "  ".join(cell.rjust(max(len(name), 8)) for name, cell in zip(columns, cells, strict=True)).rstrip()


def format_number(value: float) -> str:
    """Format a number for people: 1,000, −1,324.8, 11.91, 0.0123, 1.2e-05."""
    size = abs(value)
    if isinstance(value, int):
        text = f"{size:,}"
    elif 1 <= size < 1e7:
        text = f"{size:,.{1 if size >= 100 else 2}f}".rstrip("0").rstrip(".")
    else:
        text = f"{size:.3g}"
    return f"−{text}" if value < 0 else text


def format_duration(seconds: float) -> str:
    """Format a duration: 13s, 2:05 or 1:02:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}" if minutes else f"{rest}s"


@functools.cache
def trigger_xla_messages() -> None:
    """Compile a small function, so that XLA prints its messages to standard error now, not in the middle of a bar.

    Setting `TF_CPP_MIN_LOG_LEVEL` would be too late if TensorFlow or Keras was imported before tfdpg.
    """
    tf.function(tf.math.is_finite, jit_compile=True)(tf.constant(0.0))


def _in_notebook() -> bool:
    """Return whether standard output is the output of a cell, in which an output can be replaced."""
    return type(sys.stdout).__module__.startswith("ipykernel") and "spyder_kernels" not in sys.modules


def _show_in_notebook() -> Any:
    """Show an empty output, and return IPython's handle that replaces it."""
    from IPython.display import display

    return display({"text/plain": ""}, raw=True, display_id=True)


def _columns() -> int | None:
    """Return the largest number of characters in a line; None if standard output is not a terminal."""
    return shutil.get_terminal_size().columns - 1 if getattr(sys.stdout, "isatty", bool)() else None


def _print(text: str = "", end: str = "\n") -> None:
    """Print to standard output, or to absl's log if Keras' interactive logging is off, as Keras does."""
    if not keras.config.is_interactive_logging_enabled():
        logging.info(text)
        return
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = text.translate(ASCII)
    print(text, end=end, flush=True)
