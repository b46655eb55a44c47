"""The replay: one ring of rows, and what can be drawn from it. NumPy only."""

from tfdpg.replay.memory import available_memory
from tfdpg.replay.ring import Ring
from tfdpg.replay.transitions import Layout, draw_transitions
from tfdpg.replay.uniform import uniform_rows

__all__ = ["Layout", "Ring", "available_memory", "draw_transitions", "uniform_rows"]
