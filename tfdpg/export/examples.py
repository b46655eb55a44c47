"""Observations to verify an export on and to warm a server up with."""

import copy

import numpy as np

from tfdpg.replay import Ring
from tfdpg.spec import Spec

COUNT = 7


def example_observations(spec: Spec, replay: Ring, seed: int, count: int = COUNT) -> dict[str, np.ndarray]:
    """Raw observations, from the replay where it has some, else from the observation space.

    Args:
        spec: the spaces.
        replay: the rows held.
        seed: fixes the samples of the space.
        count: how many.

    Returns:
        Arrays `[count, *shape]` by input name.
    """
    if replay.size:
        slots = np.linspace(0, replay.size - 1, count).astype(np.int64)
        return spec.unpack(replay.observation(slots))
    space = copy.deepcopy(spec.observation_space)
    space.seed(seed)
    packed = [spec.pack(space.sample()) for _ in range(count)]
    return spec.unpack(tuple(np.concatenate(parts) for parts in zip(*packed, strict=True)))
