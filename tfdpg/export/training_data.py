"""Statistics of the training data of a policy, for its export."""

import math

import numpy as np

from tfdpg.acting import Preprocessing
from tfdpg.exported.statistics import DataStatistics, action_columns, columns, summarize
from tfdpg.replay import ReplayBuffer
from tfdpg.replay.buffer import NONE
from tfdpg.spec import Spec

MOST_ROWS = 5000
"""The largest number of rows from which statistics are computed, so that an export does not take much longer."""
FEWEST_NEWEST = 2000
"""The smallest number of newest rows, if there are so many."""
MOST_ELEMENTS = 20_000_000
"""The largest number of numbers in these rows; fewer rows are taken if observations are images."""
RUNS = 10
"""The number of runs of successive steps."""
RUN_LENGTH = 512


def training_statistics(
    spec: Spec, replay: ReplayBuffer, env_steps: int, preprocessing: Preprocessing | None = None
) -> DataStatistics | None:
    """Return statistics of the observations and the executed actions in a replay buffer, or None if it is empty.

    A replay buffer has the steps of the whole training, of which the first ones are those of a policy that had learned
    little. So the newest fifth of the steps is taken, but at least 2,000. If the agent did not take all of these steps
    itself, but `fit_offline` read them, their order says nothing, and all are taken. Of the steps, at most 5,000 are
    used, at equal distances.

    Args:
        spec: the spaces.
        replay: the replay buffer.
        env_steps: the number of environment steps that the agent has taken.
        preprocessing: computes the features that the replay buffer holds; None if it holds observations. Those of the
            user's model do not contain the observations, so that there are no statistics.
    """
    if preprocessing is not None and not preprocessing.is_invertible:
        return None
    slots = np.arange(replay.oldest, replay.added) % replay.replay_size
    slots = slots[replay.successor[slots] != NONE]
    if not len(slots):
        return None
    stored = len(slots)
    if env_steps >= stored:
        slots = slots[-max(FEWEST_NEWEST, stored // 5) :]
    most = min(MOST_ROWS, max(1, MOST_ELEMENTS // sum(spec.widths)))
    chosen = slots[np.linspace(0, len(slots) - 1, min(most, len(slots))).astype(np.int64)]
    runs = _runs(replay, slots, max(1, most // RUN_LENGTH))
    observed, run_columns = (_columns(spec, replay, each, preprocessing) for each in (chosen, runs.ravel()))
    observations, actions = (
        {name: summarize(column, in_runs[name].reshape(runs.shape)) for name, column in columns_of.items()}
        for columns_of, in_runs in zip(observed, run_columns, strict=True)
    )
    return DataStatistics(len(chosen), len(slots), stored, observations, actions)


def _columns(
    spec: Spec, replay: ReplayBuffer, slots: np.ndarray, preprocessing: Preprocessing | None
) -> tuple[dict[str, np.ndarray], ...]:
    """Return the components of the observations and of the executed actions of rows; NaN where a number was missing."""
    actions = np.clip(replay.action(slots), spec.low, spec.high)  # ACER stores what its distribution drew
    packed = replay.observation(slots)
    packed = packed if preprocessing is None else (preprocessing.newest(packed[0]),)
    return columns(spec.unpack(packed), spec), action_columns(actions, spec)


def _runs(replay: ReplayBuffer, slots: np.ndarray, most: int) -> np.ndarray:
    """Return the slots of runs of successive steps, `[steps, runs]`. After the end of an episode, another one follows.

    Args:
        replay: the replay buffer.
        slots: the slots of steps, the oldest first.
        most: the largest number of runs.
    """
    length = min(RUN_LENGTH, math.ceil(len(slots) / 2))
    starts = np.linspace(0, len(slots) - length, min(RUNS, most)).astype(np.int64)
    place = np.full(replay.replay_size, NONE)
    place[slots] = np.arange(len(slots))
    places = [starts]
    for _ in range(length - 1):
        following = replay.successor[slots[places[-1]]]
        following = np.where(following == NONE, NONE, place[following])
        places.append(np.where(following == NONE, (places[-1] + 1) % len(slots), following))
    return slots[np.stack(places)]
