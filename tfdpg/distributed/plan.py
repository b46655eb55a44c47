"""The arguments of `tfdpg.distributed.fit`, checked."""

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import gymnasium as gym
import numpy as np

from tfdpg.arguments import natural, positive_int, real, reject


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a training is distributed; see `tfdpg.distributed.fit`."""

    actors: int
    ray_address: str | None
    noise_levels: Sequence[float] | None
    chunk: int
    variable_update_period: int
    samples_per_insert: float | None
    tolerance: float
    worker_backend: str
    replay_shards: int

    def __post_init__(self) -> None:
        positive_int("actors", self.actors)
        if self.ray_address is not None and not isinstance(self.ray_address, str):
            raise reject("ray_address", 'the address of a Ray cluster, "auto" or None', self.ray_address)
        if self.noise_levels is not None:
            if isinstance(self.noise_levels, str) or len(self.noise_levels) != self.actors:
                raise reject("noise_levels", f"{self.actors} numbers, one for each actor", self.noise_levels)
            for level in self.noise_levels:
                real("noise_levels", level, low=0)
        positive_int("chunk", self.chunk)
        positive_int("variable_update_period", self.variable_update_period)
        if self.samples_per_insert is not None:
            real("samples_per_insert", self.samples_per_insert, low=0)
        real("tolerance", self.tolerance, low=0)
        if natural("replay_shards", self.replay_shards) > self.actors:
            raise reject("replay_shards", f"at most actors={self.actors}", self.replay_shards)

    def check(self, given: Mapping[str, Any]) -> None:
        """Raises `ValueError` for an agent that cannot be trained so; `given` are its arguments."""
        self.noises(given)
        if self.samples_per_insert is not None and given["epochs_per_round"] is not None:
            raise ValueError(
                "`samples_per_insert` and the agent's `epochs_per_round` both count updates. Received: "
                f"samples_per_insert={self.samples_per_insert}, epochs_per_round={given['epochs_per_round']}"
            )
        if not self.replay_shards:
            return
        for name in ("reward_shaper", "recorders", "epochs_per_round"):
            if given[name] is not None and given[name] != () and given[name] != []:
                raise ValueError(f"`replay_shards` must be 0 with `{name}`, which needs the rows in the learner.")
        if given["replay_size"] // self.replay_shards < 2:
            raise reject(
                "replay_size", f"at least two rows for each of {self.replay_shards} shards", given["replay_size"]
            )

    def noises(self, given: Mapping[str, Any]) -> list[tuple[str, Any, float]]:
        """Kind, scale and theta of each worker's exploration noise.

        Args:
            given: the agent's arguments.

        Raises:
            ValueError: the agent explores in another way.
        """
        if "act_noise" not in given:
            raise ValueError(
                "`agent` must be one that explores with noise on its actions, as DDPG, TD3 and D4PG do, to be trained "
                "with `actors`; ACER takes a vector environment instead."
            )
        if self.noise_levels is not None:
            scales = list(self.noise_levels)
        elif self.actors == 1:
            scales = [given["act_noise"]]
        else:
            scales = np.linspace(1 / 32, 1, self.actors).tolist()
        return [(given["noise"], scale, given["ou_theta"]) for scale in scales]


OPTIONS = tuple(field.name for field in dataclasses.fields(Plan))
"""The arguments of `tfdpg.distributed.fit` that `Agent.fit` does not have."""


OLDEST_RAY = (2, 59)
"""Who connects to a Ray that an older one starts needs no token."""


def require_ray() -> None:
    """Raises `ImportError` if Ray is not installed, or is too old."""
    install = 'Install it with: pip install "tfdpg[ray]"'
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise ImportError(f"tfdpg.distributed needs Ray. {install}") from error
    if tuple(int(number) for number in ray.__version__.split(".")[:2]) < OLDEST_RAY:
        raise ImportError(
            "tfdpg.distributed needs Ray 2.59 or later, since older ones start without authentication. "
            f"Received: Ray {ray.__version__}. {install}"
        )


def environment_maker(make_env: Any) -> Callable[[], gym.Env]:
    """What makes an environment: a callable as it is, or `gymnasium.make` of an id, which may name its module.

    Raises:
        ValueError: neither, or an id that is not registered.
    """
    if isinstance(make_env, str):
        module, _, name = make_env.rpartition(":")
        try:
            if module:
                importlib.import_module(module)
            gym.spec(name)
        except (gym.error.Error, ImportError) as error:
            raise reject("make_env", f"the id of a registered environment ({error})", make_env) from error
        return lambda: gym.make(make_env)
    if not callable(make_env):
        raise reject("make_env", "a callable without arguments, or the id of a Gymnasium environment", make_env)
    return cast(Callable[[], gym.Env], make_env)
