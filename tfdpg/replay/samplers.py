"""Samplers: epochs over the replay buffer, prioritized sampling, and the choice of a sampler by options."""

from collections.abc import Callable

import numpy as np

from tfdpg.arguments import positive_int, real
from tfdpg.replay.buffer import EMPTY_REPLAY, NONE, ReplayBuffer
from tfdpg.replay.uniform import Sampler, UniformSampler, random_words

BLOCK = 32
"""Number of priorities in a block of the sum tree; a sample copies one block."""
EPSILON = 1e-6
"""Added to absolute TD errors, so that a row with error 0 can be sampled again."""


def proportional_priority(errors: np.ndarray, alpha: float) -> np.ndarray:
    """Return (|TD error| + ε)^α for each row."""
    return (np.abs(errors) + EPSILON) ** alpha


def lap_priority(errors: np.ndarray, alpha: float) -> np.ndarray:
    """Return max(|TD error|, 1)^α for each row, the priority of LAP (Fujimoto, Meger, Precup 2020)."""
    return np.maximum(np.abs(errors), 1) ** alpha


class EpochSampler(Sampler):
    """Sample without replacement: minibatches are taken from a random order of all rows, one pass after the other.

    Args:
        buffer: the replay buffer.
        seed: seed of the agent.
        batch_size: rows in a minibatch.
        epochs: passes in an update phase.
        max_minibatches: maximum number of minibatches in an update phase, divided equally among its passes; None for no
            limit.
    """

    def __init__(self, buffer: ReplayBuffer, seed: int, batch_size: int, *, epochs: int, max_minibatches: int | None):
        super().__init__(buffer, seed, batch_size)
        self._epochs = positive_int("epochs_per_round", epochs)
        self._limit = np.inf
        if max_minibatches is not None:
            self._limit = positive_int("max_minibatches_per_round", max_minibatches) // self._epochs
            if self._limit == 0:
                raise ValueError(
                    "`max_minibatches_per_round` must be at least `epochs_per_round`. Received: "
                    f"max_minibatches_per_round={max_minibatches}, epochs_per_round={epochs}"
                )
        self._remaining = np.empty((0, batch_size), np.int64)

    def updates_due(self, credit: int) -> int:
        """Return the number of updates of complete passes; 0 if the schedule provides no update."""
        return self._epochs * int(min(len(self.buffer) // self.batch_size, self._limit)) if credit else 0

    def sample(self, update: int, minibatches: int) -> tuple[np.ndarray, None]:
        """Sample the next minibatches; weights are None, which stands for 1.

        Raises:
            ValueError: The replay buffer holds fewer transitions than a minibatch.
        """
        sampled = np.empty((minibatches, self.batch_size), np.int64)
        with self.buffer.lock:
            for i in range(minibatches):
                if not self._has_next:
                    self._remaining = self._new_epoch(update + i)
                sampled[i] = self._remaining[0]
                self._remaining = self._remaining[1:]
        return sampled, None

    def state(self) -> dict[str, np.ndarray]:
        """Return the remaining minibatches of the pass."""
        return {"rest_of_pass": self._remaining, "rest_of_size": np.array(self.buffer.replay_size)}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restore the result of `state`; with another `batch_size` or `replay_size`, a new pass begins."""
        if state.get("rest_of_size") == self.buffer.replay_size:
            self._remaining = state.get("rest_of_pass", self._remaining)

    @property
    def _has_next(self) -> bool:
        """Whether the pass has a next minibatch. A row without successor was overwritten after the pass began."""
        rest = self._remaining
        is_left = len(rest) > 0 and rest.shape[1] == self.batch_size
        return is_left and not (self.buffer.successor[rest[0]] == NONE).any()

    def _new_epoch(self, update: int) -> np.ndarray:
        rows = self.buffer.transition_slots()
        count = int(min(len(rows) // self.batch_size, self._limit))
        if count == 0:
            raise ValueError(
                f"The replay buffer must hold at least one minibatch of batch_size={self.batch_size} transitions. "
                f"Received: {len(rows)} transitions"
                if len(rows)
                else EMPTY_REPLAY
            )
        order = np.random.Generator(np.random.Philox(key=np.array([self.seed, update], np.uint64))).permutation(rows)
        return order[: count * self.batch_size].reshape(count, self.batch_size)


class PrioritizedSampler(Sampler):
    """Prioritized sampling with probability P(i) = p_i / Σ p, where p_i = (|TD error| + ε)^α.

    New rows get the largest priority so far. Samples are stratified within each minibatch. The weight of a row in the
    critic's loss is (N P(i))^−β, where N is the number of transitions, optionally divided by the largest weight of its
    minibatch. β increases linearly to 1 over `beta_steps` updates.

    Up to 50 minibatches are sampled at once with the same priorities, so TD errors of these updates have an effect only
    on later samples. Sampling 25 at once increased the time of an update phase by 3.6 to 3.9 %.

    Priorities are stored in a sum tree with two levels, which suits NumPy: blocks of priorities, and the sum of each
    block.

    Args:
        buffer: the replay buffer.
        seed: seed of the agent.
        batch_size: rows in a minibatch.
        alpha: exponent of priorities, in [0, 1]; 0 samples uniformly.
        beta: initial exponent of the correction of the bias, in [0, 1]; 0 does not correct it.
        beta_steps: updates until β is 1; None for a constant β.
        normalize_weights: whether to divide by the largest weight of a minibatch.
        priority: computes the priorities p from TD errors `[n]` and `alpha`. A function of a module, so that it can be
            sent to other processes.
        max_priority_period: after this many updates, and each time again, the largest priority so far becomes the
            largest one in the replay buffer; None never lowers it.

    Source: Schaul, Quan, Antonoglou, Silver 2015, "Prioritized Experience Replay", sections 3.3 and 3.4.
    """

    uses_td_errors: bool = True

    def __init__(
        self,
        buffer: ReplayBuffer,
        seed: int,
        batch_size: int,
        *,
        alpha: float,
        beta: float = 0.0,
        beta_steps: int | None = None,
        normalize_weights: bool = True,
        priority: Callable[[np.ndarray, float], np.ndarray] = proportional_priority,
        max_priority_period: int | None = None,
    ):
        super().__init__(buffer, seed, batch_size)
        self._priority = priority
        self._max_priority_period = max_priority_period
        self._alpha = real("alpha", alpha, 0, 1)
        self._beta = real("beta", beta, 0, 1)
        self._beta_steps = None if beta_steps is None else positive_int("beta_steps", beta_steps)
        self.normalize_weights = normalize_weights
        self._forget()

    def _forget(self) -> None:
        """Take all rows as new, and the replay buffer with its present size."""
        blocks = -(-self.buffer.replay_size // BLOCK)
        self._priorities = np.full((blocks, BLOCK), 0, np.float32)  # unlike zeros, the memory is provided now
        self._sums = np.zeros(blocks)
        self._max_priority = 1.0
        self._reduced_at = 0  # the update at which the largest priority was last computed again
        self._seen = 0
        self._successor = self.buffer.successor
        self._pending = np.empty(0, np.int64)

    def sample(self, update: int, minibatches: int) -> tuple[np.ndarray, np.ndarray]:
        """Sample minibatches for the updates `update`, `update` + 1, ...

        Returns:
            Slots, int64, and weights, float32, `[minibatches, batch_size]` each.

        Raises:
            ValueError: The replay buffer holds no transition.
        """
        with self.buffer.lock:
            self._add_new_rows()
            transitions = len(self.buffer)
        total = self._sums.sum()
        if total <= 0:
            raise ValueError(EMPTY_REPLAY)
        period = self._max_priority_period
        if period is not None and update // period > self._reduced_at // period:
            self._reduced_at = update
            self._max_priority = float(self._priorities.max())
        shape = minibatches, self.batch_size
        uniform = (random_words((self.seed, 0), update, shape) >> np.uint64(11)) * 2.0**-53
        slots = self._locate(((np.arange(shape[1]) + uniform) * (total / shape[1])).ravel())
        probability = self._priorities.ravel()[slots].reshape(shape) / total
        beta = np.array([self.beta(update + i) for i in range(minibatches)])[:, None]
        weights = (transitions * probability) ** -beta
        if self.normalize_weights:
            weights /= weights.max(axis=1, keepdims=True)
        return slots.reshape(shape), weights.astype(np.float32)

    def beta(self, update: int) -> float:
        """Return β at an update."""
        done = 0.0 if self._beta_steps is None else min(1.0, update / self._beta_steps)
        return self._beta + (1 - self._beta) * done

    def update_priorities(self, slots: np.ndarray, errors: np.ndarray) -> None:
        """Update the priorities of sampled rows from their TD errors; for a row sampled twice the last one counts."""
        priorities = self._priority(errors.ravel(), self._alpha)
        self._set(slots.ravel(), priorities)
        self._max_priority = max(self._max_priority, float(priorities.max()))

    def state(self) -> dict[str, np.ndarray]:
        """Return the priorities of all rows, the oldest first, and the largest priority so far."""
        self._add_new_rows()
        size = self.buffer.replay_size
        oldest_first = np.roll(self._priorities.ravel()[:size], -self.buffer.oldest % size)
        return {
            "priorities": oldest_first[: self.buffer.size],
            "largest_priority": np.array(self._max_priority),
            "largest_priority_update": np.array(self._reduced_at),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restore the result of `state`, after the replay buffer was restored; without priorities, all rows are new."""
        self._forget()
        if "priorities" in state:
            self._add_new_rows()
            self._max_priority = float(state["largest_priority"])
            self._reduced_at = int(state.get("largest_priority_update", 0))
            slots = self._slots_from(self.buffer.oldest)
            priorities = state["priorities"][len(state["priorities"]) - len(slots) :]
            self._set(slots, np.where(self.buffer.successor[slots] != NONE, priorities, 0.0))

    def _add_new_rows(self) -> None:
        """Set the priority of rows that were added, or got a successor, since the last call to the largest one."""
        if self._successor is not self.buffer.successor:  # the buffer was cleared
            self._forget()
        if self.buffer.added == self._seen:
            return
        slots = np.concatenate([self._pending, self._slots_from(max(self._seen, self.buffer.oldest))])
        follows = self.buffer.successor[slots] != NONE
        self._set(slots, np.where(follows, self._max_priority, 0.0))
        current = self.buffer.current
        self._pending = current[current >= self.buffer.oldest] % self.buffer.replay_size
        self._seen = self.buffer.added

    def _slots_from(self, first: int) -> np.ndarray:
        """Return the slots of the rows with numbers from `first` on."""
        return np.arange(first, self.buffer.added) % self.buffer.replay_size

    def _set(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        self._priorities.ravel()[slots] = priorities
        blocks = slots // BLOCK
        self._sums[blocks] = self._priorities[blocks].sum(axis=1, dtype=np.float64)

    def _locate(self, points: np.ndarray) -> np.ndarray:
        """Return the slots in whose intervals of the cumulative sum of priorities the points are."""
        ends = np.cumsum(self._sums)
        blocks = np.minimum(np.searchsorted(ends, points, side="right"), np.flatnonzero(self._sums)[-1])
        inner = self._priorities[blocks].T.astype(np.float64)
        for place in range(1, BLOCK):  # np.cumsum is three times slower
            inner[place] += inner[place - 1]
        rest = np.clip(points - (ends[blocks] - self._sums[blocks]), 0, inner[-1] * (1 - 1e-12))
        return blocks * BLOCK + np.count_nonzero(inner <= rest, axis=0)


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
    priority: Callable[[np.ndarray, float], np.ndarray] | None = None,
    max_priority_period: int = 250,
) -> Sampler:
    """Return the sampler that the agents' options describe.

    Args:
        buffer: the replay buffer.
        seed: seed of the agent.
        batch_size: rows in a minibatch, at least 1.
        replay: "uniform" samples uniformly and with replacement; "prioritized" by TD errors (Schaul et al. 2015); "lap"
            by TD errors that count as at least 1, without importance weights (Fujimoto, Meger, Precup 2020).
        alpha: exponent of the priorities, in [0, 1]; None is 0.6, or 0.4 for "lap".
        beta: initial exponent of the importance weights, in [0, 1], for "prioritized"; None is 0.4.
        beta_steps: number of updates over which `beta` increases linearly to 1; None keeps it constant.
        epochs_per_round: passes over all rows in an update phase, without replacement, in place of `replay`; None for
            no passes.
        max_minibatches_per_round: maximum number of minibatches in an update phase with passes; None for no limit.
        normalize_weights: whether importance weights are divided by the largest weight of their minibatch.
        priority: a function of a module that maps TD errors `[n]` and `alpha` to priorities `[n]`. None is
            (|TD error| + 1e-6)^alpha for "prioritized", and max(|TD error|, 1)^alpha for "lap".
        max_priority_period: for "lap", the number of updates after which the largest priority so far, which new rows
            get, is computed again from the replay buffer.

    Returns:
        The sampler, for a `MinibatchBuilder`.

    Raises:
        ValueError: an argument is out of its range.
    """
    common = buffer, seed, batch_size
    if epochs_per_round is not None:
        return EpochSampler(*common, epochs=epochs_per_round, max_minibatches=max_minibatches_per_round)
    if replay == "uniform":
        return UniformSampler(*common)
    if replay == "lap":
        return PrioritizedSampler(
            *common,
            alpha=0.4 if alpha is None else alpha,
            normalize_weights=False,
            priority=priority or lap_priority,
            max_priority_period=max_priority_period,
        )
    return PrioritizedSampler(
        *common,
        alpha=0.6 if alpha is None else alpha,
        beta=0.4 if beta is None else beta,
        beta_steps=beta_steps,
        normalize_weights=normalize_weights,
        priority=priority or proportional_priority,
    )
