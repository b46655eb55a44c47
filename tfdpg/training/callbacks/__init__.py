"""Callbacks for agents, in addition to those of Keras.

Keras' own callbacks work with `Agent.fit`; `tfdpg.training.callbacks.monitors` lists the exceptions.
"""

import csv
import io
import json
import os
import re
import tempfile
import time
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np

from tfdpg import export, files
from tfdpg.arguments import positive_int, reject, warn
from tfdpg.components import Metric
from tfdpg.training.callbacks.scalars import ScalarWriter
from tfdpg.training.checkpoints import checkpoint
from tfdpg.training.lateness import LATENESS, read_histograms, write_histograms
from tfdpg.training.trained_agent import AgentCallback, TrainedAgent

__all__ = ["Checkpoint", "EpochLogger", "ExportBest", "LatenessLogger", "ScalarWriter", "StopAtReturn"]


class Checkpoint(AgentCallback):
    """Saves the complete agent as `directory/<environment steps>`, so that training can be resumed.

    It also saves when training ends, even by Ctrl-C, SIGTERM or an exception, but never NaN or infinite weights.

    Args:
        directory: the directory of the checkpoints; it must not hold those of other training runs.
        every: the number of epochs between two checkpoints, at least 1.
        keep: the number of newest checkpoints to keep, at least 1; None keeps all.

    Raises:
        ValueError: an argument is out of its range; or, when training begins, the directory holds checkpoints of
            another training run.

    Example:
        ```python
        agent.fit(env, epochs=75, callbacks=[tfdpg.callbacks.Checkpoint("runs/td3/checkpoints")])
        ```
    """

    def __init__(self, directory: str | Path, every: int = 1, keep: int | None = 2):
        super().__init__()
        files.check_kind("directory", directory, "directory")
        self.directory = Path(directory)
        self.every = positive_int("every", every)
        self.keep = None if keep is None else positive_int("keep", keep)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Check the directory.

        Raises:
            ValueError: the directory holds checkpoints of another training run.
        """
        saved = export.versions(self.directory)
        self._saved = None
        if saved and (saved[-1] > self.agent.env_steps or (self.agent.env_steps, self.agent.updates) == (0, 0)):
            raise ValueError(
                f"`directory` must not hold checkpoints of another training run. Received: {self.directory}, with the "
                f"checkpoints {saved}; this agent has taken {self.agent.env_steps} environment steps."
            )

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Save after every `every` epochs."""
        if (epoch + 1) % self.every == 0:
            self._save()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Save the agent, unless it has not changed since the last checkpoint, or training has not begun."""
        if (self.agent.env_steps, self.agent.updates) != (0, 0):
            self._save()

    def _save(self) -> None:
        self.agent.learner.synchronize()
        captured = checkpoint.capture(self.agent)
        now = captured.env_steps, self.agent.updates, self.agent.epoch
        if now == self._saved:
            return
        directory = self.directory / str(captured.env_steps)
        checkpoint.save(
            self.agent, directory, captured=captured, finish=lambda scratch: self._complete(scratch, directory)
        )
        self._saved = now
        if self.keep is not None:
            export.keep_newest(self.directory, self.keep)

    def _complete(self, scratch: Path, directory: Path) -> None:
        """Add files to the complete temporary directory of a checkpoint, which is then renamed to `directory`."""


class ExportBest(AgentCallback):
    """Exports the policy whenever it is the best so far, as the next version in a model directory.

    TensorFlow Serving then always serves the best policy. When training begins, the best score so far is that of the
    newest version. A warning says so if the agent has not trained yet, since the version is then of another run.

    Args:
        directory: the model directory.
        monitor: the name of the log, such as "val_return", "val_success_rate" or "val_info_cost" (for `info["cost"]`).
            The default needs a `validation_env`.
        keep: the number of newest versions to keep, at least 1, in addition to those with labels; None keeps all. Use
            at least 2 for servers that poll slowly, so that a version is not removed before it is loaded.
        mode: "max" or "min", whether the largest or the smallest value is the best.

    Attributes:
        best: the best score so far.
        is_of_run: whether the directory belongs to one run, whose versions stay if the run begins again.

    Raises:
        ValueError: `keep` or `mode` is out of its range; or, at the end of an epoch, the log is missing.

    Example:
        ```python
        best = tfdpg.callbacks.ExportBest("exported_models/td3-halfcheetah")
        agent.fit(env, epochs=75, validation_env=gymnasium.make("HalfCheetah-v5"), callbacks=[best])
        ```
    """

    def __init__(
        self,
        directory: str | Path,
        monitor: str = "val_return",
        keep: int | None = 1,
        mode: Literal["max", "min"] = "max",
    ):
        super().__init__()
        files.check_kind("directory", directory, "directory")
        self.directory = Path(directory)
        self.monitor = monitor
        self.keep = None if keep is None else positive_int("keep", keep)
        if mode not in ("max", "min"):
            raise reject("mode", "'max' or 'min'", mode)
        self.mode = mode
        self.best = -np.inf if mode == "max" else np.inf
        self.is_of_run = False

    def rehearse(self) -> None:
        """Export into a temporary directory: TensorFlow's first export holds up other threads for about 50 ms."""
        with tempfile.TemporaryDirectory() as scratch:
            self.agent.export(scratch)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Read the best score so far from the newest valid version."""
        for version in reversed(export.versions(self.directory)):
            try:
                scores = export.metadata(self.directory / str(version))["scores"]
                is_new = (self.agent.env_steps, self.agent.updates) == (0, 0)
                if self.monitor in scores and is_new and not self.is_of_run:
                    warn(
                        f"{self.directory} has version {version} of an earlier training run, with {self.monitor}="
                        f"{scores[self.monitor]:g}. Only better policies will be exported. To export the best policy "
                        "of this training run, use an empty directory."
                    )
                self.best = scores.get(self.monitor, self.best)
                return
            except (OSError, LookupError, export.ExportError) as error:
                warnings.warn(f"The best score so far is unknown: {error}", stacklevel=2)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Export the policy if the monitored log is the best so far.

        Raises:
            ValueError: the monitored log is missing.
        """
        score = _monitored(self, logs)
        if score > self.best if self.mode == "max" else score < self.best:
            self.best = score
            names = [self.monitor, *(name for name in logs or {} if name.startswith("val_"))]
            scores = {name: float((logs or {})[name]) for name in names}
            self.agent.export(self.directory, scores=scores)
        if self.keep is not None:
            export.keep_newest(self.directory, self.keep)


class StopAtReturn(AgentCallback):
    """Stops training when a log reaches a target.

    Args:
        target: the return to reach.
        monitor: the name of the log to compare with it. The default needs a `validation_env`.

    Raises:
        ValueError: at the end of an epoch, the log is missing.
    """

    def __init__(self, target: float, monitor: str = "val_return"):
        super().__init__()
        self.target = target
        self.monitor = monitor

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Stop if the target is reached.

        Raises:
            ValueError: the monitored log is missing.
        """
        if _monitored(self, logs) >= self.target:
            self.agent.stop_training = True


def _monitored(callback: ExportBest | StopAtReturn, logs: dict[str, Any] | None) -> float:
    if callback.monitor not in (logs or {}):
        raise not_logged(callback, logs or {})
    return (logs or {})[callback.monitor]


def not_logged(callback: Any, logs: Iterable[str]) -> ValueError:
    """Return the error of a callback whose monitored log is missing."""
    name = callback.monitor
    if any(log.startswith("val_") for log in logs):
        remedy = "Give it another `monitor`, such as 'val_return'."
    elif name.startswith("val_") and name != "val_loss":
        remedy = "Give fit a validation_env."
    else:
        remedy = "Give it another `monitor`, such as 'return', or 'val_return' with a validation_env."
    return ValueError(
        f"{type(callback).__name__} monitors {name!r}, which is not among the logs {sorted(logs)}. {remedy}"
    )


class ProgressLogger(AgentCallback, keras.callbacks.CSVLogger):
    """Keras' `CSVLogger`, which can also append to a file with other columns.

    The file then has the columns of both, with NaN for missing values. Lines of epochs that a loaded agent has not
    completed are removed, since they will be written again. `labels.json`, beside the file, has the metrics' labels.
    """

    _missing: dict[str, float] | None = None  # NaN for each column

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Open the file."""
        files.check_kind("filename", self.filename, "file")
        files.break_hard_links(Path(self.filename))
        _drop_later_lines(Path(self.filename), self.agent)
        labels = {metric.name: metric.label for metric in self.agent.metrics}
        files.write_text(Path(self.filename).with_name(files.LABELS), json.dumps(labels, indent=2) + "\n")
        if Path(self.filename).exists():
            self._read()  # before training, in which a damaged file could not be completed
        super().on_train_begin(logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Write a line; first add the columns that the file lacks."""
        if self._missing is None or not self._missing.keys() >= (logs or {}).keys():
            self._missing = self._add_columns(logs or {})
        with files.writing(self.filename):
            super().on_epoch_end(epoch, {**self._missing, **(logs or {})})

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Close the file."""
        with files.writing(self.filename):
            super().on_train_end(logs)

    def _add_columns(self, logs: dict[str, Any]) -> dict[str, float]:
        """Add columns for the logs to the file; return NaN for each of its columns."""
        old, lines = self._read()
        missing = dict.fromkeys({*old, *logs} - {"epoch"}, np.nan)
        columns = ["epoch", *sorted(missing)]
        if lines and old != columns:
            self.csv_file.close()
            text = io.StringIO(newline="")
            writer = csv.DictWriter(text, columns, restval=np.nan)
            writer.writeheader()
            writer.writerows(lines)
            files.write_text(Path(self.filename), text.getvalue())
            self.csv_file = open(self.filename, "a", newline="")
            self.keys = self.writer = None  # of the former columns
            self.append_header = False
        return missing

    def _read(self) -> tuple[list[str], list[dict[str, str]]]:
        """Return the columns and the lines of the file."""
        with files.content_errors(self.filename), open(self.filename, newline="") as file:
            rows = csv.DictReader(file)
            return list(rows.fieldnames or ["epoch"]), list(rows)


def _drop_later_lines(file: Path, agent: TrainedAgent) -> None:
    """Remove the lines of epochs that a loaded agent has not completed; the first column holds the epoch.

    A training run that was killed before its next checkpoint wrote them. An incomplete last line is removed as well.
    """
    if agent.data.collector.restored_at != agent.env_steps or not file.exists():
        return
    head, *lines = files.read_text(file).splitlines(keepends=True) or [""]
    first = int(head.startswith("Epoch"))
    numbers = [re.match(r"\d+", line) for line in lines]
    with files.content_errors(file):
        later = [number is not None and int(number[0]) >= agent.epoch + first for number in numbers]
    kept_lines = [line for line, is_later in zip(lines, later, strict=True) if line.endswith("\n") and not is_later]
    if kept_lines != lines:
        files.write_text(file, "".join([head, *kept_lines]))


class EpochLogger(AgentCallback):
    """Writes `progress.txt` in the format of Spinning Up: the same columns, separated by tabs.

    `COLUMNS` has the columns that every algorithm has. The others are for the agent's metrics: a metric with a spread,
    such as `q1`, has `AverageQ1Vals`, `StdQ1Vals`, `MaxQ1Vals` and `MinQ1Vals`, and a loss, such as `loss_pi`, has
    `LossPi`. `Time`, the last column, is the number of seconds since training began.

    Args:
        filename: the file to write.
        append: whether to append to an existing file, whose columns are kept, instead of replacing it. If the agent was
            loaded, the lines of epochs that it has not completed are removed first.

    Raises:
        ValueError: `filename` is a directory, is below a file, or is in a directory that this user may not write to.

    Source: the logger of OpenAI's Spinning Up.
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
    }
    """Spinning Up's columns and tfdpg's logs. `Epoch` counts from 1."""

    def __init__(self, filename: str | Path = "progress.txt", append: bool = False):
        super().__init__()
        files.check_kind("filename", filename, "file")
        self.filename = Path(filename)
        self.append = append
        self._began = 0.0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Write the header, unless the file is appended to."""
        self._began = time.time()
        files.make_directory(self.filename.parent)
        files.break_hard_links(self.filename)
        logs = self.COLUMNS | metric_columns(self.agent.metrics) | {"Time": "time"}
        if not (self.append and self.filename.exists() and self.filename.stat().st_size):
            self._write(logs, "w")
        _drop_later_lines(self.filename, self.agent)
        columns = files.read_text(self.filename).partition("\n")[0].split("\t")
        self._logs = [logs.get(column, column) for column in columns]

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Write a line, with NaN for missing values."""
        values = {**(logs or {}), "epoch": epoch + 1, "time": time.time() - self._began}
        self._write([values.get(log, np.nan) for log in self._logs], "a")

    def _write(self, row: Iterable[Any], mode: str) -> None:
        with files.writing(self.filename), open(self.filename, mode, newline="") as file:
            csv.writer(file, delimiter="\t", lineterminator="\n").writerow(row)


def metric_columns(metrics: Sequence[Metric]) -> dict[str, str]:
    """Return Spinning Up's columns for the metrics with a spread and for losses, and tfdpg's logs."""
    spreads = [metric.name for metric in metrics if metric.spread]
    losses = sorted(metric.name for metric in metrics if metric.loss)
    statistics = {"Average": "", "Std": "_std", "Max": "_max", "Min": "_min"}
    values = {f"{which}{_in_camel_case(name)}Vals": name + end for name in spreads for which, end in statistics.items()}
    return values | {_in_camel_case(name): name for name in losses}


def _in_camel_case(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


class LatenessLogger(AgentCallback):
    """Writes histograms of the overhead and the delay of steps in real-time training, for `tfdpg plot --lateness`.

    The overhead of a step is the time from the return of the step before it to its call. Its delay is how much later it
    returns than one period after the step before it, where the period is the median over an epoch. Each line of the
    file has the edges of a bin in milliseconds, `from_ms` and `to_ms`, and the numbers of steps in it, `overheads` and
    `delays`. The last bin has those of more than ten seconds, too. The learner's thread writes the file at the end of
    each epoch.

    Args:
        filename: the file to write.
        append: whether to add to the counts of an existing file, instead of replacing it.

    Raises:
        ValueError: `filename` is a directory, is below a file, or is in a directory that this user may not write to;
            or, when training begins, `fit` does not train in real time, or the existing file has other contents.

    Example:
        ```python
        agent.fit(env, realtime=True, callbacks=[tfdpg.callbacks.LatenessLogger()])
        ```
    """

    def __init__(self, filename: str | Path = LATENESS, append: bool = False):
        super().__init__()
        files.check_kind("filename", filename, "file")
        self.filename = Path(filename)
        self.append = append

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Read the counts of an existing file.

        Raises:
            ValueError: `fit` does not train in real time, or the file has other contents.
        """
        if not self.agent.data.is_shared:
            raise ValueError("`LatenessLogger` does nothing where `realtime` is False. Pass `realtime=True` to `fit`.")
        files.make_directory(self.filename.parent)
        is_continued = self.append and self.filename.exists()
        self._before = read_histograms(self.filename) if is_continued else (0, 0)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Write the file."""
        lateness: Any = self.agent.data.lateness
        overheads, delays = self._before
        write_histograms(self.filename, overheads + lateness.overheads, delays + lateness.delays)


class StepFile(AgentCallback):
    """Writes the number of environment steps and the seconds of training to a text file in every update phase.

    It shows how many steps were lost when a process was killed, and how much of a time budget is left. The line always
    has the same length, so that one call of the operating system replaces all of it. The file keeps it when the process
    is killed.

    Args:
        filename: the file.
        began: the time from which the seconds count, by `time.monotonic`; None is now.
    """

    def __init__(self, filename: str | Path, began: float | None = None):
        super().__init__()
        files.check_kind("filename", filename, "file")
        self.filename = Path(filename)
        self._began = time.monotonic() if began is None else began

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Create a new file; an existing one may be a hard link that a copy of the run shares."""
        with files.writing(self.filename), files.replacing(self.filename) as file:
            file.write(self._line())
            self._descriptor = os.dup(file.fileno())

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Write both numbers."""
        try:
            os.pwrite(self._descriptor, self._line(), 0)
        except OSError:
            with files.writing(self.filename):
                raise

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Write both numbers, and close the file."""
        self.on_train_batch_end(0)
        os.close(self._descriptor)

    def _line(self) -> bytes:
        return step_line(self.agent.env_steps, time.monotonic() - self._began).encode()


def step_line(env_steps: int, seconds: float) -> str:
    """Return the content of a file of `StepFile`: 33 characters, with space for the largest int64 and 300 years."""
    return f"{env_steps:<19d} {seconds:<12.1f}\n"


def read_step_file(filename: Path) -> tuple[int, float]:
    """Return the environment steps and seconds that `StepFile` wrote; zeros if there is no file, or it is damaged."""
    if not filename.exists():
        return 0, 0.0
    with open(filename, "rb") as file:
        content = file.read(34)
    if not re.fullmatch(rb"\d+ +\d+\.\d *\n", content):
        warn(f"{filename} is damaged: the seconds of training count from 0 again.")
        return 0, 0.0
    env_steps, seconds = content.split()
    return int(env_steps), float(seconds)


def __dir__() -> list[str]:
    return __all__
