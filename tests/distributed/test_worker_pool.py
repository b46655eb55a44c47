"""The timeouts of workers, without Ray."""

import time

import pytest
import ray

from tfdpg.distributed import worker_pool
from tfdpg.distributed.liveness import ControlStore, LivenessMonitor
from tfdpg.training.interrupt import Interrupt


def test_a_worker_is_late_if_its_oldest_request_is(monkeypatch):
    for name, nothing in (("cluster_resources", {}), ("available_resources", {}), ("nodes", [])):
        monkeypatch.setattr(ray, name, lambda nothing=nothing: nothing)
    liveness = LivenessMonitor(3, 2.0, Interrupt(), ControlStore(None, 60.0))
    workers = worker_pool.WorkerPool([None, None, None], 10, liveness, None)
    now = time.monotonic()
    for handle, age in zip(workers._handles, (75.0, 85.0, 1e6), strict=True):
        handle.waiting_since = now - age
    for handle in workers._handles[:2]:
        handle.requests.append(None)
    with pytest.raises(TimeoutError, match=r"Workers \[1\] did not .*80 seconds"):
        workers._check_liveness()
