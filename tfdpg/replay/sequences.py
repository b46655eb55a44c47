"""Sequences for recurrent policies: successive steps of one episode, preceded by burn-in."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

import numpy as np

from tfdpg.replay.buffer import NONE, ReplayBuffer, TimeSteps, group_widths
from tfdpg.spec import Packed, Spec

ETA = 0.9
"""Weight of the largest TD error of a sequence; the mean has the weight 1 - eta."""


class RecurrentInputs(Protocol):
    """The part of `tfdpg.acting.RecurrentSpec` that packing needs; this package must not import that one."""

    @property
    def uses_action(self) -> bool:
        """Whether the policy receives the previous action."""
        ...

    @property
    def uses_reward(self) -> bool:
        """Whether the policy receives the previous reward."""
        ...

    @property
    def previous_width(self) -> int:
        """Number of columns of the previous action and reward."""
        ...

    @property
    def stored_width(self) -> int:
        """Number of columns of the recurrent state that is stored with a step."""
        ...


class SequenceLayout(NamedTuple):
    """The columns of packed sequences, with a row for each observation.

    Attributes:
        observation: the observation without images.
        previous: the previous action, clipped to its box, and the previous reward, if they are used; at the start of an
            episode the center of the box, and 0.
        valid: 1 if the row has an observation of the episode.
        action: the action of the step. This and the following columns are 0 in burn-in rows.
        reward: sum of the discounted rewards of m steps.
        discount: gamma^m (1 - terminated).
        weight: weight in the critic's loss; 0 for padding.
        bootstrap_index: index in the sequence of the row after m steps.
        width: number of columns.
    """

    observation: slice
    previous: slice
    valid: int
    action: slice
    reward: int
    discount: int
    weight: int
    bootstrap_index: int
    width: int

    @classmethod
    def of(cls, spec: Spec, previous_width: int) -> "SequenceLayout":
        """Return the layout for the spaces of `spec` and `previous_width` columns of previous action and reward."""
        obs, _ = group_widths(spec)
        valid = obs + previous_width
        after = valid + 1 + spec.act_dim
        parts = slice(0, obs), slice(obs, valid), valid, slice(valid + 1, after)
        return cls(*parts, after, after + 1, after + 2, after + 3, after + 4)


def follow_links(follow: Callable[[np.ndarray], np.ndarray], starts: np.ndarray, steps: int) -> np.ndarray:
    """Follow links between rows; the last row of a chain is repeated as padding.

    Args:
        follow: maps slots to the next slots, -1 if there is none.
        starts: the first slots, `[...]`; -1 for a chain without rows.
        steps: number of links to follow.

    Returns:
        Slots, `[..., steps + 1]`.
    """
    rows = np.empty((*starts.shape, steps + 1), np.int64)
    rows[..., 0] = starts
    for t in range(steps):
        following = follow(rows[..., t])
        rows[..., t + 1] = np.where((following == NONE) | (starts == NONE), rows[..., t], following)
    return rows


def previous_rows(buffer: ReplayBuffer, rows: np.ndarray) -> np.ndarray:
    """Return the slots of the previous rows of the same episodes; -1 if the row is the first or was overwritten."""
    predecessor = cast(np.ndarray, buffer.predecessor)[rows]
    return np.where(buffer.successor[predecessor] == rows, predecessor, NONE)


def gather_sequences(
    buffer: ReplayBuffer,
    slots: np.ndarray,
    *,
    recurrent_spec: RecurrentInputs,
    burn_in: int,
    length: int,
    n_step: int,
    gamma: float,
    weights: np.ndarray | None = None,
) -> Packed:
    """Pack sequences whose first steps to learn from are at rows.

    A sequence has `burn_in` + `length` + `n_step` rows: burn-in rows, the steps to learn from, and the rows to
    bootstrap from. All are rows of one episode. Missing burn-in rows are replaced by rows that are not valid, at the
    start of the sequence. Each step has the rewards and the discount of `gather_transitions`.

    Args:
        buffer: a replay buffer with predecessors.
        slots: slots of rows with a successor, `[...]`.
        recurrent_spec: the recurrent inputs of the policy.
        burn_in: maximum number of burn-in rows.
        length: maximum number of steps to learn from.
        n_step: n, at least 1.
        gamma: discount factor of one step.
        weights: weights of the sequences in the critic's loss, `[...]`; None for 1.

    Returns:
        The arrays of `pack_sequence`. If the recurrent state is stored, the state before the first valid row, float32
        `[..., stored_width]`, is between them.
    """
    back = follow_links(lambda rows: previous_rows(buffer, rows), slots, burn_in + 1)
    forth = follow_links(lambda rows: buffer.successor[rows], slots, length + n_step - 1)
    rows = np.concatenate([back[..., :0:-1], forth], axis=-1)  # the first row precedes the sequence
    previous = rows[..., :-1]
    inside = rows[..., 1:]
    width = buffer.obs_width
    after = buffer.obs_width + buffer.spec.act_dim
    seen = buffer.rows[rows, :after]
    observation = (seen[..., 1:, :width],) if width else ()
    if buffer.images is not None:
        observation += (buffer.images.take(inside, axis=0),)
    steps = seen[..., :-1, width:], buffer.rows[previous, -1], buffer.terminated[previous]
    packed, *images = pack_sequence(
        buffer.spec,
        TimeSteps(observation, *steps, is_first=previous == inside),
        recurrent_spec=recurrent_spec,
        burn_in=burn_in,
        length=length,
        gamma=gamma,
        weights=weights,
    )
    states = [buffer.rows[inside[..., 0], after:-1]] if recurrent_spec.stored_width else []
    return (packed, *states, *images)


def pack_sequence(
    spec: Spec,
    rows: TimeSteps,
    *,
    recurrent_spec: RecurrentInputs,
    burn_in: int,
    length: int,
    gamma: float | np.ndarray,
    weights: np.ndarray | None = None,
) -> Packed:
    """Pack successive rows; n-step returns bootstrap from the rows after the first `burn_in` + `length`.

    Args:
        spec: the spaces of the environment.
        rows: rows, each with the step that led to it, `[..., rows]`. Where `is_first` is set, the step is not used and
            may be NaN.
        recurrent_spec: the recurrent inputs of the policy.
        burn_in: number of burn-in rows.
        length: number of steps to learn from.
        gamma: discount factor of one step, or of the step that led to each row, `[..., rows]`.
        weights: weights of the sequences in the critic's loss, `[...]`; None for 1.

    Returns:
        Float32 `[..., rows, width]` (see `SequenceLayout`) and, with images, uint8 `[..., rows, image_width]`.
    """
    layout = SequenceLayout.of(spec, recurrent_spec.previous_width)
    led = ~rows.is_first
    packed = np.zeros((*led.shape, layout.width), np.float32)
    if "float32" in spec.groups:
        packed[..., layout.observation] = rows.observation[0]
    if recurrent_spec.uses_action:
        action = np.clip(np.where(led[..., None], rows.action, spec.center), spec.low, spec.high)
        packed[..., layout.previous.start : layout.previous.start + spec.act_dim] = action
    if recurrent_spec.uses_reward:
        packed[..., layout.previous.stop - 1] = np.where(led, rows.reward, 0)
    packed[..., layout.valid] = led
    packed[..., :-1, layout.valid] += led[..., 1:] & rows.is_first[..., :-1]

    def taken(values: np.ndarray, later: int = 0) -> np.ndarray:
        """Return the values of the steps in the rows to learn from, or `later` rows later."""
        return values[..., burn_in + 1 + later :][..., :length]

    gammas = np.broadcast_to(np.float32(gamma), led.shape)
    acted = taken(led)
    discount = taken(gammas)
    reward = np.where(acted, taken(rows.reward), 0)
    ended = taken(rows.terminated) | ~acted
    bootstrap_index = np.arange(burn_in, burn_in + length) + acted
    for k in range(1, led.shape[-1] - burn_in - length):
        has_next = ~ended & taken(led, k)
        reward = reward + discount * np.where(has_next, taken(rows.reward, k), 0)
        ended = np.where(has_next, taken(rows.terminated, k), ended)
        discount = np.where(has_next, discount * taken(gammas, k), discount)
        bootstrap_index = bootstrap_index + has_next
    learnt = packed[..., burn_in : burn_in + length, :]
    action = rows.action[..., burn_in + 1 :, :][..., :length, :]
    learnt[..., layout.action] = np.where(acted[..., None], action, spec.center)
    learnt[..., layout.reward] = reward
    learnt[..., layout.discount] = discount * ~ended
    learnt[..., layout.weight] = acted if weights is None else acted * weights[..., None]
    learnt[..., layout.bootstrap_index] = bootstrap_index
    return (packed, rows.observation[-1]) if "uint8" in spec.groups else (packed,)


def priority(errors: np.ndarray) -> np.ndarray:
    """Combine the TD errors of sequences: eta max |error| + (1 - eta) mean |error|, with eta = 0.9.

    Args:
        errors: TD errors, `[..., length]`; NaN for padding.

    Returns:
        Errors of the sequences, `[...]`.

    Source: Kapturowski, Ostrovski, Quan, Munos, Dabney 2019, "Recurrent Experience Replay in Distributed Reinforcement
    Learning", section 2.3.
    """
    counts = ~np.isnan(errors)
    sizes = np.where(counts, np.abs(errors), 0)
    mean = sizes.sum(axis=-1) / np.maximum(counts.sum(axis=-1), 1)
    return ETA * sizes.max(axis=-1) + (1 - ETA) * mean
