"""Exploration: noise on the policy's actions while collecting, and its schedules. NumPy only."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from tfdpg.arguments import positive_int, real, reject
from tfdpg.spec import Spec

__all__ = ["Decay", "Gaussian", "Linear", "NoisyActions", "OrnsteinUhlenbeck", "Schedule"]

Schedule = Callable[[int], float]
"""From environment steps to a factor of the noise."""


@dataclasses.dataclass(frozen=True)
class Linear:
    """A factor that goes linearly from `initial` to `final` over `steps`, and is 0 afterwards (skrl).

    Args:
        initial: the factor at step 0, at least 0.
        final: the factor at `steps`, at least 0.
        steps: environment steps; later there is no noise.
    """

    initial: float = 1.0
    final: float = 1e-3
    steps: int = 100_000

    def __post_init__(self) -> None:
        real("initial", self.initial, low=0)
        real("final", self.final, low=0)
        positive_int("steps", self.steps)

    def __call__(self, step: int) -> float:
        """The factor at a step."""
        return 0.0 if step > self.steps else self.initial + (self.final - self.initial) * step / self.steps


@dataclasses.dataclass(frozen=True)
class Decay:
    """A factor that loses a part at each step, down to a floor (MATLAB): max((1 − rate)^step, minimum).

    Args:
        rate: the part that is lost at each environment step, in [0, 1].
        minimum: the floor, at least 0.
    """

    rate: float
    minimum: float = 0.0

    def __post_init__(self) -> None:
        real("rate", self.rate, 0, 1)
        real("minimum", self.minimum, low=0)

    def __call__(self, step: int) -> float:
        """The factor at a step."""
        return max((1 - self.rate) ** step, self.minimum)


class Noise(Protocol):
    """Noise in action units.

    Attributes:
        state: what the next sample depends on besides the generator, `[num_envs, act_dim]`.
    """

    state: np.ndarray

    def sample(self, num_envs: int, rng: np.random.Generator) -> np.ndarray:
        """The next noise of each lane, float32 `[num_envs, act_dim]`."""
        ...

    def end(self, ended: np.ndarray) -> None:
        """Forgets the past of the lanes whose episode ended, bool `[num_envs]`."""
        ...

    def at_scale(self, scale: float) -> "Noise":
        """The same noise of another scale, as a fraction of the half-range, without a past."""
        ...


class Gaussian:
    """Independent normal noise for each step, each lane and each dimension of the action.

    Args:
        spec: the spaces; the noise is scaled by each action dimension's half-range.
        scale: the standard deviation as a fraction of the half-range, at least 0; one number, or one for each
            dimension.
    """

    def __init__(self, spec: Spec, scale: float | Sequence[float]):
        self._spec = spec
        self._std = per_dimension("scale", scale, spec) * spec.action_scale
        self.state: np.ndarray = np.zeros((0, spec.act_dim), np.float32)

    def at_scale(self, scale: float) -> "Gaussian":
        """See `Noise`."""
        return Gaussian(self._spec, scale)

    def sample(self, num_envs: int, rng: np.random.Generator) -> np.ndarray:
        """A sample in action units, float32 `[num_envs, act_dim]`."""
        return rng.standard_normal((num_envs, len(self._std)), np.float32) * self._std

    def end(self, ended: np.ndarray) -> None:
        """Forgets nothing: there is no past."""


class OrnsteinUhlenbeck:
    """Noise with a memory: x ← x − θ x + σ ε with ε ~ N(0, 1), from 0 at the start of each episode.

    Args:
        spec: the spaces; σ is scaled by each action dimension's half-range.
        scale: σ as a fraction of the half-range, at least 0; one number, or one for each dimension.
        theta: the attraction to 0 in a step, in [0, 1].
    """

    def __init__(self, spec: Spec, scale: float | Sequence[float], theta: float = 0.15):
        self._spec = spec
        self._std = per_dimension("scale", scale, spec) * spec.action_scale
        self._theta = np.float32(real("theta", theta, 0, 1))
        self.state: np.ndarray = np.zeros((0, spec.act_dim), np.float32)

    def at_scale(self, scale: float) -> "OrnsteinUhlenbeck":
        """See `Noise`."""
        return OrnsteinUhlenbeck(self._spec, scale, float(self._theta))

    def sample(self, num_envs: int, rng: np.random.Generator) -> np.ndarray:
        """The next noise in action units, float32 `[num_envs, act_dim]`."""
        if len(self.state) != num_envs:
            self.state = np.zeros((num_envs, len(self._std)), np.float32)
        normal = rng.standard_normal(self.state.shape, np.float32)
        self.state = self.state - self._theta * self.state + self._std * normal
        return self.state

    def end(self, ended: np.ndarray) -> None:
        """Begins anew from 0 in the lanes whose episode ended, bool `[num_envs]`."""
        if len(self.state) == len(ended):
            self.state[ended] = 0


class NoisyActions:
    """Greedy actions with noise, inside the action box.

    Args:
        spec: the spaces.
        noise: what is added.
        schedule: a factor of the noise; None is always 1.
    """

    def __init__(self, spec: Spec, noise: Noise, schedule: Schedule | None = None):
        self._spec = spec
        self.noise = noise
        self._schedule = schedule
        self.step_width = spec.act_dim

    def factor(self, step: int) -> float:
        """The factor of the noise at an environment step."""
        if self._schedule is None:
            return 1.0
        return real("act_noise_schedule", self._schedule(step), low=0)

    @property
    def state(self) -> np.ndarray:
        """The noise's."""
        return self.noise.state

    @state.setter
    def state(self, state: np.ndarray) -> None:
        self.noise.state = state

    def end(self, ended: np.ndarray) -> None:
        """Forgets the past of the lanes whose episode ended, bool `[num_envs]`."""
        self.noise.end(ended)

    def greedy(self, output: np.ndarray) -> np.ndarray:
        """The policy's actions, inside the box."""
        return np.minimum(np.maximum(output, self._spec.low), self._spec.high)

    def explore(self, output: np.ndarray, factor: float, rng: np.random.Generator) -> np.ndarray:
        """What to do instead of the policy's actions `[num_envs, act_dim]`; the noise has a factor."""
        noise = self.noise.sample(len(output), rng)
        if factor != 1:
            noise = noise * np.float32(factor)
        return self.greedy(self.greedy(output) + noise)

    def at_scale(self, scale: float | None) -> "NoisyActions":
        """With noise of another scale, or the same, and without a schedule."""
        return NoisyActions(self._spec, self.noise if scale is None else self.noise.at_scale(scale))


def noisy_actions(
    spec: Spec, kind: str, scale: float | Sequence[float], theta: float, schedule: Schedule | None
) -> NoisyActions:
    """The exploration that the agents' options describe.

    Args:
        spec: the spaces.
        kind: "gaussian" or "ou" (Ornstein-Uhlenbeck).
        scale: the standard deviation, as a fraction of the half-range; one for each dimension, or for all.
        theta: the attraction of Ornstein-Uhlenbeck noise.
        schedule: a factor of the noise, a callable of environment steps.
    """
    per_dimension("act_noise", scale, spec)
    real("ou_theta", theta, 0, 1)
    if schedule is not None and not callable(schedule):
        raise reject("act_noise_schedule", "a callable of environment steps", schedule)
    if kind == "gaussian":
        return NoisyActions(spec, Gaussian(spec, scale), schedule)
    if kind == "ou":
        return NoisyActions(spec, OrnsteinUhlenbeck(spec, scale, theta), schedule)
    raise reject("noise", '"gaussian" or "ou"', kind)


def per_dimension(name: str, value: Any, spec: Spec) -> np.ndarray:
    """An option that is a number, or one number for each action dimension, as float32 `[act_dim]`."""
    if not isinstance(value, Sequence):
        return np.full(spec.act_dim, real(name, value, low=0), np.float32)
    if len(value) != spec.act_dim:
        raise reject(name, f"a number, or {spec.act_dim} of them (one for each action dimension)", value)
    return np.array([real(name, part, low=0) for part in value], np.float32)


def __dir__() -> list[str]:
    return __all__
