"""The one who draws: rows from a sampler, packed for the updates."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tfdpg.replay.ring import Ring
from tfdpg.replay.samplers import Sampler, sampler
from tfdpg.replay.sequences import Recalls, draw_sequences, priority
from tfdpg.replay.transitions import draw_transitions
from tfdpg.replay.windows import Windows, draw_windows
from tfdpg.spec import Packed

Pack = Callable[..., Packed]
"""From a ring, the rows that a sampler drew, and their `weights` (None is 1), to packed minibatches."""
Summarise = Callable[[np.ndarray], np.ndarray]
"""From the TD errors of rows that were drawn, `[..., n]`, to what the sampler is to take for them, `[...]`."""


class Draw:
    """Minibatches of a ring; the learner has one, and so has each shard.

    Args:
        sampler: draws rows.
        pack: packs them.
        gamma: the discount factor of one step.
        summarise: makes one of the TD errors of a row, where there are more.

    Attributes:
        ring: where the rows are.
    """

    def __init__(self, sampler: Sampler, pack: Pack, gamma: float, summarise: Summarise | None = None):
        self.sampler, self.ring, self.gamma = sampler, sampler.ring, gamma
        self._pack, self._summarise = pack, summarise

    def __call__(self, update: int, count: int) -> tuple[Packed, np.ndarray]:
        """The minibatches of the updates after the first `update`, packed `[count, batch, ...]`, and their rows.

        Raises:
            ValueError: there is nothing to draw.
        """
        rows, weights = self.sampler.draw(update, count)
        return self.pack(rows, weights), rows

    def pack(self, rows: np.ndarray, weights: np.ndarray | None = None) -> Packed:
        """The minibatches of some rows, with some weights; None is 1."""
        return self._pack(self.ring, rows, weights=weights)

    def refresh(self, rows: np.ndarray, errors: np.ndarray) -> None:
        """Takes the TD errors of rows `[...]` that were drawn; as many of each, side by side."""
        if self._summarise is not None:
            errors = self._summarise(errors.reshape(*rows.shape, -1))
        self.sampler.refresh(rows, errors)


MakeDraw = Callable[[Ring], Draw]
"""An agent's way to draw, for any ring; it can be sent to another process."""


def transitions(ring: Ring, *, n_step: int, gamma: float, **sampling: Any) -> Draw:
    """Draws transitions over n steps; `sampling` are the options of `sampler`."""
    return Draw(sampler(ring, **sampling), functools.partial(draw_transitions, n_step=n_step, gamma=gamma), gamma)


def sequences(
    ring: Ring, *, n_step: int, gamma: float, recall: Recalls, burn_in: int, length: int, **sampling: Any
) -> Draw:
    """Draws sequences, as `draw_sequences` explains; `sampling` are the options of `sampler`.

    TD errors come with NaN where no step was taken.
    """
    how = {"n_step": n_step, "gamma": gamma, "recall": recall, "burn_in": burn_in, "length": length}
    return Draw(sampler(ring, **sampling), functools.partial(draw_sequences, **how), gamma, priority)


def windows(ring: Ring, *, gamma: float, **sampling: Any) -> Draw:
    """Draws windows of successive steps; `sampling` are the arguments of `Windows`."""
    return Draw(Windows(ring, **sampling), functools.partial(draw_windows, gamma=gamma), gamma)
