"""Options of `fit` and `fit_offline`. This module does not import TensorFlow."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from tfdpg.arguments import reject
from tfdpg.options import OBJECTS, Group, Only, Options
from tfdpg.ranges import Count, Natural, Positive, Share

if TYPE_CHECKING:
    import keras


DEFAULT_EPOCHS = 100
"""The number of epochs of a training run whose length is not given."""


class MonitoringOptions(Options, group=OBJECTS):
    """Options for monitoring training."""

    callbacks: "Sequence[keras.callbacks.Callback] | None" = None
    """Keras callbacks. A batch is an update phase; its index is that of its last update."""
    validation_env: Any = None
    """second environment, or its id, for an evaluation at the end of each epoch; None does not evaluate."""


class TrainingOptions(MonitoringOptions, group="training"):
    """Options for the length of training and its output."""

    epochs: Count | None = None
    """number of further epochs. None is 100, or no limit if `minutes` is given."""
    steps_per_epoch: Count = 4000
    """number of updates per epoch."""
    minutes: Positive | None = None
    """time budget in minutes. Training stops, also within an epoch, in time for a last evaluation and the callbacks
    after it. Compilation, evaluations and callbacks count. None sets no limit."""
    validation_episodes: Count = 10
    """number of episodes per evaluation."""
    max_ep_len: Count | None = None
    """number of steps after which episodes are truncated; None sets no limit beyond the environment's own."""
    verbose: Literal["auto", 0, 1, 2] = "auto"
    """0 prints nothing, 1 a progress bar, 2 one line per epoch; "auto" is 1 in a terminal or a notebook, otherwise
    2."""

    @property
    def epoch_limit(self) -> int | None:
        """The value of `epochs`, or what None means; None if only `minutes` ends training."""
        return DEFAULT_EPOCHS if self.epochs is None and self.minutes is None else self.epochs


class OfflineOptions(TrainingOptions, group="training"):
    """Options of `fit_offline`."""

    clip_actions: bool = False
    """whether actions of `data` outside the action space are clipped to it. False refuses them."""


class FitOptions(TrainingOptions, group="training"):
    """Options of `fit`."""

    epochs = None
    """epoch to stop at: the number of epochs in all, including those before `initial_epoch`. None is 100, or no limit
    if `minutes` is given."""
    steps_per_epoch = 4000
    """number of environment steps per epoch, counted over all sub-environments."""
    callbacks = None
    """Keras callbacks. A batch is a collection phase; its index is that of its last environment step."""
    validation_env = None
    """second environment, or its id, for an evaluation at the end of each epoch; None does not evaluate. With
    `realtime`, it may be `env` itself, which is then evaluated between two episodes."""
    initial_epoch: Natural = 0
    """epoch to start at, to resume an earlier training run."""
    realtime: bool = False
    """whether the environment is a real machine, whose control loop never waits for learning: updates, evaluations,
    callbacks and checkpoints are made in a thread of their own."""
    max_lag: Annotated[Count | None, Only(realtime=True)] = None
    """largest number of updates that may be due and not made. Above it, the environment is not stepped until learning
    has caught up. None never waits."""
    hold_steps: Annotated[Natural, Only(realtime=True)] = 0
    """number of steps in succession in which missing values of observations and rewards, which are NaN or infinite,
    keep their last values. After more of them, the episode is truncated."""
    safe_action: Annotated[tuple[float, ...] | None, Only(realtime=True)] = None
    """components of the action that the environment receives last, at the end of training, after an error or a signal;
    None sends none."""
    step_timeout: Positive | None = None
    """maximum duration of a step or a reset of the environment, in seconds. If it takes longer, its processes are ended
    and training fails. None sets no limit. Requires an AsyncVectorEnv or rollout workers; the limit of a worker is
    `chunk` times as long for a chunk, plus one minute. Evaluation has no limit."""
    demonstration_ratio: Share = 0.5
    """share of each minibatch that comes from `demonstrations`, rounded to a number of rows; the others come from the
    replay buffer."""
    join_interventions: bool = False
    """whether the steps that an operator makes, in which `info["intervention"]` is True, join the demonstrations. At
    most `replay_size` rows of them do. They are stored in the replay buffer in any case."""

    OBJECTS: ClassVar = Group(OBJECTS)

    demonstrations: Any = None
    """data set from which a share of each minibatch comes, in any form that `fit_offline` takes. It stays apart from
    the replay buffer. None takes all minibatches from the replay buffer."""

    def check(self) -> None:
        """Reject an `initial_epoch` that is not less than `epochs`, and options of demonstrations without any."""
        if self.demonstrations is None:
            names = "demonstration_ratio", "join_interventions"
            self.refuse(dict.fromkeys(names, "there are no `demonstrations`"))
        limit = self.epoch_limit
        if limit is not None and self.initial_epoch >= limit:
            raise reject("initial_epoch", f"less than epochs={limit}", self.initial_epoch)
