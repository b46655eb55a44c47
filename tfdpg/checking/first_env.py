"""The first lane of a vector environment, as an environment."""

from typing import Any

import gymnasium as gym
from gymnasium.vector.utils import concatenate, create_empty_array, iterate


class FirstEnv(gym.Env):
    """Steps all lanes with one action, and shows the first of them.

    Args:
        env: a vector environment, in any autoreset mode.
    """

    def __init__(self, env: Any):
        self._env = env
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        self.spec = env.spec

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Resets all lanes, with one seed."""
        observation, info = self._env.reset(seed=[seed] * self._env.num_envs, options=options)
        return self._first_observation(observation), info

    def step(self, action: Any) -> Any:
        """Steps all lanes."""
        num_envs = self._env.num_envs
        empty = create_empty_array(self.action_space, num_envs)
        observation, reward, terminated, truncated, info = self._env.step(
            concatenate(self.action_space, [action] * num_envs, empty)
        )
        ended = terminated[0] or truncated[0]
        shown = info["final_obs"][0] if ended and "final_obs" in info else self._first_observation(observation)
        return shown, reward[0], terminated[0], truncated[0], info

    def _first_observation(self, observation: Any) -> Any:
        return next(iter(iterate(self._env.observation_space, observation)))
