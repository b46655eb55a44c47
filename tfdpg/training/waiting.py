"""Environments in processes of their own that nobody waits for any longer."""

from gymnasium.vector import AsyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState


def end(env: AsyncVectorEnv) -> None:
    """Ends the processes of an environment whatever they do, and closes it; its own `close` would wait for replies."""
    env._state = AsyncState.DEFAULT
    for process in env.processes:
        process.kill()
    env.close(terminate=True)
