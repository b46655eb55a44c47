"""What an environment returns, read as Gymnasium's API has it; what cannot be read is named."""

import itertools
import os
import re
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from tfdpg.findings import malformed_step
from tfdpg.spec import Spec

NUMBER_TYPES = frozenset({float, int, np.float64, np.float32})
BOOL_TYPES = frozenset({bool, np.bool_})
"""The types that need no closer look."""

API = (
    "Gymnasium's `reset` returns (observation, info), and its `step` (observation, reward, terminated, truncated, "
    "info): an observation of the space, a float, two bools and a dict."
)
PARSE_ERRORS = ValueError, TypeError, AttributeError, AssertionError
"""What Gymnasium raises at results of another form."""
GYMNASIUM, NUMPY, PACKAGE = (os.path.dirname(file or "") + os.sep for file in (gym.__file__, np.__file__, __file__))
"""Where those are who read them; what is in Gymnasium's `envs` is read."""
WORKER_ERROR = re.compile("unpack|broadcast input array|inhomogeneous shape|truth value of an array|string to float")
"""What `AsyncVectorEnv` tells of such an error in another process, where frames are out of reach."""


def parse_step(result: Any) -> tuple[Any, float, bool, bool]:
    """The observation, as it is, and the numbers of one step.

    Ends may be 0 and 1 too, and all may be arrays of one number.

    Raises:
        ValueError: `step` returned something else than Gymnasium's API has.
    """
    if type(result) is tuple and len(result) == 5:
        observation, reward, terminated, truncated, info = result
        if (
            type(reward) in NUMBER_TYPES
            and type(terminated) in BOOL_TYPES
            and type(truncated) in BOOL_TYPES
            and isinstance(info, dict)
        ):
            return observation, _as_float(reward), terminated, truncated
    if found := malformed_step(result):
        raise ValueError(f"{found} {API}")
    observation, *scalars, _ = result
    reward, terminated, truncated = (np.asarray(value).item() for value in scalars)
    return observation, _as_float(reward), bool(terminated), bool(truncated)


def _as_float(reward: Any) -> float:
    """A reward as a float; an integer has no largest value in Python."""
    try:
        return float(reward)
    except OverflowError:
        raise ValueError(f"`step` gives a reward that is beyond every float. Give a float. {API}") from None


def parse_vector_step(reward: Any, terminated: Any, truncated: Any, num_envs: int) -> tuple[np.ndarray, ...]:
    """The rewards and the ends of a vector environment's lanes, each `[num_envs]`; arrays of one number for each count.

    Raises:
        ValueError: they are no numbers, or not one for each lane.
    """
    read = []
    for name, given in (("reward", reward), ("terminated", terminated), ("truncated", truncated)):
        value = np.asarray(given)
        is_reward = name == "reward"
        if value.size != num_envs or value.dtype.kind not in ("biuf" if is_reward else "biu"):
            raise ValueError(
                f"`step` gives {name}={given!r}, which is not one number for each of {num_envs} lanes. {API}"
            )
        read.append(value.reshape(num_envs) if is_reward else value.reshape(num_envs).astype(bool))
    return tuple(read)


def batched(spec: Spec, observation: Any) -> Any:
    """An observation as a batch of one.

    Raises:
        ValueError: it has other keys or another shape than its space.
    """
    try:
        if not spec.is_dict:
            array = np.asarray(observation)
            if array.shape == spec.shapes["x"]:
                return array[None]
        elif isinstance(observation, Mapping):
            arrays = {key: np.asarray(value) for key, value in observation.items()}
            if {key: array.shape for key, array in arrays.items()} == spec.shapes:
                return {key: array[None] for key, array in arrays.items()}
    except ValueError:  # of a list whose parts have several shapes
        pass
    expected = spec.shapes if spec.is_dict else spec.shapes["x"]
    raise ValueError(
        f"The environment gives an observation that is not of its space's shape {expected}. "
        f"Received: {observation!r:.200}. {API}"
    )


def is_parse_error(error: Exception) -> bool:
    """Whether it was not the environment that raised, but who read what it had returned."""
    if not isinstance(error, PARSE_ERRORS):
        return False
    frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    if frames[-1].co_name == "_raise_if_errors":
        return WORKER_ERROR.search(str(error)) is not None
    *_, last = (code.co_filename for code in frames if not code.co_filename.startswith(NUMPY))
    return last.startswith((GYMNASIUM, PACKAGE)) and not last.startswith(os.path.join(GYMNASIUM, "envs"))


def failed_env_index(error: Exception, env: gym.vector.VectorEnv, spec: Spec) -> int | None:
    """The lane of a vector environment that raised, or returned what cannot be read; None where it is not known."""
    base: Any = env.unwrapped
    lost = [env_index for env_index, pipe in enumerate(getattr(base, "parent_pipes", ())) if pipe is None]
    return next(itertools.chain(lost, _suspected_env_indices(error, base, spec)), None)


def _suspected_env_indices(error: Exception, base: Any, spec: Spec) -> Iterator[int]:
    """The lanes whose results are odd, and the last one that was looked at, by the variables of Gymnasium."""
    seen = {}
    functions = set()
    for frame, _ in traceback.walk_tb(error.__traceback__):
        functions.add(frame.f_code.co_name)
        if frame.f_locals.get("self") is base:
            seen |= frame.f_locals
    if any("concatenate" in name for name in functions):
        given = seen.get("observations", seen.get("results")) if hasattr(base, "processes") else base._env_obs
        for env_index, observation in enumerate(given or ()):
            try:
                spec.pack(batched(spec, observation))
            except ValueError:
                yield env_index
    scalars = [seen.get(name, ()) for name in ("rewards", "terminations", "truncations")]
    for env_index, outcome in enumerate(zip(*scalars, strict=False)):
        if malformed_step((None, *outcome, {})):
            yield env_index
    yield from (seen[name] for name in ("env_idx", "i") if name in seen)
