"""Private interfaces of Gymnasium. Written for Gymnasium 1.4.

Without them, the processes of an `AsyncVectorEnv` that failed between two replies are not ended, and errors do not name
the sub-environment whose results could not be read.
"""

import traceback
from typing import Any

from gymnasium.vector import AsyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState


def awaits_replies(env: AsyncVectorEnv) -> bool:
    """Return whether an `AsyncVectorEnv` sent a command to its processes and did not receive all replies."""
    return env._state is not AsyncState.DEFAULT


def abandon_replies(env: AsyncVectorEnv) -> None:
    """Make an `AsyncVectorEnv` forget that it awaits replies, so that `close` does not wait for them."""
    env._state = AsyncState.DEFAULT


def is_from_worker(error: Exception) -> bool:
    """Return whether an error was raised in a process of an `AsyncVectorEnv` and raised again in this process."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_code.co_name == "_raise_if_errors"


def partial_results(error: Exception, env: Any) -> tuple[list[Any], list[tuple[Any, ...]], int | None]:
    """Return what a vector environment had received from its sub-environments when an error was raised.

    The results are local variables of `SyncVectorEnv` and `AsyncVectorEnv` in the traceback.

    Args:
        error: the error.
        env: the vector environment, without wrappers.

    Returns:
        The observations, if the error was raised while they were concatenated; a tuple (reward, terminated, truncated)
        of each sub-environment; and the index of the sub-environment that was processed last, or None.
    """
    seen: dict[str, Any] = {}
    is_concatenating = False
    for frame, _ in traceback.walk_tb(error.__traceback__):
        is_concatenating |= "concatenate" in frame.f_code.co_name
        if frame.f_locals.get("self") is env:
            seen |= frame.f_locals
    observations = []
    if is_concatenating:
        own = [] if isinstance(env, AsyncVectorEnv) else env._env_obs
        observations = seen.get("observations", seen.get("results", own))
    outcomes = zip(*(seen.get(name, ()) for name in ("rewards", "terminations", "truncations")), strict=False)
    return list(observations), list(outcomes), seen.get("env_idx", seen.get("i"))
