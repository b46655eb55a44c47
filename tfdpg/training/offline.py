"""Training on stored transitions, without an environment."""

import time
from typing import Any

import keras

from tfdpg.training.datasets import load_into
from tfdpg.training.interrupt import deferred_signals
from tfdpg.training.loop import TrainingRun, check_environments, with_environment
from tfdpg.training.options import TrainingOptions
from tfdpg.training.protocols import TrainableAgent
from tfdpg.training.updates import LARGEST_CHUNK


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
