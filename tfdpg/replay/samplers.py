"""The ways to draw rows, behind one interface."""

from typing import Protocol

import numpy as np

from tfdpg.replay.passes import Passes
from tfdpg.replay.prioritized import Prioritized
from tfdpg.replay.ring import Ring
from tfdpg.replay.uniform import Uniform


class Sampler(Protocol):
    """Draws rows of a ring.

    Attributes:
        ring: where it draws from.
        wants_errors: whether it draws by TD errors.
    """

    ring: Ring
    wants_errors: bool

    def updates_due(self, credit: int) -> int:
        """The updates of a learning round that steps earned `credit` updates for."""
        ...

    def draw(self, update: int, minibatches: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Slots `[minibatches, batch_size]` for the updates `update`, `update` + 1, ..., and weights; None is 1."""
        ...

    def refresh(self, slots: np.ndarray, errors: np.ndarray) -> None:
        """Takes the TD errors of the rows that were drawn."""
        ...

    def state(self) -> dict[str, np.ndarray]:
        """All that a later `restore` needs, as arrays."""
        ...

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Takes what `state` gave, after the ring was restored."""
        ...


def sampler(
    ring: Ring,
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
) -> Sampler:
    """The sampler that the agents' options describe; `Passes`, `Uniform` and `Prioritized` explain them."""
    if epochs_per_round is not None:
        return Passes(ring, seed, batch_size, epochs=epochs_per_round, max_minibatches=max_minibatches_per_round)
    if replay == "uniform":
        return Uniform(ring, seed, batch_size)
    alpha, beta = 0.6 if alpha is None else alpha, 0.4 if beta is None else beta
    options = {"beta_steps": beta_steps, "normalize_weights": normalize_weights}
    return Prioritized(ring, seed, batch_size, alpha=alpha, beta=beta, **options)
