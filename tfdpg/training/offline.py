"""Training on stored transitions, without an environment."""

import time
from collections.abc import Sequence
from typing import Any, Literal

import keras

from tfdpg.training.datasets import load_into
from tfdpg.training.interrupt import deferred_signals
from tfdpg.training.loop import callback_list, check_counts, run_epochs, validation
from tfdpg.training.protocols import Trains
from tfdpg.training.updates import LARGEST_CHUNK


def fit_offline(
    agent: Trains,
    data: Any,
    epochs: int,
    steps_per_epoch: int,
    callbacks: Sequence[keras.callbacks.Callback] | None,
    verbose: Literal["auto", 0, 1, 2],
    validation_env: Any,
    validation_episodes: int,
    max_ep_len: int | None,
) -> keras.callbacks.History:
    """See `Agent.fit_offline`. Ctrl-C ends training between two rounds, as in `fit`, whose count of epochs goes on."""
    check_counts(epochs, steps_per_epoch, 0, validation_episodes, max_ep_len, verbose)
    if validation_env is not None:
        agent.spec.check(validation_env, "validation_env")
    agent.collector.close_episodes()
    if data is not None:
        load_into(agent.replay, data)
    validate = validation(agent, validation_env, validation_episodes, max_ep_len)
    first, stop = agent.epoch, agent.epoch + epochs
    hooks, history = callback_list(agent, callbacks, verbose, stop, steps_per_epoch)
    agent.stop_training, agent._initial_epoch = False, None
    with deferred_signals() as interrupted:

        def train_epoch(epoch: int) -> dict[str, float]:
            agent.statistics.reset()
            began, done = time.perf_counter(), 0
            while done < steps_per_epoch and not (agent.stop_training or interrupted.is_set()):
                hooks.on_train_batch_begin(done)
                count = min(LARGEST_CHUNK, steps_per_epoch - done)
                logs = agent.learn(count)
                done += count
                hooks.on_train_batch_end(done - 1, logs)
            return agent.statistics.summary() | {"updates_per_second": done / (time.perf_counter() - began)}

        run_epochs(agent, hooks, interrupted, first, stop, train_epoch, validate)
    return history
