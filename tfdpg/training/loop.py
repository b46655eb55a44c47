"""The training loop: act, step, observe, learn; and Keras' callbacks around it."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import keras
import numpy as np

from tfdpg.arguments import natural, positive_int, reject
from tfdpg.training.callbacks import ProgressBar, refuse_unusable
from tfdpg.training.evaluation import summarise
from tfdpg.training.interrupt import Interrupt, deferred_signals
from tfdpg.training.lanes import Episode, Lanes
from tfdpg.training.protocols import Trains


def fit(
    agent: Trains,
    env: Any,
    epochs: int,
    steps_per_epoch: int,
    initial_epoch: int,
    callbacks: Sequence[keras.callbacks.Callback] | None,
    verbose: Literal["auto", 0, 1, 2],
    validation_env: Any,
    validation_episodes: int,
    max_ep_len: int | None,
) -> keras.callbacks.History:
    """See `Agent.fit`.

    Ctrl-C ends training between two steps: callbacks see the end of training, so that a checkpoint is
    written, and `KeyboardInterrupt` is raised. SIGTERM does the same, and raises `SystemExit(143)`.
    """
    check_counts(epochs, steps_per_epoch, initial_epoch, validation_episodes, max_ep_len, verbose)
    _check_environments(agent, env, validation_env)
    lanes = Lanes(env, agent.spec, agent.collector.next_reset_seed, max_ep_len)
    validate = validation(agent, validation_env, validation_episodes, max_ep_len)
    hooks, history = callback_list(agent, callbacks, verbose, epochs, steps_per_epoch)
    agent.stop_training, agent._initial_epoch = False, None
    agent.collector.close_episodes()
    agent.actor.refresh()
    with deferred_signals() as interrupted:
        run = _Run(agent, lanes, hooks, interrupted)
        try:
            run_step_epochs(agent, hooks, interrupted, initial_epoch, epochs, steps_per_epoch, run.epoch, validate)
        finally:
            agent.collector.flush()
    return history


def run_step_epochs(
    agent: Trains,
    hooks: keras.callbacks.CallbackList,
    interrupted: Interrupt,
    first: int,
    stop: int,
    steps: int,
    train_epoch: Callable[[int], dict[str, float]],
    validate: Callable[[], dict[str, float]] | None,
) -> None:
    """`run_epochs` with epochs of so many environment steps, which `train_epoch` takes."""
    schedule = agent.schedule

    def train(epoch: int) -> dict[str, float]:
        schedule.total_steps = schedule.env_steps + (stop - epoch) * steps
        return train_epoch(steps)

    try:
        run_epochs(agent, hooks, interrupted, first, stop, train, validate)
    finally:
        schedule.total_steps = None


def run_epochs(
    agent: Trains,
    hooks: keras.callbacks.CallbackList,
    interrupted: Interrupt,
    first: int,
    stop: int,
    train_epoch: Callable[[int], dict[str, float]],
    validate: Callable[[], dict[str, float]] | None,
) -> None:
    """Trains and validates, epoch for epoch, with the callbacks around it.

    Args:
        agent: the agent.
        hooks: the callbacks.
        interrupted: set by Ctrl-C, or by SIGTERM.
        first: the epoch to begin with, unless a callback knows better.
        stop: the epoch to stop at.
        train_epoch: trains the epoch of a number, and gives its logs.
        validate: gives the scores of an evaluation; None does not validate.

    Raises:
        KeyboardInterrupt: after the end of training, if there was a Ctrl-C.
        SystemExit: likewise, if there was a SIGTERM.
        Exception: what the environment, an update or a callback raised; the callbacks see the end of training first,
            so that `Checkpoint` saves the steps before it.
    """
    hooks.on_train_begin()
    try:
        for epoch in range(agent._initial_epoch or first, stop):
            hooks.on_epoch_begin(epoch)
            logs = train_epoch(epoch)
            if interrupted.is_set():
                break
            if validate is not None:
                hooks.on_test_begin()
                scores = validate()
                hooks.on_test_end(scores)
                logs |= {f"val_{name}": value for name, value in scores.items()}
            agent.epoch = epoch + 1
            hooks.on_epoch_end(epoch, logs)
            if agent.stop_training or interrupted.is_set():
                break
        if error := interrupted.error():
            raise error
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        if interrupted.at_once:
            raise
        signalled = interrupted.error()  # sent to all processes, it ends those of the environments, whose error this is
        _end_early(signalled or error, hooks)
        if signalled:
            raise signalled from None
        raise
    hooks.on_train_end()


def _end_early(error: BaseException, hooks: keras.callbacks.CallbackList) -> None:
    """Tells every callback that training ended; what they raise in turn becomes a note of the error."""
    for callback in hooks.callbacks:
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            continue  # which takes the end as success, and removes its backup
        try:
            callback.on_train_end()
        except Exception as second:
            error.add_note(f"{type(callback).__name__}: {second}")


def validation(agent: Trains, env: Any, episodes: int, max_ep_len: int | None) -> Callable[[], dict[str, float]] | None:
    """What `run_epochs` validates with; None without an environment."""
    return None if env is None else lambda: agent.evaluate(env, episodes, max_ep_len=max_ep_len)


def check_counts(
    epochs: int,
    steps_per_epoch: int,
    initial_epoch: int,
    validation_episodes: int,
    max_ep_len: int | None,
    verbose: Any,
) -> None:
    """Raises `ValueError` for an argument of `fit` that is out of its range."""
    positive_int("epochs", epochs)
    positive_int("steps_per_epoch", steps_per_epoch)
    if natural("initial_epoch", initial_epoch) >= epochs:
        raise reject("initial_epoch", f"less than epochs={epochs}", initial_epoch)
    positive_int("validation_episodes", validation_episodes)
    if max_ep_len is not None:
        positive_int("max_ep_len", max_ep_len)
    if verbose not in ("auto", 0, 1, 2):
        raise reject("verbose", '"auto", 0, 1 or 2', verbose)


def _check_environments(agent: Trains, env: Any, validation_env: Any) -> None:
    agent.spec.check(env)
    if validation_env is not None:
        agent.spec.check(validation_env, "validation_env")
        if validation_env is env or validation_env.unwrapped is env.unwrapped:
            raise ValueError("`validation_env` must be another environment than `env`: evaluating would reset it.")


class _Run:
    """The steps of one `fit`, which go on from epoch to epoch."""

    def __init__(self, agent: Trains, lanes: Lanes, callbacks: keras.callbacks.CallbackList, interrupted: Interrupt):
        self._agent, self._lanes, self._callbacks, self._interrupted = agent, lanes, callbacks, interrupted
        self._observation: Any = None

    def epoch(self, steps: int) -> dict[str, float]:
        """Takes `steps` environment steps, with the learning that falls due; returns the epoch's logs."""
        agent, schedule = self._agent, self._agent.schedule
        if self._observation is None:
            self._observation = self._lanes.reset()
        agent.statistics.reset()
        first, began = schedule.env_steps, time.perf_counter()
        episodes: list[Episode] = []
        while schedule.env_steps - first < steps and not (agent.stop_training or self._interrupted.is_set()):
            begin = schedule.env_steps - first
            self._callbacks.on_train_batch_begin(begin)
            ended = self._collect(first + steps)
            logs = agent.learn()
            episodes += ended
            logs |= {"env_steps": schedule.env_steps}
            if ended:
                logs |= {"return": float(np.mean([episode.episode_return for episode in ended]))}
            self._callbacks.on_train_batch_end(schedule.env_steps - first - 1, logs)
        taken, seconds = schedule.env_steps - first, time.perf_counter() - began
        return (
            summarise(episodes)
            | agent.statistics.summary()
            | {"env_steps": schedule.env_steps, "steps_per_second": taken / seconds}
        )

    def _collect(self, until: int) -> list[Episode]:
        """Steps the lanes until learning is due, the epoch ends or Ctrl-C; returns the episodes that ended."""
        agent, lanes, schedule, interrupted = self._agent, self._lanes, self._agent.schedule, self._interrupted
        ended: list[Episode] = []
        while True:
            step, finished = lanes.step(agent.act(self._observation))
            agent.observe(*step)
            if finished:
                ended += finished
                self._observation = lanes.restart(step)
            else:
                self._observation = step.next_observation
            if schedule.is_due or schedule.env_steps >= until or interrupted.is_set():
                return ended


def callback_list(
    agent: Any,
    callbacks: Sequence[keras.callbacks.Callback] | None,
    verbose: Literal["auto", 0, 1, 2],
    epochs: int,
    steps: int,
) -> tuple[keras.callbacks.CallbackList, keras.callbacks.History]:
    """Keras' list of a training's callbacks, with a progress bar and a `History`, which is also given by itself."""
    callbacks = list(callbacks or [])
    refuse_unusable(callbacks)
    histories = [callback for callback in callbacks if isinstance(callback, keras.callbacks.History)]
    history = histories[0] if histories else keras.callbacks.History()
    if not histories:
        callbacks.append(history)
    if verbose != 0 and not any(isinstance(callback, keras.callbacks.ProgbarLogger) for callback in callbacks):
        callbacks.append(ProgressBar())
    verbose = 1 if verbose == "auto" else verbose
    hooks = keras.callbacks.CallbackList(callbacks, model=agent, verbose=verbose, epochs=epochs, steps=steps)
    return hooks, history
