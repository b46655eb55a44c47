"""The spaces of an environment, and the layout of observations inside the library.

Inside the library, a batch of observations is *packed*: one float32 matrix `[num_envs, width]` for all real and
discrete arrays, and one uint8 matrix for all images. It is stored with one copy and sent to the device in one
transfer. `Spec` packs, and networks unpack.
"""

import dataclasses
import keyword
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tfdpg.arguments import reject, shown
from tfdpg.environments import opened
from tfdpg.spaces import SUPPORTED, action_bounds, check_action_space, integer_bounds_of, space_from_json, space_to_json

Packed = tuple[np.ndarray, ...]
"""One matrix `[num_envs, width]` for each group of `Spec.groups`."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array of an observation.

    Attributes:
        name: the name of the exported input: `x`, or the key of a Dict space. The keys and indices of nested spaces are
            joined by two underscores, as in `arm__joints`. The items of a Tuple are `x__0`, `x__1`, ...
        path: these keys and indices; () for an observation that is one array.
        dtype: the type that networks and clients see: "float32", "uint8" or "int32".
        group: the packed matrix that holds the array: "float32" or "uint8".
        columns: the columns of the array in that matrix.
        shape: the shape of the array in one observation; `()` for a Discrete space.
        integer_bounds: the smallest and the largest integer that it may hold; None if it is not limited to integers.
    """

    name: str
    path: tuple[Any, ...]
    space: spaces.Space
    dtype: str
    group: str
    columns: slice
    shape: tuple[int, ...]
    integer_bounds: tuple[Any, Any] | None


class Spec:
    """The spaces of an environment, if agents support them.

    Args:
        observation_space: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these, which may be nested.
        action_space: a Box of floats or integers with finite bounds, or Discrete.
        observation_names: a name for each number of an observation that is not an image, in the order of the leaves;
            None numbers them, such as `x[4]`.
        missing: what happens to numbers of an observation that are NaN or infinite: "error" refuses them, and with
            "hold" the policy replaces each by its last value.

    Attributes:
        observation_names: see above.
        missing: see above.
        leaves: the arrays of an observation.
        is_dict: whether networks receive a dict of these arrays by name, for a Dict or Tuple space, and not one array.
        shapes: the shapes of these arrays, by name.
        groups: the packed matrices of an observation, "float32" and "uint8" as required.
        widths: the widths of these matrices.
        act_shape: the shape of an action in the environment.
        act_dim: the number of components of an action. Inside the library, actions are flat.
        actions: the number of actions of a Discrete space, whose `act_dim` is 1; None for a Box.
        low: the lower bounds of the actions, in the environment's units, float32 `[act_dim]`.
        high: the upper bounds, float32 `[act_dim]`.
        center: the middle of the bounds, float32 `[act_dim]`.
        action_scale: half the distance of the bounds, float32 `[act_dim]`, rounded so that `center ± action_scale` is
            inside the bounds.
        integer_type: the type of the actions that a policy returns for a Box of integers: that of the space, or a wider
            one if `no_action` needs it. None for other spaces.
        no_action: the action that a policy returns for an observation that is not finite: NaN in each component of an
            action of floats; for integers, the lowest bound minus 1, which is not in the action space.

    Raises:
        ValueError: a space is not supported, or `observation_names` are not as many different names as there are
            numbers.

    Example:
        ```python
        spec = Spec(env.observation_space, env.action_space)
        agent = tfdpg.TD3(spec)
        ```
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        *,
        observation_names: Sequence[str] | None = None,
        missing: Literal["error", "hold"] = "error",
    ):
        self.observation_space = observation_space
        self.action_space = check_action_space(action_space)
        self.is_dict = _children(observation_space) is not None
        self.leaves = _leaves(observation_space)
        self.shapes = {leaf.name: leaf.shape for leaf in self.leaves}
        widths = {leaf.group: leaf.columns.stop for leaf in self.leaves}
        self.groups = tuple(sorted(widths))
        self.widths = tuple(widths[group] for group in self.groups)
        low, high, self.actions = action_bounds(self.action_space)
        self.low = low.astype(np.float32)
        self.high = high.astype(np.float32)
        self.act_shape = tuple(action_space.shape or ())
        self.act_dim = len(self.low)
        self.center = (self.high + self.low) / 2
        self.action_scale = _inner_action_scale(self.low, self.high, self.center)
        is_integer = action_space.dtype is not None and action_space.dtype.kind in "iu"
        self.no_action = int(self.low.min()) - 1 if is_integer else float("nan")
        self.integer_type = _integer_type(self.action_space, self.no_action) if self.actions is None else None
        self.observation_names = _checked_names(observation_names, widths.get("float32", 0))
        self.missing: Literal["error", "hold"] = missing

    @classmethod
    def of(cls, env: Any) -> "Spec":
        """Return the spec of an environment.

        Args:
            env: an environment, a vector environment, whose single spaces are used, or the id of an environment. A
                `Spec` is returned unchanged.

        Raises:
            ValueError: `env` is something else, or a space is not supported.
        """
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
            raise ValueError(f"`env` must be an environment, not its class. Received: env={env!r}. Call it: env()")
        raise ValueError(
            "`env` must be a gymnasium.Env, a gymnasium.vector.VectorEnv, the id of an environment or a tfdpg.Spec. "
            f"Received: env={shown(env)}. "
            "To train on stored transitions, call agent.fit_offline(data)."
        )

    def replaced(
        self, observation_names: Sequence[str] | None, missing: Literal["error", "hold"] | None = None
    ) -> "Spec":
        """Return a spec with other names or another treatment of missing numbers; None keeps what is."""
        if observation_names is None and missing in (None, self.missing):
            return self
        names = self.observation_names if observation_names is None else observation_names
        return Spec(self.observation_space, self.action_space, observation_names=names, missing=missing or self.missing)

    def entry_name(self, column: int) -> str:
        """Return the name of a column of the packed float32 matrix, such as `x[4]`, or the user's name for it."""
        if self.observation_names is not None:
            return self.observation_names[column]
        leaf = next(leaf for leaf in self.leaves if leaf.group == "float32" and column < leaf.columns.stop)
        index = map(int, np.unravel_index(column - leaf.columns.start, leaf.shape)) if leaf.shape else ()
        return f"{leaf.name}{list(index) or ''}"

    @property
    def has_goals(self) -> bool:
        """Whether observations have an achieved and a desired goal, as those of gymnasium-robotics."""
        return {"achieved_goal", "desired_goal"} <= self.shapes.keys()

    def check(self, env: Any, what: str = "env") -> None:
        """Raise `ValueError` if the spaces of an environment differ from these.

        Args:
            env: an environment, a vector environment, an id or a `Spec`.
            what: the name of the argument in the message.
        """
        other = Spec.of(env)
        for kind in ("observation_space", "action_space"):
            if getattr(other, kind) != getattr(self, kind):
                raise ValueError(
                    f"The {kind} of `{what}` must be the agent's, {getattr(self, kind)}. "
                    f"Received: {getattr(other, kind)}"
                )

    def is_single(self, observation: Any) -> bool:
        """Return True for one observation and False for a batch of observations.

        Args:
            observation: an element of the observation space, or a batch, whose arrays have one more leading dimension.
        """
        return self._arrays(observation)[self.leaves[0].name].ndim == len(self.leaves[0].shape)

    def pack(self, observation: Any) -> Packed:
        """Pack one observation or a batch of observations.

        Args:
            observation: an element of the observation space, or a batch (each array has one more leading dimension).

        Returns:
            One matrix `[num_envs, width]` for each group of `groups`; for a single observation, `num_envs` is 1.

        Raises:
            ValueError: wrong keys or shapes; values that are not real numbers; or, for spaces of integers (Discrete,
                MultiDiscrete, a uint8 Box), numbers outside the space. Other numbers are converted to float32.
        """
        arrays, leading = self.arrays(observation, (), ("batch",))
        parts = {}
        for leaf in self.leaves:
            array = arrays[leaf.name]
            if array.dtype != leaf.group or leaf.dtype == "int32":
                check_representable(leaf, array)
            parts[leaf.name] = array.reshape(len(array) if leading else 1, leaf.columns.stop - leaf.columns.start)
        if not self.is_dict:
            return (np.ascontiguousarray(parts["x"], self.groups[0]),)
        packed = []
        for group in self.groups:
            members = [parts[leaf.name].astype(group, copy=False) for leaf in self.leaves if leaf.group == group]
            packed.append(np.concatenate(members, axis=1))
        return tuple(packed)

    def pack_steps(self, observation: Any) -> tuple[Packed, tuple[int, ...]]:
        """Pack a sequence of observations, `[time, ...]`, or a batch of sequences, `[batch, time, ...]`.

        Returns:
            The rows as `pack` returns them, and (time,) or (batch, time).

        Raises:
            ValueError: there are no steps, or the shapes are wrong, or `pack` rejects the observations.
        """
        arrays, leading = self.arrays(observation, ("time",), ("batch", "time"))
        if 0 in leading:
            raise ValueError(f"A sequence of observations must have steps. Received: {leading} observations")
        rows = {leaf.name: arrays[leaf.name].reshape(-1, *leaf.shape) for leaf in self.leaves}
        return self.pack(rows if self.is_dict else rows["x"]), leading

    def pack_final(self, packed: Packed, final_observation: Any, ended: np.ndarray) -> Packed:
        """Replace the packed observations of the sub-environments whose episode ended with their final observations.

        Args:
            packed: the next observations of all sub-environments, packed.
            final_observation: one observation, a batch, or an array of objects with an observation for each
                sub-environment that ended and None elsewhere (`info["final_obs"]` in Gymnasium's SAME_STEP mode).
            ended: `[num_envs]`, bool.
        """
        if not (isinstance(final_observation, np.ndarray) and final_observation.dtype == object):
            final = self.pack(final_observation)
            return tuple(np.where(ended[:, None], b, a) for a, b in zip(packed, final, strict=True))
        packed = tuple(part.copy() for part in packed)
        for env_index in np.flatnonzero(ended):
            if final_observation[env_index] is not None:
                for part, final in zip(packed, self.pack(final_observation[env_index]), strict=True):
                    part[env_index] = final[0]
        return packed

    def unpack(self, packed: Packed) -> dict[str, np.ndarray]:
        """Return the arrays `[num_envs, *shape]` of packed observations by leaf name, as clients send them."""
        return {
            leaf.name: packed[self.groups.index(leaf.group)][:, leaf.columns]
            .reshape(-1, *leaf.shape)
            .astype(leaf.dtype)
            for leaf in self.leaves
        }

    def to_env(self, action: np.ndarray) -> np.ndarray:
        """Return a copy of actions in the shape and dtype of the environment, clipped to its exact bounds.

        For a Box of integers, actions are rounded.

        Args:
            action: actions in the environment's units, `[num_envs, act_dim]` or `[num_envs, *act_shape]`.

        Returns:
            `[num_envs, *act_shape]`.

        Raises:
            FloatingPointError: an action for a Box of integers is not finite, or `no_action` stands for one.
        """
        space = self.action_space
        if len(self.act_shape) != 1:
            action = np.reshape(action, (len(action), *self.act_shape))
        if isinstance(space, spaces.Discrete):
            return action.astype(space.dtype)
        if self.integer_type is not None:
            if not np.isfinite(action).all() or (action == self.no_action).any():
                raise FloatingPointError(
                    f"The policy's action is not finite, or {self.no_action}, which stands for it: action={action}"
                )
            return np.clip(np.rint(action), space.low, space.high).astype(space.dtype)
        converted = np.maximum(action, space.low, dtype=space.dtype)
        return np.minimum(converted, space.high, out=converted)

    def to_user(self, action: np.ndarray) -> np.ndarray:
        """Return the actions in the first columns of `[num_envs, n]` as `[num_envs, *act_shape]`; see `shaped`."""
        return self.shaped(action[:, : self.act_dim]) if self.actions is None else action[:, 0].astype(np.int64)

    def shaped(self, actions: np.ndarray) -> np.ndarray:
        """Reshape actions `[..., act_dim]` to `[..., *act_shape]`; Discrete actions are returned unchanged.

        Those of a Box of integers are rounded, in `integer_type`, and `no_action` where they are not finite.
        """
        if self.integer_type is not None:
            finite = np.isfinite(actions)
            actions = np.where(finite, np.rint(actions), self.no_action).astype(self.integer_type)
        if self.actions is not None or len(self.act_shape) == 1:
            return actions
        return actions.reshape((*actions.shape[:-1], *self.act_shape))

    def first(self, actions: np.ndarray) -> Any:
        """Return the first of actions `[num_envs, *act_shape]`: an array, or for a Discrete space a number."""
        return actions[0] if self.actions is not None else actions[0, ...]

    def rounded(self, actions: np.ndarray) -> np.ndarray:
        """Round actions `[..., act_dim]` of a Box of integers, and clip them to it; others are returned unchanged."""
        return actions if self.integer_type is None else np.clip(np.rint(actions), self.low, self.high)

    @property
    def random_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The bounds, `[act_dim]`, between which a uniform number gives each action the same chance when rounded."""
        margin = np.float32(0 if self.integer_type is None else 0.5)
        return self.low - margin, self.high + margin

    def flat_actions(self, actions: Any) -> np.ndarray:
        """Reverse `shaped`. Flat actions and arrays of other shapes are returned unchanged."""
        actions = np.asarray(actions)
        shape = self.act_shape
        if len(shape) < 2 or actions.shape[-len(shape) :] != shape:
            return actions
        return actions.reshape(*actions.shape[: -len(shape)], self.act_dim)

    def to_json(self) -> dict[str, Any]:
        """Return the spec as plain JSON values: `observation_space`, `action_space`, and what differs from defaults."""
        names = {} if self.observation_names is None else {"observation_names": list(self.observation_names)}
        missing = {} if self.missing == "error" else {"missing": self.missing}
        return {
            "observation_space": space_to_json(self.observation_space),
            "action_space": space_to_json(self.action_space),
            **names,
            **missing,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Spec":
        """Restore a spec from the values of `to_json`.

        Args:
            values: a dict with the keys `observation_space` and `action_space`, and perhaps `observation_names` and
                `missing`.

        Raises:
            ValueError: `missing` is something else than "error" or "hold".
        """
        missing = values.get("missing", "error")
        if missing not in ("error", "hold"):
            raise reject("missing", '"error" or "hold"', missing)
        return cls(
            space_from_json(values["observation_space"]),
            space_from_json(values["action_space"]),
            observation_names=values.get("observation_names"),
            missing=missing,
        )

    def __repr__(self) -> str:
        return f"Spec({self.observation_space}, {self.action_space})"

    def arrays(self, observation: Any, *dimensions: tuple[str, ...]) -> tuple[dict[str, np.ndarray], tuple[int, ...]]:
        """Return the arrays of an observation by name, and their leading shape.

        Args:
            observation: an observation, or a batch or sequence of observations.
            *dimensions: the names of the allowed leading dimensions: () for an observation, ("batch",) for a batch.

        Raises:
            ValueError: wrong keys or shapes.
        """
        arrays = self._arrays(observation)
        first = self.leaves[0]
        shape = arrays[first.name].shape
        leading = shape[: len(shape) - len(first.shape)]
        is_allowed = len(leading) in map(len, dimensions)
        for name, shape in self.shapes.items():
            if not is_allowed or arrays[name].shape != leading + shape:
                expected = ", or ".join(str((*names, *shape)) for names in dimensions).replace("'", "")
                raise ValueError(
                    f"`{name}` of an observation must have shape {expected}. Received: shape={arrays[name].shape}"
                )
        return arrays, leading

    def by_name(self, observation: Any) -> Mapping[str, Any]:
        """Return the parts of an observation by leaf name.

        Args:
            observation: the observation, or a batch or sequence of observations, in the structure of the observation
                space, or as a dict by leaf name.

        Raises:
            ValueError: the structure is another.
        """
        if not self.is_dict:
            return {"x": observation}
        if isinstance(observation, Mapping) and set(observation) == self.shapes.keys():
            return observation
        try:
            return dict(zip(self.shapes, _values(self.observation_space, observation), strict=True))
        except LookupError:
            raise ValueError(
                f"`observation` must be {'' if self._is_flat else 'nested as the observation space, or '}a dict of "
                f"arrays with the keys and shapes {self.shapes}, or a batch: such a dict whose arrays have a leading "
                f"batch dimension. Received: {_describe(observation)}"
            ) from None

    def nested(self, parts: Mapping[str, Any]) -> Any:
        """Return the parts of an observation, given by leaf name, in the structure of the observation space."""
        return _nested(self.observation_space, iter([parts[name] for name in self.shapes]))

    @property
    def _is_flat(self) -> bool:
        return all(leaf.path == (leaf.name,) for leaf in self.leaves)

    def _arrays(self, observation: Any) -> dict[str, np.ndarray]:
        if not self.is_dict:  # the frequent case, in a third of the time
            return {"x": np.asarray(observation)}
        parts = self.by_name(observation)
        return {name: np.asarray(parts[name]) for name in self.shapes}


def _checked_names(names: Sequence[str] | None, count: int) -> tuple[str, ...] | None:
    """Return the names of the numbers of an observation, which must be different and not empty."""
    if names is None:
        return None
    is_valid = not isinstance(names, str) and isinstance(names, Sequence) and all(isinstance(n, str) for n in names)
    if not is_valid or len(names) != count or len(set(names)) != count or not all(n.strip() for n in names):
        raise reject("observation_names", f"{count} different names, one for each number of an observation", names)
    return tuple(names)


def _describe(observation: Any) -> str:
    """Describe what was passed in place of a dict of arrays, and how to convert a list of observations to one."""
    if isinstance(observation, Mapping):
        return f"a dict with the keys {shown(list(observation))}"
    if isinstance(observation, list | tuple) and observation and isinstance(observation[0], Mapping):
        return (
            f"a {type(observation).__name__} of {len(observation)} observations. Stack them: "
            "{key: np.stack([each[key] for each in observations]) for key in observations[0]}"
        )
    return type(observation).__name__


def _integer_type(space: spaces.Space, no_action: float) -> np.dtype | None:
    """Return the smallest type of integers that holds the actions of a Box of integers and `no_action`, or None."""
    if space.dtype is None or space.dtype.kind not in "iu":
        return None
    common = np.result_type(space.dtype, np.min_scalar_type(int(no_action)))
    return common if common.kind in "iu" else np.dtype(np.int64)


def _inner_action_scale(low: np.ndarray, high: np.ndarray, center: np.ndarray) -> np.ndarray:
    action_scale = (high - low) / 2
    while (outside := (center + action_scale > high) | (center - action_scale < low)).any():
        action_scale = np.where(outside, np.nextafter(action_scale, np.float32(0)), action_scale)
    return action_scale


def check_representable(leaf: Leaf, part: np.ndarray) -> None:
    """Raise `ValueError` unless packing an array keeps its values."""
    if part.dtype.kind not in "biuf":
        raise ValueError(f"`{leaf.name}` of an observation must be real numbers. Received: {shown(part)}")
    if leaf.integer_bounds is not None:
        low, high = map(np.asarray, leaf.integer_bounds)
        is_representable = (part >= low) & (part <= high) & (part == np.floor(part))
        if not is_representable.all():
            received = shown(part)
            if part.ndim > len(leaf.shape):
                index = tuple(np.argwhere(~is_representable)[0].tolist())
                received = f"{part[index]} in row {index[0]}" + (f" at {list(index[1:])}" if index[1:] else "")
            raise ValueError(
                f"`{leaf.name}` of an observation must be integers in {leaf.space}, from {shown(low.tolist())} to "
                f"{shown(high.tolist())}. Received: {received}"
            )


def _children(space: spaces.Space) -> dict[Any, spaces.Space] | None:
    """Return the parts of a Dict or Tuple space by key or index, and None for other spaces."""
    if isinstance(space, spaces.Dict):
        return dict(space.spaces)
    return dict(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else None


def nested_spaces(
    space: spaces.Space, path: tuple[Any, ...] = (), checks_keys: bool = True
) -> Iterator[tuple[tuple[Any, ...], spaces.Space]]:
    """Yield the spaces of the arrays in an observation, with the keys and indices that lead to them.

    Raises:
        ValueError: a key of a Dict space is not an identifier, and `checks_keys` is True.
    """
    children = _children(space)
    if children is None:
        yield path, space
        return
    for key, part in children.items():
        if checks_keys and isinstance(space, spaces.Dict) and not (isinstance(key, str) and key.isidentifier()):
            raise _refused_key(key)
        yield from nested_spaces(part, (*path, key), checks_keys)


def _values(space: spaces.Space, observation: Any) -> Iterator[Any]:
    """Yield the values of an observation in the order of `nested_spaces`.

    Raises:
        LookupError: it has another structure.
    """
    children = _children(space)
    if children is None:
        yield observation
        return
    kind = Mapping if isinstance(space, spaces.Dict) else tuple  # a list may be a list of observations
    if not isinstance(observation, kind) or len(observation) != len(children):
        raise LookupError
    for key, child in children.items():
        yield from _values(child, observation[key])


def _nested(space: spaces.Space, values: Iterator[Any]) -> Any:
    """Reverse `_values`."""
    children = _children(space)
    if children is None:
        return next(values)
    arranged = {key: _nested(child, values) for key, child in children.items()}
    return arranged if isinstance(space, spaces.Dict) else tuple(arranged.values())


def _name(path: tuple[Any, ...]) -> str:
    """Return the name of an array in an observation.

    Raises:
        ValueError: it cannot name an input of an exported model.
    """
    name = "__".join(map(str, path if path and isinstance(path[0], str) else ("x", *path)))
    if keyword.iskeyword(name) or name in ("a", "self"):
        raise _refused_key(name)
    return name


def _refused_key(key: Any) -> ValueError:
    return ValueError(
        f"The key {key!r} of the observation space cannot name an input of the exported model: "
        "keys must be Python identifiers other than `self` and `a`, which is the action. "
        "Rename it, for example with gymnasium.wrappers.TransformObservation."
    )


def _leaves(space: spaces.Space) -> tuple[Leaf, ...]:
    used = {"float32": 0, "uint8": 0}
    leaves: list[Leaf] = []
    for path, part in nested_spaces(space):
        name = _name(path)
        where = "/".join(map(str, path))
        if same := [leaf for leaf in leaves if leaf.name == name]:
            raise ValueError(
                f"The keys {'/'.join(map(str, same[0].path))!r} and {where!r} of the observation space give the same "
                f"name, {name!r}, to two inputs of the exported model. Rename one, for example with "
                "gymnasium.wrappers.TransformObservation."
            )
        if isinstance(part, spaces.MultiBinary):
            part = spaces.Box(0, 1, part.shape, np.int8)
        if not isinstance(part, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete)):
            under = f" under the key {where!r}" if path else ""
            raise ValueError(f"The observation space {part}{under} is not supported. {SUPPORTED}")
        group = "uint8" if isinstance(part, spaces.Box) and part.dtype == np.uint8 else "float32"
        dtype = group if isinstance(part, spaces.Box) else "int32"
        shape = tuple(part.shape or ())
        start = used[group]
        used[group] += math.prod(shape)
        columns = slice(start, used[group])
        leaves.append(Leaf(name, path, part, dtype, group, columns, shape, integer_bounds_of(part)))
    if not leaves:
        raise ValueError(f"The observation space {space} is empty. {SUPPORTED}")
    return tuple(leaves)
