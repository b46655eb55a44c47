"""What an agent needs to know of an environment: its two spaces, and how observations travel.

Inside the library a batch of observations is *packed*: one float32 matrix `[num_envs, width]` for all
real and discrete parts and one uint8 matrix for all image parts, so that it is stored with one copy and
crosses to the device with one transfer. `Spec` packs; networks unpack.
"""

import dataclasses
import keyword
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tfdpg.environments import opened
from tfdpg.spaces import SUPPORTED, action_bounds, check_action_space, integer_bounds_of, space_from_json, space_to_json

Packed = tuple[np.ndarray, ...]
"""One matrix `[num_envs, width]` for each of `Spec.groups`."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array of an observation.

    Attributes:
        name: the name of the exported input: `x`, or the key of a Dict space.
        space: the Gymnasium space of this array.
        dtype: the type that networks and clients see: float32, uint8 or int32.
        group: which packed matrix holds it, "float32" or "uint8".
        columns: its columns in that matrix.
        shape: the shape of one observation's array; `()` for a Discrete space.
        integer_bounds: the smallest and the largest of the whole numbers that it holds; None if it holds any numbers.
    """

    name: str
    space: spaces.Space
    dtype: str
    group: str
    columns: slice
    shape: tuple[int, ...]
    integer_bounds: tuple[Any, Any] | None


class Spec:
    """The spaces of an environment, checked to be what the agents can serve.

    Args:
        observation_space: Box, Discrete, MultiDiscrete, or a Dict of these.
        action_space: a float Box with finite bounds, or Discrete.

    Attributes:
        leaves: the arrays of an observation.
        shapes: those of these arrays, by name.
        groups: the packed matrices, "float32" and "uint8" as they occur.
        widths: the width of each.
        act_shape: the shape of an action in the environment.
        act_dim: the numbers of an action, which is flat inside the library.
        actions: the number of actions of a Discrete space, whose `act_dim` is 1; None of a Box.
        low: the lower bounds of the actions, float32 `[act_dim]`.
        high: the upper bounds.
        center: the middle of the action box.
        action_scale: half its width, rounded so that `center ± action_scale` never leaves it.
        no_action: what a policy answers where an observation is not finite: NaN in each component of a Box action, and
            for a Discrete space its first action minus 1, which is none of its actions.

    Raises:
        ValueError: a space that is not supported; the message names it and says what is.

    Example:
        ```python
        spec = Spec(env.observation_space, env.action_space)
        agent = tfdpg.TD3(spec)
        ```
    """

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space):
        self.observation_space = observation_space
        self.action_space = check_action_space(action_space)
        self.leaves = _leaves(observation_space)
        self.shapes = {leaf.name: leaf.shape for leaf in self.leaves}
        self.is_dict = isinstance(observation_space, spaces.Dict)
        self.groups = tuple(sorted({leaf.group for leaf in self.leaves}))
        self.widths = tuple(
            max(leaf.columns.stop for leaf in self.leaves if leaf.group == group) for group in self.groups
        )
        low, high, self.actions = action_bounds(self.action_space)
        self.low = low.astype(np.float32)
        self.high = high.astype(np.float32)
        self.act_shape = tuple(action_space.shape or ())
        self.act_dim = len(self.low)
        self.center = (self.high + self.low) / 2
        self.action_scale = _inner_action_scale(self.low, self.high, self.center)
        self.no_action = float("nan") if self.actions is None else int(self.low[0]) - 1

    @classmethod
    def of(cls, env: Any) -> "Spec":
        """The spec of a `Spec`, an environment, a vector environment, or an environment's id."""
        if isinstance(env, Spec):
            return env
        if isinstance(env, str):
            with opened(env) as made:
                return cls.of(made)
        if isinstance(env, gym.vector.VectorEnv):
            return cls(env.single_observation_space, env.single_action_space)
        if isinstance(env, gym.Env):
            return cls(env.observation_space, env.action_space)
        if isinstance(env, type):
            raise ValueError(f"`env` must be an environment, and not its class. Received: env={env!r}. Call it: env()")
        raise ValueError(
            "`env` must be a gymnasium.Env, a gymnasium.vector.VectorEnv, the id of an environment or a tfdpg.Spec. "
            f"Received: {f'an array of shape {env.shape}' if isinstance(env, np.ndarray) else f'env={env!r}'}. "
            "To train on stored transitions, call agent.fit_offline(data)."
        )

    def check(self, env: Any, what: str = "env") -> None:
        """Raises `ValueError` if the spaces of `env` are not these; `what` names the argument."""
        other = Spec.of(env)
        for kind in ("observation_space", "action_space"):
            if getattr(other, kind) != getattr(self, kind):
                raise ValueError(
                    f"The {kind} of `{what}` must be the agent's, {getattr(self, kind)}. "
                    f"Received: {getattr(other, kind)}"
                )

    def is_single(self, observation: Any) -> bool:
        """Whether `observation` is one observation (True) or a batch of them (False)."""
        part = self._parts(observation)[0] if self.is_dict else observation
        return np.ndim(part) == len(self.leaves[0].shape)

    def pack(self, observation: Any) -> Packed:
        """Packs one observation or a batch of them.

        Args:
            observation: an element of the observation space, or a batch of them (each array with one more
                leading dimension).

        Returns:
            One matrix `[num_envs, width]` for each of `groups`; lanes is 1 for a single observation.

        Raises:
            ValueError: arrays of another shape; no real numbers; or, where the space is one of whole numbers (Discrete,
                MultiDiscrete, a uint8 Box), others than it has. Other numbers become float32.
        """
        if not self.is_dict:
            leaf = self.leaves[0]
            return (np.ascontiguousarray(_as_rows(leaf, np.asarray(observation)), leaf.group),)
        parts = [
            _as_rows(leaf, np.asarray(part)) for leaf, part in zip(self.leaves, self._parts(observation), strict=True)
        ]
        return tuple(
            np.concatenate(
                [
                    part.astype(group, copy=False)
                    for leaf, part in zip(self.leaves, parts, strict=True)
                    if leaf.group == group
                ],
                axis=1,
            )
            for group in self.groups
        )

    def pack_steps(self, observation: Any) -> tuple[Packed, tuple[int, ...]]:
        """Packs a sequence of observations, `[time, ...]`, or a batch of them, `[batch, time, ...]`.

        Returns:
            The rows as `pack` gives them, and (time,) or (batch, time).

        Raises:
            ValueError: arrays of other shapes, and what `pack` refuses.
        """
        parts = list(map(np.asarray, self._parts(observation))) if self.is_dict else [np.asarray(observation)]
        leading = parts[0].shape[: parts[0].ndim - len(self.leaves[0].shape)]
        for leaf, part in zip(self.leaves, parts, strict=True):
            if len(leading) not in (1, 2) or part.shape != (*leading, *leaf.shape) or not part.size:
                expected = f"{('time', *leaf.shape)}, or {('batch', 'time', *leaf.shape)}".replace("'", "")
                raise ValueError(
                    f"`{leaf.name}` of a sequence must have shape {expected}. Received: shape={part.shape}"
                )
        rows = {leaf.name: part.reshape(-1, *leaf.shape) for leaf, part in zip(self.leaves, parts, strict=True)}
        return self.pack(rows if self.is_dict else rows["x"]), leading

    def pack_final(self, packed: Packed, final_observation: Any, ended: np.ndarray) -> Packed:
        """Packed observations with the final ones in the rows of the lanes that ended.

        Args:
            packed: the next observations of all lanes, packed.
            final_observation: one observation, a batch, or an array of objects with an observation for each
                lane that ended and None elsewhere (`info["final_obs"]` of gymnasium's SAME_STEP mode).
            ended: `[num_envs]`, bool.
        """
        is_objects = isinstance(final_observation, np.ndarray) and final_observation.dtype == object
        if not is_objects:
            final = self.pack(final_observation)
            return tuple(np.where(ended[:, None], b, a) for a, b in zip(packed, final, strict=True))
        packed = tuple(part.copy() for part in packed)
        for env_index in np.flatnonzero(ended):
            if final_observation[env_index] is not None:
                for part, final in zip(packed, self.pack(final_observation[env_index]), strict=True):
                    part[env_index] = final[0]
        return packed

    def unpack(self, packed: Packed) -> dict[str, np.ndarray]:
        """The arrays `[num_envs, *shape]` of packed observations, by leaf name, as clients send them."""
        return {
            leaf.name: packed[self.groups.index(leaf.group)][:, leaf.columns]
            .reshape(-1, *leaf.shape)
            .astype(leaf.dtype)
            for leaf in self.leaves
        }

    def to_env(self, action: np.ndarray) -> np.ndarray:
        """A copy of actions in the shape and dtype of the environment, inside its bounds to the last bit.

        Args:
            action: `[num_envs, act_dim]`, or as it leaves.

        Returns:
            `[num_envs, *act_shape]`.
        """
        space = self.action_space
        if len(self.act_shape) != 1:
            action = np.reshape(action, (len(action), *self.act_shape))
        if isinstance(space, spaces.Discrete):
            return action.astype(space.dtype)
        converted = np.maximum(action, space.low, dtype=space.dtype)
        return np.minimum(converted, space.high, out=converted)

    def to_user(self, action: np.ndarray) -> np.ndarray:
        """Actions, the first of `[num_envs, n]`, as people get them: `[num_envs, *act_shape]`; int64 if Discrete."""
        return self.shaped(action[:, : self.act_dim]) if self.actions is None else action[:, 0].astype(np.int64)

    def shaped(self, actions: np.ndarray) -> np.ndarray:
        """Actions `[..., act_dim]` as `[..., *act_shape]`; those of a Discrete space as they are."""
        return actions if len(self.act_shape) < 2 else actions.reshape(*actions.shape[:-1], *self.act_shape)

    def flat_actions(self, actions: Any) -> np.ndarray:
        """The inverse of `shaped`; flat actions, and arrays of other shapes, are left as they are."""
        actions = np.asarray(actions)
        shape = self.act_shape
        if len(shape) < 2 or actions.shape[-len(shape) :] != shape:
            return actions
        return actions.reshape(*actions.shape[: -len(shape)], self.act_dim)

    def to_json(self) -> dict[str, Any]:
        """The two spaces as plain JSON values."""
        return {
            "observation_space": space_to_json(self.observation_space),
            "action_space": space_to_json(self.action_space),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Spec":
        """The inverse of `to_json`."""
        return cls(
            space_from_json(values["observation_space"]),
            space_from_json(values["action_space"]),
        )

    def __repr__(self) -> str:
        return f"Spec({self.observation_space}, {self.action_space})"

    def _parts(self, observation: Any) -> list[Any]:
        """The arrays of an observation of a Dict space."""
        if not isinstance(observation, Mapping) or set(observation) != {leaf.name for leaf in self.leaves}:
            raise ValueError(
                f"`observation` must be a dict of arrays with the keys and shapes {self.shapes}, or a batch: such a "
                f"dict whose arrays have a leading batch dimension. Received: {_describe(observation)}"
            )
        return [observation[leaf.name] for leaf in self.leaves]


def _describe(observation: Any) -> str:
    """What was given in place of a dict of arrays, and how to make one of a list of observations."""
    if isinstance(observation, Mapping):
        return f"a dict with the keys {list(observation)}"
    if isinstance(observation, list | tuple) and observation and isinstance(observation[0], Mapping):
        return (
            f"a {type(observation).__name__} of {len(observation)} observations. Stack them: "
            "{key: np.stack([each[key] for each in observations]) for key in observations[0]}"
        )
    return type(observation).__name__


def _inner_action_scale(low: np.ndarray, high: np.ndarray, center: np.ndarray) -> np.ndarray:
    action_scale = (high - low) / 2
    while (outside := (center + action_scale > high) | (center - action_scale < low)).any():
        action_scale = np.where(outside, np.nextafter(action_scale, np.float32(0)), action_scale)
    return action_scale


def _as_rows(leaf: Leaf, part: np.ndarray) -> np.ndarray:
    shape = leaf.shape
    is_batch = part.shape[1:] == shape and part.ndim == len(shape) + 1
    if not is_batch and part.shape != shape:
        expected = f"{shape}, or {('batch', *shape)}".replace("'", "")
        raise ValueError(f"`{leaf.name}` of an observation must have shape {expected}. Received: shape={part.shape}")
    if part.dtype != leaf.group or leaf.dtype == "int32":
        _check_representable(leaf, part)
    return part.reshape(len(part) if is_batch else 1, -1)


def _check_representable(leaf: Leaf, part: np.ndarray) -> None:
    """Raises `ValueError` unless an array's numbers can be stored as what they are."""
    if part.dtype.kind not in "biuf":
        raise ValueError(f"`{leaf.name}` of an observation must be real numbers. Received: {part!r}")
    if leaf.integer_bounds is not None:
        low, high = leaf.integer_bounds
        is_representable = (part >= low) & (part <= high) & (part == np.floor(part))
        if not is_representable.all():
            received = repr(part)
            if part.ndim > len(leaf.shape):
                index = tuple(np.argwhere(~is_representable)[0].tolist())
                received = f"{part[index]} in row {index[0]}" + (f" at {list(index[1:])}" if index[1:] else "")
            raise ValueError(
                f"`{leaf.name}` of an observation must be whole numbers in {leaf.space}, from {_range(low, high)}. "
                f"Received: {received}"
            )


def _range(low: Any, high: Any) -> str:
    return f"{np.asarray(low).tolist()} to {np.asarray(high).tolist()}"


def _leaves(space: spaces.Space) -> tuple[Leaf, ...]:
    named = dict(space.spaces) if isinstance(space, spaces.Dict) else {"x": space}
    if isinstance(space, spaces.Dict):
        for key in named:
            if not key.isidentifier() or keyword.iskeyword(key) or key in ("a", "self"):
                raise ValueError(
                    f"The key {key!r} of the observation space cannot name an input of the exported model: "
                    "keys must be Python identifiers other than `self` and `a`, which is the action. "
                    "Rename it: gymnasium.wrappers.TransformObservation can."
                )
    used = {"float32": 0, "uint8": 0}
    leaves = []
    for name, part in named.items():
        if not isinstance(part, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete)):
            where = f"The observation space {part}" + (f" under the key {name!r}" if name != "x" else "")
            raise ValueError(f"{where} is not supported. {SUPPORTED}")
        if isinstance(part, spaces.Box):
            dtype = "uint8" if part.dtype == np.uint8 else "float32"
        else:
            dtype = "int32"
        group = "uint8" if dtype == "uint8" else "float32"
        size = int(np.prod(part.shape or (1,)))
        columns = slice(used[group], used[group] + size)
        leaves.append(Leaf(name, part, dtype, group, columns, tuple(part.shape or ()), integer_bounds_of(part)))
        used[group] += size
    if not leaves:
        raise ValueError(f"The observation space {space} is empty. {SUPPORTED}")
    return tuple(leaves)
