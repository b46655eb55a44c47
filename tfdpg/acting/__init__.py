"""Forward passes of the stock actors for a few observations at a time. NumPy only.

A call of a compiled TensorFlow function costs more than the arithmetic of acting on one observation.
"""

from tfdpg.acting.encoder import encode, feature_columns
from tfdpg.acting.mlp import ACTIVATIONS, MLPActor
from tfdpg.acting.moments import Moments
from tfdpg.acting.torsos import Hidden, Torso, make_torso, mlp

__all__ = [
    "ACTIVATIONS",
    "Hidden",
    "MLPActor",
    "Moments",
    "Torso",
    "encode",
    "feature_columns",
    "make_torso",
    "mlp",
]
