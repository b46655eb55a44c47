"""What a policy with memory recalls: what came before, and its state."""

from typing import NamedTuple

import numpy as np

from tfdpg.spec import Spec


class Recall(NamedTuple):
    """What a policy with memory is given beside an observation.

    Attributes:
        spec: the spaces.
        action: whether it sees the action before.
        reward: whether it sees the reward before.
        parts: the parts of its state, by name and width.
        stored: whether the state is stored with each step.
    """

    spec: Spec
    action: bool
    reward: bool
    parts: tuple[tuple[str, int], ...]
    stored: bool

    @property
    def before_width(self) -> int:
        """The numbers of what came before."""
        return self.spec.act_dim * self.action + self.reward

    @property
    def state_width(self) -> int:
        """The numbers of the state."""
        return sum(width for _, width in self.parts)

    @property
    def stored_width(self) -> int:
        """The numbers of the state that are stored with a step."""
        return self.state_width if self.stored else 0

    def start(self, lanes: int) -> np.ndarray:
        """What lanes recall at an episode's start, float32 `[lanes, before_width + state_width]`."""
        recalled = np.zeros((lanes, self.before_width + self.state_width), np.float32)
        if self.action:
            recalled[:, : self.spec.act_dim] = self.spec.center
        return recalled
