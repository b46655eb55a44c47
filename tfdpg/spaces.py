"""Checks that agents support a Gymnasium space, and an exact JSON form of the supported spaces."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

SUPPORTED = (
    "Observations: Box of any shape, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these, also nested. "
    "Actions: a Box with finite bounds, low < high, of floats or integers; for ACER also Discrete."
)

TYPES = "Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple"
"""The types of spaces that have a JSON form."""
EXACT = 2**24
"""Integers up to this one are exact in float32."""
RESOLUTION = 2**10
"""The minimum number of float32 numbers between the middle and a bound of an action space."""


def check_action_space(space: spaces.Space) -> spaces.Box | spaces.Discrete:
    """Return an action space if agents support it.

    Raises:
        ValueError: it is not supported. The message says which spaces are.
    """
    if isinstance(space, spaces.Discrete):
        integer_bounds_of(space)
        return space
    if not isinstance(space, spaces.Box) or 0 in space.shape or space.dtype.kind not in "fiu":
        raise ValueError(f"The action space {space} is not supported. {SUPPORTED}")
    if space.dtype.kind != "f":
        _check_exact(space, space.low, space.high)
    if (space.high.astype(np.float64) - space.low > np.finfo(np.float32).max).any():
        raise ValueError(
            f"The action space {space} has infinite bounds, or is wider than the range of float32; noise and rescaling "
            "require finite bounds. Give the environment a finite action space, for example with "
            f"gymnasium.wrappers.TransformAction. {SUPPORTED}"
        )
    if not (space.low < space.high).all():
        raise ValueError(f"The action space {space} has a dimension of width 0. {SUPPORTED}")
    # float32 must tell the actions apart, and fractions of the action scale from 0.
    info = np.finfo(np.float32)
    low = space.low.astype(np.float64)
    high = space.high.astype(np.float64)
    furthest = np.maximum(np.abs(low), np.abs(high))
    step = np.maximum(furthest * info.eps, info.tiny * EXACT / RESOLUTION)
    if ((high - low) / 2 < RESOLUTION * step).any() or (furthest > info.max / 2).any():
        raise ValueError(
            f"The action space {space} is too narrow, or too far from 0, for float32, which has fewer than "
            f"{2 * RESOLUTION} numbers in it. Give the environment other units, for example with "
            "gymnasium.wrappers.RescaleAction."
        )
    return space


def integer_bounds_of(space: spaces.Space) -> tuple[Any, Any] | None:
    """Return the smallest and the largest number of a space of integers, or None for other spaces.

    Raises:
        ValueError: float32 cannot represent some of its numbers.
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
    _check_exact(space, low, high)
    return low, high


def _check_exact(space: spaces.Space, low: Any, high: Any) -> None:
    """Raise `ValueError` if float32 cannot represent all integers from `low` to `high`."""
    if np.abs(np.array([low, high], np.float64)).max() > EXACT:
        raise ValueError(
            f"The space {space} has numbers beyond ±{EXACT}, which float32 cannot tell apart. "
            "Start at 0, or use fewer numbers."
        )


def action_bounds(space: spaces.Box | spaces.Discrete) -> tuple[np.ndarray, np.ndarray, int | None]:
    """Return the lower and upper bounds of actions, `[act_dim]`, and the number of actions of a Discrete space."""
    if isinstance(space, spaces.Box):
        return space.low.ravel(), space.high.ravel(), None
    return np.array([space.start]), np.array([space.start + space.n - 1]), int(space.n)


def space_to_json(space: spaces.Space) -> dict[str, Any]:
    """Return a space that observations or actions may have as plain JSON values."""
    match space:
        case spaces.Dict():
            return {"type": "Dict", "spaces": {key: space_to_json(part) for key, part in space.spaces.items()}}
        case spaces.Tuple():
            return {"type": "Tuple", "spaces": [space_to_json(part) for part in space.spaces]}
        case spaces.MultiBinary():
            return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.n)}
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
    """Return a bound as a list of numbers, or as one number if all are equal. Infinities become strings."""
    values = bound.ravel()
    if len(values) and (values == values[0]).all():
        values = values[:1]
    plain = [value if np.isfinite(value) else str(value) for value in values.tolist()]
    return plain[0] if len(plain) == 1 else plain


def space_from_json(values: Mapping[str, Any]) -> spaces.Space:
    """Restore a space from the values of `space_to_json`."""
    match values["type"]:
        case "Dict":
            # pairs, because Dict sorts the keys of a plain dict
            return spaces.Dict([(key, space_from_json(part)) for key, part in values["spaces"].items()])
        case "Tuple":
            return spaces.Tuple([space_from_json(part) for part in values["spaces"]])
        case "MultiBinary":
            return spaces.MultiBinary(values["n"])
        case "Discrete":
            return spaces.Discrete(values["n"], start=values["start"], dtype=np.dtype(values["dtype"]).type)
        case "MultiDiscrete":
            return spaces.MultiDiscrete(values["nvec"], start=values["start"], dtype=np.dtype(values["dtype"]).type)
        case "Box":
            shape = tuple(values["shape"])
            dtype = np.dtype(values["dtype"])
            exact = dtype if dtype.kind in "iub" else np.dtype(np.float64)
            low, high = (np.array(values[name], exact).astype(dtype) for name in ("low", "high"))
            low, high = (np.full(shape, bound) if bound.ndim == 0 else bound.reshape(shape) for bound in (low, high))
            return spaces.Box(low, high, shape, dtype.type)
    raise ValueError(f"The type of a space must be one of {', '.join(TYPES)}. Received: {values['type']!r}")
