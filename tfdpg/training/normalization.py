"""The statistics of observations on their way from the replay into the networks."""

import numpy as np

from tfdpg.acting import Moments
from tfdpg.networks import Normalizer
from tfdpg.replay import Ring


def take_in(ring: Ring, moments: Moments, normalizer: Normalizer) -> None:
    """Adds the observations of the rows that are new since the last time, and writes mean and variance."""
    first = max(moments.rows, ring.added - ring.replay_size)
    if first == ring.added:
        return
    moments.update(ring.observation(np.arange(first, ring.added) % ring.replay_size))
    moments.rows = ring.added
    normalizer.mean.assign(moments.mean)
    normalizer.variance.assign(moments.variance)
