"""The training loops: with an environment (`fit`) and without one (`fit_offline`), with Keras' callbacks."""

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import keras
from gymnasium.vector import VectorEnv

from tfdpg.arguments import warn
from tfdpg.environments import is_real, opened
from tfdpg.findings import warn_of_normalizers
from tfdpg.spec import Spec
from tfdpg.training.callbacks.monitors import as_callback_list, prepare
from tfdpg.training.callbacks.progress import ProgressBar, resolve
from tfdpg.training.data.datasets import load_into
from tfdpg.training.data.demonstrations import demonstrating
from tfdpg.training.environment.env_runner import EnvRunner, environment_of
from tfdpg.training.environment.env_timeout import check_processes, env_timeout
from tfdpg.training.environment.env_watch import EnvWatch
from tfdpg.training.evaluation import summarise
from tfdpg.training.interrupt import Interrupt, deferred_signals
from tfdpg.training.learning.updates import LARGEST_CHUNK
from tfdpg.training.options import FitOptions, OfflineOptions, TrainingOptions
from tfdpg.training.realtime import LOGS, RealTimeLoop
from tfdpg.training.step_loop import StepLoop
from tfdpg.training.time_budget import TimeBudget
from tfdpg.training.trained_agent import TrainedAgent
from tfdpg.training.training_warnings import TrainingWarnings, actions_at_bounds

Trained = TypeVar("Trained", bound=TrainingOptions)


def step_logs(spec: Spec) -> list[str]:
    """Return the names of the logs of an epoch in an environment, in addition to the metrics of updates."""
    return [*summarise([], spec.has_goals), "env_steps", "steps_per_second"]


def fit(agent: TrainedAgent, env: Any, options: FitOptions) -> keras.callbacks.History:
    """See `Agent.fit`.

    Ctrl-C ends training between two steps: the callbacks' `on_train_end` is called, so that a checkpoint is written,
    and `KeyboardInterrupt` is raised. SIGTERM does the same, and raises `SystemExit(143)`.
    """
    with (
        opened(env) as env,
        with_environment(options) as options,
        env_timeout(env, options.step_timeout),
        contextlib.ExitStack() as resources,
    ):
        check_environments(agent, options.validation_env, env, options.realtime)
        agent.environment = environment_of(env) or agent.environment
        agent.relabel_with(env)
        resources.enter_context(demonstrating(agent, options))
        watch = EnvWatch(env)
        resources.callback(watch.close)
        resources.enter_context(agent.data.collector.not_watching())
        hold_steps = options.hold_steps if options.realtime else None
        reset_seed = agent.data.collector.next_reset_seed
        limits = options.max_ep_len, watch, hold_steps
        runner = EnvRunner(env, agent.spec, reset_seed, *limits, agent.data.preprocessing)
        logs = [*step_logs(agent.spec), *(LOGS if options.realtime else ())]
        training = TrainingRun(agent, options, options.epoch_limit, logs)
        training.training_warnings.plan(options, runner)
        if runner.is_real and not options.realtime:
            warn(
                "The environment is a real machine (`is_real`), and it stands still during each update. Pass "
                "realtime=True (--realtime), with which its control loop does not wait for learning."
            )
        with deferred_signals() as interrupted:
            kind = RealTimeLoop if options.realtime else StepLoop
            loop = kind(agent, runner, watch, training, interrupted, options)
            try:
                loop.run()
            finally:
                agent.data.schedule.plan(None)
                agent.data.collector.flush()
    return training.history


def fit_offline(agent: TrainedAgent, data: Any, options: OfflineOptions) -> keras.callbacks.History:
    """See `Agent.fit_offline`.

    Epochs are numbered from those that the agent has completed. Signals end training between two update phases.
    """

    def train_epoch(epoch: int) -> dict[str, float]:
        agent.learner.epoch_metrics.reset()
        began = time.perf_counter()
        done = 0
        steps = options.steps_per_epoch
        training.time_budget.begin_epoch()
        while done < steps and not (agent.stop_training or interrupted.is_set() or training.time_budget.is_up()):
            training.callbacks.on_train_batch_begin(done)
            count = min(LARGEST_CHUNK, steps - done)
            logs = agent.learn(updates=count) | {"updates": agent.updates}
            done += count
            training.callbacks.on_train_batch_end(done - 1, logs)
            training.measure()
        speed = done / (time.perf_counter() - began)
        return agent.learner.epoch_metrics.summary() | {"updates": agent.updates, "updates_per_second": speed}

    with with_environment(options) as options:
        check_environments(agent, options.validation_env)
        agent.data.collector.close_episodes()
        if data is not None:
            grow = agent.data.grow if agent.data.may_grow else None
            load_into(agent.replay, data, options.clip_actions, grow, agent.data.preprocessing)
        limit = None if options.epoch_limit is None else agent.epoch + options.epoch_limit
        training = TrainingRun(agent, options, limit, ("updates", "updates_per_second"))
        with deferred_signals() as interrupted:
            training.run(interrupted, agent.epoch, train_epoch)
    return training.history


@contextlib.contextmanager
def with_environment(options: Trained) -> Iterator[Trained]:
    """Return the options, in which the id of a `validation_env` is replaced by the environment, and close it later."""
    with opened(options.validation_env) as env:
        yield dataclasses.replace(cast(Any, options), validation_env=env)


def check_environments(agent: TrainedAgent, validation_env: Any, env: Any = None, realtime: bool = False) -> None:
    """Raise `ValueError` for other spaces, or if both are one environment; warn of wrappers that normalise."""
    if realtime and validation_env is env and not isinstance(env, VectorEnv):
        validation_env = None  # it is evaluated between two episodes
    environments = {"env": env, "validation_env": validation_env}
    environments = {name: each for name, each in environments.items() if each is not None}
    for each in environments.values():
        check_processes(each)
    for name, each in environments.items():
        agent.spec.check(each, name)
        warn_of_normalizers(each, name)
    if len(environments) == 2 and is_real(env) and is_real(validation_env):
        raise ValueError(
            "`validation_env` must not be a second instance of a real machine (`is_real`). Pass `env` itself, with "
            "realtime=True: it is evaluated between two episodes."
        )
    if len(environments) == 2 and validation_env.unwrapped is env.unwrapped:
        raise ValueError(
            "`validation_env` must be another environment than `env`: evaluating would reset it. Only with "
            "realtime=True, and for one environment, may it be the same."
        )


class TrainingRun:
    """The epochs of a training run, with Keras' callbacks.

    Args:
        agent: the agent.
        options: the options of `fit`.
        stop: the epoch to stop at; None if only `minutes` ends training.
        logs: the names of an epoch's logs, in addition to the metrics of updates.

    Attributes:
        training_warnings: the warnings about this training run.
        time_budget: the time that is left.
        callbacks: the callbacks, including a progress bar and `history`.
        history: the logs of the epochs.
    """

    def __init__(self, agent: TrainedAgent, options: TrainingOptions, stop: int | None, logs: Sequence[str]):
        self._agent = agent
        self._options = options
        self._stop = stop
        unit = "env_steps" if "env_steps" in logs else "updates"
        self.time_budget = TimeBudget(options, unit.replace("env_", "environment "), lambda: getattr(agent, unit))
        self.callbacks, self.history = _callback_list(agent, options, stop, logs)
        self.training_warnings = TrainingWarnings(agent, options)
        self._first_update = agent.updates
        agent.stop_training = False  # callbacks of an earlier training run have set both
        agent._initial_epoch = None
        # called before the callbacks at the end of training, with whether an error or a signal ends it
        self.before_end: Callable[[bool], None] = lambda has_failed: None
        self.next_first: int | None = None  # the first step of the next epoch, if steps are taken between two epochs
        self.evaluate: Callable[..., dict[str, float]] = agent.evaluate
        agent.data.actor.refresh()
        if (
            not agent.data.collector.is_restored
        ):  # open episodes and an unfinished epoch resume only directly after loading
            agent.data.collector.close_episodes()
            agent.learner.epoch_metrics.reset()

    def run(self, interrupted: Interrupt, first: int, train_epoch: Callable[[int], dict[str, float]]) -> None:
        """Train and validate in every epoch.

        An epoch that the time budget ended is evaluated like any other, but it is not complete: a training run that is
        resumed continues it, as after a signal.

        Args:
            interrupted: whether Ctrl-C or SIGTERM was received.
            first: the epoch to begin with, unless Keras' `BackupAndRestore` sets another one.
            train_epoch: receives the number of an epoch, trains in it, and returns its logs.

        Raises:
            KeyboardInterrupt: after the end of training, if there was a Ctrl-C.
            SystemExit: after the end of training, if there was a SIGTERM.
            Exception: the error of the environment, an update or a callback. The callbacks' `on_train_end` is called
                first, so that `Checkpoint` saves the steps before it.
        """
        agent = self._agent
        callbacks = self.callbacks
        budget = self.time_budget
        callbacks.on_train_begin()
        try:
            first = agent._initial_epoch or first
            for epoch in itertools.count(first) if self._stop is None else range(first, self._stop):
                callbacks.on_epoch_begin(epoch)
                self._check_rates()
                logs = train_epoch(epoch)
                if interrupted.is_set():
                    break
                with budget.evaluation():
                    logs |= actions_at_bounds(agent) | self._validate()
                if not budget.has_ended:
                    agent.learner.complete(epoch)
                    agent.learner.epoch_metrics.reset()
                    if self.next_first is not None:
                        agent.learner.epoch_metrics.begin(epoch + 1, self.next_first)
                with budget.callbacks():
                    callbacks.on_epoch_end(epoch, logs)
                self.training_warnings.epoch(logs)
                if agent.stop_training or interrupted.is_set() or budget.is_up():
                    break
            if error := interrupted.error():
                raise error
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            if interrupted.is_repeated:
                raise
            self.before_end(True)
            signalled = interrupted.error()  # it may also have ended the processes of environments, which is `error`
            _end_early(signalled or error, callbacks)
            if signalled:
                raise signalled from None
            raise
        self.before_end(False)
        callbacks.on_train_end()
        self.training_warnings.end()

    def _check_rates(self) -> None:
        """Raise `ValueError` for a learning rate below 0, which a callback or a schedule may have set."""
        for optimizer in self._agent.optimizers.values():
            if (rate := float(optimizer.learning_rate)) < 0:
                raise ValueError(
                    f"The learning rate of the optimizer {optimizer.name!r} must be at least 0, or updates increase "
                    f"the loss. A callback or a schedule may have set it. Received: {rate:g}"
                )

    def measure(self) -> None:
        """Measure the speed after an update phase, and print how long training will be, once that is known."""
        if not self.time_budget.is_limited:
            return
        has_updates = self._agent.updates > self._first_update
        if plan := self.time_budget.end_phase(has_updates):
            self.show(plan)

    def show(self, text: str) -> None:
        """Print a line of text, below the progress bar if there is one; nothing if `verbose` is 0."""
        for callback in self.callbacks.callbacks:
            if isinstance(callback, ProgressBar):
                callback.show(text)

    def remark(self, text: str) -> None:
        """Show a text in the progress bar, if there is one, in place of the time that is left; "" ends this."""
        for callback in self.callbacks.callbacks:
            if isinstance(callback, ProgressBar):
                callback.remark(text)

    def _validate(self) -> dict[str, float]:
        """Evaluate in `validation_env`, if there is one, and return the logs."""
        options = self._options
        if options.validation_env is None:
            return {}
        self.callbacks.on_test_begin()
        scores = self.evaluate(options.validation_env, options.validation_episodes, max_ep_len=options.max_ep_len)
        self.callbacks.on_test_end(scores)
        return {f"val_{name}": value for name, value in scores.items()}


def _end_early(error: BaseException, callbacks: keras.callbacks.CallbackList) -> None:
    """Call `on_train_end` of every callback; their own errors become notes of the error that ended training."""
    for callback in callbacks.callbacks:
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            continue  # it removes its backup at the end of training
        try:
            callback.on_train_end()
        except Exception as second:
            error.add_note(f"{type(callback).__name__}: {second}")


def _callback_list(
    agent: TrainedAgent, options: TrainingOptions, stop: int | None, logs: Sequence[str]
) -> tuple[keras.callbacks.CallbackList, keras.callbacks.History]:
    """Return Keras' list of the callbacks of a training run, with a progress bar and a `History`; and that history."""
    callbacks = as_callback_list(options.callbacks)
    verbose = resolve(options.verbose)
    validated = (
        () if options.validation_env is None else [f"val_{name}" for name in summarise([], agent.spec.has_goals)]
    )
    prepare(
        callbacks,
        [*logs, *agent.learner.epoch_metrics.summary(), *actions_at_bounds(agent), *validated],
        agent.metrics,
        agent.optimizers.values(),
    )
    histories = [callback for callback in callbacks if isinstance(callback, keras.callbacks.History)]
    history = histories[0] if histories else keras.callbacks.History()
    if not histories:
        callbacks.append(history)
    if verbose and not any(isinstance(callback, keras.callbacks.ProgbarLogger) for callback in callbacks):
        callbacks.insert(0, ProgressBar())  # it completes its line before other callbacks print
    counts: dict[str, Any] = {"epochs": stop, "steps": options.steps_per_epoch, "verbose": verbose}
    return keras.callbacks.CallbackList(callbacks, model=agent, **counts), history
