"""Build packed minibatches from the rows that a sampler selects."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tfdpg.replay.buffer import ReplayBuffer
from tfdpg.replay.hindsight import Hindsight, Relabelled
from tfdpg.replay.samplers import make_sampler
from tfdpg.replay.sequences import RecurrentInputs, gather_sequences, priority
from tfdpg.replay.transitions import gather_transitions
from tfdpg.replay.uniform import Sampler
from tfdpg.replay.windows import WindowSampler, gather_windows
from tfdpg.spec import Packed

Pack = Callable[..., Packed]
"""Packs minibatches, given a replay buffer, the sampled rows, and their `weights` (None for 1)."""
Gather = Callable[[], Packed]
"""Packs minibatches whose rows are chosen."""
Summarise = Callable[[np.ndarray], np.ndarray]
"""Converts the n TD errors of each sampled row, `[..., n]`, to one for the sampler, `[...]`."""


class MinibatchBuilder:
    """Sample and pack minibatches of a replay buffer. The learner and each replay shard have one.

    Args:
        sampler: selects rows.
        pack: packs them.
        gamma: discount factor of one step.
        summarise: combines the TD errors of a row, if there are several; None if there is one.
        hindsight: chooses new goals for rows before they are packed; None keeps the goals.
        n_step: the number of steps of a transition; None if minibatches are of something else.

    Attributes:
        buffer: the replay buffer of the sampler.
        gamma: as given.
        n_step: as given.
        hindsight: as given.
    """

    def __init__(
        self,
        sampler: Sampler,
        pack: Pack,
        gamma: float,
        summarise: Summarise | None = None,
        hindsight: Hindsight | None = None,
        n_step: int | None = None,
    ):
        self.sampler = sampler
        self.buffer = sampler.buffer
        self.gamma = gamma
        self.n_step = n_step
        self._pack = pack
        self._summarise = summarise
        self.hindsight = hindsight

    def __call__(self, update: int, count: int) -> tuple[Packed, np.ndarray]:
        """Return minibatches for the updates after the first `update`, packed `[count, batch, ...]`, and their slots.

        Raises:
            ValueError: The replay buffer holds no transition.
        """
        gather, rows = self.sample(update, count)
        return gather(), rows

    def sample(self, update: int, count: int) -> tuple[Gather, np.ndarray]:
        """Sample minibatches as a call does; return a function that packs them, and their slots."""
        rows, weights = self.sampler.sample(update, count)
        return self.gather(update, rows, weights), rows

    def gather(self, update: int, rows: np.ndarray, weights: np.ndarray | None) -> Gather:
        """Choose goals for rows that were sampled for the updates after the first `update`; return what packs them."""
        if self.hindsight is None:
            return functools.partial(self.pack, rows, weights)
        with self.buffer.lock:
            return functools.partial(self.pack, rows, weights, self.hindsight(update, rows))

    def pack(self, rows: np.ndarray, weights: np.ndarray | None = None, relabelled: Relabelled | None = None) -> Packed:
        """Pack minibatches of given rows.

        Args:
            rows: the slots of the rows, `[...]`.
            weights: weights in the critic's loss, `[...]`; None for 1.
            relabelled: the rows that have new goals; None if none have.
        """
        if relabelled is None:
            return self._pack(self.buffer, rows, weights=weights)
        return self._pack(self.buffer, rows, weights=weights, relabelled=relabelled)

    def update_priorities(self, rows: np.ndarray, errors: np.ndarray) -> None:
        """Update the priorities of sampled rows `[...]` from their TD errors, the same number for each row."""
        if self._summarise is not None:
            errors = self._summarise(errors.reshape(*rows.shape, -1))
        self.sampler.update_priorities(rows, errors)


MakeMinibatchBuilder = Callable[[ReplayBuffer], MinibatchBuilder]
"""Creates an agent's minibatch builder for a replay buffer; picklable."""


def transition_minibatches(
    buffer: ReplayBuffer,
    *,
    n_step: int,
    gamma: float,
    seed: int,
    her: str | None = None,
    her_ratio: float = 0.0,
    **sampling: Any,
) -> MinibatchBuilder:
    """Build minibatches of n-step transitions.

    Args:
        buffer: the replay buffer; with `her`, it has predecessors.
        n_step: the number of steps whose rewards are summed.
        gamma: the discount factor of one step.
        seed: the seed of the agent.
        her: the strategy of hindsight experience replay (see `Hindsight`); None keeps the goals.
        her_ratio: the probability that a transition gets a new goal.
        sampling: the other options of `make_sampler`.
    """
    pack = functools.partial(gather_transitions, n_step=n_step, gamma=gamma)
    hindsight = None if her is None else Hindsight(buffer, her, her_ratio, seed)
    sampler = make_sampler(buffer, seed=seed, **sampling)
    return MinibatchBuilder(sampler, pack, gamma, hindsight=hindsight, n_step=n_step)


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
