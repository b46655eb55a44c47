"""The options of TD3."""

from collections.abc import Sequence
from typing import Annotated, Literal

from tfdpg.agents.options.common import OffPolicyOptions
from tfdpg.options import Not, Only, Search
from tfdpg.ranges import Count, Fraction, NonNegative


class TD3Options(OffPolicyOptions):
    """The options of TD3."""

    critics = 2
    """number of critics, of whose values the smallest is the target; 1 is delayed DDPG, with smoothing and delay but
    without clipped double Q-learning."""
    policy_delay: Annotated[Count, Search(1, 4)] = 2
    """number of critic updates for each update of the policy."""
    target_noise: Annotated[NonNegative | Sequence[NonNegative], Search(0.05, 0.5, "log")] = 0.2
    """standard deviation of the noise that smooths target actions, as a fraction of the action scale; one number, or
    one for each action dimension."""
    noise_clip: NonNegative = 0.5
    """largest absolute value of the noise that smooths target actions, as a fraction of the action scale."""
    target_noise_decay: Fraction = 0.0
    """fraction of the smoothing noise by which it decreases at each update, in [0, 1]."""
    target_noise_min: Annotated[Fraction, Only(target_noise_decay=Not(0))] = 0.0
    """smallest fraction of the smoothing noise that remains when it decays, in [0, 1]."""
    policy_gradient: Literal["q1", "min"] = "q1"
    """value that the policy maximises: "q1", the first critic, or "min", the smallest of all critics."""
    target_update_every: Annotated[Count | None, Only(target_networks=True)] = None
    """number of critic updates between two updates of the target networks; None is `policy_delay`."""

    def check(self) -> None:
        """Reject the smaller one of two critics where there is one."""
        if self.critics == 1 and self.policy_gradient == "min":
            raise self.conflict("`policy_gradient='min'` needs two critics.", "critics")
