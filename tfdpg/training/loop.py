"""The training loop: act, step, observe, learn; and Keras' callbacks around it."""

import contextlib
import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import keras
import numpy as np

from tfdpg.environments import opened
from tfdpg.findings import warn_of_normalizers, warn_of_observations
from tfdpg.training.callbacks.monitors import as_callback_list, prepare
from tfdpg.training.callbacks.progress import ProgressBar, resolve
from tfdpg.training.data.datasets import load_into
from tfdpg.training.environment.env_runner import EnvRunner, Episode
from tfdpg.training.environment.env_timeout import check_processes, env_timeout
from tfdpg.training.evaluation import summarise
from tfdpg.training.interrupt import Interrupt, deferred_signals
from tfdpg.training.learning.updates import LARGEST_CHUNK
from tfdpg.training.options import FitOptions, TrainingOptions
from tfdpg.training.protocols import TrainableAgent
from tfdpg.training.training_warnings import TrainingWarnings, actions_at_bounds

Trained = TypeVar("Trained", bound=TrainingOptions)
STEP_LOGS = (*summarise([]), "env_steps", "steps_per_second")
"""The logs of an epoch in an environment, beside what updates measure."""


def fit(agent: TrainableAgent, env: Any, options: FitOptions) -> keras.callbacks.History:
    """See `Agent.fit`.

    Ctrl-C ends training between two steps: callbacks see the end of training, so that a checkpoint is
    written, and `KeyboardInterrupt` is raised. SIGTERM does the same, and raises `SystemExit(143)`.
    """
    with opened(env) as env, with_environment(options) as options, env_timeout(env, options.step_timeout):
        check_environments(agent, options.validation_env, env)
        runner = EnvRunner(env, agent.spec, agent.collector.next_reset_seed, options.max_ep_len)
        training = TrainingRun(agent, options, options.epochs, STEP_LOGS)
        training.training_warnings.plan(options, runner)
        with deferred_signals() as interrupted:
            run = _StepLoop(agent, runner, training.callbacks, interrupted, options)
            try:
                training.run(interrupted, options.initial_epoch, run.epoch)
            finally:
                agent.schedule.plan(None)
                agent.collector.flush()
    return training.history


def fit_offline(agent: TrainableAgent, data: Any, options: TrainingOptions) -> keras.callbacks.History:
    """See `Agent.fit_offline`. Ctrl-C ends training between two rounds, as in `fit`, whose count of epochs goes on."""
    with with_environment(options) as options:
        return _fit_offline(agent, data, options)


def _fit_offline(agent: TrainableAgent, data: Any, options: TrainingOptions) -> keras.callbacks.History:
    check_environments(agent, options.validation_env)
    agent.collector.close_episodes()
    if data is not None:
        load_into(agent.replay, data)
    training = TrainingRun(agent, options, agent.epoch + options.epochs, ("updates", "updates_per_second"))
    with deferred_signals() as interrupted:

        def train_epoch(epoch: int) -> dict[str, float]:
            agent.epoch_metrics.reset()
            began = time.perf_counter()
            done = 0
            steps = options.steps_per_epoch
            while done < steps and not (agent.stop_training or interrupted.is_set()):
                training.callbacks.on_train_batch_begin(done)
                count = min(LARGEST_CHUNK, steps - done)
                logs = agent.learn(updates=count) | {"updates": agent.updates}
                done += count
                training.callbacks.on_train_batch_end(done - 1, logs)
            speed = done / (time.perf_counter() - began)
            return agent.epoch_metrics.summary() | {"updates": agent.updates, "updates_per_second": speed}

        training.run(interrupted, agent.epoch, train_epoch)
    return training.history


@contextlib.contextmanager
def with_environment(options: Trained) -> Iterator[Trained]:
    """The options, with an environment where `validation_env` is the id of one; it is closed in the end."""
    with opened(options.validation_env) as env:
        yield (
            dataclasses.replace(cast(Any, options), validation_env=env)
            if isinstance(options.validation_env, str)
            else options
        )


def check_environments(agent: TrainableAgent, validation_env: Any, env: Any = None) -> None:
    """Raises `ValueError` for environments that are not the agent's, or that are one; warns of what normalises."""
    for each in (env, validation_env):
        if each is not None:
            check_processes(each)
    if env is not None:
        agent.spec.check(env)
        warn_of_normalizers(env, "env")
    if validation_env is not None:
        agent.spec.check(validation_env, "validation_env")
        warn_of_normalizers(validation_env, "validation_env")
        if env is not None and (validation_env is env or validation_env.unwrapped is env.unwrapped):
            raise ValueError("`validation_env` must be another environment than `env`: evaluating would reset it.")


class TrainingRun:
    """The epochs of a training, with Keras' callbacks around them.

    Args:
        agent: the agent.
        options: what `fit` was given.
        stop: the epoch to stop at.
        logs: the names of an epoch's logs, beside what updates measure.

    Attributes:
        training_warnings: what is to be said about it.
        callbacks: the callbacks, with a progress bar and `history`.
        history: what the epochs logged.
    """

    def __init__(self, agent: TrainableAgent, options: TrainingOptions, stop: int, logs: Sequence[str]):
        self._agent = agent
        self._options = options
        self._stop = stop
        self.callbacks, self.history = _callback_list(agent, options, stop, logs)
        self.training_warnings = TrainingWarnings(agent)
        agent.begin_training()
        if not agent.collector.is_restored:  # what is open, episodes and an epoch, goes on only where it was saved
            agent.collector.close_episodes()
            agent.epoch_metrics.reset()

    def run(self, interrupted: Interrupt, first: int, train_epoch: Callable[[int], dict[str, float]]) -> None:
        """Trains and validates, epoch for epoch.

        Args:
            interrupted: set by Ctrl-C, or by SIGTERM.
            first: the epoch to begin with, unless a callback knows better.
            train_epoch: trains the epoch of a number, and gives its logs.

        Raises:
            KeyboardInterrupt: after the end of training, if there was a Ctrl-C.
            SystemExit: likewise, if there was a SIGTERM.
            Exception: what the environment, an update or a callback raised; the callbacks see the end of training
                first, so that `Checkpoint` saves the steps before it.
        """
        agent = self._agent
        callbacks = self.callbacks
        callbacks.on_train_begin()
        try:
            for epoch in range(agent._initial_epoch or first, self._stop):
                callbacks.on_epoch_begin(epoch)
                logs = train_epoch(epoch)
                if interrupted.is_set():
                    break
                logs |= actions_at_bounds(agent) | self._validate()
                agent.complete(epoch)
                agent.epoch_metrics.reset()
                callbacks.on_epoch_end(epoch, logs)
                self.training_warnings.epoch(logs)
                if agent.stop_training or interrupted.is_set():
                    break
            if error := interrupted.error():
                raise error
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            if interrupted.is_repeated:
                raise
            signalled = interrupted.error()  # sent to all processes, it ends those of the environments: their error
            _end_early(signalled or error, callbacks)
            if signalled:
                raise signalled from None
            raise
        callbacks.on_train_end()
        self.training_warnings.end()

    def _validate(self) -> dict[str, float]:
        """The logs of an evaluation; none without an environment for it."""
        options = self._options
        if options.validation_env is None:
            return {}
        self.callbacks.on_test_begin()
        env = options.validation_env
        episodes = options.validation_episodes
        scores = self._agent.evaluate(env, episodes, max_ep_len=options.max_ep_len)
        self.callbacks.on_test_end(scores)
        return {f"val_{name}": value for name, value in scores.items()}


def _end_early(error: BaseException, callbacks: keras.callbacks.CallbackList) -> None:
    """Tells every callback that training ended; what they raise in turn becomes a note of the error."""
    for callback in callbacks.callbacks:
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            continue  # which takes the end as success, and removes its backup
        try:
            callback.on_train_end()
        except Exception as second:
            error.add_note(f"{type(callback).__name__}: {second}")


class _StepLoop:
    """The steps of one `fit`, which go on from epoch to epoch."""

    def __init__(
        self,
        agent: TrainableAgent,
        runner: EnvRunner,
        callbacks: keras.callbacks.CallbackList,
        interrupted: Interrupt,
        options: FitOptions,
    ):
        self._agent = agent
        self._runner = runner
        self._callbacks = callbacks
        self._interrupted = interrupted
        self._epochs = options.epochs
        self._steps = options.steps_per_epoch
        self._observation: Any = None
        self._has_checked_observations = False

    def epoch(self, epoch: int) -> dict[str, float]:
        """Takes an epoch's environment steps, with the learning that falls due; returns its logs."""
        agent = self._agent
        schedule = self._agent.schedule
        steps = self._steps
        epoch_metrics = agent.epoch_metrics
        epoch_metrics.begin(epoch, schedule.env_steps)
        first = epoch_metrics.first_step
        began = time.perf_counter()
        taken_before = schedule.env_steps
        schedule.plan(first + (self._epochs - epoch) * steps - schedule.env_steps)
        if self._observation is None:
            self._observation = self._begin()
        while schedule.env_steps - first < steps and not (agent.stop_training or self._interrupted.is_set()):
            begin = schedule.env_steps - first
            self._callbacks.on_train_batch_begin(begin)
            ended = self._collect(first + steps)
            if not self._has_checked_observations:
                self._check_observations()
            logs = agent.learn()
            epoch_metrics.episodes += ended
            logs |= {"env_steps": schedule.env_steps}
            if ended:
                logs |= {"return": float(np.mean([episode.episode_return for episode in ended]))}
            self._callbacks.on_train_batch_end(schedule.env_steps - first - 1, logs)
        taken = schedule.env_steps - taken_before
        seconds = time.perf_counter() - began
        return (
            summarise(epoch_metrics.episodes)
            | epoch_metrics.summary()
            | {"env_steps": schedule.env_steps, "steps_per_second": taken / seconds}
        )

    def _begin(self) -> Any:
        """What the lanes see first: their open episodes go on, if the agent was loaded with them."""
        agent = self._agent
        runner = self._runner
        episodes = agent.collector.open_episodes() if agent.collector.is_restored else []
        if len(episodes) != runner.num_envs:
            agent.collector.close_episodes()
            return runner.reset()
        observation, mismatches = runner.replay_episodes(episodes)
        for env_index, mismatch in mismatches.items():
            warnings.warn(
                f"The environment of lane {env_index} does not repeat itself: the steps of the episode open when "
                f"the agent was saved led to {mismatch}. That episode ends there, and a new one begins.",
                stacklevel=2,
            )
        lost = [env_index for env_index, episode in enumerate(episodes) if episode is None]
        if lost:
            warnings.warn(
                f"The replay does not hold the episodes whole that were open on lanes {lost} when the agent was saved. "
                "They end there, and new ones begin.",
                stacklevel=2,
            )
        agent.collector.close_episodes(np.array([*mismatches, *lost], np.int64))
        return observation

    def _check_observations(self) -> None:
        """Warns if the newest observations are far outside their space."""
        self._has_checked_observations = True
        buffer = self._agent.replay
        newest = np.arange(max(0, buffer.added - 100), buffer.added) % buffer.replay_size
        warn_of_observations(self._agent.spec, buffer.observation(newest))

    def _collect(self, until: int) -> list[Episode]:
        """Steps the lanes until learning is due, the epoch ends or Ctrl-C; returns the episodes that ended."""
        agent = self._agent
        runner = self._runner
        schedule = self._agent.schedule
        interrupted = self._interrupted
        ended: list[Episode] = []
        while True:
            step, finished = runner.step(agent.act(self._observation))
            agent.observe(*step)
            if finished:
                ended += finished
                self._observation = runner.reset_ended(step)
            else:
                self._observation = step.next_observation
            if schedule.is_due or schedule.env_steps >= until or interrupted.is_set():
                return ended


def _callback_list(
    agent: Any, options: TrainingOptions, stop: int, logs: Sequence[str]
) -> tuple[keras.callbacks.CallbackList, keras.callbacks.History]:
    """Keras' list of a training's callbacks, with a progress bar and a `History`, which is also given by itself."""
    callbacks = as_callback_list(options.callbacks)
    verbose = resolve(options.verbose)
    validated = () if options.validation_env is None else [f"val_{name}" for name in summarise([])]
    prepare(
        callbacks,
        [*logs, *agent.epoch_metrics.summary(), *actions_at_bounds(agent), *validated],
        agent.optimizers.values(),
    )
    histories = [callback for callback in callbacks if isinstance(callback, keras.callbacks.History)]
    history = histories[0] if histories else keras.callbacks.History()
    if not histories:
        callbacks.append(history)
    if verbose and not any(isinstance(callback, keras.callbacks.ProgbarLogger) for callback in callbacks):
        callbacks.insert(0, ProgressBar())  # its line is whole before others write theirs
    counts: dict[str, Any] = {"epochs": stop, "steps": options.steps_per_epoch, "verbose": verbose}
    return keras.callbacks.CallbackList(callbacks, model=agent, **counts), history
