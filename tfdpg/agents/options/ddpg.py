"""The options of DDPG."""

from typing import Annotated, ClassVar

from tfdpg.agents.options.common import OffPolicyOptions
from tfdpg.options import Group, Only
from tfdpg.ranges import Count


class DDPGOptions(OffPolicyOptions, without=("critics", "q2")):
    """The options of DDPG."""

    critics = 1
    batch_size = 64

    RETURNS: ClassVar = Group("returns")

    target_update_every: Annotated[Count, Only(target_networks=True)] = 1
    """number of critic updates between two updates of the target networks."""
