"""Reading of the return values of `reset` and `step`, with errors that say what Gymnasium's API expects."""

import os
import re
import traceback
from typing import Any

import gymnasium as gym
import numpy as np

from tfdpg.arguments import shown
from tfdpg.compat.gymnasium import is_from_worker, partial_results
from tfdpg.findings import malformed_step
from tfdpg.spec import Spec

NUMBER_TYPES = frozenset({float, int, np.float64, np.float32})
BOOL_TYPES = frozenset({bool, np.bool_})
"""The types that `parse_step` accepts without further checks."""

API = (
    "Gymnasium's `reset` takes a seed and options, and returns (observation, info); its `step` returns (observation, "
    "reward, terminated, truncated, info): an observation of the space, a float, two bools and a dict. "
    "`tfdpg check` says what to change."
)
PARSE_ERRORS = ValueError, TypeError, AttributeError, AssertionError
"""The errors that Gymnasium raises for return values of another structure."""
GYMNASIUM, NUMPY, PACKAGE = (os.path.dirname(file or "") + os.sep for file in (gym.__file__, np.__file__, __file__))
"""The directories of the code that reads return values."""
WORKER_ERROR = re.compile(
    "unpack|broadcast input array|inhomogeneous shape|truth value of an array|string to float|reset.. got an unexpected"
)
"""The messages of such errors in a process of an `AsyncVectorEnv`, whose traceback is not available."""


def parse_step(result: Any) -> tuple[Any, float, bool, bool]:
    """Return the observation, reward, termination and truncation of a return value of `step`.

    The reward and the ends may also be arrays with one element, and the ends 0 and 1.

    Raises:
        ValueError: the return value does not have the structure of Gymnasium's API.
    """
    is_plain = (
        type(result) is tuple
        and len(result) == 5
        and type(result[1]) in NUMBER_TYPES
        and type(result[2]) in BOOL_TYPES
        and type(result[3]) in BOOL_TYPES
        and isinstance(result[4], dict)
    )
    if not is_plain and (found := malformed_step(result)):
        raise ValueError(f"{found} {API}")
    observation, *scalars, _ = result
    reward, terminated, truncated = scalars if is_plain else (np.asarray(value).item() for value in scalars)
    try:
        return observation, float(reward), bool(terminated), bool(truncated)
    except OverflowError:
        raise ValueError(f"`step` returns a reward beyond the range of float. Return a float. {API}") from None


def parse_vector_step(reward: Any, terminated: Any, truncated: Any, num_envs: int) -> tuple[np.ndarray, ...]:
    """Return the rewards, terminations and truncations of a vector environment as arrays of shape `[num_envs]`.

    Raises:
        ValueError: they are not one number for each sub-environment. Arrays with one element count as a number.
    """
    arrays = []
    for name, given in (("reward", reward), ("terminated", terminated), ("truncated", truncated)):
        value = np.asarray(given)
        is_reward = name == "reward"
        if value.size != num_envs or value.dtype.kind not in ("biuf" if is_reward else "biu"):
            raise ValueError(
                f"`step` returns {name}={shown(given)}, which is not one number for each of {num_envs} "
                f"sub-environments. {API}"
            )
        arrays.append(value.reshape(num_envs).astype(value.dtype if is_reward else bool))
    return tuple(arrays)


def batched(spec: Spec, observation: Any) -> Any:
    """Return an observation as a batch of one.

    Raises:
        ValueError: its keys or shapes differ from those of its space.
    """
    try:
        arrays, _ = spec.arrays(observation, ())
    except ValueError as error:
        raise ValueError(f"The environment gives an observation that is not of its space: {error}. {API}") from None
    return {name: array[None] for name, array in arrays.items()} if spec.is_dict else arrays["x"][None]


def is_parse_error(error: Exception) -> bool:
    """Return whether an error was raised by the code that reads return values, and not by the environment."""
    if not isinstance(error, PARSE_ERRORS):
        return False
    if is_from_worker(error):
        return WORKER_ERROR.search(str(error)) is not None
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    last = [file for file in files if not file.startswith(NUMPY)][-1]
    return last.startswith((GYMNASIUM, PACKAGE)) and not last.startswith(os.path.join(GYMNASIUM, "envs"))


def failed_env_index(error: Exception, env: gym.vector.VectorEnv, spec: Spec) -> int | None:
    """Return the sub-environment that raised an error or whose return value could not be read, or None if unknown."""
    base: Any = env.unwrapped
    for env_index, pipe in enumerate(getattr(base, "parent_pipes", ())):
        if pipe is None:
            return env_index
    observations, outcomes, last = partial_results(error, base)
    for env_index, observation in enumerate(observations):
        try:
            spec.pack(batched(spec, observation))
        except ValueError:
            return env_index
    for env_index, outcome in enumerate(outcomes):
        if malformed_step((None, *outcome, {})):
            return env_index
    return last
