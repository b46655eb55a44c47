"""The statistics of observations on their way from the replay into the networks."""

from collections.abc import Iterable, Sequence

import keras
import numpy as np

from tfdpg.acting import Moments
from tfdpg.networks import Normalizer
from tfdpg.replay import Ring


def take_in(ring: Ring, moments: Moments, normalizers: Sequence[Normalizer]) -> None:
    """Adds the observations of the rows that are new since the last time, and writes mean and variance."""
    first = max(moments.rows_seen, ring.added - ring.replay_size)
    if first == ring.added:
        return
    moments.update(ring.observation(np.arange(first, ring.added) % ring.replay_size))
    moments.looked_at(ring.added)
    write_statistics(moments, normalizers)


def write_statistics(moments: Moments, normalizers: Sequence[Normalizer]) -> None:
    """Writes mean and variance into the networks."""
    for normalizer in normalizers:
        normalizer.mean.assign(moments.mean)
        normalizer.variance.assign(moments.variance)


def find_normalizers(networks: Iterable[keras.Model]) -> list[Normalizer]:
    """The normalisers in some networks, each once."""
    layers = [layer for network in networks for layer in network._flatten_layers()]
    return list({id(layer): layer for layer in layers if isinstance(layer, Normalizer)}.values())


def check_normalizers(normalizers: Iterable[Normalizer], features: int) -> None:
    """Raise `ValueError` if a normaliser of a custom network does not receive all features of an observation."""
    for normalizer in normalizers:
        if normalizer.mean.shape != (features,):
            raise ValueError(
                f"The layer {normalizer.name!r}, a tfdpg.networks.Normalizer, must receive the {features} features of "
                f"an observation, and nothing else: apply it before other layers. Received: {normalizer.mean.shape[0]}"
            )
