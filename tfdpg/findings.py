"""Problems of environments and their remedies, found by `fit` and by `tfdpg.check`."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers import vector

from tfdpg.arguments import shown, warn
from tfdpg.spec import Packed, Spec

FAR = 1.0
"""`fit` warns about observations that are outside their bounds by more than this multiple of the bounds' width."""
ROUNDING = 1e-6
"""The relative error of a bound that rounding to float32 may cause."""


class Finding(NamedTuple):
    """A problem of an environment.

    Attributes:
        what: the problem, in one or two sentences.
        remedy: what to change.
    """

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what} {self.remedy}"


NORMALIZERS = (
    (
        (gym.wrappers.NormalizeObservation, vector.NormalizeObservation),
        "obs_rms",
        Finding(
            "NormalizeObservation keeps statistics of its own: those of two environments differ, and an export has "
            "none.",
            "Remove the wrapper, and give the agent `normalize_observations=True`.",
        ),
    ),
    (
        (gym.wrappers.NormalizeReward, vector.NormalizeReward),
        "return_rms",
        Finding(
            "NormalizeReward keeps statistics of its own: the scale of the rewards changes while they are stored, and "
            "returns are not those of the environment.",
            "Remove the wrapper, and scale rewards with the agent's `reward_shaper`, or with ACER's `reward_scale`.",
        ),
    ),
)
"""Wrappers that normalise, an attribute that only they have, and the finding."""


def early_end(rewards: Sequence[np.ndarray], terminated: Sequence[bool], limit: int | None) -> Finding | None:
    """Check whether rewards favour an early end: each step costs, and failing early costs less than going on.

    A terminal state is a failure if its reward is below the usual one; otherwise it may be a goal.

    Args:
        rewards: the rewards of each episode, `[steps]`.
        terminated: whether each of them ended in a terminal state.
        limit: the maximum number of steps of an episode; None is that of the longest one.
    """
    failed = [each for each, ends in zip(rewards, terminated, strict=True) if ends and len(each) > 1]
    if not failed:
        return None
    usual = np.concatenate([each[:-1] if ends else each for each, ends in zip(rewards, terminated, strict=True)])
    last = np.mean([each[-1] for each in failed])
    length = limit or max(map(len, rewards))
    whole = usual.mean() * length
    early = np.mean([each.sum() for each in failed])
    if np.quantile(usual, 0.95) > 0 or not last < usual.mean() < 0 or early <= whole:
        return None
    return Finding(
        f"An early end returns more than a whole episode. Each step has a negative reward, {usual.mean():.3g} on "
        f"average, so {length:,} steps return about {whole:.4g}. Episodes that terminate return {early:.4g}.",
        "Add a constant to the reward of each step, so that it is positive while all is well, or let the terminal "
        f"state cost more: at least {-whole:.4g}.",
    )


def malformed_reset(result: Any) -> Finding | None:
    """Check the structure of a return value of `reset`."""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        return None
    return Finding(f"`reset` returns {_structure(result)}, not (observation, info).", "Return `observation, {}`.")


def malformed_step(result: Any, strictly: bool = False) -> Finding | None:
    """Check the structure of a return value of `step`.

    Args:
        result: the return value.
        strictly: whether to reject what `fit` accepts although it is not Gymnasium's API: 0 and 1 in place of bools.
    """
    if not isinstance(result, tuple) or len(result) != 5:
        return Finding(
            f"`step` returns {_structure(result)}, not (observation, reward, terminated, truncated, info).",
            "Return `terminated` (the state is terminal) and `truncated` (a limit ended the episode) in place of "
            "`done`.",
        )
    _, reward, terminated, truncated, info = result
    is_number = isinstance(reward, int) or np.asarray(reward).dtype.kind in "biuf"  # NumPy has no integer for 2**70
    if np.size(reward) != 1 or not is_number:
        return Finding(f"`step` returns reward={shown(reward)}, which is not one number.", "Return a float.")
    for name, end in (("terminated", terminated), ("truncated", truncated)):
        kinds = "b" if strictly else "biu"
        if np.size(end) != 1 or np.asarray(end).dtype.kind not in kinds or np.asarray(end).item() not in (0, 1):
            return Finding(f"`step` returns {name}={shown(end)}, which is not a bool.", f"Return `bool({name})`.")
    if not isinstance(info, dict):
        return Finding(f"`step` returns info={shown(info)}, which is not a dict.", "Return `{}`.")
    return None


def _structure(result: Any) -> str:
    return f"{len(result)} values" if isinstance(result, tuple) else f"one {type(result).__name__}"


def outside(space: spaces.Box, values: Any, name: str, slack: float = 0.0) -> Finding | None:
    """Find the number that is furthest outside its bounds by more than rounding.

    Args:
        space: the bounds.
        values: an observation in this space, or a batch of them.
        name: the name of the observation in the finding.
        slack: how far outside the bounds a number may be, as a fraction of their width.
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
        "Correct the bounds of the observation space, or convert the observation to the units of its space. Networks "
        "learn best from numbers near ±1, which `normalize_observations=True` ensures.",
    )


def warn_of_observations(spec: Spec, packed: Packed) -> None:
    """Warn if an observation of a batch is far outside its space. There is at most one warning per batch."""
    arrays = spec.unpack(packed)
    for leaf in spec.leaves:
        if isinstance(leaf.space, spaces.Box) and (found := outside(leaf.space, arrays[leaf.name], leaf.name, FAR)):
            warn(str(found))
            return


def warn_of_normalizers(env: Any, argument: str) -> None:
    """Warn about the wrappers of an environment that normalise.

    Args:
        env: the environment.
        argument: the name of the argument that it was passed as.
    """
    for found in normalizers(env):
        warn(f"`{argument}`: {found}")


def normalizers(env: Any) -> list[Finding]:
    """Find the wrappers of an environment or of its first sub-environment that normalise with their own statistics."""
    wrappers = list(wrappers_of(env))
    base = wrappers[-1]
    return [
        finding
        for kinds, attribute, finding in NORMALIZERS
        if any(isinstance(wrapper, kinds) for wrapper in wrappers)
        or (isinstance(base, AsyncVectorEnv) and any(base.call("has_wrapper_attr", attribute)))
    ]


def step_limit(env: Any) -> int | None:
    """Return the number of steps after which an environment truncates episodes; None if it is not known."""
    limits = []
    for each in wrappers_of(env):
        limits.append(getattr(each.spec, "max_episode_steps", None))
        if isinstance(each, gym.wrappers.TimeLimit):
            limits.append(each._max_episode_steps)
    return min((limit for limit in limits if limit is not None), default=None)


def wrappers_of(env: Any) -> Iterator[Any]:
    """Yield an environment and what it wraps, including the first sub-environment of a `SyncVectorEnv`."""
    yield env
    if isinstance(env, gym.Wrapper | gym.vector.VectorWrapper):
        yield from wrappers_of(env.env)
    elif isinstance(env, SyncVectorEnv):
        yield from wrappers_of(env.envs[0])
