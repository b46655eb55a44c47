"""The replay: one ring of rows, and what can be drawn from it. NumPy only."""

from tfdpg.replay.memory import available_memory
from tfdpg.replay.recorder import Recorder
from tfdpg.replay.returns import return_range
from tfdpg.replay.ring import Ring
from tfdpg.replay.rows import Rows
from tfdpg.replay.samplers import Sampler, sampler
from tfdpg.replay.transitions import Layout, draw_transitions
from tfdpg.replay.uniform import uniform_rows

__all__ = [
    "Layout",
    "Recorder",
    "Ring",
    "Rows",
    "Sampler",
    "available_memory",
    "draw_transitions",
    "return_range",
    "sampler",
    "uniform_rows",
]
