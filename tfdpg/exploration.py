"""Exploration: noise added to the policy's actions during collection, and schedules of its scale. NumPy only."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfdpg.arguments import positive_int, real, reject
from tfdpg.spec import Spec

__all__ = ["Decay", "Gaussian", "Linear", "NoisyActions", "OrnsteinUhlenbeck", "Schedule"]

Schedule = Callable[[int], float]
"""Maps the number of environment steps to a factor of the noise."""


@dataclasses.dataclass(frozen=True)
class Linear:
    """A factor that changes linearly from `initial` to `final` over `steps` environment steps, and is 0 afterwards.

    Args:
        initial: factor at step 0, at least 0.
        final: factor at step `steps`, at least 0.
        steps: number of environment steps, at least 1; afterwards there is no noise.

    Raises:
        ValueError: an argument is out of its range.

    Source: skrl's noise schedule.
    """

    initial: float = 1.0
    final: float = 1e-3
    steps: int = 100_000

    def __post_init__(self) -> None:
        real("initial", self.initial, low=0)
        real("final", self.final, low=0)
        positive_int("steps", self.steps)

    def __call__(self, step: int) -> float:
        """Return the factor of the noise.

        Args:
            step: the number of environment steps so far.
        """
        return 0.0 if step > self.steps else self.initial + (self.final - self.initial) * step / self.steps


@dataclasses.dataclass(frozen=True)
class Decay:
    """A factor that decays exponentially down to a minimum: max((1 − rate)^step, minimum).

    Args:
        rate: relative decrease at each environment step, in [0, 1].
        minimum: smallest factor, at least 0.

    Raises:
        ValueError: an argument is out of its range.

    Source: MATLAB's Reinforcement Learning Toolbox.
    """

    rate: float
    minimum: float = 0.0

    def __post_init__(self) -> None:
        real("rate", self.rate, 0, 1)
        real("minimum", self.minimum, low=0)

    def __call__(self, step: int) -> float:
        """Return the factor of the noise.

        Args:
            step: the number of environment steps so far.
        """
        return max((1 - self.rate) ** step, self.minimum)


class Gaussian:
    """Gaussian noise, independent in each step, sub-environment and action dimension.

    Args:
        spec: the spaces of the environment.
        scale: standard deviation as a fraction of the action scale, at least 0; one number, or one for each action
            dimension.

    Attributes:
        state: an empty array, because the noise has no state.
    """

    def __init__(self, spec: Spec, scale: float | Sequence[float]):
        self._spec = spec
        self._std = per_dimension("scale", scale, spec) * spec.action_scale
        self.state: np.ndarray = np.zeros((0, spec.act_dim), np.float32)

    def at_scale(self, scale: float) -> "Gaussian":
        """Return noise of another scale, with a reset state.

        Args:
            scale: standard deviation as a fraction of the action scale, at least 0.
        """
        return Gaussian(self._spec, scale)

    def sample(self, num_envs: int, rng: np.random.Generator) -> np.ndarray:
        """Sample noise in the environment's units, float32 `[num_envs, act_dim]`.

        Args:
            num_envs: the number of sub-environments.
            rng: source of the random numbers.
        """
        return rng.standard_normal((num_envs, len(self._std)), np.float32) * self._std

    def end(self, ended: np.ndarray) -> None:
        """Do nothing: there is no state to reset.

        Args:
            ended: whether the episode of each sub-environment ended, bool `[num_envs]`.
        """


class OrnsteinUhlenbeck:
    """Ornstein-Uhlenbeck noise: x ← x − θ x + σ ε with ε ~ N(0, 1), starting from 0 in each episode.

    Args:
        spec: the spaces of the environment.
        scale: σ as a fraction of the action scale, at least 0; one number, or one for each action dimension.
        theta: θ, the attraction to 0 in each step, in [0, 1].

    Attributes:
        state: x, `[num_envs, act_dim]`, in the environment's units.

    Source: Uhlenbeck, Ornstein 1930, "On the Theory of the Brownian Motion"; DDPG (Lillicrap et al. 2016) uses it.
    """

    def __init__(self, spec: Spec, scale: float | Sequence[float], theta: float = 0.15):
        self._spec = spec
        self._std = per_dimension("scale", scale, spec) * spec.action_scale
        self._theta = np.float32(real("theta", theta, 0, 1))
        self.state: np.ndarray = np.zeros((0, spec.act_dim), np.float32)

    def at_scale(self, scale: float) -> "OrnsteinUhlenbeck":
        """Return noise of another scale, with a reset state.

        Args:
            scale: standard deviation as a fraction of the action scale, at least 0.
        """
        return OrnsteinUhlenbeck(self._spec, scale, float(self._theta))

    def sample(self, num_envs: int, rng: np.random.Generator) -> np.ndarray:
        """Return the next noise in the environment's units, float32 `[num_envs, act_dim]`.

        Args:
            num_envs: the number of sub-environments. If it changes, the noise starts again from 0.
            rng: source of the random numbers.
        """
        if len(self.state) != num_envs:
            self.state = np.zeros((num_envs, len(self._std)), np.float32)
        normal = rng.standard_normal(self.state.shape, np.float32)
        self.state = self.state - self._theta * self.state + self._std * normal
        return self.state

    def end(self, ended: np.ndarray) -> None:
        """Reset the noise to 0 in the sub-environments whose episode ended.

        Args:
            ended: whether the episode of each sub-environment ended, bool `[num_envs]`.
        """
        if len(self.state) == len(ended):
            self.state[ended] = 0


Noise = Gaussian | OrnsteinUhlenbeck
"""Noise in the environment's units of actions. Its `state` is `[num_envs, act_dim]`, or empty if it is independent."""


class NoisyActions:
    """Greedy actions with added noise, clipped to the action box; an implementation of `tfdpg.acting.Exploration`.

    Args:
        spec: the spaces of the environment.
        noise: the noise to add, a `Gaussian` or an `OrnsteinUhlenbeck`.
        schedule: maps the number of environment steps to a factor of the noise, at least 0; None for 1.
        random_eps: probability of a uniformly random action in place of a noisy one, in [0, 1].

    Attributes:
        noise: the noise.
        step_width: the width of a stored step, which is the width of an action, `act_dim`.
    """

    def __init__(self, spec: Spec, noise: Noise, schedule: Schedule | None = None, random_eps: float = 0.0):
        self._spec = spec
        self._random_eps = real("random_eps", random_eps, 0, 1)
        self.noise = noise
        self._schedule = schedule
        self.step_width = spec.act_dim

    def factor(self, step: int) -> float:
        """Return the factor of the noise.

        Args:
            step: the number of environment steps so far.

        Raises:
            ValueError: the schedule returned something other than a finite number of at least 0.
        """
        if self._schedule is None:
            return 1.0
        return real("act_noise_schedule", self._schedule(step), low=0)

    @property
    def state(self) -> np.ndarray:
        """The state of the noise, `[num_envs, act_dim]`."""
        return self.noise.state

    @state.setter
    def state(self, state: np.ndarray) -> None:
        self.noise.state = state

    def end(self, ended: np.ndarray) -> None:
        """Reset the noise of the sub-environments whose episode ended.

        Args:
            ended: whether the episode of each sub-environment ended, bool `[num_envs]`.
        """
        self.noise.end(ended)

    def greedy(self, output: np.ndarray) -> np.ndarray:
        """Clip the policy's actions to the action box, float32 `[num_envs, act_dim]`.

        Args:
            output: the policy's actions, in the environment's units, `[num_envs, act_dim]`.
        """
        return np.minimum(np.maximum(output, self._spec.low), self._spec.high)

    def explore(self, output: np.ndarray, factor: float, rng: np.random.Generator) -> np.ndarray:
        """Add noise to the policy's actions, and clip the result to the action box, float32 `[num_envs, act_dim]`.

        With probability `random_eps`, the action of a sub-environment is uniformly random instead.

        Args:
            output: the policy's actions, in the environment's units, `[num_envs, act_dim]`.
            factor: the factor by which the noise is multiplied.
            rng: source of the random numbers.
        """
        noise = self.noise.sample(len(output), rng)
        if factor != 1:
            noise = noise * np.float32(factor)
        noisy = self.greedy(self.greedy(output) + noise)
        if self._random_eps == 0:
            return noisy
        is_random = rng.random((len(output), 1)) < self._random_eps
        uniform = rng.uniform(*self._spec.random_bounds, noisy.shape).astype(np.float32)
        return np.where(is_random & np.isfinite(output), self.greedy(uniform), noisy)

    def at_scale(self, scale: float | None) -> "NoisyActions":
        """Return a copy without a schedule, with noise of another scale.

        Args:
            scale: standard deviation as a fraction of the action scale, at least 0; None keeps the noise.
        """
        noise = self.noise if scale is None else self.noise.at_scale(scale)
        return NoisyActions(self._spec, noise, random_eps=self._random_eps)


def noisy_actions(
    spec: Spec,
    kind: str,
    scale: float | Sequence[float],
    theta: float,
    schedule: Schedule | None,
    random_eps: float = 0.0,
) -> NoisyActions:
    """Return the exploration that the agents' options describe.

    Args:
        spec: the spaces of the environment.
        kind: "gaussian" or "ou" (Ornstein-Uhlenbeck).
        scale: standard deviation, as a fraction of the action scale, at least 0; one number, or one for each action
            dimension.
        theta: θ of Ornstein-Uhlenbeck noise, in [0, 1].
        schedule: maps the number of environment steps to a factor of the noise, at least 0; None for 1.
        random_eps: probability of a uniformly random action, in [0, 1].

    Raises:
        ValueError: an argument is out of its range. The message names the agent's option: `act_noise`, `ou_theta`,
            `act_noise_schedule`, `random_eps` or `noise`.
    """
    per_dimension("act_noise", scale, spec)
    real("ou_theta", theta, 0, 1)
    if schedule is not None and not callable(schedule):
        raise reject("act_noise_schedule", "a callable of environment steps", schedule)
    if kind not in ("gaussian", "ou"):
        raise reject("noise", '"gaussian" or "ou"', kind)
    noise = Gaussian(spec, scale) if kind == "gaussian" else OrnsteinUhlenbeck(spec, scale, theta)
    return NoisyActions(spec, noise, schedule, random_eps)


def per_dimension(name: str, value: Any, spec: Spec) -> np.ndarray:
    """Convert an option that is a number, or one number for each action dimension, to float32 `[act_dim]`.

    Args:
        name: the name of the option in messages.
        value: a number of at least 0, or a sequence of `act_dim` such numbers.
        spec: the spaces of the environment.

    Raises:
        ValueError: a number is out of its range, or the sequence has another length.
    """
    if not isinstance(value, Sequence):
        return np.full(spec.act_dim, real(name, value, low=0), np.float32)
    if len(value) != spec.act_dim:
        raise reject(name, f"a number, or a sequence of {spec.act_dim} numbers (one for each action dimension)", value)
    return np.array([real(name, part, low=0) for part in value], np.float32)


def __dir__() -> list[str]:
    return __all__
