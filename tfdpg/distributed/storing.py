"""A rollout worker whose rows go to a shard. No TensorFlow is imported."""

from typing import Any

import ray

from tfdpg.distributed.chunks import Order
from tfdpg.distributed.processes import patiently
from tfdpg.distributed.shard import Stored
from tfdpg.distributed.worker import Worker
from tfdpg.spec import Spec
from tfdpg.training.finite import check_finite


class StoringWorker:
    """A worker whose chunks go to a shard.

    Args:
        shard: the name of the shard's actor.
        lane: the lane.
        spec: the spaces.
        *others: the other arguments of `Worker`.
    """

    def __init__(self, shard: str, lane: int, spec: Spec, *others: Any):
        self._shard, self._lane, self._spec = shard, lane, spec
        self._worker = Worker(lane, spec, *others)

    def rollout(self, weights: Any, version: int, order: Order) -> Stored:
        """See `Worker.rollout`; returns once the shard has stored the rows.

        Raises:
            ValueError: what came is not finite. Nothing is stored.
        """
        chunk = self._worker.rollout(weights, version, order)
        where = f"{order.steps} steps of lane {self._lane} (worker {self._lane}); none of these was stored"
        rows = chunk.rows
        check_finite(self._spec, rows.observation, rows.reward, where, rows.steps_action, "row")
        shared = ray.put(chunk)
        receipt: Any = patiently(lambda: ray.get(ray.get_actor(self._shard).store.remote(self._lane, shared)))
        return Stored(chunk.summary, receipt)
