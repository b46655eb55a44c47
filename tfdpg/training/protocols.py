"""What an agent promises to training: the loop and checkpoints know these, and never an agent class."""

from collections.abc import Mapping
from typing import Any, Protocol

import keras

from tfdpg.acting import BehaviourPolicy, RunningStatistics
from tfdpg.networks import PolicyInference
from tfdpg.replay import MinibatchBuilder, ReplayBuffer
from tfdpg.spec import Spec
from tfdpg.training.environment.collector import Collector
from tfdpg.training.environment.schedule import Schedule
from tfdpg.training.learning.epoch_metrics import EpochMetrics
from tfdpg.training.learning.learner import Learner


class TrainableAgent(Protocol):
    """What the loop asks of an agent; see `Agent` for the meaning."""

    spec: Spec
    replay: ReplayBuffer
    schedule: Schedule
    collector: Collector
    epoch_metrics: EpochMetrics
    actor: PolicyInference
    behaviour: BehaviourPolicy
    observation_statistics: RunningStatistics | None
    stop_training: bool
    _initial_epoch: int | None

    @property
    def options(self) -> Any: ...
    @property
    def epoch(self) -> int: ...
    @property
    def updates(self) -> int: ...
    def begin_training(self) -> None: ...
    def complete(self, epoch: int) -> None: ...
    def act(self, observation: Any, explore: bool = True) -> Any: ...
    def observe(
        self, reward: Any, next_observation: Any, terminated: Any, truncated: Any, final_observation: Any = None
    ) -> None: ...
    def learn(self, *, updates: int | None = None) -> dict[str, float]: ...
    def evaluate(self, env: Any, episodes: int, *, max_ep_len: int | None) -> dict[str, float]: ...


class SavableAgent(Protocol):
    """What an agent shows of itself to be saved and restored; see `Agent` for the meaning."""

    spec: Spec
    networks: dict[str, keras.Model]
    copies: dict[str, keras.Model]
    custom_networks: dict[str, keras.Model]
    replay: ReplayBuffer
    minibatch_builder: MinibatchBuilder
    learner: Learner
    observation_statistics: RunningStatistics | None
    actor: PolicyInference

    @property
    def saved_variables(self) -> dict[str, list[Any]]: ...
    @property
    def saved_options(self) -> dict[str, Any]: ...
    def restore_variables(self, arrays: Mapping[str, Any], changes: Mapping[str, Any]) -> None: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: Mapping[str, Any]) -> None: ...
