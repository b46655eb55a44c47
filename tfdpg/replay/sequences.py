"""Sequences: successive steps of one episode, behind those that lead up to them, for policies with memory."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

import numpy as np

from tfdpg.replay.buffer import NONE, ReplayBuffer
from tfdpg.replay.time_steps import TimeSteps
from tfdpg.spec import Packed, Spec

ETA = 0.9
"""How much the largest TD error of a sequence counts, and not their mean."""


class RecurrentInputs(Protocol):
    """What a policy recalls, as `tfdpg.acting.RecurrentSpec` says it."""

    @property
    def uses_action(self) -> bool:
        """Whether it recalls the action before."""
        ...

    @property
    def uses_reward(self) -> bool:
        """Whether it recalls the reward before."""
        ...

    @property
    def previous_width(self) -> int:
        """The numbers of these."""
        ...

    @property
    def stored_width(self) -> int:
        """The numbers of its state that are stored with a step."""
        ...


class SequenceLayout(NamedTuple):
    """The columns of packed sequences, a row for each observation.

    Attributes:
        observation: the real part of the observation.
        previous: the previous action, in its box, and the previous reward, if they are used; at an episode's start
            the box's center, and 0.
        valid: 1 where the row holds an observation of the episode.
        action: the step's own; that and what follows is 0 in rows that only lead up to the first step.
        reward: the sum over n steps.
        discount: gamma^m (1 - terminated).
        weight: in the critic's loss; 0 where no step was taken.
        bootstrap_index: which row of the sequence is the one m steps on.
        width: the numbers of a row.
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
        """The layout for the spaces of `spec`, and so many numbers that are recalled of the step before."""
        obs = dict(zip(spec.groups, spec.widths, strict=True)).get("float32", 0)
        valid = obs + previous_width
        after = valid + 1 + spec.act_dim
        parts = slice(0, obs), slice(obs, valid), valid, slice(valid + 1, after)
        return cls(*parts, after, after + 1, after + 2, after + 3, after + 4)


def follow_links(follow: Callable[[np.ndarray], np.ndarray], starts: np.ndarray, steps: int) -> np.ndarray:
    """Rows one after the other, `[..., steps + 1]`; where the way ends the last one is repeated.

    Args:
        follow: from rows to the ones that come next, -1 where none does.
        starts: the first rows, `[...]`; -1 stays where it is.
        steps: how many to take.
    """
    rows = np.empty((*starts.shape, steps + 1), np.int64)
    rows[..., 0] = starts
    for t in range(steps):
        following = follow(rows[..., t])
        rows[..., t + 1] = np.where((following == NONE) | (starts == NONE), rows[..., t], following)
    return rows


def previous_rows(buffer: ReplayBuffer, rows: np.ndarray) -> np.ndarray:
    """The rows before these in their episodes, -1 where none is held."""
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
    """Sequences whose first step to learn from was taken at `slots`.

    A sequence has `burn_in` + `length` + `n_step` rows: those that lead up to that step, of its episode and held, in
    front of them as many that are not valid as are missing; the steps to learn from; and the rows to bootstrap from.
    None goes over an episode's end. A step is the transition that `gather_transitions` gives.

    Args:
        buffer: the replay; it walks back.
        slots: rows with a successor, `[...]`.
        recurrent_spec: what the policy recalls of the step before.
        burn_in: rows that lead up to the first step, at most.
        length: steps to learn from, at most.
        n_step: n, at least 1.
        gamma: the discount factor of one step.
        weights: how much each sequence counts in the critic's loss, `[...]`; None is 1.

    Returns:
        What `pack_sequence` gives; between its arrays, if it is stored, the state of the policy in the first valid row,
        float32 `[..., stored_width]`.
    """
    back = follow_links(lambda rows: previous_rows(buffer, rows), slots, burn_in + 1)
    forth = follow_links(lambda rows: buffer.successor[rows], slots, length + n_step - 1)
    rows = np.concatenate([back[..., :0:-1], forth], axis=-1)  # the first one is before the sequence
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
    """Packs successive rows; those after the first `burn_in` + `length` are what n-step returns bootstrap from.

    Args:
        spec: the spaces.
        rows: each with the step that led to it, `[..., rows]`; `is_first` is where there was none, or none that counts,
            and what stands there need not be numbers.
        recurrent_spec: what the policy recalls of the step before.
        burn_in: rows that lead up to the first step.
        length: steps to learn from.
        gamma: the discount factor of one step; it may be one for each row, of the step that led to it, `[..., rows]`.
        weights: how much each sequence counts in the critic's loss, `[...]`; None is 1.

    Returns:
        `[..., rows, width]` float32 (see `SequenceLayout`) and, if there are images, `[..., rows, image_width]` uint8.
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
        """Of the steps that were taken in the rows to learn from, or some rows later."""
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
    """What TD errors say of sequences: eta max |error| + (1 - eta) mean |error|, eta = 0.9.

    Source: Kapturowski, Ostrovski, Quan, Munos, Dabney 2019, "Recurrent Experience Replay in Distributed Reinforcement
    Learning", section 2.3.

    Args:
        errors: `[..., length]`, NaN where no step was taken.

    Returns:
        `[...]`.
    """
    counts = ~np.isnan(errors)
    sizes = np.where(counts, np.abs(errors), 0)
    mean = sizes.sum(axis=-1) / np.maximum(counts.sum(axis=-1), 1)
    return ETA * sizes.max(axis=-1) + (1 - ETA) * mean
