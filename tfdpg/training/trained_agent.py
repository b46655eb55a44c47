"""What training, checkpoints and callbacks need of an agent."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast

import keras

from tfdpg.components import Metric, Networks
from tfdpg.replay import ReplayBuffer
from tfdpg.spec import Spec
from tfdpg.training.agent_data import AgentData
from tfdpg.training.learning.learner import Learner


class TrainedAgent(Protocol):
    """An agent, as `tfdpg.Agent` documents it: its three parts, and what it counts.

    Attributes:
        exported_critics: the models that have signatures from observations and actions to values, by name.
    """

    spec: Spec
    environment: dict[str, Any] | None
    parts: Networks
    data: AgentData
    learner: Learner
    replay: ReplayBuffer
    networks: dict[str, keras.Model]
    copies: dict[str, keras.Model]
    optimizers: dict[str, keras.optimizers.Optimizer]
    metrics: tuple[Metric, ...]
    exported_critics: dict[str, Any]
    stop_training: bool
    _initial_epoch: int | None

    @property
    def options(self) -> Any:
        """The options, as attributes."""
        ...

    @property
    def env_steps(self) -> int:
        """The number of environment steps taken."""
        ...

    @property
    def updates(self) -> int:
        """The number of updates made."""
        ...

    @property
    def epoch(self) -> int:
        """The number of epochs completed."""
        ...

    def relabel_with(self, env: Any) -> None:
        """Use the functions of an environment that compute rewards from goals."""
        ...

    def learn(self, *, updates: int | None = None) -> dict[str, float]:
        """Make updates."""
        ...

    def evaluate(self, env: Any, episodes: int = 10, *, max_ep_len: int | None = None) -> dict[str, Any]:
        """Evaluate the policy."""
        ...

    def save(self, filepath: str | Path, overwrite: bool = True) -> None:
        """Save the state of the training run."""
        ...

    def export(self, directory: str | Path, /, *, scores: Mapping[str, float] | None = None) -> Path:
        """Export the evaluation policy and the critics."""
        ...


class AgentCallback(keras.callbacks.Callback):
    """A callback whose `model` is an agent."""

    @property
    def agent(self) -> TrainedAgent:
        """The agent, which is Keras' `model`."""
        return cast(TrainedAgent, self.model)

    def rehearse(self) -> None:
        """Do what takes longer at the first time, and discard it; called before the first step on a real machine."""
