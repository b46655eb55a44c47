"""Transitions over n steps, packed so that a whole chunk of minibatches crosses to the device at once."""

from typing import Any, NamedTuple

import numpy as np

from tfdpg.replay.buffer import NONE, ReplayBuffer
from tfdpg.spec import Packed, Spec


class TransitionLayout(NamedTuple):
    """The columns of a packed chunk: observation, action, reward, discount, weight, next observation.

    All real numbers are in one float32 array `[..., width]`; images, where the observation has any, in one
    uint8 array `[..., 2 * image_width]`, observation first.
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
        """The layout for the observations and actions of `spec`."""
        widths = dict(zip(spec.groups, spec.widths, strict=True))
        obs = widths.get("float32", 0)
        act = spec.act_dim
        after = obs + act + 3
        return cls(
            observation=slice(0, obs),
            action=slice(obs, obs + act),
            reward=obs + act,
            discount=obs + act + 1,
            weight=obs + act + 2,
            next_observation=slice(after, after + obs),
            width=after + obs,
            image_width=widths.get("uint8", 0),
        )


def gather_transitions(
    buffer: ReplayBuffer, slots: np.ndarray, n_step: int, gamma: float, weights: np.ndarray | None = None
) -> Packed:
    """The transitions over up to `n_step` steps that start at `slots`.

    The rewards of the m <= n steps up to the episode's end, or to its newest row, are summed with powers of
    gamma; `discount` is gamma^m (1 - terminated), and the next observation is the one m steps on. So a
    truncated end bootstraps from its final observation.

    Args:
        buffer: the replay.
        slots: rows with a successor, `[...]`.
        n_step: n, at least 1.
        gamma: the discount factor of one step.
        weights: how much each counts in the critic's loss, `[...]`; None is 1.

    Returns:
        The packed chunk, `[..., width]` float32 and, if there are images, `[..., 2 * image_width]` uint8.
    """
    layout = TransitionLayout.of(buffer.spec)
    first = slots.ravel()
    rows = buffer.rows.take(first, axis=0)
    reward, discount, terminated, last = _n_step_returns(buffer, first, rows[:, -1], n_step, gamma)
    packed = np.empty((len(first), layout.width), np.float32)
    packed[:, : layout.reward] = rows[:, :-1]
    packed[:, layout.reward] = reward
    packed[:, layout.discount] = discount * ~terminated
    packed[:, layout.weight] = 1.0 if weights is None else weights.ravel()
    packed[:, layout.next_observation] = buffer.rows.take(last, axis=0)[:, : buffer.obs_width]
    chunk = (packed.reshape(*slots.shape, -1),)
    if buffer.images is None:
        return chunk
    images = np.concatenate([buffer.images.take(first, axis=0), buffer.images.take(last, axis=0)], axis=1)
    return (*chunk, images.reshape(*slots.shape, -1))


def _n_step_returns(
    buffer: ReplayBuffer, first: np.ndarray, reward: np.ndarray, n_step: int, gamma: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sum the rewards of the m <= n steps that begin at rows.

    Args:
        buffer: the replay buffer.
        first: rows with a successor, `[n]`.
        reward: their rewards, `[n]`.
        n_step: n, at least 1.
        gamma: the discount factor of one step.

    Returns:
        The summed rewards, gamma^m, whether the last of the steps terminated the episode, and the row after it,
        `[n]` each.
    """
    terminated = buffer.terminated[first]
    last = buffer.successor[first]
    discount = np.full(len(first), gamma, np.float32)
    for _ in range(n_step - 1):
        follower = buffer.successor[last]
        has_next = ~terminated & (follower != NONE)
        reward = reward + discount * np.where(has_next, buffer.rows[last, -1], 0)  # a row that never acted has none
        terminated = np.where(has_next, buffer.terminated[last], terminated)
        discount = np.where(has_next, discount * np.float32(gamma), discount)
        last = np.where(has_next, follower, last)
    return reward, discount, terminated, last


def named_transitions(buffer: ReplayBuffer, slots: np.ndarray, n_step: int, gamma: float) -> dict[str, Any]:
    """The transitions that `gather_transitions` packs, as named arrays; `ReplayBuffer.sample` describes them.

    Args:
        buffer: the replay buffer.
        slots: rows with a successor, `[n]`.
        n_step: the number of steps whose rewards are summed, at least 1.
        gamma: the discount factor of one step.
    """
    spec = buffer.spec
    reward, discount, terminated, last = _n_step_returns(buffer, slots, buffer.rows[slots, -1], n_step, gamma)
    steps = buffer.rows[slots, buffer.obs_width : -1]
    current = buffer.current[buffer.current >= max(0, buffer.added - buffer.replay_size)] % buffer.replay_size
    has_ended = (buffer.successor[last] == NONE) & ~np.isin(last, current)
    arrays: dict[str, Any] = {
        "observation": _observations(spec, buffer.observation(slots)),
        "action": spec.to_user(steps),
        "reward": reward,
        "discount": discount * ~terminated,
        "next_observation": _observations(spec, buffer.observation(last)),
        "terminated": terminated,
        "truncated": has_ended & ~terminated,
    }
    if buffer.step_width > spec.act_dim:
        arrays["recurrent_state" if buffer.has_predecessors else "behaviour"] = steps[:, spec.act_dim :]
    return arrays


def _observations(spec: Spec, packed: Packed) -> Any:
    """Packed observations as arrays, by key for a Dict space."""
    arrays = spec.unpack(packed)
    return arrays if spec.is_dict else arrays["x"]
