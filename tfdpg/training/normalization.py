"""The statistics of observations on their way from the replay into the networks."""

from collections.abc import Iterable, Sequence

import keras
import numpy as np

from tfdpg.acting import RunningStatistics
from tfdpg.networks import Normalizer
from tfdpg.replay import ReplayBuffer


def update_statistics(
    buffer: ReplayBuffer, observation_statistics: RunningStatistics, normalizers: Sequence[Normalizer]
) -> None:
    """Adds the observations of the rows that are new since the last time, and writes mean and variance."""
    first = max(observation_statistics.rows_seen, buffer.added - buffer.replay_size)
    if first == buffer.added:
        return
    observation_statistics.update(buffer.observation(np.arange(first, buffer.added) % buffer.replay_size))
    observation_statistics.set_rows_seen(buffer.added)
    write_statistics(observation_statistics, normalizers)


def write_statistics(observation_statistics: RunningStatistics, normalizers: Sequence[Normalizer]) -> None:
    """Writes mean and variance into the networks."""
    for normalizer in normalizers:
        normalizer.mean.assign(observation_statistics.mean)
        normalizer.variance.assign(observation_statistics.variance)


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
