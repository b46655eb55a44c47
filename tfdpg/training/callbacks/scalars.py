"""A callback that writes logs for TensorBoard."""

import contextlib
import math
import time
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError

from tfdpg import files
from tfdpg.arguments import positive_int
from tfdpg.options import options_of
from tfdpg.training.trained_agent import AgentCallback, TrainedAgent

SUFFIX = ".tfdpg"
"""The suffix of the event files that tfdpg writes; other files in the directory are not changed."""

BEST = "validation/best_return"

METRICS = {"validation/return": "final return", BEST: "best return", "train/return": "training return"}
"""The metrics in the HPARAMS tab: tags and titles."""


class ScalarWriter(AgentCallback):
    """Writes the logs of `fit` to TensorBoard as one run, by environment steps (`fit_offline`: by updates).

    Tags are `train/` (returns and lengths of episodes), `validation/`, `time/`, and `diagnosis/` for all else: losses,
    values, TD errors, `noise_factor` (of the exploration noise), `learning_rate_<optimizer>`. The logs of update phases
    are averaged over `write_interval`; those that only epochs have are written at their end. NaN is not written. The
    HPARAMS tab shows the agent's options that are not objects, the final and the best return.

    A loaded agent that continues in the same `log_dir` replaces the events of later steps.

    Args:
        log_dir: the directory of the event files.
        write_interval: the number of environment steps (`fit_offline`: updates) between two writes, at least 1.

    Raises:
        ValueError: `write_interval` is not a positive integer, or `log_dir` cannot be a directory; or, when training
            begins, an event file in it is damaged.
    """

    def __init__(self, log_dir: str | Path, write_interval: int = 250):
        super().__init__()
        self.log_dir = str(log_dir)
        if "://" not in self.log_dir:  # a file system of TensorFlow, such as gs://bucket
            files.check_kind("log_dir", self.log_dir, "directory")
        self.write_interval = positive_int("write_interval", write_interval)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Record the initial counters; the first logs decide the unit of the x axis, and then the file is opened."""
        self._writer: Any = None
        self._initial_counts = {"env_steps": self.agent.env_steps, "updates": self.agent.updates}
        self._since = self._ended = time.perf_counter()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Exclude the time between two epochs, such as an evaluation, from the time per step."""
        now = time.perf_counter()
        self._since = self._since + now - self._ended
        self._ended = now

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Add the logs of an update phase, and write after every `write_interval` steps."""
        steps = self._steps(logs or {})
        self._take(logs or {})
        self._ended = time.perf_counter()
        if steps // self.write_interval != self._written // self.write_interval:
            self._write_update_phases(steps)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Write the logs that update phases do not have, such as those of an evaluation."""
        steps = self._steps(logs or {})
        rest = {k: v for k, v in (logs or {}).items() if k not in self._update_phase_logs}
        values = {_tag(name): value for name, value in rest.items()}
        if "val_return" in rest:
            self._best = max(self._best, rest["val_return"])
            values[BEST] = self._best
        self._write(steps, values)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Write the remaining logs, and close the file."""
        if self._writer is None:
            return
        if (steps := self._steps({})) > self._written and self._sums:
            self._write_update_phases(steps)
        self._writer.close()

    def _steps(self, logs: dict[str, Any]) -> int:
        """Return the current position on the x axis."""
        if self._writer is None:
            self._axis = "env_steps" if "env_steps" in logs else "updates"
            self._open(self._initial_counts[self._axis])
        return getattr(self.agent, self._axis)

    def _open(self, steps: int) -> None:
        self._best, is_described = _drop_later_events(self.log_dir, steps)
        with files.writing(self.log_dir):
            self._writer = tf.summary.create_file_writer(self.log_dir, filename_suffix=SUFFIX)
        self._written = steps
        self._sums = {}
        self._rate = f"{self._axis.removeprefix('env_')}_per_second"
        self._update_phase_logs = {"env_steps", self._rate, *self._settings()}
        if not is_described:
            self._write_event(0, *_description(self.agent))

    def _take(self, logs: dict[str, Any]) -> None:
        for name, value in logs.items():
            if not math.isnan(value):
                total, count = self._sums.get(name, (0.0, 0))
                self._sums[name] = total + value, count + 1
        self._update_phase_logs.update(logs)

    def _write_update_phases(self, steps: int) -> None:
        """Write the means of the logs of update phases since the last write."""
        values = {name: total / count for name, (total, count) in self._sums.items() if name != "env_steps"}
        values |= {self._rate: (steps - self._written) / (self._ended - self._since), **self._settings()}
        self._write(steps, {_tag(name): value for name, value in values.items()})
        self._written = steps
        self._since = self._ended
        self._sums = {}

    def _settings(self) -> dict[str, float]:
        """Return the current learning rates and the noise factor."""
        agent = self.agent
        rates = {f"learning_rate_{each.name}": float(each.learning_rate) for each in agent.optimizers.values()}
        return rates | {"noise_factor": agent.data.behaviour.exploration.factor(agent.env_steps)}

    def _write(self, steps: int, values: dict[str, float]) -> None:
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb  # slow to import

        self._write_event(steps, *(scalar_pb(tag, value) for tag, value in values.items() if not math.isnan(value)))

    def _write_event(self, steps: int, *summaries: Any) -> None:
        """Write an event. Concatenated summaries are one summary with the values of all."""
        with files.writing(self.log_dir), self._writer.as_default(step=steps):
            tf.summary.experimental.write_raw_pb(b"".join(each.SerializeToString() for each in summaries))


def _tag(log: str) -> str:
    """Return the tag of a log."""
    if log.startswith("val_"):
        return f"validation/{log.removeprefix('val_')}"
    if log.startswith(("return", "episode")):
        return f"train/{log}"
    return f"time/{log}" if log.endswith("_per_second") else f"diagnosis/{log}"


def _description(agent: TrainedAgent) -> tuple[Any, Any]:
    """Return the two HPARAMS summaries of a run: the agent, its environment and the options that are not objects.

    Options that differ from their defaults are shown first.
    """
    from tensorboard.plugins.hparams import api_pb2, summary  # slow to import

    api: Any = api_pb2  # it has no type stubs
    kinds = {bool: api.DATA_TYPE_BOOL, str: api.DATA_TYPE_STRING}
    kinds |= dict.fromkeys((int, float), api.DATA_TYPE_FLOAT64)
    options = agent.options
    environment = agent.environment or {}
    plain = [option.name for option in options_of(type(options)) if not option.is_object]
    values = {name: _as_hparam(value) for name, value in options.values().items() if name in plain}
    values |= {"agent": type(agent).__name__, "environment": environment.get("id")}
    values |= {name: _as_hparam(value) for name, value in environment.get("kwargs", {}).items() if name not in values}
    first = {"agent", "environment", "seed", *filter(options.is_changed, plain)}
    infos = [
        api.HParamInfo(name=name, type=kinds.get(type(value)), differs=name in first) for name, value in values.items()
    ]
    metrics = [api.MetricInfo(name=api.MetricName(tag=tag), display_name=title) for tag, title in METRICS.items()]
    known = {name: value for name, value in values.items() if value is not None}
    return summary.experiment_pb(infos, metrics), summary.session_start_pb(known)


def _as_hparam(value: Any) -> bool | float | str | None:
    """Return an option as a value for TensorBoard, whose JSON has no infinity."""
    is_finite = isinstance(value, (bool, int, float)) and math.isfinite(value)
    return value if value is None or is_finite else str(value)


def _read_events(file: str) -> list[Any]:
    """Return the events of a file. A file that ends within an event is not an error: its process was killed."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader  # slow to import

    try:
        return [tf.compat.v1.Event.FromString(record) for record in RawEventFileLoader(file).Load()]
    except (tf.errors.OpError, DecodeError) as error:
        raise ValueError(
            f"{file} is damaged: {' '.join(str(error).split())}. Move it away: only its curves are lost."
        ) from error


def _drop_later_events(log_dir: str, steps: int) -> tuple[float, bool]:
    """Remove the events after `steps`, which a resumed training run writes again.

    A new training run keeps all existing events, as TensorBoard's writers do.

    Returns:
        The best evaluation return in the remaining events, and whether they include the HPARAMS summaries.
    """
    best = -math.inf
    is_described = False
    names = sorted(tf.io.gfile.listdir(log_dir)) if steps and tf.io.gfile.isdir(log_dir) else ()
    for file in (f"{log_dir}/{name}" for name in names if "tfevents" in name and name.endswith(SUFFIX)):
        events = _read_events(file)
        kept_events = [event for event in events if event.step <= steps]
        for value in (value for event in kept_events for value in event.summary.value):
            is_described |= value.metadata.plugin_data.plugin_name == "hparams"
            if value.tag == BEST:
                best = max(best, *value.tensor.float_val)
        if len(kept_events) < len(events):
            scratch = f"{log_dir}/.cut"
            with contextlib.suppress(tf.errors.NotFoundError):
                tf.io.gfile.remove(scratch)  # left by a killed process; it might be a link to another file
            with tf.io.TFRecordWriter(scratch) as writer:
                for event in kept_events:
                    writer.write(event.SerializeToString())
            tf.io.gfile.rename(scratch, file, overwrite=True)
    return best, is_described
