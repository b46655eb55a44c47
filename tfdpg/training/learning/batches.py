"""Minibatches that the caller passes to `train_on_batch`, packed like the ones that are sampled."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfdpg.acting import RecurrentSpec
from tfdpg.arguments import shown
from tfdpg.replay import TimeSteps, TransitionLayout, WindowLayout, pack_sequence
from tfdpg.replay.names import with_standard_names
from tfdpg.spec import Packed, Spec
from tfdpg.training.environment.finite import check_finite


def pack_transitions(spec: Spec, batch_size: int, gamma: float, batch: Mapping[str, Any]) -> Packed:
    """Pack transitions, `[1, batch, ...]` (see `tfdpg.replay.TransitionLayout`).

    Args:
        spec: the spaces.
        batch_size: the number of transitions.
        gamma: the discount factor of one step.
        batch: `observations`, `actions`, `rewards`, `terminations` and `next_observations`, a row for each transition;
            optionally `discounts` (default gamma; gamma^m if rewards are sums over m steps), `weights` in the critic's
            loss (default 1), and `truncations`, `behaviours` and `states`, which have no effect: truncated transitions
            bootstrap. `ReplayBuffer.sample` returns such a dict.

    Raises:
        ValueError: arrays are missing, of other shapes, or not finite; ends of episodes are not 0 or 1; weights are
            negative, or discounts not from 0 to 1.
    """
    arrays = _Arrays(batch, (batch_size,), ("truncations", "behaviours", "states"))
    layout, first, last = TransitionLayout.of(spec), *(arrays.observations(spec, name) for name in OBSERVATIONS)
    packed = np.empty((1, batch_size, layout.width), np.float32)
    packed[0, :, layout.action] = arrays.actions(spec)
    packed[0, :, layout.reward] = arrays.take("rewards")
    packed[0, :, layout.discount] = arrays.take("discounts", default=gamma) * (1 - arrays.take("terminations"))
    packed[0, :, layout.weight] = arrays.take("weights", default=1.0)
    images = None
    for columns, observation in ((layout.observation, first), (layout.next_observation, last)):
        packed[0, :, columns] = observation.get("float32", packed[0, :, :0])
    if "uint8" in first:
        images = np.concatenate([first["uint8"], last["uint8"]], axis=1)[None]
    arrays.finish()
    return (packed,) if images is None else (packed, images)


OBSERVATIONS = "observations", "next_observations"
LARGEST = {"weights": np.inf, "discounts": 1.0}
"""The largest values of arrays that have no negative ones."""


def pack_windows(
    spec: Spec, batch_size: int, steps: int, record_width: int, gamma: float, batch: Mapping[str, Any]
) -> Packed:
    """Pack windows of successive steps, `[1, batch, steps + 1, ...]` (see `tfdpg.replay.WindowLayout`).

    Args:
        spec: the spaces.
        batch_size: the number of windows.
        steps: the number of steps in each.
        record_width: the number n of parameters of the behaviour distribution.
        gamma: the discount factor of one step.
        batch: `observations` `[batch, steps + 1, ...]`, `actions`, `rewards`, `terminations` `[batch, steps]`, and
            `behaviours` `[batch, steps, n]`, the probabilities, or the means and scales, of the actions; optionally
            `discounts` (default gamma) and `truncations`. If step t was truncated, observation t + 1 is the final one,
            and the action and reward at t + 1 are ignored.

    Raises:
        ValueError: arrays are missing, of other shapes, or not finite; ends of episodes are not 0 or 1; or discounts
            are not from 0 to 1.
    """
    arrays = _Arrays(batch, (batch_size, steps), ("discounts", "truncations"))
    layout = WindowLayout.of(spec, spec.act_dim + record_width)
    truncated = arrays.take("truncations", default=0.0) * (1 - arrays.take("terminations")) > 0
    acted = np.concatenate([np.ones((batch_size, 1), bool), ~truncated[:, :-1]], axis=1)
    packed = np.empty((1, batch_size, steps + 1, layout.width), np.float32)
    observation = _Arrays(batch, (batch_size, steps + 1)).observations(spec, "observations")
    packed[0, ..., layout.observation] = observation.get("float32", packed[0, ..., :0])
    step = [arrays.actions(spec), arrays.take("behaviours", record_width)]
    inner = packed[0, :, :-1]
    inner[..., layout.step] = np.where(acted[..., None], np.concatenate(step, axis=-1), 1.0)
    inner[..., layout.reward] = np.where(acted, arrays.take("rewards"), 0.0)
    inner[..., layout.discount] = arrays.take("discounts", default=gamma) * (1 - arrays.take("terminations"))
    inner[..., layout.acted] = acted
    packed[0, :, -1, layout.step.start :] = [*[1.0] * (spec.act_dim + record_width), 0.0, gamma, 0.0]
    arrays.finish("observations")
    return (packed, observation["uint8"][None]) if "uint8" in observation else (packed,)


def pack_sequences(
    spec: Spec,
    recurrent_spec: RecurrentSpec,
    batch_size: int,
    burn_in: int,
    length: int,
    n_step: int,
    gamma: float,
    batch: Mapping[str, Any],
) -> Packed:
    """Pack sequences of successive steps, each in one episode, `[1, batch, ...]` (see `tfdpg.replay.SequenceLayout`).

    Args:
        spec: the spaces.
        recurrent_spec: the recurrent state; the step before the first one counts as missing.
        batch_size: the number of sequences.
        burn_in: the number of steps before those to learn from.
        length: the number of steps to learn from.
        n_step: the number n of rewards in a return; n - 1 further steps follow for it.
        gamma: the discount factor of one step.
        batch: `observations` `[batch, burn_in + length + n, ...]`, `actions`, `rewards` and `terminations`
            `[batch, burn_in + length + n - 1]`; optionally `masks` (default 1), 1 for existing steps and 0 after one
            that ended an episode, `discounts` (default gamma) and `truncations` of the same shape; and for each
            sequence `weights` in the critic's loss (default 1) and, if recurrent states are stored, `states`,
            `[batch, state_width]`, the state before its first step (default 0). Truncated steps bootstrap.

    Raises:
        ValueError: arrays are missing, of other shapes, or not finite; ends of episodes or masks are not 0 or 1;
            weights are negative, or discounts not from 0 to 1; steps have gaps, or continue after an end.
    """
    rows = burn_in + length + n_step
    arrays = _Arrays(batch, (batch_size, rows - 1))
    sequences = _Arrays(batch, (batch_size,))
    observation = _Arrays(batch, (batch_size, rows)).observations(spec, "observations")
    masks = arrays.take("masks", default=1.0) > 0
    terminated = arrays.take("terminations") > 0
    ended = terminated | (arrays.take("truncations", default=0.0) > 0)
    if (np.diff(masks, axis=1, prepend=False) & masks).sum(axis=1).max() > 1:
        raise ValueError("`batch['masks']` must be 0 only before the first step of a sequence and after its last one")
    if (ended & masks)[:, :-1][masks[:, 1:]].any():
        raise ValueError("`batch['masks']` must be 0 after a step that ended an episode")
    if not masks[:, burn_in : burn_in + length].any():
        raise ValueError(f"`batch['masks']` must leave a step to learn from, after the {burn_in} of burn-in")
    steps = arrays.take("discounts", default=gamma), arrays.actions(spec), arrays.take("rewards"), terminated
    discounts, *led = (
        np.insert(part, 0, 0, axis=1) for part in steps
    )  # the step before each observation; 0 before the first
    packed, *images = pack_sequence(
        spec,
        TimeSteps(tuple(observation.values()), *led, is_first=np.insert(~masks, 0, True, axis=1)),
        recurrent_spec=recurrent_spec,
        burn_in=burn_in,
        length=length,
        gamma=discounts,
        weights=sequences.take("weights", default=1.0),
    )
    states = [sequences.take("states", recurrent_spec.stored_width, default=0.0)] if recurrent_spec.stored_width else []
    arrays.finish("observations", *sequences.taken)
    return tuple(part[None] for part in (packed, *states, *images))


class _Arrays:
    """Reads arrays by name, checks their common leading shape, and records their names."""

    def __init__(self, batch: Mapping[str, Any], shape: tuple[int, ...], optional: tuple[str, ...] = ()):
        if not isinstance(batch, Mapping):
            raise ValueError(f"`batch` must be a dict of arrays. Received: {type(batch).__name__}")
        self._batch = with_standard_names(batch, "batch")
        self._shape = shape
        self._optional = optional
        self.taken = set[str]()

    def take(self, name: str, *width: int, default: float | None = None) -> np.ndarray:
        """Return an array `[*shape]` or `[*shape, width]`, float32; a last axis of width 1 may be there or not."""
        self.taken.add(name)
        if name not in self._batch:
            if default is None:
                raise ValueError(f"`batch` must have {name!r}. Received: {shown(sorted(self._batch))}")
            return np.full((*self._shape, *width), default, np.float32)
        array = np.asarray(self._batch[name], np.float32)
        wanted = (*self._shape, *width)
        if array.shape not in ((wanted, self._shape) if width == (1,) else (wanted, (*wanted, 1))):
            raise ValueError(f"`batch[{name!r}]` must have the shape {wanted}. Received: {array.shape}")
        if not np.isfinite(array).all():
            raise ValueError(f"`batch[{name!r}]` must be finite numbers")
        if name in ("terminations", "truncations", "masks") and (wrong := array[(array != 0) & (array != 1)]).size:
            raise ValueError(f"`batch[{name!r}]` must be 0 or 1. Received: {wrong[0]:g}")
        if name in LARGEST and (wrong := array[(array < 0) | (array > LARGEST[name])]).size:
            expected = "from 0 to 1" if name == "discounts" else "at least 0"
            raise ValueError(f"`batch[{name!r}]` must be {expected}. Received: {wrong[0]:g}")
        return array.reshape(wanted)

    def actions(self, spec: Spec) -> np.ndarray:
        """Return actions `[*shape, act_dim]`; they may have the environment's shape."""
        if "actions" in self._batch:
            self._batch = {**self._batch, "actions": spec.flat_actions(self._batch["actions"])}
        return self.take("actions", spec.act_dim)

    def observations(self, spec: Spec, name: str) -> dict[str, np.ndarray]:
        """Return packed observations `[*shape, width]`, by group."""
        self.taken |= {key for key in self._batch if key.split("/")[0] == name}
        if name in self._batch:
            given = self._batch[name]
        else:
            given = {leaf.name: self._batch.get(f"{name}/{leaf.name}") for leaf in spec.leaves}
        leaves = spec.by_name(given)
        flat = {}
        for leaf in spec.leaves:
            array = np.asarray(leaves[leaf.name])
            wanted = (*self._shape, *leaf.shape)
            if array.shape != wanted:
                raise ValueError(f"`batch[{name!r}]` must have the shape {wanted}. Received: {array.shape}")
            flat[leaf.name] = array.reshape(-1, *leaf.shape)
        packed = spec.pack(flat if spec.is_dict else flat["x"])
        check_finite(spec, packed, np.zeros(1, np.float32), f"a row of `batch[{name!r}]`", row="row")
        return {
            group: part.reshape(*self._shape, part.shape[-1]) for group, part in zip(spec.groups, packed, strict=True)
        }

    def finish(self, *others: str) -> None:
        """Raise `ValueError` for arrays that were not read."""
        if unknown := sorted(set(self._batch) - self.taken - set(self._optional) - set(others)):
            raise ValueError(f"`batch` has unknown arrays: {shown(unknown)}")
