"""Rows on their way from where they were collected to where they are kept."""

from typing import NamedTuple

import numpy as np

from tfdpg.spec import Packed


class TimeSteps(NamedTuple):
    """Successive rows of one lane, each with the step that led to it.

    Attributes:
        observation: packed, `[n, ...]`.
        action: `[n, act_dim]`; meaningless where the row opens an episode, as are `reward` and `terminated`.
        reward: `[n]`.
        terminated: whether that step ended in a terminal state, bool `[n]`.
        is_first: whether the row opens an episode, bool `[n]`.
    """

    observation: Packed
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    is_first: np.ndarray

    @property
    def masked_action(self) -> np.ndarray:
        """The actions, 0 where there was none, `[n, act_dim]`."""
        return np.where(self.is_first[:, None], np.float32(0), self.action)

    def part(self, rows: slice) -> "TimeSteps":
        """Some of the rows."""
        return TimeSteps(tuple(part[rows] for part in self.observation), *(values[rows] for values in self[1:]))
