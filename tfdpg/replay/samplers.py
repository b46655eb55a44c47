"""The ways to draw rows, behind one interface."""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from tfdpg.replay.buffer import ReplayBuffer
from tfdpg.replay.epochs import EpochSampler
from tfdpg.replay.prioritized import PrioritizedSampler, proportional_priority
from tfdpg.replay.uniform import UniformSampler


class Sampler(Protocol):
    """Draws rows of a ring.

    Attributes:
        buffer: where it draws from.
        uses_td_errors: whether it draws by TD errors.
    """

    buffer: ReplayBuffer
    uses_td_errors: bool

    def updates_due(self, credit: int) -> int:
        """The updates of a learning round that steps earned `credit` updates for."""
        ...

    def sample(self, update: int, minibatches: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Slots `[minibatches, batch_size]` for the updates `update`, `update` + 1, ..., and weights; None is 1."""
        ...

    def update_priorities(self, slots: np.ndarray, errors: np.ndarray) -> None:
        """Takes the TD errors of the rows that were drawn."""
        ...

    def state(self) -> dict[str, np.ndarray]:
        """All that a later `restore` needs, as arrays."""
        ...

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Takes what `state` gave, after the ring was restored."""
        ...


def make_sampler(
    buffer: ReplayBuffer,
    *,
    seed: int,
    batch_size: int,
    replay: str,
    alpha: float | None,
    beta: float | None,
    beta_steps: int | None,
    epochs_per_round: int | None,
    max_minibatches_per_round: int | None,
    normalize_weights: bool = True,
    priority: Callable[[np.ndarray, float], np.ndarray] = proportional_priority,
) -> Sampler:
    """The sampler for the agents' options (see `EpochSampler`, `UniformSampler` and `PrioritizedSampler`)."""
    if epochs_per_round is not None:
        return EpochSampler(
            buffer, seed, batch_size, epochs=epochs_per_round, max_minibatches=max_minibatches_per_round
        )
    if replay == "uniform":
        return UniformSampler(buffer, seed, batch_size)
    alpha = 0.6 if alpha is None else alpha
    beta = 0.4 if beta is None else beta
    return PrioritizedSampler(
        buffer,
        seed,
        batch_size,
        alpha=alpha,
        beta=beta,
        beta_steps=beta_steps,
        normalize_weights=normalize_weights,
        priority=priority,
    )
