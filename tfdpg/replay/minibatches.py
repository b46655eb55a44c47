"""The one who draws: rows from a sampler, packed for the updates."""

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
"""From a ring, the rows that a sampler drew, and their `weights` (None is 1), to packed minibatches."""
Summarise = Callable[[np.ndarray], np.ndarray]
"""From the TD errors of rows that were drawn, `[..., n]`, to what the sampler is to take for them, `[...]`."""


class MinibatchBuilder:
    """Minibatches of a ring; the learner has one, and so has each shard.

    Args:
        sampler: draws rows.
        pack: packs them.
        gamma: the discount factor of one step.
        summarise: makes one of the TD errors of a row, where there are more.

    Attributes:
        buffer: where the rows are.
    """

    def __init__(self, sampler: Sampler, pack: Pack, gamma: float, summarise: Summarise | None = None):
        self.sampler = sampler
        self.buffer = sampler.buffer
        self.gamma = gamma
        self._pack = pack
        self._summarise = summarise

    def __call__(self, update: int, count: int) -> tuple[Packed, np.ndarray]:
        """The minibatches of the updates after the first `update`, packed `[count, batch, ...]`, and their rows.

        Raises:
            ValueError: there is nothing to draw.
        """
        rows, weights = self.sampler.sample(update, count)
        return self.pack(rows, weights), rows

    def pack(self, rows: np.ndarray, weights: np.ndarray | None = None) -> Packed:
        """The minibatches of some rows, with some weights; None is 1."""
        return self._pack(self.buffer, rows, weights=weights)

    def update_priorities(self, rows: np.ndarray, errors: np.ndarray) -> None:
        """Takes the TD errors of rows `[...]` that were drawn; as many of each, side by side."""
        if self._summarise is not None:
            errors = self._summarise(errors.reshape(*rows.shape, -1))
        self.sampler.update_priorities(rows, errors)


MakeMinibatchBuilder = Callable[[ReplayBuffer], MinibatchBuilder]
"""An agent's way to draw, for any ring; it can be sent to another process."""


def transition_minibatches(buffer: ReplayBuffer, *, n_step: int, gamma: float, **sampling: Any) -> MinibatchBuilder:
    """Draws transitions over n steps; `sampling` are the options of `make_sampler`."""
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
    """Draws sequences, as `gather_sequences` explains; `sampling` are the options of `make_sampler`.

    TD errors come with NaN where no step was taken.
    """
    how = {"n_step": n_step, "gamma": gamma, "recurrent_spec": recurrent_spec, "burn_in": burn_in, "length": length}
    return MinibatchBuilder(
        make_sampler(buffer, **sampling), functools.partial(gather_sequences, **how), gamma, priority
    )


def window_minibatches(buffer: ReplayBuffer, *, gamma: float, **sampling: Any) -> MinibatchBuilder:
    """Draws windows of successive steps; `sampling` are the arguments of `WindowSampler`."""
    return MinibatchBuilder(WindowSampler(buffer, **sampling), functools.partial(gather_windows, gamma=gamma), gamma)
