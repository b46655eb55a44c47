"""The options of `tfdpg.distributed.fit`."""

from collections.abc import Sequence
from typing import Literal

from tfdpg.arguments import reject
from tfdpg.options import Options
from tfdpg.ranges import Count, Natural, NonNegative
from tfdpg.training.options import FitOptions


class Distribution(Options, group="rollout workers"):
    """Options of the rollout workers, the replay shards and the Ray cluster."""

    actors: Count = 8
    """number of rollout workers; each has its own environment and uses one CPU."""
    ray_address: str | None = None
    """`host:port` of a Ray cluster, or "auto" for the one that this machine belongs to. The default starts a Ray
    cluster on this machine and stops it when training ends. An existing connection to Ray is used and kept."""
    noise_levels: Sequence[NonNegative] | None = None
    """exploration noise of each worker, as a fraction of the action scale. The default is evenly spaced from 1/32 to
    1; a single worker uses the agent's `act_noise`."""
    chunk: Count = 100
    """number of environment steps that a worker collects before it sends them."""
    variable_update_period: Count = 100
    """number of updates between two versions of the weights that workers receive."""
    samples_per_insert: NonNegative | None = None
    """number of samples drawn from the replay buffer per environment step after `update_after`. The default follows the
    agent's update schedule (by default one update per step); 0 collects without learning."""
    tolerance: NonNegative = 0.1
    """how far the learner or the workers may run ahead of each other, as a fraction of `update_after` steps."""
    worker_backend: Literal["numpy", "tensorflow"] = "numpy"
    """library that computes the policy in workers: "numpy", or "tensorflow" for a policy without a NumPy forward
    pass."""
    replay_shards: Natural = 0
    """number of processes that store the replay buffer, each an equal part; 0 stores it in the learner."""

    def check(self) -> None:
        """Raise `ValueError` if `noise_levels` or `replay_shards` is inconsistent with `actors`."""
        if self.noise_levels is not None and len(self.noise_levels) != self.actors:
            raise reject("noise_levels", f"{self.actors} numbers, one for each actor", self.noise_levels)
        if self.replay_shards > self.actors:
            raise reject("replay_shards", f"at most actors={self.actors}", self.replay_shards)


class DistributedFitOptions(Distribution, FitOptions):
    """The options of `tfdpg.distributed.fit`."""

    unused = {
        "realtime": "rollout workers act in processes of their own",
        "demonstrations": "rollout workers collect: only `Agent.fit` mixes minibatches",
    }
