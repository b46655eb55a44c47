"""Search for the options of an agent with the highest return. Optuna proposes the options of each trial."""

import contextlib
import dataclasses
import json
import math
import signal
import threading
import time
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

from tfdpg import files
from tfdpg.cli import DIVERGED, run_lock
from tfdpg.cli.run_options import RunConfig
from tfdpg.compat.optuna import continued
from tfdpg.tuning import initial_options
from tfdpg.tuning.options import TuneOptions
from tfdpg.tuning.report import Setting, write_report
from tfdpg.tuning.runs import Launcher, LocalLauncher, Run, epochs, score, train_all
from tfdpg.tuning.space import Dimension, dimensions

STORAGE = "study.db"
"""The file in the directory of a search that contains Optuna's study."""
BEST = 5
"""The number of settings that are trained again with new seeds."""
FAILURES = 3
"""The number of failed trials in a row that ends a search."""
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


def search(directory: Path, config: RunConfig, options: TuneOptions) -> optuna.Study:
    """Run or resume a search, print its result, and return Optuna's study.

    Args:
        directory: the directory of the search.
        config: the configuration of the first trial, from which the others differ in the options that are searched.
        options: the options of the search.
    """
    space = dimensions(config, options.search)
    if directory.exists() and not (directory / STORAGE).exists() and set(directory.iterdir()):
        raise FileExistsError(f"{directory} is not empty, and holds no search. Choose another `run_dir`.")
    with _launcher(options) as launcher, contextlib.ExitStack() as stack, _sigterm_exits():
        stack.callback(optuna.logging.set_verbosity, optuna.logging.get_verbosity())
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        directory.mkdir(parents=True, exist_ok=True)
        files.check_tree(directory)
        with run_lock.held(directory):
            return Search(directory, config, options, space, launcher).run()


@contextlib.contextmanager
def _launcher(options: TuneOptions) -> Iterator[Launcher]:
    if options.ray_address is None:
        yield LocalLauncher(options.jobs)
        return
    from tfdpg.distributed.plan import require_ray

    require_ray()
    from tfdpg.distributed.commands import RayLauncher
    from tfdpg.distributed.processes import connected

    with connected(options.ray_address, 1):
        yield RayLauncher()


@contextlib.contextmanager
def _sigterm_exits() -> Iterator[None]:
    """Raise `SystemExit` on SIGTERM in the main thread, so that the runs are told to stop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


class Search:
    """A search in progress.

    Args:
        directory: the directory of the search.
        config: the configuration of the first trial.
        options: the options of the search.
        space: the options that are searched.
        launcher: starts the processes of the runs.

    Raises:
        ValueError: the directory holds a search with other options.
    """

    def __init__(
        self, directory: Path, config: RunConfig, options: TuneOptions, space: list[Dimension], launcher: Launcher
    ):
        self._directory = directory
        self._config = config
        self._options = options
        self._space = space
        self._launcher = launcher
        self._began = time.monotonic()
        self._durations: list[float] = []
        self._failures = 0
        self._study = optuna.create_study(
            storage=f"sqlite:///{directory / STORAGE}",
            study_name="tfdpg",
            direction="maximize",
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(n_warmup_steps=epochs(config) // 3),
        )
        self._check_unchanged()

    def _check_unchanged(self) -> None:
        """Store the configuration in a new study, or compare it with that of a study that is resumed."""
        config = dataclasses.asdict(self._config)
        config |= config.pop("options") | {"search": [dimension.name for dimension in self._space]}
        now = json.loads(json.dumps(config, default=str))
        before = self._study.user_attrs.get("config")
        if before is None:
            self._study.set_user_attr("config", now)
            return
        # options that are newer than the study have their defaults
        before = json.loads(json.dumps(initial_options(self._config.agent))) | before
        for name in now.keys() | before.keys():
            if now.get(name) != before.get(name):
                raise ValueError(
                    f"{self._directory} holds a search with {name}={before.get(name)!r}. Choose another `run_dir`, "
                    f"or pass the same options. Received: {name}={now.get(name)!r}"
                )

    def run(self) -> optuna.Study:
        """Train the trials and the runs with new seeds, and write the report."""
        train_all(self._trials(), self._launcher, self._report_and_prune, self._tell)
        settings = self._best_settings()
        train_all(self._confirmations(settings), self._launcher, lambda run: False, self._confirmed)
        write_report(self._directory, self._study, settings, self._new_seeds())
        return self._study

    # trials

    def _trials(self) -> Iterator[Run]:
        """Yield the trials that a killed search was training, then new ones, while there are trials and time left."""
        for trial in self._study.get_trials(states=[TrialState.RUNNING]):
            yield self._trial_run(continued(self._study, trial), max(trial.intermediate_values, default=0))
        while len(self._study.get_trials(states=[*FINISHED, TrialState.RUNNING])) < self._options.trials:
            if not self._has_time():
                print("The time left is needed for the runs with new seeds.", flush=True)
                return
            number = len(self._study.get_trials())
            # the numbers of a trial depend on its own number only, so that a resumed search does not repeat them
            seed = int(np.random.SeedSequence((self._options.seed, number)).generate_state(1)[0])
            self._study.sampler = optuna.samplers.TPESampler(seed=seed)
            if not any(_is_initial(trial) for trial in self._study.get_trials() if trial.state != TrialState.FAIL):
                initial = {each.parameter: each.initial_parameter for each in self._space}
                self._study.enqueue_trial(initial, user_attrs={"initial": True})
            yield self._trial_run(self._study.ask(), 0)

    def _trial_run(self, trial: optuna.Trial, reported: int) -> Run:
        """Return the run of a trial, whose options it draws unless they have been drawn."""
        drawn = {dimension.name: dimension.draw(trial) for dimension in self._space}
        options = {} if trial.user_attrs.get("initial") else drawn
        directory = self._directory / "trials" / str(trial.number) / f"seed-{self._config.seed}"
        trial.set_user_attr("options", options)
        trial.set_user_attr("run", str(directory))
        return Run(directory, self._with(options), trial, reported)

    def _with(self, options: dict[str, Any], seed: int | None = None) -> RunConfig:
        seed = self._config.seed if seed is None else seed
        return dataclasses.replace(self._config, options=self._config.options | options, seed=seed)

    def _has_time(self) -> bool:
        """Return whether another trial, and the runs with new seeds after it, are expected to end in time."""
        if self._options.minutes is None or not self._durations:
            return True
        seconds = 60 * self._options.minutes - (time.monotonic() - self._began)
        rounds = math.ceil((BEST + 1) * self._options.confirm / self._launcher.capacity())
        return seconds > float(np.mean(self._durations)) * (1 + rounds)

    def _report_and_prune(self, run: Run) -> bool:
        """Report new evaluations of a trial. Return whether it is worse than the median of the others."""
        scores = run.scores()
        new = range(run.reported + 1, len(scores) + 1)
        for epoch in new:
            run.trial.report(score(scores[:epoch]), epoch)
        run.reported = max(run.reported, len(scores))
        may_be_pruned = len(scores) < epochs(self._config) and not _is_initial(run.trial)
        return len(new) > 0 and may_be_pruned and run.trial.should_prune()

    def _tell(self, run: Run, status: int) -> None:
        """Tell the study how a trial ended, and print it."""
        self._report_and_prune(run)
        scores = run.scores()
        name = f"trial {run.trial.number}"
        if status == 0 and scores:
            self._failures = 0
            self._durations.append(run.seconds)
            self._study.tell(run.trial, score(scores))
            result = f"{score(scores):.2f}"
        elif status == DIVERGED or run.is_stopped:
            # a diverged trial counts as pruned: Optuna then avoids such options, which it does not after a failure
            self._failures = 0
            run.trial.set_user_attr("diverged", status == DIVERGED)
            self._study.tell(run.trial, state=TrialState.PRUNED)
            result = "diverged" if status == DIVERGED else f"pruned at {score(scores):.2f}"
            result += f" after {len(scores)} of {epochs(self._config)} epochs"
        else:
            self._failures += 1
            self._study.tell(run.trial, state=TrialState.FAIL)
            if _is_initial(run.trial) or self._failures == FAILURES:
                raise RuntimeError(f"{name} failed with exit status {status}, which ends the search: {run.message()}")
            result = f"failed with exit status {status}: {run.message()}"
        options = " ".join(f"{key}={value}" for key, value in run.trial.user_attrs["options"].items())
        print(f"{name}: {result}  {options or 'initial values'}", flush=True)

    # new seeds

    def _new_seeds(self) -> list[int]:
        return [self._config.seed + 1 + i for i in range(self._options.confirm)]

    def _best_settings(self) -> list[Setting]:
        """Return the settings that are trained with new seeds."""
        done = self._study.get_trials(states=[TrialState.COMPLETE])
        if not done:
            raise RuntimeError(f"No trial of {self._directory} was completed.")
        confirm = self._directory / "confirm"
        confirmed = [trial.number for trial in done if (confirm / str(trial.number)).exists()]
        settings = []
        for trial in best_trials(done, confirmed):
            options = {name: _as_declared(value) for name, value in trial.user_attrs["options"].items()}
            config = self._with(options)
            values = {dimension.name: options.get(dimension.name, dimension.initial) for dimension in self._space}
            runs = {}
            for seed in self._new_seeds():
                directory = confirm / str(trial.number) / f"seed-{seed}"
                runs[seed] = Run(directory, self._with(options, seed))
            settings.append(Setting(trial.number, _is_initial(trial), float(trial.values[0]), values, config, runs))
        return settings

    def _confirmations(self, settings: list[Setting]) -> Iterator[Run]:
        """Yield the runs with new seeds that are not complete."""
        missing = [run for seed in self._new_seeds() for each in settings if not (run := each.runs[seed]).is_complete()]
        if missing:
            seeds = ", ".join(map(str, self._new_seeds()))
            print(f"Training the best settings and the initial one again with the seeds {seeds}.", flush=True)
        yield from missing

    def _confirmed(self, run: Run, status: int) -> None:
        name = f"trial {run.directory.parent.name} with seed {run.config.seed}"
        if status == 0 and (scores := run.scores()):
            print(f"{name}: {score(scores):.2f}", flush=True)
        else:
            what = "diverged" if status == DIVERGED else f"failed with exit status {status}: {run.message()}"
            print(f"{name}: {what}", flush=True)


def best_trials(trials: Iterable[FrozenTrial], confirmed: Container[int]) -> list[FrozenTrial]:
    """Return the trials with the highest scores, and others that are compared with them.

    These are the initial values, and the trials that were trained with new seeds before the search was resumed. Later
    trials can have higher scores in the search by luck, but the scores with new seeds still count.

    Args:
        trials: all completed trials.
        confirmed: the numbers of the trials that were trained with new seeds.
    """
    ranked = sorted(trials, key=lambda trial: trial.values, reverse=True)
    return ranked[:BEST] + [each for each in ranked[BEST:] if _is_initial(each) or each.number in confirmed]


def _is_initial(trial: FrozenTrial | optuna.Trial) -> bool:
    return bool(trial.user_attrs.get("initial"))


def _as_declared(value: Any) -> Any:
    """Return a value of an option that was stored as JSON."""
    return tuple(value) if isinstance(value, list) else value
