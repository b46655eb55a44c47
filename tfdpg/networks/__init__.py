"""Keras builders: the observation encoder, actors and critics.

Networks take raw observations and actions in the environment's units, and rescale inside.
"""

from tfdpg.networks.acer_builders import acer_network, acer_numpy_actor, check_given_to_acer
from tfdpg.networks.acer_critics import ACERCritic, ActionValues, Dueling, Separate
from tfdpg.networks.acer_policies import ACERPolicy, CategoricalPolicy, GaussianPolicy
from tfdpg.networks.actor import Actor, compiled_actor, flat_weights, stock_critic
from tfdpg.networks.builders import check_given, critic_network, numpy_actor, policy_network
from tfdpg.networks.custom import check_critics, check_loadable, check_separate, check_width
from tfdpg.networks.device import check_device
from tfdpg.networks.distributions import Categorical, Mixture
from tfdpg.networks.encoder import Normalizer, encoder, observation_inputs
from tfdpg.networks.heads import Head, HeadOptions, Value, head_of
from tfdpg.networks.histories import Batch, Histories, unpack_histories
from tfdpg.networks.lifetimes import graphs_are_freed
from tfdpg.networks.memory import Memory
from tfdpg.networks.mlp import mlp_actor, mlp_critic
from tfdpg.networks.randomness import stateless_normal, stateless_uniform
from tfdpg.networks.recurrent import Cells, Recurrent
from tfdpg.networks.renormalization import BatchRenormalization
from tfdpg.networks.tensors import (
    Estimate,
    Sequences,
    Taken,
    Transitions,
    bounded,
    flat_values,
    in_half_precision,
    network_inputs,
    over_steps,
    smallest,
    unpack_observation,
    unpack_sequences,
    unpack_transitions,
)

__all__ = [
    "ActionValues",
    "Actor",
    "Batch",
    "BatchRenormalization",
    "Categorical",
    "Cells",
    "CategoricalPolicy",
    "Dueling",
    "Estimate",
    "GaussianPolicy",
    "Head",
    "Histories",
    "Memory",
    "Recurrent",
    "HeadOptions",
    "Mixture",
    "Normalizer",
    "Separate",
    "Sequences",
    "ACERCritic",
    "ACERPolicy",
    "Taken",
    "Transitions",
    "Value",
    "policy_network",
    "acer_network",
    "acer_numpy_actor",
    "check_given",
    "check_given_to_acer",
    "critic_network",
    "numpy_actor",
    "bounded",
    "check_critics",
    "check_device",
    "check_loadable",
    "check_separate",
    "check_width",
    "compiled_actor",
    "encoder",
    "flat_values",
    "flat_weights",
    "graphs_are_freed",
    "head_of",
    "in_half_precision",
    "mlp_actor",
    "mlp_critic",
    "network_inputs",
    "observation_inputs",
    "over_steps",
    "smallest",
    "stateless_normal",
    "stateless_uniform",
    "unpack_histories",
    "unpack_observation",
    "unpack_sequences",
    "unpack_transitions",
    "stock_critic",
]


def __dir__() -> list[str]:
    return __all__
