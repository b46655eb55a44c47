"""Passes over the replay: within one, a row is in one minibatch at most."""

import numpy as np

from tfdpg.arguments import positive_int
from tfdpg.replay.buffer import NONE, ReplayBuffer
from tfdpg.replay.uniform import EMPTY_REPLAY, count_transitions


class EpochSampler:
    """Draws minibatches from a random order of all rows, and from a new one when it is used up.

    Args:
        buffer: where to draw from.
        seed: the seed of the agent.
        batch_size: rows in a minibatch.
        epochs: passes in a learning round.
        max_minibatches: minibatches in a round at most, shared out evenly among its passes; None is no limit.
    """

    uses_td_errors: bool = False

    def __init__(self, buffer: ReplayBuffer, seed: int, batch_size: int, *, epochs: int, max_minibatches: int | None):
        self.buffer = buffer
        self._seed = seed
        self._batch_size = batch_size
        self._epochs = positive_int("epochs_per_round", epochs)
        self._limit = np.inf
        if max_minibatches is not None:
            self._limit = positive_int("max_minibatches_per_round", max_minibatches) // self._epochs
            if self._limit == 0:
                raise ValueError(
                    "`max_minibatches_per_round` must be at least one for each of `epochs_per_round`. Received: "
                    f"max_minibatches_per_round={max_minibatches}, epochs_per_round={epochs}"
                )
        self._remaining = np.empty((0, batch_size), np.int64)

    def updates_due(self, credit: int) -> int:
        """The updates of a learning round: whole passes, if steps since the last round earned any."""
        return self._epochs * int(min(count_transitions(self.buffer) // self._batch_size, self._limit)) if credit else 0

    def sample(self, update: int, minibatches: int) -> tuple[np.ndarray, None]:
        """Draws the next minibatches; the weights are all 1, which None says.

        Raises:
            ValueError: there are fewer rows than in a minibatch.
        """
        sampled = np.empty((minibatches, self._batch_size), np.int64)
        for i in range(minibatches):
            if (
                not len(self._remaining) or (self.buffer.successor[self._remaining[0]] == NONE).any()
            ):  # overwritten meanwhile
                self._remaining = self._new_epoch(update + i)
            sampled[i] = self._remaining[0]
            self._remaining = self._remaining[1:]
        return sampled, None

    def update_priorities(self, slots: np.ndarray, errors: np.ndarray) -> None:
        """Takes TD errors, which change nothing."""

    def state(self) -> dict[str, np.ndarray]:
        """What is left of the pass."""
        return {"rest_of_pass": self._remaining, "rest_of_size": np.array(self.buffer.replay_size)}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Takes what `state` gave; with another batch or replay size a new pass begins."""
        rest = state.get("rest_of_pass", self._remaining)
        if rest.shape[1] == self._batch_size and state.get("rest_of_size") == self.buffer.replay_size:
            self._remaining = rest

    def _new_epoch(self, update: int) -> np.ndarray:
        rows = (
            np.flatnonzero(self.buffer.successor[: self.buffer.size] != NONE) if self.buffer.size else np.empty(0, int)
        )
        count = int(min(len(rows) // self._batch_size, self._limit))
        if count == 0:
            raise ValueError(
                f"{EMPTY_REPLAY if not len(rows) else ''} A pass needs at least one minibatch of "
                f"batch_size={self._batch_size} transitions; the replay holds {len(rows)}.".strip()
            )
        order = np.random.Generator(np.random.Philox(key=np.array([self._seed, update], np.uint64))).permutation(rows)
        return order[: count * self._batch_size].reshape(count, self._batch_size)
