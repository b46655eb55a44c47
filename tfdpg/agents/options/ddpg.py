"""The options of DDPG."""

from tfdpg.agents.options.groups import Cloning, DeterministicOptions, TargetPeriod


class DDPGOptions(Cloning, TargetPeriod, DeterministicOptions, group="algorithm"):
    """The options of DDPG."""

    batch_size = 64
