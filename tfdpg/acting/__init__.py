"""Forward passes of the stock actors for a few observations at a time. NumPy only.

A call of a compiled TensorFlow function costs more than the arithmetic of acting on one observation.
"""

from tfdpg.acting.behaviour import Behaviour, Exploration
from tfdpg.acting.cells import Cells
from tfdpg.acting.critic import MLPCritic
from tfdpg.acting.encoder import encode, feature_columns
from tfdpg.acting.mlp import ACTIVATIONS, MLPActor
from tfdpg.acting.moments import Moments
from tfdpg.acting.outputs import MIN_SIGMA, BoxAction, LocScale, Output, Probabilities
from tfdpg.acting.policy import ActingPolicy
from tfdpg.acting.recall import ForwardPass, LaneMemory, Memory, NoMemory, Recall
from tfdpg.acting.sampling import CategoricalSampling, GaussianSampling
from tfdpg.acting.stored import load_actor, load_critics, save_actor
from tfdpg.acting.torsos import Hidden, Torso, make_torso, mlp

__all__ = [
    "ACTIVATIONS",
    "ActingPolicy",
    "MIN_SIGMA",
    "Behaviour",
    "BoxAction",
    "CategoricalSampling",
    "Cells",
    "Exploration",
    "ForwardPass",
    "GaussianSampling",
    "Hidden",
    "LaneMemory",
    "LocScale",
    "MLPActor",
    "MLPCritic",
    "Memory",
    "Moments",
    "NoMemory",
    "Output",
    "Probabilities",
    "Recall",
    "Torso",
    "encode",
    "feature_columns",
    "load_actor",
    "load_critics",
    "make_torso",
    "mlp",
    "save_actor",
]
