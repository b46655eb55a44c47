"""Train the runs of a search at the same time, each in its own process, on this machine or on a Ray cluster."""

import dataclasses
import math
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tfdpg import files
from tfdpg.cli import run_lock
from tfdpg.cli.jobs import PROGRAM, environment
from tfdpg.cli.run_options import RunConfig, read_config, train_command
from tfdpg.cli.run_paths import is_run
from tfdpg.training.options import FitOptions

POLL = 0.5
"""Seconds between two looks at the running processes and at their evaluations."""
EVALUATIONS = 3
"""The number of last evaluations whose mean is the score of a run."""


class Process(Protocol):
    """What a run is trained in: the interface of `subprocess.Popen`."""

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs. Raise `ProcessLookupError` if it was lost."""
        ...

    def send_signal(self, sig: int, /) -> None:
        """Send a signal to the process."""
        ...

    def wait(self) -> int:
        """Wait until the process has ended, and return its exit status."""
        ...


class Launcher(Protocol):
    """Starts processes."""

    def capacity(self) -> int:
        """Return the number of runs that can be trained at the same time."""
        ...

    def start(self, arguments: list[str], log: Path) -> Process:
        """Start tfdpg with these arguments, and append its output to a file."""
        ...


@dataclasses.dataclass(eq=False)
class Run:
    """A run of a search.

    Attributes:
        directory: the run directory.
        config: the configuration.
        trial: Optuna's trial; None for a run with another seed.
        reported: the number of evaluations that the trial has reported.
        is_stopped: whether the run was told to stop.
        process: the process that trains it.
        seconds: how long the process has taken, once it has ended.
    """

    directory: Path
    config: RunConfig
    trial: Any = None
    reported: int = 0
    is_stopped: bool = False
    process: Process | None = None
    seconds: float = 0.0

    @property
    def log(self) -> Path:
        """The file with the output of the process."""
        return self.directory.with_name(f"{self.directory.name}.txt")

    def start(self, launcher: Launcher) -> None:
        """Start the process that trains the run, or that resumes it, unless another process trains it.

        A killed search leaves processes behind, which train their runs to the end.
        """
        if is_run(self.directory):
            try:
                run_lock.check(self.directory)
            except run_lock.RunLockedError:
                return
            arguments = self._resume_arguments()
        else:
            arguments = shlex.split(train_command(self.config))[1:]
            arguments += ["--run-dir", str(self.directory.parent), "--verbose", "2"]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.seconds = -time.monotonic()
        self.process = launcher.start(arguments, self.log)

    def _resume_arguments(self) -> list[str]:
        """Return the arguments that resume the run. What the user's command names is trusted, and nothing else.

        Raises:
            ValueError: `run.json` names another environment or other modules than the command.
            tfdpg.files.UnsafeFileError: the run directory contains a link.
        """
        saved = read_config(self.directory)
        names = [[each.env, *each.external_references] for each in (saved, self.config)]
        if names[0] != names[1]:
            raise ValueError(f"{self.directory} must be a run of this search, with {names[1]}. Received: {names[0]}")
        return ["train", "--resume", str(self.directory), *["--trusted"] * bool(names[1][1:])]

    def poll(self, launcher: Launcher) -> int | None:
        """Return the exit status of the process, or None while it runs. Start it if it was not started, or was lost."""
        if self.process is None:
            return self.start(launcher)
        try:
            status = self.process.poll()
        except ProcessLookupError:
            self.process = None
            return None
        if status is not None:
            self.seconds += time.monotonic()
        return status

    def scores(self) -> list[float]:
        """Return the results of all evaluations: rates of success if the run has them, otherwise returns."""
        file = self.directory / "progress.csv"
        files.check_entry(file)
        columns = files.read_numbers(file)
        scores: dict[float, float] = {}
        for column in ("val_return", "val_success_rate"):
            # a resumed run may have two rows for the steps that it repeated
            values = dict(zip(columns.get("env_steps", ()), columns.get(column, ()), strict=False))
            scores = {steps: value for steps, value in values.items() if not math.isnan(value)} or scores
        return list(scores.values())

    def is_complete(self) -> bool:
        """Return whether the run has ended, after all epochs or at its target return: the export is written then."""
        return (self.directory / "export").exists() and len(self.scores()) > 0

    def message(self) -> str:
        """Return the last message of the process, or where its output is."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        messages = [line.removeprefix("tfdpg: ") for line in lines if line.startswith("tfdpg: ")]
        return f"{messages[-1] if messages else 'there is no message'} (see {self.log})"


def epochs(config: RunConfig) -> int:
    """Return the number of epochs of a run of a search, which has no other limit."""
    limit = FitOptions(**config.fit_options).epoch_limit
    assert limit is not None
    return limit


def score(scores: list[float]) -> float:
    """Return the score of a run: the mean of its last evaluations."""
    return float(np.mean(scores[-EVALUATIONS:]))


class LocalLauncher:
    """Starts processes on this machine, which share its cores.

    Each has its own session, which the Ctrl-C of a terminal does not reach.
    """

    def __init__(self, jobs: int):
        self.jobs = jobs

    def capacity(self) -> int:
        """Return the number of runs that can be trained at the same time."""
        return self.jobs

    def start(self, arguments: list[str], log: Path) -> Process:
        """Start tfdpg with these arguments, and append its output to a file."""
        with log.open("ab") as file:
            return subprocess.Popen(
                [*PROGRAM, *arguments],
                env=environment(self.jobs),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )


def train_all(
    runs: Iterator[Run], launcher: Launcher, watch: Callable[[Run], bool], ended: Callable[[Run, int], None]
) -> None:
    """Train runs, as many at the same time as the launcher allows.

    If this ends with an exception, which Ctrl-C is too, all processes are told to stop. They save a checkpoint.

    Args:
        runs: the runs. The next is taken only when there is a place for it.
        launcher: starts the processes.
        watch: called again and again for a run while it is trained; returns whether to stop it.
        ended: called with a run and the exit status of its process.
    """
    running: list[Run] = []
    try:
        while True:
            while len(running) < launcher.capacity() and (run := next(runs, None)):
                running.append(run)
            if not running:
                return
            for run in list(running):
                status = run.poll(launcher)
                if status is not None:
                    running.remove(run)
                    ended(run, status)
                elif watch(run) and not run.is_stopped and run.process is not None:
                    run.is_stopped = True
                    run.process.send_signal(signal.SIGINT)
            time.sleep(POLL)
    finally:
        _stop(running)


def _stop(running: Sequence[Run]) -> None:
    """Tell the processes of runs to stop, unless they were told before, and wait until they have ended."""
    for run in running:
        if run.process is not None and not run.is_stopped:
            run.process.send_signal(signal.SIGINT)
    for run in running:
        if run.process is not None:
            run.process.wait()
