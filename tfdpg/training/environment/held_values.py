"""Missing values of a real machine's sensors, which keep their last values for a few steps. NumPy only.

Those of observations are left as they are if the agent holds them itself (`Spec.missing`).
"""

from typing import Any

import numpy as np

from tfdpg.spec import Spec

ATTEMPTS = 3
"""How often an environment is reset if the observation of its reset is not finite."""


class HeldValues:
    """Replaces values of observations and rewards that are not finite by their last finite ones.

    Args:
        spec: the spaces.
        num_envs: the number of sub-environments.
        steps: the number of steps in succession that may have such values.

    Attributes:
        held: the number of steps in which a value was replaced, counted over all sub-environments.
    """

    def __init__(self, spec: Spec, num_envs: int, steps: int):
        self._spec = spec
        self._steps = steps
        self._observation: dict[str, np.ndarray] = {}
        self._reward = np.zeros(num_envs)
        self._missing = np.zeros(num_envs, np.int64)  # steps in succession
        self._holds_observations = spec.missing == "error"
        self.held = 0

    def begin(self, observation: Any, is_reset: np.ndarray) -> tuple[Any, bool]:
        """Begin episodes.

        Args:
            observation: the batch of observations that a reset returned.
            is_reset: which sub-environments were reset, bool `[num_envs]`. Those of the others keep their last values.

        Returns:
            The observations, and whether those of the sub-environments that were reset are finite.
        """
        parts, _ = self._spec.arrays(observation, ("batch",))
        is_finite = not self._holds_observations or all(_is_finite(part[is_reset]).all() for part in parts.values())
        if not is_reset.all():
            parts = {
                name: np.where(is_reset.reshape(-1, *[1] * (part.ndim - 1)), part, self._observation[name])
                for name, part in parts.items()
            }
            observation = self._unpacked(parts)
        self._keep(parts, np.where(is_reset, 0.0, self._reward))
        self._missing = np.where(is_reset, 0, self._missing)
        return observation, is_finite

    def fill(
        self, observation: Any, reward: np.ndarray, final: Any, ended: np.ndarray
    ) -> tuple[Any, np.ndarray, np.ndarray]:
        """Replace the missing values of a step.

        Args:
            observation: a batch of observations.
            reward: `[num_envs]`.
            final: see `Spec.pack_final`; `observation` itself if it holds the last observations of episodes.
            ended: the sub-environments whose episode ended, bool `[num_envs]`.

        Returns:
            The observations, where episodes ended the final ones, and the rewards; and where too many steps in
            succession had missing values, `[num_envs]`. A reward that is missing before there was another one is 0.
        """
        if final is not observation:
            packed = self._spec.pack_final(self._spec.pack(observation), final, ended)
            observation = self._unpacked(self._spec.unpack(packed))
        parts, _ = self._spec.arrays(observation, ("batch",))
        is_finite = _is_finite(reward)
        for part in parts.values() if self._holds_observations else ():
            is_finite = is_finite & _is_finite(part).reshape(len(part), -1).all(axis=1)
        if not is_finite.all():
            self.held += int(np.count_nonzero(~is_finite))
            reward = np.where(np.isfinite(reward), reward, self._reward)
            if self._holds_observations:
                parts = {
                    name: np.where(_is_finite(part), part, self._observation[name]).astype(part.dtype)
                    for name, part in parts.items()
                }
                observation = self._unpacked(parts)
        self._missing = np.where(is_finite, 0, self._missing + 1)
        self._keep(parts, reward)
        return observation, reward, self._missing > self._steps

    def _keep(self, parts: dict[str, np.ndarray], reward: np.ndarray) -> None:
        """Keep copies of the last values, because an environment may return the same array in each step."""
        self._observation = {name: part.copy() for name, part in parts.items()}
        self._reward = reward.copy()

    def _unpacked(self, parts: dict[str, np.ndarray]) -> Any:
        return self._spec.nested(parts) if self._spec.is_dict else parts["x"]


def _is_finite(values: np.ndarray) -> np.ndarray:
    return np.isfinite(values) if values.dtype.kind == "f" else np.ones(values.shape, bool)
