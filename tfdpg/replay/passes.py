"""Passes over the replay: within one, a row is in one minibatch at most."""

import numpy as np

from tfdpg.arguments import positive_int
from tfdpg.replay.ring import NONE, Ring
from tfdpg.replay.uniform import NOTHING_TO_DRAW, drawable


class Passes:
    """Draws minibatches from a random order of all rows, and from a new one when it is used up.

    Args:
        ring: where to draw from.
        seed: the seed of the agent.
        batch_size: rows in a minibatch.
        epochs: passes in a learning round.
        max_minibatches: minibatches in a round at most, shared out evenly among its passes; None is no limit.
    """

    wants_errors: bool = False

    def __init__(self, ring: Ring, seed: int, batch_size: int, *, epochs: int, max_minibatches: int | None):
        self.ring, self._seed, self._batch_size = ring, seed, batch_size
        self._epochs = positive_int("epochs_per_round", epochs)
        self._limit = np.inf
        if max_minibatches is not None:
            self._limit = positive_int("max_minibatches_per_round", max_minibatches) // self._epochs
            if self._limit == 0:
                raise ValueError(
                    "`max_minibatches_per_round` must be at least one for each of `epochs_per_round`. Received: "
                    f"max_minibatches_per_round={max_minibatches}, epochs_per_round={epochs}"
                )
        self._rest = np.empty((0, batch_size), np.int64)

    def updates_due(self, credit: int) -> int:
        """The updates of a learning round: whole passes, if steps since the last round earned any."""
        return self._epochs * int(min(drawable(self.ring) // self._batch_size, self._limit)) if credit else 0

    def draw(self, update: int, minibatches: int) -> tuple[np.ndarray, None]:
        """Draws the next minibatches; the weights are all 1, which None says.

        Raises:
            ValueError: there are fewer rows than in a minibatch.
        """
        drawn = np.empty((minibatches, self._batch_size), np.int64)
        for i in range(minibatches):
            if not len(self._rest) or (self.ring.successor[self._rest[0]] == NONE).any():  # overwritten meanwhile
                self._rest = self._new_pass(update + i)
            drawn[i], self._rest = self._rest[0], self._rest[1:]
        return drawn, None

    def refresh(self, slots: np.ndarray, errors: np.ndarray) -> None:
        """Takes TD errors, which change nothing."""

    def state(self) -> dict[str, np.ndarray]:
        """What is left of the pass."""
        return {"rest_of_pass": self._rest, "rest_of_size": np.array(self.ring.replay_size)}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Takes what `state` gave; with another batch or replay size a new pass begins."""
        rest = state.get("rest_of_pass", self._rest)
        if rest.shape[1] == self._batch_size and state.get("rest_of_size") == self.ring.replay_size:
            self._rest = rest

    def _new_pass(self, update: int) -> np.ndarray:
        rows = np.flatnonzero(self.ring.successor[: self.ring.size] != NONE) if self.ring.size else np.empty(0, int)
        count = int(min(len(rows) // self._batch_size, self._limit))
        if count == 0:
            raise ValueError(
                f"{NOTHING_TO_DRAW if not len(rows) else ''} A pass needs at least one minibatch of "
                f"batch_size={self._batch_size} transitions; the replay holds {len(rows)}.".strip()
            )
        order = np.random.Generator(np.random.Philox(key=np.array([self._seed, update], np.uint64))).permutation(rows)
        return order[: count * self._batch_size].reshape(count, self._batch_size)
