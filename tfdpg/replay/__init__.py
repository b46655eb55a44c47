"""The replay: one ring of rows, and what can be drawn from it. NumPy only."""

from tfdpg.replay.draw import Draw, MakeDraw, sequences, transitions, windows
from tfdpg.replay.memory import available_memory
from tfdpg.replay.recorder import Recorder
from tfdpg.replay.returns import return_range
from tfdpg.replay.ring import Ring
from tfdpg.replay.rows import Rows
from tfdpg.replay.samplers import Sampler, sampler
from tfdpg.replay.sequences import SequenceLayout, draw_sequences, pack_sequence
from tfdpg.replay.transitions import Layout, draw_transitions
from tfdpg.replay.uniform import uniform_rows
from tfdpg.replay.windows import WindowLayout, Windows, draw_windows

__all__ = [
    "Draw",
    "Layout",
    "MakeDraw",
    "Recorder",
    "Ring",
    "Rows",
    "Sampler",
    "SequenceLayout",
    "WindowLayout",
    "Windows",
    "available_memory",
    "draw_sequences",
    "draw_transitions",
    "draw_windows",
    "pack_sequence",
    "return_range",
    "sampler",
    "sequences",
    "transitions",
    "uniform_rows",
    "windows",
]


def __dir__() -> list[str]:
    return __all__
