"""The options of `tfdpg.distributed.fit`."""

from collections.abc import Sequence
from typing import Literal

from tfdpg.arguments import reject
from tfdpg.options import Options
from tfdpg.ranges import Count, Natural, NonNegative
from tfdpg.training.options import FitOptions


class Distribution(Options, group="rollout workers"):
    """How a training is distributed."""

    actors: Count = 8
    """workers, each with an environment and a CPU of its own."""
    ray_address: str | None = None
    """address of a Ray cluster, "auto" for the one that this machine belongs to; the default starts a Ray on this
    machine that ends with the training. A process that is connected to a Ray already stays so."""
    noise_levels: Sequence[NonNegative] | None = None
    """the exploration noise of each worker, as a fraction of the action's half-range; the default goes from 1/32 to 1
    in equal steps, and is the agent's `act_noise` for one worker."""
    chunk: Count = 100
    """environment steps that a worker sends at a time."""
    variable_update_period: Count = 100
    """updates until workers get newer weights."""
    samples_per_insert: NonNegative | None = None
    """rows drawn for each environment step after `update_after`; the default is the agent's own schedule (one update a
    step unless it says otherwise), and 0 collects without learning."""
    tolerance: NonNegative = 0.1
    """how far the learner or the workers may be ahead of that, as a part of `update_after` steps."""
    worker_backend: Literal["numpy", "tensorflow"] = "numpy"
    """what the policy runs on in workers, "numpy", or "tensorflow" for one that NumPy has no forward pass for."""
    replay_shards: Natural = 0
    """processes that hold the replay in place of the learner, each an equal part of it; 0 is none."""

    def check(self) -> None:
        """Refuses levels and shards that do not fit the workers."""
        if self.noise_levels is not None and len(self.noise_levels) != self.actors:
            raise reject("noise_levels", f"{self.actors} numbers, one for each actor", self.noise_levels)
        if self.replay_shards > self.actors:
            raise reject("replay_shards", f"at most actors={self.actors}", self.replay_shards)


class DistributedFitOptions(Distribution, FitOptions):
    """The options of `tfdpg.distributed.fit`."""
