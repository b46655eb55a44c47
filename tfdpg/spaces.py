"""Which of Gymnasium's spaces can be served; and these as JSON, exact to the last bit of their bounds."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

SUPPORTED = (
    "Observations: Box of any shape, Discrete, MultiDiscrete, or a flat Dict of these. "
    "Actions: a float Box with finite bounds, low < high; for ACER also Discrete."
)

EXACT = 2**24
"""Whole numbers up to this one are exact in float32."""
RESOLUTION = 2**10
"""The float32 numbers that an action box must have from its middle to its border, at least."""


def check_action_space(space: spaces.Space) -> spaces.Box | spaces.Discrete:
    """Returns the space.

    Raises:
        ValueError: it is not supported; the message says what is.
    """
    if isinstance(space, spaces.Discrete):
        integer_bounds_of(space)
        return space
    if not isinstance(space, spaces.Box) or not space.shape or 0 in space.shape or space.dtype.kind != "f":
        raise ValueError(f"The action space {space} is not supported. {SUPPORTED}")
    if (space.high.astype(np.float64) - space.low > np.finfo(np.float32).max).any():
        raise ValueError(
            f"The action space {space} has infinite bounds, or is wider than float32 has numbers; noise and rescaling "
            "need finite ones. Give the environment a finite action space, with gymnasium.wrappers.TransformAction for "
            f"example. {SUPPORTED}"
        )
    if not (space.low < space.high).all():
        raise ValueError(f"The action space {space} has a dimension without width. {SUPPORTED}")
    if not _is_resolved(space.low.astype(np.float64), space.high.astype(np.float64)):
        raise ValueError(
            f"The action space {space} is too narrow, or too far from 0, for float32, which has fewer than "
            f"{2 * RESOLUTION} numbers in it. Give the environment other units, with gymnasium.wrappers.RescaleAction "
            "for example."
        )
    return space


def _is_resolved(low: np.ndarray, high: np.ndarray) -> bool:
    """Whether float32 can tell the actions of a box apart, and its fractions from 0."""
    info = np.finfo(np.float32)
    furthest = np.maximum(np.abs(low), np.abs(high))
    step = np.maximum(furthest * info.eps, info.tiny * EXACT / RESOLUTION)
    return bool(((high - low) / 2 >= RESOLUTION * step).all() and (furthest <= info.max / 2).all())


def integer_bounds_of(space: spaces.Space) -> tuple[Any, Any] | None:
    """The smallest and the largest number of a space of whole numbers; None for another.

    Raises:
        ValueError: it has numbers that float32 does not have.
    """
    match space:
        case spaces.Discrete():
            low = int(space.start)
            high = int(space.start + space.n - 1)
        case spaces.MultiDiscrete():
            low = space.start
            high = space.start + space.nvec - 1
        case spaces.Box() if space.dtype == np.uint8:
            low, high = 0, 255
        case _:
            return None
    if np.abs(np.array([low, high])).max() > EXACT:
        raise ValueError(
            f"The space {space} has numbers beyond ±{EXACT}, which float32 cannot tell apart. "
            "Count from 0, or have fewer."
        )
    return low, high


def action_bounds(space: spaces.Box | spaces.Discrete) -> tuple[np.ndarray, np.ndarray, int | None]:
    """The lower and upper bounds of actions, `[act_dim]`, and the number of actions of a Discrete space."""
    if isinstance(space, spaces.Box):
        return space.low.ravel(), space.high.ravel(), None
    return np.array([space.start]), np.array([space.start + space.n - 1]), int(space.n)


def space_to_json(space: spaces.Space) -> dict[str, Any]:
    """A Box, Discrete, MultiDiscrete or Dict space as plain JSON values."""
    match space:
        case spaces.Dict():
            return {"type": "Dict", "spaces": {key: space_to_json(part) for key, part in space.spaces.items()}}
        case spaces.Discrete():
            return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": space.dtype.name}
        case spaces.MultiDiscrete():
            ranges = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
            return {"type": "MultiDiscrete", **ranges, "dtype": space.dtype.name}
        case spaces.Box():
            bounds = {name: compact(getattr(space, name)) for name in ("low", "high")}
            return {"type": "Box", **bounds, "shape": list(space.shape), "dtype": space.dtype.name}
    raise ValueError(f"The space {space} is not supported.")


def compact(bound: np.ndarray) -> Any:
    """A bound as a list of numbers, or one number where all are equal; infinities as strings."""
    values = bound.ravel()
    if len(values) and (values == values[0]).all():
        values = values[:1]
    plain = [value if np.isfinite(value) else str(value) for value in values.tolist()]
    return plain[0] if len(plain) == 1 else plain


def space_from_json(values: Mapping[str, Any]) -> spaces.Space:
    """The inverse of `space_to_json`."""
    match values["type"]:
        case "Dict":
            # pairs, because a plain dict would be sorted
            return spaces.Dict([(key, space_from_json(part)) for key, part in values["spaces"].items()])
        case "Discrete":
            return spaces.Discrete(values["n"], start=values["start"], dtype=np.dtype(values["dtype"]).type)
        case "MultiDiscrete":
            dtype = np.dtype(values["dtype"]).type
            return spaces.MultiDiscrete(values["nvec"], start=values["start"], dtype=dtype)
        case "Box":
            shape = tuple(values["shape"])
            dtype = np.dtype(values["dtype"])
            exact = dtype if dtype.kind in "iub" else np.dtype(np.float64)
            low, high = (np.array(values[name], exact).astype(dtype) for name in ("low", "high"))
            low, high = (np.full(shape, bound) if bound.ndim == 0 else bound.reshape(shape) for bound in (low, high))
            return spaces.Box(low, high, shape, dtype.type)
    raise ValueError(f"Unknown type of space in the file: {values['type']!r}")
