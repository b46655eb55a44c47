"""Prioritised draws of rows, stratified within each minibatch.

Source: Schaul, Quan, Antonoglou, Silver 2015, "Prioritized Experience Replay", sections 3.3 and 3.4.
"""

from collections.abc import Callable

import numpy as np

from tfdpg.arguments import positive_int, real
from tfdpg.replay.buffer import NONE, ReplayBuffer
from tfdpg.replay.uniform import EMPTY_REPLAY, random_words

BLOCK = 32
"""Small enough that a draw copies few priorities that it does not need."""
EPSILON = 1e-6
"""Added to an error, so that a row without one can be drawn again."""


def proportional_priority(errors: np.ndarray, alpha: float) -> np.ndarray:
    """(|TD error| + ε)^α, for each row."""
    return (np.abs(errors) + EPSILON) ** alpha


class PrioritizedSampler:
    """Draws rows with probability P(i) = p_i / Σ p, where p_i = (|TD error| + ε)^α; new rows get the largest p so far.

    The weight of a row in the critic's loss is (R P(i))^−β, divided by the largest of its minibatch if so wanted; R
    is the number of rows that can be drawn. β goes linearly to 1 over `beta_steps` updates.

    A round's minibatches are drawn up to 50 at once, by the priorities from before them: TD errors that the round
    measures, and so those of rows that are new to it, count in the next draw. Drawing 25 at a time was measured to
    cost 3.6 to 3.9 % of the time of a round.

    The sums form a tree of two levels, wide enough for NumPy: the priorities in blocks, and the sum of each block.

    Args:
        buffer: where to draw from.
        seed: the seed of the agent.
        batch_size: rows in a minibatch.
        alpha: how much priorities count, in [0, 1]; 0 draws uniformly.
        beta: how much of the bias is corrected at first, in [0, 1].
        beta_steps: updates until β is 1; None leaves it.
        normalize_weights: whether to divide by the largest weight.
        priority: computes the priorities p from TD errors `[n]` and `alpha`, such as max(|TD error|, 1)^α, the rule of
            LAP (Fujimoto, Meger, Precup 2020). A function of a module, so that it can be sent to other processes.
    """

    uses_td_errors: bool = True

    def __init__(
        self,
        buffer: ReplayBuffer,
        seed: int,
        batch_size: int,
        *,
        alpha: float,
        beta: float,
        beta_steps: int | None,
        normalize_weights: bool = True,
        priority: Callable[[np.ndarray, float], np.ndarray] = proportional_priority,
    ):
        self.buffer = buffer
        self._priority = priority
        self._seed = seed
        self._batch_size = batch_size
        self._alpha = real("alpha", alpha, 0, 1)
        self._beta = real("beta", beta, 0, 1)
        self._beta_steps = None if beta_steps is None else positive_int("beta_steps", beta_steps)
        self._normalize_weights = normalize_weights
        blocks = -(-buffer.replay_size // BLOCK)
        self._priorities = np.zeros((blocks, BLOCK), np.float32)
        self._sums = np.zeros(blocks)
        self._max_priority = 1.0
        self._seen = 0
        self._pending = np.empty(0, np.int64)
        self._num_transitions = 0

    def updates_due(self, credit: int) -> int:
        """The updates of a learning round: what the schedule says."""
        return credit

    def sample(self, update: int, minibatches: int) -> tuple[np.ndarray, np.ndarray]:
        """Draws the minibatches of updates `update`, `update` + 1, ...

        Returns:
            Slots in the ring, int64, and weights, float32, `[minibatches, batch_size]` each.

        Raises:
            ValueError: no row of the ring has a successor.
        """
        self._add_new_rows()
        total = self._sums.sum()
        if total <= 0:
            raise ValueError(EMPTY_REPLAY)
        shape = minibatches, self._batch_size
        uniform = (random_words((self._seed, 0), update, shape) >> np.uint64(11)) * 2.0**-53
        slots = self._locate(((np.arange(shape[1]) + uniform) * (total / shape[1])).ravel())
        probability = self._priorities.ravel()[slots].reshape(shape) / total
        beta = np.array([self.beta(update + i) for i in range(minibatches)])[:, None]
        weights = (self._num_transitions * probability) ** -beta
        if self._normalize_weights:
            weights /= weights.max(axis=1, keepdims=True)
        return slots.reshape(shape), weights.astype(np.float32)

    def beta(self, update: int) -> float:
        """β at an update."""
        done = 0.0 if self._beta_steps is None else min(1.0, update / self._beta_steps)
        return self._beta + (1 - self._beta) * done

    def update_priorities(self, slots: np.ndarray, errors: np.ndarray) -> None:
        """Takes the TD errors that updates measured for the rows that were drawn; of a row drawn twice the last."""
        priorities = self._priority(errors.ravel(), self._alpha)
        self._set(slots.ravel(), priorities)
        self._max_priority = max(self._max_priority, float(priorities.max()))

    def state(self) -> dict[str, np.ndarray]:
        """All that a later `restore` needs, as arrays."""
        self._add_new_rows()
        return {
            "priorities": self._priorities.ravel()[self._newest(self.buffer.size)],
            "largest_priority": np.array(self._max_priority),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Takes what `state` gave, for a ring that was restored too; without priorities, all rows are new."""
        self._seen = 0
        self._pending = np.empty(0, np.int64)
        self._priorities[:] = 0
        self._sums[:] = 0
        if "priorities" in state:
            self._max_priority = float(state["largest_priority"])
            slots = self._newest(self.buffer.size)
            priorities = state["priorities"][len(state["priorities"]) - len(slots) :]
            self._set(slots, np.where(self.buffer.successor[slots] != NONE, priorities, 0.0))
            self._seen, self._pending = self.buffer.added, self._current()
            self._num_transitions = np.count_nonzero(self._priorities)

    def _add_new_rows(self) -> None:
        """Gives rows that were added, or got a successor, since the last time the largest priority."""
        added = self.buffer.added
        size = self.buffer.replay_size
        if added == self._seen:
            return
        new = np.arange(max(self._seen, added - size), added) % size
        slots = np.concatenate([self._pending, new])
        follows = self.buffer.successor[slots] != NONE
        self._set(slots, np.where(follows, self._max_priority, 0.0))
        self._pending = self._current()
        self._seen = added
        self._num_transitions = np.count_nonzero(self._priorities)

    def _newest(self, count: int) -> np.ndarray:
        """The slots of the newest rows, the oldest of them first."""
        return np.arange(self.buffer.added - count, self.buffer.added) % self.buffer.replay_size

    def _current(self) -> np.ndarray:
        """Rows that have no successor yet."""
        rows = self.buffer.current
        return rows[rows >= max(0, self.buffer.added - self.buffer.replay_size)] % self.buffer.replay_size

    def _set(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        self._priorities.ravel()[slots] = priorities
        blocks = slots // BLOCK
        self._sums[blocks] = self._priorities[blocks].sum(axis=1, dtype=np.float64)

    def _locate(self, points: np.ndarray) -> np.ndarray:
        """The slots in whose stretch of the cumulative sum some points lie."""
        ends = np.cumsum(self._sums)
        blocks = np.minimum(np.searchsorted(ends, points, side="right"), np.flatnonzero(self._sums)[-1])
        inner = self._priorities[blocks].T.astype(np.float64)
        for place in range(1, BLOCK):  # np.cumsum takes three times as long
            inner[place] += inner[place - 1]
        rest = np.clip(points - (ends[blocks] - self._sums[blocks]), 0, inner[-1] * (1 - 1e-12))
        return blocks * BLOCK + np.count_nonzero(inner <= rest, axis=0)
