"""The option `demonstrations` of `fit`."""

import contextlib
from collections.abc import Iterator

import numpy as np

from tfdpg.replay.demonstrations import Demonstrations, joined_rows
from tfdpg.training.data.datasets import load_into
from tfdpg.training.options import FitOptions
from tfdpg.training.trained_agent import TrainedAgent


@contextlib.contextmanager
def demonstrating(agent: TrainedAgent, options: FitOptions) -> Iterator[None]:
    """Inside the context, mix minibatches with the demonstrations, if there are any.

    Priorities, and the steps that have joined, are those of the last `fit` with the same data, also after loading.

    Raises:
        ValueError: the data cannot be used, as in `fit_offline`; or the agent was loaded, and it is not the data of the
            run that is resumed.
    """
    data = agent.data
    if options.demonstrations is None:
        data.demonstrations_state = {}
        yield
        return
    demonstrations = _load(agent, options)
    with data.mixed_with(demonstrations, options.demonstration_ratio, options.join_interventions):
        yield


def _load(agent: TrainedAgent, options: FitOptions) -> Demonstrations:
    """Return the demonstrations, as they were in the last `fit` if the data is the same."""
    data = agent.data
    before = data.demonstrations_state
    buffer = agent.replay.like(1, in_memory=False)  # it becomes as large as the data
    load_into(buffer, options.demonstrations, grow=buffer.resize, preprocessing=data.preprocessing)
    if room := max(agent.replay.replay_size if options.join_interventions else 0, joined_rows(before)):
        buffer.resize(buffer.size + room)
    demonstrations = Demonstrations(data.make_minibatch_builder(buffer))
    if demonstrations.builder.hindsight is not None and data.minibatch_builder.hindsight is not None:
        demonstrations.builder.hindsight.functions = data.minibatch_builder.hindsight.functions
    if before and str(before["digest"]) == demonstrations.digest:
        demonstrations.restore(before)
        return demonstrations
    if before and data.collector.is_restored:
        raise ValueError(
            f"`demonstrations` must be those of the run that is resumed, {before['rows']} rows with the digest "
            f"{before['digest']}. Received: {demonstrations.rows} with {demonstrations.digest}. "
            "agent.data.demonstrations_state.clear() lets others take their place."
        )
    if data.observation_statistics is not None:
        data.observation_statistics.update(buffer.observation(np.arange(buffer.size)))
    return demonstrations
