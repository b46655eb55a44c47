"""What an agent promises to training: the loop and checkpoints know these, and never an agent class."""

from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from tfdpg.acting import Moments
from tfdpg.networks import Actor
from tfdpg.replay import Ring, Sampler
from tfdpg.spec import Spec
from tfdpg.training.collector import Collector
from tfdpg.training.learning import Elsewhere
from tfdpg.training.schedule import Schedule
from tfdpg.training.statistics import Statistics


class Trains(Protocol):
    """What the loop asks of an agent; see `Agent` for the meaning."""

    spec: Spec
    replay: Ring
    schedule: Schedule
    actor: Actor
    collector: Collector
    statistics: Statistics
    epoch: int
    stop_training: bool
    _initial_epoch: int | None

    def act(self, observation: Any, explore: bool = True) -> np.ndarray: ...
    def observe(
        self, reward: Any, next_observation: Any, terminated: Any, truncated: Any, final_observation: Any = None
    ) -> None: ...
    def learn(self, updates: int | None = None) -> dict[str, float]: ...
    def evaluate(self, env: Any, episodes: int, *, max_ep_len: int | None) -> dict[str, float]: ...


class Saves(Protocol):
    """What an agent shows of itself to be saved and restored; see `Agent` for the meaning."""

    spec: Spec
    networks: dict[str, keras.Model]
    targets: dict[str, keras.Model]
    optimizers: dict[str, keras.optimizers.Optimizer]
    own_networks: dict[str, keras.Model]
    replay: Ring
    sampler: Sampler
    source: Elsewhere | None
    moments: Moments | None
    schedule: Schedule
    actor: Actor
    collector: Collector
    counter: tf.Variable
    epoch: int
    environment: dict[str, Any] | None

    @property
    def arguments(self) -> dict[str, Any]: ...
