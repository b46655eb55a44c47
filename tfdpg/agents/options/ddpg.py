"""The options of DDPG."""

from tfdpg.agents.options.groups import ActionPenalty, Cloning, DeterministicOptions, TargetPeriod


class DDPGOptions(ActionPenalty, Cloning, TargetPeriod, DeterministicOptions, group="algorithm"):
    """The options of DDPG."""

    batch_size = 64
