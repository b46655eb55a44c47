"""What a rollout worker is asked for, and what it gives. NumPy only."""

from typing import NamedTuple

import numpy as np

from tfdpg.replay import Rows


class Order(NamedTuple):
    """What a worker is to do.

    Attributes:
        steps: environment steps to take.
        random_steps: how many of them, the first, with uniformly random actions.
        noise_factor: the factor of the exploration noise.
        episodes: the episodes that are known to have begun on the lane; a new worker begins the next one.
    """

    steps: int
    random_steps: int
    noise_factor: float
    episodes: int


class Chunk(NamedTuple):
    """What a worker collected.

    Attributes:
        incarnation: the worker process that collected it.
        sequence: the chunks that this process collected before.
        version: the version of the weights that acted.
        rows: the new rows, each with the step that led to it.
        ended: for each step whether an episode ended with it, bool `[steps]`.
        returns: of the episodes that ended.
        lengths: of the episodes that ended.
        episodes: the episodes begun on the lane, by all its workers.
    """

    incarnation: int
    sequence: int
    version: int
    rows: Rows
    ended: np.ndarray
    returns: list[float]
    lengths: list[int]
    episodes: int

    @property
    def steps(self) -> int:
        """The environment steps taken."""
        return len(self.ended)
