"""Build packed minibatches from the rows that a sampler selects."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tfdpg.replay.buffer import ReplayBuffer
from tfdpg.replay.samplers import Sampler, make_sampler
from tfdpg.replay.sequences import RecurrentInputs, gather_sequences, priority
from tfdpg.replay.transitions import gather_transitions
from tfdpg.replay.windows import WindowSampler, gather_windows
from tfdpg.spec import Packed

Pack = Callable[..., Packed]
"""Packs minibatches, given a replay buffer, the sampled rows, and their `weights` (None for 1)."""
Summarise = Callable[[np.ndarray], np.ndarray]
"""Converts the n TD errors of each sampled row, `[..., n]`, to one for the sampler, `[...]`."""


class MinibatchBuilder:
    """Sample and pack minibatches of a replay buffer. The learner and each replay shard have one.

    Args:
        sampler: selects rows.
        pack: packs them.
        gamma: discount factor of one step.
        summarise: combines the TD errors of a row, if there are several; None if there is one.

    Attributes:
        buffer: the replay buffer of the sampler.
    """

    def __init__(self, sampler: Sampler, pack: Pack, gamma: float, summarise: Summarise | None = None):
        self.sampler = sampler
        self.buffer = sampler.buffer
        self.gamma = gamma
        self._pack = pack
        self._summarise = summarise

    def __call__(self, update: int, count: int) -> tuple[Packed, np.ndarray]:
        """Return minibatches for the updates after the first `update`, packed `[count, batch, ...]`, and their slots.

        Raises:
            ValueError: The replay buffer holds no transition.
        """
        rows, weights = self.sampler.sample(update, count)
        return self.pack(rows, weights), rows

    def pack(self, rows: np.ndarray, weights: np.ndarray | None = None) -> Packed:
        """Pack minibatches of given rows, with weights in the critic's loss; None for 1."""
        return self._pack(self.buffer, rows, weights=weights)

    def update_priorities(self, rows: np.ndarray, errors: np.ndarray) -> None:
        """Update the priorities of sampled rows `[...]` from their TD errors, the same number for each row."""
        if self._summarise is not None:
            errors = self._summarise(errors.reshape(*rows.shape, -1))
        self.sampler.update_priorities(rows, errors)


MakeMinibatchBuilder = Callable[[ReplayBuffer], MinibatchBuilder]
"""Creates an agent's minibatch builder for a replay buffer; picklable."""


def transition_minibatches(buffer: ReplayBuffer, *, n_step: int, gamma: float, **sampling: Any) -> MinibatchBuilder:
    """Build minibatches of n-step transitions; `sampling` are the options of `make_sampler`."""
    return MinibatchBuilder(
        make_sampler(buffer, **sampling), functools.partial(gather_transitions, n_step=n_step, gamma=gamma), gamma
    )


def sequence_minibatches(
    buffer: ReplayBuffer,
    *,
    n_step: int,
    gamma: float,
    recurrent_spec: RecurrentInputs,
    burn_in: int,
    length: int,
    **sampling: Any,
) -> MinibatchBuilder:
    """Build minibatches of sequences (see `gather_sequences`); `sampling` are the options of `make_sampler`.

    The TD errors of padding must be NaN.
    """
    pack = functools.partial(
        gather_sequences, n_step=n_step, gamma=gamma, recurrent_spec=recurrent_spec, burn_in=burn_in, length=length
    )
    return MinibatchBuilder(make_sampler(buffer, **sampling), pack, gamma, priority)


def window_minibatches(buffer: ReplayBuffer, *, gamma: float, **sampling: Any) -> MinibatchBuilder:
    """Build minibatches of windows of successive steps; `sampling` are the arguments of `WindowSampler`."""
    return MinibatchBuilder(WindowSampler(buffer, **sampling), functools.partial(gather_windows, gamma=gamma), gamma)
