"""The options of `fit` and `fit_offline`. No TensorFlow is imported."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from tfdpg.arguments import reject
from tfdpg.options import Options
from tfdpg.ranges import Count, Natural, Positive

if TYPE_CHECKING:
    import keras


class MonitoringOptions(Options, group="objects", objects=True):
    """Who looks on."""

    callbacks: "Sequence[keras.callbacks.Callback] | None" = None
    """Keras callbacks. A batch is a learning round; its index is that of its last update."""
    validation_env: Any = None
    """a second environment, or the id of one, evaluated on at the end of each epoch."""


class TrainingOptions(MonitoringOptions, group="training"):
    """How long to train, and what is shown of it."""

    epochs: Count = 100
    """how many."""
    steps_per_epoch: Count = 4000
    """updates in an epoch."""
    validation_episodes: Count = 10
    """episodes of each evaluation."""
    max_ep_len: Count | None = 1000
    """episodes are cut (truncated) after this many steps; None leaves it to the environment."""
    verbose: Literal["auto", 0, 1, 2] = "auto"
    """0 is silent, 1 a progress bar, 2 a line for each epoch; "auto" is 1 on a terminal and in a notebook, else 2."""


class FitOptions(TrainingOptions, group="training"):
    """The options of `fit`."""

    epochs = 100
    """the epoch to stop at."""
    steps_per_epoch = 4000
    """environment steps in an epoch, over all lanes."""
    callbacks = None
    """Keras callbacks. A batch is a learning round; its index is that of its last environment step."""
    initial_epoch: Natural = 0
    """the epoch to start at, to go on with an earlier training."""
    step_timeout: Positive | None = None
    """seconds that a step or a reset of the environment may take; then its processes are ended, and training with an
    error. None waits for ever. It takes an AsyncVectorEnv, or rollout workers, each of which has `chunk` times as long
    for a chunk, and a minute more; evaluation is not timed."""

    def check(self) -> None:
        """Refuses to start after the end."""
        if self.initial_epoch >= self.epochs:
            raise reject("initial_epoch", f"less than epochs={self.epochs}", self.initial_epoch)
