"""Forward passes of the stock actors for a few observations at a time. NumPy only.

A call of a compiled TensorFlow function costs more than the arithmetic of acting on one observation.
"""

from tfdpg.acting.encoder import encode
from tfdpg.acting.mlp import ACTIVATIONS, MLPActor
from tfdpg.acting.moments import Moments

__all__ = ["ACTIVATIONS", "MLPActor", "Moments", "encode"]
