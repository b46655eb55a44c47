"""Time limits for environments in other processes, and detection of processes that ended."""

import contextlib
import functools
import multiprocessing
import multiprocessing.connection
import signal
from collections.abc import Callable, Iterator
from typing import Any

from gymnasium.vector import AsyncVectorEnv

from tfdpg.compat.gymnasium import abandon_replies


@contextlib.contextmanager
def env_timeout(env: Any, seconds: float | None) -> Iterator[None]:
    """Raise an error if a step or a reset of an `AsyncVectorEnv` takes too long inside this context.

    Wrappers do not pass a timeout on, so the context replaces the environment's own methods.

    Args:
        env: the environment, wrapped or not.
        seconds: the longest time to wait. None sets no limit, and allows any environment.

    Raises:
        ValueError: `seconds` is given, and the environment is not an `AsyncVectorEnv`.
        TimeoutError: a sub-environment took too long. All processes of the environment have ended.
    """
    if seconds is None:
        yield
        return
    base = env.unwrapped
    if not isinstance(base, AsyncVectorEnv):
        raise ValueError(
            "`step_timeout` must be None for an environment in the training process, which cannot interrupt it. "
            "Make it with gym.make_vec(..., vectorization_mode='async'), or on the command line with --num-envs and "
            f"--vectorization async. Received: step_timeout={seconds:g}, env={env}"
        )
    wait_methods = {name: getattr(base, name) for name in ("reset_wait", "step_wait")}
    for name, wait in wait_methods.items():
        setattr(base, name, functools.partial(_wait_with_timeout, base, wait, seconds))
    try:
        yield
    finally:
        for name in wait_methods:
            delattr(base, name)


def _wait_with_timeout(env: AsyncVectorEnv, wait: Callable[[float], Any], seconds: float) -> Any:
    try:
        return wait(seconds)
    except multiprocessing.TimeoutError:
        unresponsive = [
            env_index for env_index, pipe in enumerate(env.parent_pipes) if pipe is not None and not pipe.poll()
        ]
        terminate_processes(env)
        raise TimeoutError(
            f"Sub-environments {unresponsive} did not answer within {seconds:g} seconds (`step_timeout`), so the "
            "processes of all sub-environments were ended. Find out what they wait for, or raise `step_timeout`."
        ) from None


def check_processes(env: Any, cause: BaseException | None = None) -> None:
    """Raise `RuntimeError` if the process of a sub-environment of an `AsyncVectorEnv` has ended.

    Args:
        env: the environment, wrapped or not; others than an `AsyncVectorEnv` have no processes.
        cause: the error that the end of a process led to; None if there was none yet.
    """
    base = env.unwrapped
    if not isinstance(base, AsyncVectorEnv) or base.closed:
        return
    sentinels = [process.sentinel for process in base.processes]
    # After an error, the process that caused it may still be ending.
    ended = multiprocessing.connection.wait(sentinels, 0 if cause is None else 1)
    for env_index, process in enumerate(base.processes):
        if process.sentinel in ended:
            process.join()
            code = process.exitcode or 0
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
            terminate_processes(base)
            raise RuntimeError(
                f"The process of sub-environment {env_index} of the AsyncVectorEnv has ended ({how}), so the "
                "environment was closed. Make the vector environment again; if the system ended the process for lack "
                "of memory, make fewer sub-environments."
            ) from cause


def terminate_processes(env: AsyncVectorEnv) -> None:
    """End the processes of an environment immediately, and close it. `close` alone would wait for replies."""
    abandon_replies(env)
    for process in env.processes:
        process.kill()
    env.close(terminate=True)
