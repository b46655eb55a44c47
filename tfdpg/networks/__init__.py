"""Keras networks: the observation encoder, actors and critics, and minibatches that call them.

Networks receive raw observations and actions in the environment's units, and rescale them internally.
"""

from tfdpg.networks.actor import PolicyInference, flat_weights
from tfdpg.networks.builders import check_encoder, check_given, critic_network, policy_network
from tfdpg.networks.critics import Critics, per_critic
from tfdpg.networks.dense import lean_products
from tfdpg.networks.device import UnavailableDeviceError, check_device, is_on_cpu
from tfdpg.networks.distributions import Categorical, Mixture
from tfdpg.networks.embeddings import (
    AvgL1Norm,
    action_encoder,
    embedding_critic,
    embedding_policy,
    state_encoder,
    with_preactivation,
)
from tfdpg.networks.encoder import Normalizer, encoder, observation_inputs
from tfdpg.networks.flat_state import FlatState, NotFlat, are_assigned, in_flat_state, while_loop
from tfdpg.networks.graph_cleanup import free_graphs
from tfdpg.networks.heads import Head, HeadOptions, Value, head_of
from tfdpg.networks.mlp import OutputTransform, action_input, mlp_actor, mlp_critic
from tfdpg.networks.numpy_form import numpy_critic, numpy_policy, preprocessing_forward
from tfdpg.networks.preprocessing import Preprocessed
from tfdpg.networks.randomness import stateless_normal, stateless_uniform
from tfdpg.networks.recurrent import Recurrent, RNNSpec
from tfdpg.networks.renormalization import BatchRenormalization
from tfdpg.networks.rnn import RNNStack
from tfdpg.networks.sequences import Batch, SequenceBatch, unpack_sequences
from tfdpg.networks.tensors import (
    TransitionBatch,
    bounded,
    chosen_actions,
    flat_values,
    in_half_precision,
    network_inputs,
    smallest,
    unpack_transitions,
)

__all__ = [
    "AvgL1Norm",
    "OutputTransform",
    "PolicyInference",
    "Batch",
    "BatchRenormalization",
    "Categorical",
    "RNNSpec",
    "Critics",
    "Head",
    "SequenceBatch",
    "RNNStack",
    "Preprocessed",
    "Recurrent",
    "HeadOptions",
    "Mixture",
    "Normalizer",
    "TransitionBatch",
    "UnavailableDeviceError",
    "Value",
    "policy_network",
    "action_encoder",
    "action_input",
    "embedding_critic",
    "embedding_policy",
    "state_encoder",
    "with_preactivation",
    "check_given",
    "critic_network",
    "numpy_policy",
    "preprocessing_forward",
    "bounded",
    "check_device",
    "check_encoder",
    "chosen_actions",
    "encoder",
    "flat_values",
    "flat_weights",
    "FlatState",
    "NotFlat",
    "are_assigned",
    "in_flat_state",
    "while_loop",
    "free_graphs",
    "head_of",
    "in_half_precision",
    "is_on_cpu",
    "lean_products",
    "mlp_actor",
    "mlp_critic",
    "network_inputs",
    "observation_inputs",
    "per_critic",
    "smallest",
    "stateless_normal",
    "stateless_uniform",
    "unpack_sequences",
    "unpack_transitions",
    "numpy_critic",
]


def __dir__() -> list[str]:
    return __all__
