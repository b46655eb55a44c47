"""A rollout worker whose rows go to a shard. No TensorFlow is imported."""

from typing import Any

import ray

from tfdpg.distributed.chunks import RolloutRequest
from tfdpg.distributed.processes import retry_while_lost
from tfdpg.distributed.replay_shard import StoredReply
from tfdpg.distributed.worker import Worker
from tfdpg.spec import Spec
from tfdpg.training.environment.finite import check_finite


class ShardWorker:
    """A worker whose chunks go to a shard.

    Args:
        shard: the name of the shard's actor.
        env_index: the lane.
        spec: the spaces.
        *others: the other arguments of `Worker`.
    """

    def __init__(self, shard: str, env_index: int, spec: Spec, *others: Any):
        self._shard = shard
        self._env_index = env_index
        self._spec = spec
        self._worker = Worker(env_index, spec, *others)

    def rollout(self, weights: Any, version: int, request: RolloutRequest) -> StoredReply:
        """See `Worker.rollout`; returns once the shard has stored the rows.

        Raises:
            ValueError: what came is not finite. Nothing is stored.
        """
        chunk = self._worker.rollout(weights, version, request)
        where = f"{request.steps} steps of lane {self._env_index} (worker {self._env_index}); none of these was stored"
        rows = chunk.rows
        check_finite(self._spec, rows.observation, rows.reward, where, rows.masked_action, "row")
        shared = ray.put(chunk)
        ack: Any = retry_while_lost(lambda: ray.get(ray.get_actor(self._shard).store.remote(self._env_index, shared)))
        return StoredReply(chunk.summary, ack)
