"""NumPy inference: forward passes of the built-in networks, exploration and recurrent state.

The agents act with NumPy because, for a few observations, calling a compiled TensorFlow function takes longer than the
arithmetic itself. This package does not import TensorFlow.
"""

from tfdpg.acting.behaviour import BehaviourPolicy, Exploration
from tfdpg.acting.cells import CellKinds
from tfdpg.acting.critic import NumpyCritic
from tfdpg.acting.encoder import encode, feature_columns
from tfdpg.acting.mlp import ACTIVATIONS, NumpyPolicy
from tfdpg.acting.outputs import MIN_SIGMA, BoxAction, GaussianOutput, OutputTransform, Probabilities
from tfdpg.acting.policy import GreedyPolicy
from tfdpg.acting.recurrent import ForwardPass, NoState, PolicyState, RecurrentSpec, RecurrentState
from tfdpg.acting.running_statistics import RunningStatistics
from tfdpg.acting.sampling import CategoricalSampling, GaussianSampling
from tfdpg.acting.stored import load_critics, load_numpy_policy, save_numpy_policy
from tfdpg.acting.torsos import Hidden, Torso, make_torso, mlp

__all__ = [
    "ACTIVATIONS",
    "GreedyPolicy",
    "MIN_SIGMA",
    "BehaviourPolicy",
    "BoxAction",
    "CategoricalSampling",
    "CellKinds",
    "Exploration",
    "ForwardPass",
    "GaussianSampling",
    "Hidden",
    "RecurrentState",
    "GaussianOutput",
    "NumpyPolicy",
    "NumpyCritic",
    "PolicyState",
    "RunningStatistics",
    "NoState",
    "OutputTransform",
    "Probabilities",
    "RecurrentSpec",
    "Torso",
    "encode",
    "feature_columns",
    "load_numpy_policy",
    "load_critics",
    "make_torso",
    "mlp",
    "save_numpy_policy",
]
