"""The ways to draw rows, behind one interface."""

from typing import Protocol

import numpy as np

from tfdpg.arguments import positive_int, reject
from tfdpg.replay.passes import Passes
from tfdpg.replay.prioritized import Prioritized
from tfdpg.replay.ring import Ring
from tfdpg.replay.uniform import Uniform


class Sampler(Protocol):
    """Draws rows of a ring.

    Attributes:
        ring: where it draws from.
    """

    ring: Ring

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
    """The sampler that the agents' options describe.

    Raises:
        ValueError: an option out of its range, or one that another option leaves without effect.
    """
    if replay not in ("uniform", "prioritized"):
        raise reject("replay", '"uniform" or "prioritized"', replay)
    if replay == "uniform":
        _refuse("`replay` is 'uniform'", alpha=alpha, beta=beta, beta_steps=beta_steps)
    if epochs_per_round is None:
        _refuse("`epochs_per_round` is None", max_minibatches_per_round=max_minibatches_per_round)
    positive_int("batch_size", batch_size)
    if epochs_per_round is not None:
        if replay != "uniform":
            raise ValueError(
                "`epochs_per_round` passes over all rows, which leaves no place for priorities. "
                f"Received: epochs_per_round={epochs_per_round}, replay={replay!r}"
            )
        limit = max_minibatches_per_round
        return Passes(ring, seed, batch_size, epochs=epochs_per_round, max_minibatches=limit)
    if replay == "uniform":
        return Uniform(ring, seed, batch_size)
    alpha, beta = 0.6 if alpha is None else alpha, 0.4 if beta is None else beta
    if beta == 1:
        _refuse("`beta` is 1", beta_steps=beta_steps)
    options = {"beta_steps": beta_steps, "normalize_weights": normalize_weights}
    return Prioritized(ring, seed, batch_size, alpha=alpha, beta=beta, **options)


def _refuse(why: str, **options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"`{name}` does nothing where {why}. Received: {name}={value!r}")
