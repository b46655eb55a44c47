"""The options of TD3."""

from collections.abc import Sequence
from typing import Literal

from tfdpg.agents.options.groups import Cloning, TwinOptions
from tfdpg.ranges import Count, Fraction, NonNegative


class TD3Options(Cloning, TwinOptions, group="algorithm"):
    """The options of TD3."""

    policy_delay: Count = 2
    """critic updates for each update of the policy."""
    target_noise: NonNegative | Sequence[NonNegative] = 0.2
    """standard deviation of the smoothing noise, as a fraction of the action scale; a number, or one for each
    dimension."""
    noise_clip: NonNegative = 0.5
    """largest absolute smoothing noise, as a fraction of the action scale."""
    target_noise_decay: Fraction = 0.0
    """part of the smoothing noise that is lost at each update, in [0, 1]."""
    target_noise_min: Fraction = 0.0
    """fraction of it that decay leaves."""
    policy_gradient: Literal["q1", "min"] = "q1"
    """what the policy maximises, "q1" or "min", the smaller of the critics."""
    target_update_every: Count | None = None
    """critic updates between target updates; None is `policy_delay`."""

    def check(self) -> None:
        """Refuses what one critic, or noise that stays, leaves without effect."""
        if self.critics == 1 and self.policy_gradient == "min":
            raise ValueError("`policy_gradient='min'` needs two critics. Received: critics=1")
        if self.target_noise_decay == 0:
            self.refuse(["target_noise_min"], "`target_noise_decay` is 0")
