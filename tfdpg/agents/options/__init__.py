"""The options of the agents. No TensorFlow is imported."""

from tfdpg.agents.options.acer import ACEROptions
from tfdpg.agents.options.common import AgentOptions, OffPolicyOptions
from tfdpg.agents.options.d4pg import D4PGOptions
from tfdpg.agents.options.ddpg import DDPGOptions
from tfdpg.agents.options.exporting import ExportOptions
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
    "ExportOptions",
    "OffPolicyOptions",
    "TD3Options",
    "TD7Options",
]
