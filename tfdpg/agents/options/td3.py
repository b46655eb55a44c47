"""The options of TD3."""

from typing import Literal

from tfdpg.agents.options.groups import ActionPenalty, Cloning, Smoothing, TwinOptions
from tfdpg.ranges import Count, Fraction


class TD3Options(ActionPenalty, Cloning, Smoothing, TwinOptions, group="algorithm"):
    """The options of TD3."""

    target_noise_decay: Fraction = 0.0
    """fraction of the smoothing noise by which it decreases at each update, in [0, 1]."""
    target_noise_min: Fraction = 0.0
    """smallest fraction of the smoothing noise that remains when it decays, in [0, 1]."""
    policy_gradient: Literal["q1", "min"] = "q1"
    """value that the policy maximises: "q1", the first critic, or "min", the smallest of all critics."""
    target_update_every: Count | None = None
    """number of critic updates between two updates of the target networks; None is `policy_delay`."""

    def check(self) -> None:
        """Reject options that have no effect with one critic or without decay of the smoothing noise."""
        if self.critics == 1 and self.policy_gradient == "min":
            raise ValueError("`policy_gradient='min'` needs two critics. Received: critics=1")
        if self.target_noise_decay == 0:
            self.refuse(["target_noise_min"], "`target_noise_decay` is 0")
