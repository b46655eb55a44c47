"""Private interfaces of Gymnasium. Written for Gymnasium 1.4.

Without them, the processes of an `AsyncVectorEnv` that failed between two replies are not ended.
"""

from gymnasium.vector import AsyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState


def awaits_replies(env: AsyncVectorEnv) -> bool:
    """Return whether an `AsyncVectorEnv` sent a command to its processes and did not receive all replies."""
    return env._state is not AsyncState.DEFAULT
