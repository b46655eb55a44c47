"""The replay buffer, its samplers, and minibatches of transitions, sequences and windows. NumPy only."""

from tfdpg.replay.buffer import ReplayBuffer, TimeSteps
from tfdpg.replay.hindsight import ACHIEVED, DESIRED, GoalFunctions
from tfdpg.replay.memory import available_memory
from tfdpg.replay.minibatches import (
    MakeMinibatchBuilder,
    MinibatchBuilder,
    sequence_minibatches,
    transition_minibatches,
    window_minibatches,
)
from tfdpg.replay.recorder import Recorder
from tfdpg.replay.samplers import make_sampler
from tfdpg.replay.sequences import SequenceLayout, gather_sequences, pack_sequence
from tfdpg.replay.transitions import TransitionLayout, gather_transitions, return_range
from tfdpg.replay.uniform import Sampler, uniform_rows
from tfdpg.replay.windows import WindowLayout, WindowSampler, gather_windows

__all__ = [
    "ACHIEVED",
    "DESIRED",
    "GoalFunctions",
    "MinibatchBuilder",
    "TransitionLayout",
    "MakeMinibatchBuilder",
    "Recorder",
    "ReplayBuffer",
    "TimeSteps",
    "Sampler",
    "SequenceLayout",
    "WindowLayout",
    "WindowSampler",
    "available_memory",
    "gather_sequences",
    "gather_transitions",
    "gather_windows",
    "pack_sequence",
    "return_range",
    "make_sampler",
    "sequence_minibatches",
    "transition_minibatches",
    "uniform_rows",
    "window_minibatches",
]


def __dir__() -> list[str]:
    return __all__
