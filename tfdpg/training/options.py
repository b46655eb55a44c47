"""Options of `fit` and `fit_offline`. This module does not import TensorFlow."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from tfdpg.arguments import reject
from tfdpg.options import Options
from tfdpg.ranges import Count, Natural, Positive

if TYPE_CHECKING:
    import keras


class MonitoringOptions(Options, group="objects", objects=True):
    """Options for monitoring training."""

    callbacks: "Sequence[keras.callbacks.Callback] | None" = None
    """Keras callbacks. A batch is an update phase; its index is that of its last update."""
    validation_env: Any = None
    """second environment, or its id, for an evaluation at the end of each epoch; None does not evaluate."""


class TrainingOptions(MonitoringOptions, group="training"):
    """Options for the length of training and its output."""

    epochs: Count = 100
    """number of further epochs."""
    steps_per_epoch: Count = 4000
    """number of updates per epoch."""
    validation_episodes: Count = 10
    """number of episodes per evaluation."""
    max_ep_len: Count | None = 1000
    """number of steps after which episodes are truncated; None sets no limit beyond the environment's own."""
    verbose: Literal["auto", 0, 1, 2] = "auto"
    """0 prints nothing, 1 a progress bar, 2 one line per epoch; "auto" is 1 in a terminal or a notebook, otherwise
    2."""


class FitOptions(TrainingOptions, group="training"):
    """Options of `fit`."""

    epochs = 100
    """epoch to stop at: the number of epochs in all, including those before `initial_epoch`."""
    steps_per_epoch = 4000
    """number of environment steps per epoch, counted over all sub-environments."""
    callbacks = None
    """Keras callbacks. A batch is a collection phase; its index is that of its last environment step."""
    initial_epoch: Natural = 0
    """epoch to start at, to resume an earlier training run."""
    step_timeout: Positive | None = None
    """maximum duration of a step or a reset of the environment, in seconds. If it takes longer, its processes are ended
    and training fails. None sets no limit. Requires an AsyncVectorEnv or rollout workers; the limit of a worker is
    `chunk` times as long for a chunk, plus one minute. Evaluation has no limit."""

    def check(self) -> None:
        """Reject an `initial_epoch` that is not less than `epochs`."""
        if self.initial_epoch >= self.epochs:
            raise reject("initial_epoch", f"less than epochs={self.epochs}", self.initial_epoch)
