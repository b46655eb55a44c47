"""Action selection in NumPy: forward passes of policies, exploration, and the state of recurrent policies."""

from tfdpg.acting.behaviour import BehaviourPolicy, Exploration
from tfdpg.acting.encoder import encode, feature_columns
from tfdpg.acting.layers import ACTIVATIONS, numpy_layer
from tfdpg.acting.network import NumpyCritic, NumpyPolicy, greedy_actions, greedy_forward
from tfdpg.acting.policy import GreedyPolicy
from tfdpg.acting.preprocessing import FeatureRows, Preprocessing, preprocessing_of
from tfdpg.acting.recurrent import ForwardPass, RecurrentSpec, RecurrentState
from tfdpg.acting.running_statistics import RunningStatistics
from tfdpg.acting.sampling import CategoricalSampling, GaussianSampling
from tfdpg.acting.stored import load_critics, load_numpy_policy, save_numpy_policy
from tfdpg.acting.torsos import Torso, make_torso, mlp

__all__ = [
    "ACTIVATIONS",
    "BehaviourPolicy",
    "CategoricalSampling",
    "Exploration",
    "FeatureRows",
    "ForwardPass",
    "GaussianSampling",
    "GreedyPolicy",
    "NumpyCritic",
    "NumpyPolicy",
    "Preprocessing",
    "RecurrentSpec",
    "RecurrentState",
    "RunningStatistics",
    "Torso",
    "encode",
    "feature_columns",
    "greedy_actions",
    "greedy_forward",
    "load_critics",
    "load_numpy_policy",
    "make_torso",
    "mlp",
    "numpy_layer",
    "preprocessing_of",
    "save_numpy_policy",
]
