"""Keras builders: the observation encoder, actors and critics.

Networks take raw observations and actions in the environment's units, and rescale inside.
"""

from tfdpg.networks.custom import check_actor, check_critics, copy_network
from tfdpg.networks.encoder import encoder, observation_inputs
from tfdpg.networks.mlp import mlp_actor, mlp_critic
from tfdpg.networks.tensors import (
    CompiledActor,
    Transitions,
    flat_values,
    network_inputs,
    unpack_observation,
    unpack_transitions,
)

__all__ = [
    "CompiledActor",
    "Transitions",
    "check_actor",
    "check_critics",
    "copy_network",
    "encoder",
    "flat_values",
    "mlp_actor",
    "mlp_critic",
    "network_inputs",
    "observation_inputs",
    "unpack_observation",
    "unpack_transitions",
]
