"""The options of the agents, in groups that they share. No TensorFlow is imported."""

from tfdpg.agents.options.acer import ACEROptions
from tfdpg.agents.options.d4pg import D4PGOptions
from tfdpg.agents.options.ddpg import DDPGOptions
from tfdpg.agents.options.exporting import ExportOptions
from tfdpg.agents.options.groups import AgentOptions, DeterministicOptions, OffPolicyOptions, TransitionOptions
from tfdpg.agents.options.td3 import TD3Options
from tfdpg.agents.options.td7 import TD7Options

OPTIONS: dict[str, type[AgentOptions]] = {
    "DDPG": DDPGOptions,
    "TD3": TD3Options,
    "D4PG": D4PGOptions,
    "TD7": TD7Options,
    "ACER": ACEROptions,
}
"""The options of each algorithm, by its name."""

__all__ = [
    "OPTIONS",
    "ACEROptions",
    "AgentOptions",
    "D4PGOptions",
    "DDPGOptions",
    "DeterministicOptions",
    "ExportOptions",
    "OffPolicyOptions",
    "TD3Options",
    "TD7Options",
    "TransitionOptions",
]
