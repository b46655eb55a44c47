"""n-step transitions, packed so that many minibatches are transferred to the device at once; the range of returns."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tfdpg.replay.buffer import EMPTY_REPLAY, NONE, ReplayBuffer, group_widths
from tfdpg.replay.hindsight import Relabelled
from tfdpg.replay.names import NamedTransitions
from tfdpg.spec import Packed, Spec

MAX_ROWS = 100_000
"""`return_range` uses at most this number of rows, the newest."""
MARGIN = 0.1
"""Margin that `return_range` adds on both sides, as a fraction of the range."""


class TransitionLayout(NamedTuple):
    """The columns of packed transitions: observation, action, reward, discount, weight, next observation.

    They are in one float32 array `[..., width]`. Images are in a uint8 array `[..., 2 * image_width]`, those of the
    observation first.
    """

    observation: slice
    action: slice
    reward: int
    discount: int
    weight: int
    next_observation: slice
    width: int
    image_width: int

    @classmethod
    def of(cls, spec: Spec) -> "TransitionLayout":
        """Return the layout for the observations and actions of `spec`."""
        obs, image_width = group_widths(spec)
        after = obs + spec.act_dim
        width = after + 3 + obs
        action = slice(obs, after)
        return cls(slice(0, obs), action, after, after + 1, after + 2, slice(after + 3, width), width, image_width)


def gather_transitions(
    buffer: ReplayBuffer,
    slots: np.ndarray,
    n_step: int,
    gamma: float,
    weights: np.ndarray | None = None,
    relabelled: Relabelled | None = None,
) -> Packed:
    """Pack the transitions over up to `n_step` steps that start at rows.

    The rewards of the m <= n steps up to the end of the episode, or to its newest row, are summed with powers of gamma.
    The discount is gamma^m (1 - terminated), and the next observation is the one after m steps. A truncated episode
    therefore bootstraps from its final observation.

    Args:
        buffer: the replay buffer.
        slots: slots of rows with a successor, `[...]`.
        n_step: n, at least 1.
        gamma: discount factor of one step.
        weights: weights in the critic's loss, `[...]`; None for 1.
        relabelled: rows that have a new goal, which determines their rewards and the end of their episode; None keeps
            all goals.

    Returns:
        Packed transitions, float32 `[..., width]`, and, with images, uint8 `[..., 2 * image_width]`; see
        `TransitionLayout`.
    """
    layout = TransitionLayout.of(buffer.spec)
    first = slots.ravel()
    rows = buffer.rows.take(first, axis=0)
    outcome = functools.partial(_stored_outcome, buffer) if relabelled is None else relabelled.outcome
    packed = np.empty((len(first), layout.width), np.float32)
    packed[:, : layout.reward] = rows[:, :-1]
    outcomes = packed[:, layout.reward : layout.weight + 1]
    last = _write_outcomes(outcomes, buffer, first, outcome, n_step, gamma, weights)
    packed[:, layout.next_observation] = buffer.rows.take(last, axis=0)[:, : buffer.obs_width]
    if relabelled is not None:
        relabelled.write_goals(packed[:, layout.observation])
        relabelled.write_goals(packed[:, layout.next_observation])
    chunk = (packed.reshape(*slots.shape, -1),)
    if buffer.images is None:
        return chunk
    images = np.concatenate([buffer.images.take(first, axis=0), buffer.images.take(last, axis=0)], axis=1)
    return (*chunk, images.reshape(*slots.shape, -1))


def transition_outcomes(
    buffer: ReplayBuffer, slots: np.ndarray, n_step: int, gamma: float, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return what `gather_transitions` computes for transitions, without their observations and actions.

    Args:
        buffer: the replay buffer.
        slots: slots of rows with a successor, `[n]`.
        n_step: n, at least 1.
        gamma: discount factor of one step.
        weights: weights in the critic's loss, of n elements; None for 1.

    Returns:
        The slots of the rows after the last steps, `[n]`, and the rewards, discounts and weights, float32 `[n, 3]`.
    """
    outcomes = np.empty((len(slots), 3), np.float32)
    outcome = functools.partial(_stored_outcome, buffer)
    return _write_outcomes(outcomes, buffer, slots, outcome, n_step, gamma, weights), outcomes


def _write_outcomes(
    outcomes: np.ndarray,
    buffer: ReplayBuffer,
    first: np.ndarray,
    outcome: "Outcome",
    n_step: int,
    gamma: float,
    weights: np.ndarray | None,
) -> np.ndarray:
    """Write rewards, discounts and weights to `outcomes`, `[n, 3]`; return the slots of the rows after the steps."""
    reward, discount, terminated, last = _n_step_returns(buffer, first, outcome, n_step, gamma)
    outcomes[:, 0] = reward
    outcomes[:, 1] = discount * ~terminated
    outcomes[:, 2] = 1.0 if weights is None else weights.ravel()
    return last


Outcome = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]
"""Returns the reward of the step of each row, `[n]`, whether it terminated the episode, and whether it ended it."""


def _stored_outcome(buffer: ReplayBuffer, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    terminated = buffer.terminated[slots]
    return buffer.rows[slots, -1], terminated, terminated


def _n_step_returns(
    buffer: ReplayBuffer, first: np.ndarray, outcome: Outcome, n_step: int, gamma: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sum the rewards of the m <= n steps that start at rows.

    Args:
        buffer: the replay buffer.
        first: slots of rows with a successor, `[n]`.
        outcome: returns the rewards and the ends of steps.
        n_step: n, at least 1.
        gamma: discount factor of one step.

    Returns:
        The summed rewards, gamma^m, whether the last step terminated the episode, and the slot of the row
        after it, `[n]` each.
    """
    reward, terminated, ended = outcome(first)
    last = buffer.successor[first]
    discount = np.full(len(first), gamma, np.float32)
    for _ in range(n_step - 1):
        follower = buffer.successor[last]
        has_next = ~ended & (follower != NONE)
        next_reward, next_terminated, next_ended = outcome(last)
        reward = reward + discount * np.where(has_next, next_reward, 0)  # a row without a step has no reward
        terminated = np.where(has_next, next_terminated, terminated)
        ended = np.where(has_next, next_ended, ended)
        discount = np.where(has_next, discount * np.float32(gamma), discount)
        last = np.where(has_next, follower, last)
    return reward, discount, terminated, last


def named_transitions(buffer: ReplayBuffer, slots: np.ndarray, n_step: int, gamma: float) -> NamedTransitions:
    """Return the transitions that `gather_transitions` packs as named arrays; see `ReplayBuffer.sample`."""
    spec = buffer.spec
    reward, discount, terminated, last = _n_step_returns(
        buffer, slots, functools.partial(_stored_outcome, buffer), n_step, gamma
    )
    steps = buffer.rows[slots, buffer.obs_width : -1]
    current = buffer.current[buffer.current >= buffer.oldest] % buffer.replay_size
    has_ended = (buffer.successor[last] == NONE) & ~np.isin(last, current)
    arrays = NamedTransitions(
        observations=_observations(spec, buffer.observation(slots)),
        actions=spec.to_user(steps),
        rewards=reward,
        discounts=discount * ~terminated,
        next_observations=_observations(spec, buffer.observation(last)),
        terminations=terminated,
        truncations=has_ended & ~terminated,
    )
    arrays.n_step = n_step
    if buffer.step_width > spec.act_dim:
        arrays["states" if buffer.has_predecessors else "behaviours"] = steps[:, spec.act_dim :]
    return arrays


def _observations(spec: Spec, packed: Packed) -> Any:
    """Unpack observations to an array, or to a dict of arrays by name for a Dict or Tuple space."""
    arrays = spec.unpack(packed)
    return arrays if spec.is_dict else arrays["x"]


def return_range(buffer: ReplayBuffer, gamma: float) -> tuple[float, float]:
    """Estimate the smallest and the largest return from the transitions held.

    They are the extremes of the discounted returns of all rows and of the returns if the 1 % or the 99 % quantile of
    the rewards were received forever, with a margin of a tenth of the range on both sides.

    Args:
        buffer: the replay buffer.
        gamma: discount factor, in [0, 1].

    Raises:
        ValueError: The replay buffer holds no transition.
    """
    with buffer.lock:
        if not len(buffer):
            raise ValueError(EMPTY_REPLAY)
        rows = np.arange(max(buffer.oldest, buffer.added - MAX_ROWS), buffer.added) % buffer.replay_size
        acted = rows[buffer.successor[rows] != NONE]
        rewards = buffer.rows[acted, -1]
        successors = buffer.successor[acted]
        terminated = buffer.terminated[acted]
    returns = np.zeros(buffer.replay_size)
    for i in range(len(acted) - 1, -1, -1):  # a successor is newer than its row
        next_return = 0.0 if terminated[i] else gamma * returns[successors[i]]
        returns[acted[i]] = rewards[i] + next_return
    extremes = [returns[acted].min(), returns[acted].max()]
    if gamma < 1:
        extremes += (np.quantile(rewards, [0.01, 0.99]) / (1 - gamma)).tolist()
    low = min(extremes)
    high = max(extremes)
    margin = max(MARGIN * (high - low), 1e-3 * max(abs(low), abs(high))) or 1.0
    return float(low - margin), float(high + margin)
