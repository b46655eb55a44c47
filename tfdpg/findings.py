"""What can be wrong with an environment, and what to change: `fit` and `tfdpg.check` look for it with these."""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers import vector

from tfdpg.arguments import warn
from tfdpg.spec import Packed, Spec

FAR = 1.0
"""The widths of its space that an observation must be outside for `fit` to warn."""
ROUNDING = 1e-6
"""What float32 may add to a bound, as a fraction of it."""


class Finding(NamedTuple):
    """Something wrong with an environment.

    Attributes:
        what: what is wrong, a sentence or two.
        remedy: what to change.
    """

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what} {self.remedy}"


def malformed_reset(result: Any) -> Finding | None:
    """What is wrong with the form of what `reset` returned."""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        return None
    return Finding(f"`reset` returns {_form(result)}, not (observation, info).", "Return `observation, {}`.")


def malformed_step(result: Any, strictly: bool = False) -> Finding | None:
    """What is wrong with the form of what `step` returned; strictly also what can be read, as ends that are 0 and 1."""
    if not isinstance(result, tuple) or len(result) != 5:
        return Finding(
            f"`step` returns {_form(result)}, not (observation, reward, terminated, truncated, info).",
            "Give `terminated` (the state is terminal) and `truncated` (a limit cut the episode) in place of `done`.",
        )
    is_number = (
        isinstance(result[1], int) or np.asarray(result[1]).dtype.kind in "biuf"
    )  # `2**70` is no integer of NumPy
    if np.size(result[1]) != 1 or not is_number:
        return Finding(f"`step` gives reward={result[1]!r}, which is not one number.", "Give a float.")
    for name, end in zip(("terminated", "truncated"), result[2:4], strict=True):
        kinds = "b" if strictly else "biu"
        if np.size(end) != 1 or np.asarray(end).dtype.kind not in kinds or np.asarray(end).item() not in (0, 1):
            return Finding(f"`step` gives {name}={end!r}, which is no bool.", f"Give `bool({name})`.")
    if not isinstance(result[4], dict):
        return Finding(f"`step` gives info={result[4]!r}, which is no dict.", "Give `{}`.")
    return None


def malformed(env: Any, env_index: int = 0) -> Finding | None:
    """Why the first reset or step of an environment failed, if it is for the forms of these, as old Gym had them.

    They are called without the wrappers, which fail before the forms can be seen; of a vector environment they are
    those of a lane, made anew, since the lanes are out of reach.
    """
    base = env.unwrapped
    if isinstance(base, SyncVectorEnv | AsyncVectorEnv):
        base = base.env_fns[env_index]().unwrapped
    parameters = inspect.signature(base.reset).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        for name in ("seed", "options"):
            if name not in parameters:
                return Finding(
                    f"`reset` takes no `{name}`.",
                    "Let it be `def reset(self, *, seed=None, options=None)`, and begin with "
                    "`super().reset(seed=seed)`.",
                )
    with contextlib.suppress(Exception):  # what fails for another reason is told by the error that there is
        return malformed_reset(base.reset(seed=0)) or malformed_step(base.step(base.action_space.sample()))
    return None


def _form(result: Any) -> str:
    return f"{len(result)} values" if isinstance(result, tuple) else f"one {type(result).__name__}"


def outside(space: spaces.Box, values: Any, name: str, slack: float = 0.0) -> Finding | None:
    """The number that is furthest outside its bounds, if one is by more than rounding.

    Args:
        space: the bounds.
        values: an observation of it, or a batch.
        name: what it is called.
        slack: how far outside is no matter, as a fraction of the width of the bounds.
    """
    if space.dtype == np.uint8 or not np.size(values):
        return None
    values, low, high = (np.asarray(numbers, np.float64) for numbers in (values, space.low, space.high))
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.maximum(*(np.where(np.isfinite(bound), np.abs(bound), 0) for bound in (low, high)))
        width = np.where(np.isfinite(high - low), high - low, 1 + size)
        beyond = np.maximum(values - high, low - values) - ROUNDING * (width + size) - slack * width
    if not (beyond > 0).any():
        return None
    worst = np.unravel_index(np.nanargmax(beyond), beyond.shape)
    entry = worst[beyond.ndim - len(space.shape) :]
    where = f"{name}{list(map(int, entry))}" if entry else name
    return Finding(
        f"An observation has {where} = {values[worst]:.6g}, outside its space's [{low[entry]:.6g}, {high[entry]:.6g}].",
        "Give the observation space the bounds that hold, or the observation the units of its space; networks learn "
        "best from numbers near ±1, and `normalize_observations=True` makes them so.",
    )


def warn_of_observations(spec: Spec, packed: Packed) -> None:
    """Warns once if some of these observations are far outside their space."""
    arrays = spec.unpack(packed)
    boxes = [(leaf.space, leaf.name) for leaf in spec.leaves if isinstance(leaf.space, spaces.Box)]
    found = next(filter(None, (outside(space, arrays[name], name, FAR) for space, name in boxes)), None)
    if found:
        warn(str(found))


def warn_of_normalizers(env: Any, argument: str) -> None:
    """Warns if wrappers of an environment normalise with statistics of their own."""
    for found in normalizers(env):
        warn(f"`{argument}`: {found}")


def normalizers(env: Any) -> Iterator[Finding]:
    """The wrappers, anywhere on an environment, that normalise with statistics of their own."""
    wrappers = list(wrappers_of(env))
    async_env = wrappers[-1] if isinstance(wrappers[-1], AsyncVectorEnv) else None
    if any(isinstance(each, gym.wrappers.NormalizeObservation | vector.NormalizeObservation) for each in wrappers) or (
        async_env and any(async_env.call("has_wrapper_attr", "obs_rms"))
    ):
        yield Finding(
            "NormalizeObservation keeps statistics of its own: two environments drift apart, and an export has none.",
            "Take the wrapper away, and give the agent `normalize_observations=True`.",
        )
    if any(isinstance(each, gym.wrappers.NormalizeReward | vector.NormalizeReward) for each in wrappers) or (
        async_env and any(async_env.call("has_wrapper_attr", "return_rms"))
    ):
        yield Finding(
            "NormalizeReward keeps statistics of its own: rewards change their scale while they are stored, and "
            "returns are not the environment's.",
            "Take the wrapper away, and scale rewards by the agent's `reward_shaper`, or ACER's `reward_scale`.",
        )


def wrappers_of(env: Any) -> Iterator[Any]:
    """An environment's wrappers and what they wrap; of a `SyncVectorEnv` those of its first lane too."""
    yield env
    if isinstance(env, gym.Wrapper | gym.vector.VectorWrapper):
        yield from wrappers_of(env.env)
    elif isinstance(env, SyncVectorEnv):
        yield from wrappers_of(env.envs[0])
