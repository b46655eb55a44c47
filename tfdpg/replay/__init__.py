"""The replay buffer, its samplers, and minibatches of transitions, sequences and windows. NumPy only."""

from tfdpg.replay.buffer import ReplayBuffer, TimeSteps
from tfdpg.replay.hindsight import ACHIEVED, DESIRED, GoalFunctions
from tfdpg.replay.minibatches import (
    MakeMinibatchBuilder,
    sequence_minibatches,
    transition_minibatches,
    window_minibatches,
)
from tfdpg.replay.recorder import Recorder
from tfdpg.replay.samplers import make_sampler
from tfdpg.replay.sequences import SequenceLayout, pack_sequence
from tfdpg.replay.transitions import TransitionLayout, return_range, transition_outcomes
from tfdpg.replay.uniform import Sampler
from tfdpg.replay.windows import WindowLayout

__all__ = [
    "ACHIEVED",
    "DESIRED",
    "GoalFunctions",
    "TransitionLayout",
    "MakeMinibatchBuilder",
    "Recorder",
    "ReplayBuffer",
    "TimeSteps",
    "Sampler",
    "SequenceLayout",
    "WindowLayout",
    "pack_sequence",
    "return_range",
    "make_sampler",
    "transition_outcomes",
    "sequence_minibatches",
    "transition_minibatches",
    "window_minibatches",
]


def __dir__() -> list[str]:
    return __all__
