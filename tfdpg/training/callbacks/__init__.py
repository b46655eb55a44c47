"""Keras callbacks, where Keras has none.

Keras' own callbacks work with `Agent.fit`; see `tfdpg.training.callbacks.monitors` for those that cannot.
"""

import csv
import io
import re
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfdpg import export, files
from tfdpg.arguments import positive_int
from tfdpg.training.callbacks.scalars import ScalarWriter

__all__ = ["Checkpoint", "EpochLogger", "ExportBest", "ScalarWriter", "StopAtReturn"]


class _AgentCallback(keras.callbacks.Callback):
    """A callback of an agent, which Keras calls the model."""

    @property
    def agent(self) -> Any:
        return self.model


class Checkpoint(_AgentCallback):
    """Saves the whole agent as `directory/<environment steps>`, so that training can go on from there.

    It also saves when training ends, by Ctrl-C, SIGTERM or an exception too; never weights that are NaN or infinite.

    Args:
        directory: where to save; it may hold checkpoints of this agent's own past, and of nothing else.
        every: epochs between two saves.
        keep: how many of the newest to keep; None keeps all.
    """

    def __init__(self, directory: str | Path, every: int = 1, keep: int | None = 2):
        super().__init__()
        self.directory = Path(directory)
        self.every = positive_int("every", every)
        self.keep = None if keep is None else positive_int("keep", keep)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks the directory.

        Raises:
            ValueError: it holds checkpoints that cannot be of this agent's past.
        """
        saved = export.versions(self.directory)
        self._saved = None
        if saved and (saved[-1] > self.agent.env_steps or (self.agent.env_steps, self.agent.updates) == (0, 0)):
            raise ValueError(
                f"`directory` must not hold checkpoints of another training. Received: {self.directory}, with the "
                f"checkpoints {saved}; this agent has taken {self.agent.env_steps} environment steps."
            )

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves, if it is time."""
        if (epoch + 1) % self.every == 0:
            self._save()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Saves what was not saved yet."""
        self._save()

    def _save(self) -> None:
        now = self.agent.env_steps, self.agent.updates
        if now == self._saved:
            return
        self.agent.save(self.directory / str(self.agent.env_steps))
        self._saved = now
        if self.keep is not None:
            for steps in export.versions(self.directory)[: -self.keep]:
                files.remove(self.directory / str(steps))


class ExportBest(_AgentCallback):
    """Exports the policy whenever it is the best so far, as the next version of a model directory.

    TensorFlow Serving, pointed at the directory, always serves the best one. Training that goes on reads the
    score to beat from the newest version.

    Args:
        directory: the model directory.
        monitor: the log to maximise.
        keep: how many of the newest versions to keep, beside those that have labels; None keeps all. A server that
            is slow to poll finds the version that it was about to load with 2 or more.
    """

    def __init__(self, directory: str | Path, monitor: str = "val_return", keep: int | None = 1):
        super().__init__()
        self.directory = Path(directory)
        self.monitor = monitor
        self.keep = None if keep is None else positive_int("keep", keep)
        self.best = -np.inf

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Takes the score to beat from the newest version that is sound."""
        for version in reversed(export.versions(self.directory)):
            try:
                self.best = export.metadata(self.directory / str(version))["scores"].get(self.monitor, -np.inf)
                return
            except (OSError, LookupError, export.ExportError) as error:
                warnings.warn(f"The score to beat is not known: {error}", stacklevel=2)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Exports, if the monitored log is the best so far.

        Raises:
            ValueError: the log is not there.
        """
        score = _monitored(self, logs)
        if score > self.best:
            self.best = score
            validation_logs = {key: value for key, value in (logs or {}).items() if key.startswith("val_")}
            scores = {key: float(value) for key, value in {**validation_logs, self.monitor: score}.items()}
            self.agent.export(self.directory, scores=scores)
        if self.keep is not None:
            export.keep_newest(self.directory, self.keep)


class StopAtReturn(_AgentCallback):
    """Stops training once a return is reached.

    Args:
        target: the return to reach.
        monitor: the log that is to reach it.
    """

    def __init__(self, target: float, monitor: str = "val_return"):
        super().__init__()
        self.target = target
        self.monitor = monitor

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Stops, if the target is reached.

        Raises:
            ValueError: the log is not there.
        """
        if _monitored(self, logs) >= self.target:
            self.agent.stop_training = True


def _monitored(callback: ExportBest | StopAtReturn, logs: dict[str, Any] | None) -> float:
    if callback.monitor not in (logs or {}):
        raise not_logged(callback, logs or {})
    return (logs or {})[callback.monitor]


def not_logged(callback: Any, logs: Iterable[str]) -> ValueError:
    """The error of a callback that monitors what is not among the logs."""
    name = callback.monitor
    validated = any(log.startswith("val_") for log in logs)
    remedy = "Give it another `monitor`" + (", such as 'val_return'." if validated else ".")
    if not validated and name.startswith("val_") and name != "val_loss":
        remedy = "Give fit a validation_env."
    elif not validated:
        remedy = "Give it another `monitor`, such as 'return', or 'val_return' with a validation_env."
    return ValueError(
        f"{type(callback).__name__} monitors {name!r}, which is not among the logs {sorted(logs)}. {remedy}"
    )


class ProgressLogger(keras.callbacks.CSVLogger):
    """Keras' `CSVLogger`, which can go on with a file of other columns: those of an older tfdpg, for example.

    The columns are then those of both, with NaN where nothing was measured. Lines of epochs that a loaded agent
    has not completed are taken out: they will be written again.
    """

    _other_columns: dict[str, float] | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Opens the file."""
        files.break_hard_links(Path(self.filename))
        _drop_later_lines(Path(self.filename), self.model)
        super().on_train_begin(logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Writes a line; before the first one, the columns that the file does not have yet."""
        if self._other_columns is None:
            self._other_columns = self._add_columns(logs or {})
        with files.writing(self.filename):
            super().on_epoch_end(epoch, {**self._other_columns, **(logs or {})})

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Closes the file."""
        with files.writing(self.filename):
            super().on_train_end(logs)

    def _add_columns(self, logs: dict[str, Any]) -> dict[str, float]:
        """Adds columns to the file; returns those that it has beside the logs."""
        with open(self.filename, newline="") as file:
            rows = csv.DictReader(file)
            old = list(rows.fieldnames or ["epoch"])
            lines = list(rows)
        other_columns = dict.fromkeys(set(old) - {"epoch", *logs}, np.nan)
        columns = ["epoch", *sorted({*logs, *other_columns})]
        if lines and old != columns:
            self.csv_file.close()
            text = io.StringIO(newline="")
            writer = csv.DictWriter(text, columns, restval=np.nan)
            writer.writeheader()
            writer.writerows(lines)
            files.write_text(Path(self.filename), text.getvalue())
            self.csv_file = open(self.filename, "a", newline="")
        return other_columns


def _drop_later_lines(file: Path, agent: Any) -> None:
    """Takes lines out of a table, whose first column counts epochs: those that a loaded agent has not completed.

    They were written by a training that was killed before it saved the agent again. A torn line goes as well.
    """
    if agent.collector.restored_at != agent.env_steps or not file.exists():
        return
    head, *lines = file.read_text().splitlines(keepends=True) or [""]
    first = int(head.startswith("Epoch"))
    numbers = [re.match(r"\d+", line) for line in lines]
    later = [number is not None and int(number[0]) >= agent.epoch + first for number in numbers]
    kept_lines = [line for line, is_later in zip(lines, later, strict=True) if line.endswith("\n") and not is_later]
    if kept_lines != lines:
        files.write_text(file, "".join([head, *kept_lines]))


class EpochLogger(_AgentCallback):
    """Writes Spinning Up's `progress.txt`, column for column, tab separated.

    Args:
        filename: the file to write.
        append: go on with the file if it exists, instead of replacing it; with what it has of the epochs that the
            agent has completed, if it was loaded.
    """

    COLUMNS = {
        "Epoch": "epoch",
        "AverageEpRet": "return",
        "StdEpRet": "return_std",
        "MaxEpRet": "return_max",
        "MinEpRet": "return_min",
        "AverageTestEpRet": "val_return",
        "StdTestEpRet": "val_return_std",
        "MaxTestEpRet": "val_return_max",
        "MinTestEpRet": "val_return_min",
        "EpLen": "episode_length",
        "TestEpLen": "val_episode_length",
        "TotalEnvInteracts": "env_steps",
        "AverageQ1Vals": "q1",
        "StdQ1Vals": "q1_std",
        "MaxQ1Vals": "q1_max",
        "MinQ1Vals": "q1_min",
        "AverageQ2Vals": "q2",
        "StdQ2Vals": "q2_std",
        "MaxQ2Vals": "q2_max",
        "MinQ2Vals": "q2_min",
        "LossPi": "loss_pi",
        "LossQ": "loss_q",
        "Time": "time",
    }
    """Spinning Up's columns and our logs; `Epoch` counts from 1, `Time` is in seconds since training began."""

    def __init__(self, filename: str | Path = "progress.txt", append: bool = False):
        super().__init__()
        self.filename = Path(filename)
        self.append = append
        self._began = 0.0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Writes the header, unless it goes on with a file."""
        self._began = time.time()
        files.break_hard_links(self.filename)
        if not (self.append and self.filename.exists()):
            self._write(self.COLUMNS, "w")
        _drop_later_lines(self.filename, self.agent)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Writes a line; NaN where nothing was measured."""
        values = {**(logs or {}), "epoch": epoch + 1, "time": time.time() - self._began}
        self._write([values.get(log, np.nan) for log in self.COLUMNS.values()], "a")

    def _write(self, row: Iterable[Any], mode: str) -> None:
        with files.writing(self.filename), open(self.filename, mode, newline="") as file:
            csv.writer(file, delimiter="\t", lineterminator="\n").writerow(row)


class StepFile(_AgentCallback):
    """Keeps the agent's environment steps in a file of eight bytes, written with each learning round.

    The file is mapped to memory: writing to it costs nothing, and the system keeps it when the process is killed.

    Args:
        filename: the file.
    """

    def __init__(self, filename: str | Path):
        super().__init__()
        self.filename = Path(filename)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Makes the file, in place of one that is there: writing into that one could change a copy of the run."""
        with files.writing(self.filename), files.replacing(self.filename) as file:
            file.write(np.int64(self.agent.env_steps).tobytes())
            file.flush()
            self._steps = np.memmap(file, np.int64, "r+", shape=(1,))

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Writes the steps."""
        self._steps[0] = self.agent.env_steps


def read_step_file(filename: Path) -> int:
    """What `StepFile` wrote; 0 where it wrote nothing, or was cut."""
    return int(sum(np.fromfile(filename, np.int64, count=1))) if filename.exists() else 0


def __dir__() -> list[str]:
    return __all__
