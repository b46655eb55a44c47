"""The workers as Ray actors: sends requests, collects replies, and retries workers that were lost."""

import collections
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray

from tfdpg.distributed.liveness import LivenessMonitor
from tfdpg.distributed.processes import FIRST_RETRY_DELAY, MAX_RETRY_DELAY, is_process_lost, unwrap_ray_error
from tfdpg.distributed.worker import RolloutRequest

REQUESTS_PER_WORKER = 2
"""Requests that each worker has at a time, so that it never waits for the learner."""
STARTUP_SECONDS = 60.0
"""Seconds in which a process must start or restart."""
MAX_POLL_INTERVAL = 1.0
"""Seconds between two calls of `collect_replies` if the learner does not run an evaluation in between."""


class WorkerHandle:
    """A worker and its pending requests."""

    def __init__(self, env_index: int, worker: Any):
        self.env_index = env_index
        self.worker = worker
        self.requests: collections.deque[Any] = collections.deque()
        self.process_id = -1
        self.failures = 0
        self.retry_at = 0.0
        self.last_error: Exception | None = None  # if the last request was lost
        self.waiting_since = 0.0  # time of the last reply, of the loss, or of the first request after a reply


class WorkerPool:
    """The workers of a training run.

    Args:
        workers: one Ray actor for each sub-environment, with a method `rollout(weights, version, request)`.
        chunk: the number of environment steps in each request.
        liveness: has the `step_timeout`. Without one, it warns of workers that do not reply.

    Attributes:
        restarts: the number of times that a worker restarted in a new process.
    """

    def __init__(self, workers: Sequence[Any], chunk: int, liveness: LivenessMonitor):
        self._handles = [WorkerHandle(*numbered) for numbered in enumerate(workers)]
        self._chunk = chunk
        self._liveness = liveness
        self._last_collected = time.monotonic()
        self.restarts = 0

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *exception: object) -> None:
        """End all workers."""
        for handle in self._handles:
            ray.kill(handle.worker)

    @property
    def in_flight(self) -> int:
        """The environment steps that were requested and have not arrived."""
        return self._chunk * sum(len(handle.requests) for handle in self._handles)

    def send_requests(self, weights: Any, version: int, next_request: Callable[[int], RolloutRequest]) -> None:
        """Send one request to each worker that has fewer than `REQUESTS_PER_WORKER`.

        Args:
            weights: an object reference to the weights of the policy.
            version: the version of the weights.
            next_request: returns the next request for an `env_index`.
        """
        now = time.monotonic()
        for handle in self._handles:
            if len(handle.requests) < REQUESTS_PER_WORKER and now >= handle.retry_at:
                if not handle.requests and not handle.failures:
                    handle.waiting_since = now
                request = next_request(handle.env_index)
                handle.requests.append(handle.worker.rollout.remote(weights, version, request))

    def collect_replies(self, timeout: float) -> list[tuple[int, Any]]:
        """Return the replies that have arrived, each with its `env_index`, in the order of each worker's requests.

        The requests of a process that died are lost. The worker gets new ones when it is back.

        Args:
            timeout: seconds to wait for the first reply.

        Raises:
            Exception: the error that a worker raised, with its traceback.
            TimeoutError: workers do not reply, and there is a `step_timeout`.
            ConnectionError: the Ray cluster is gone.
        """
        self._liveness.control_store.check()
        self._exclude_pause()
        oldest = self._oldest_requests()
        if oldest:
            ray.wait(list(oldest), num_returns=1, timeout=timeout)
        else:
            time.sleep(min(timeout, FIRST_RETRY_DELAY))
        replies: list[tuple[int, Any]] = []
        while oldest:  # until no worker's oldest request has its reply
            ready, _ = ray.wait(list(oldest), num_returns=len(oldest), timeout=0)
            replies += [(oldest[reference].env_index, self._receive(oldest[reference])) for reference in ready]
            oldest = self._oldest_requests() if ready else {}
        self._check_liveness()
        self._last_collected = time.monotonic()
        return [(env_index, reply) for env_index, reply in replies if reply is not None]

    def _oldest_requests(self) -> dict[Any, WorkerHandle]:
        """Return the worker of each oldest pending request, by object reference."""
        return {handle.requests[0]: handle for handle in self._handles if handle.requests}

    def _exclude_pause(self) -> None:
        """Exclude the time of an evaluation, during which lost workers get no requests, from the time they waited."""
        pause = max(0.0, time.monotonic() - self._last_collected - MAX_POLL_INTERVAL)
        for handle in self._handles:
            if handle.failures:
                handle.waiting_since += pause

    def _check_liveness(self) -> None:
        """Raise `TimeoutError` if a worker has not replied for longer than its steps may take.

        Without a `step_timeout`, warn of workers whose process was lost or cannot start.
        """
        now = time.monotonic()
        liveness = self._liveness
        allowed = self._chunk * (liveness.step_timeout or 0.0) + STARTUP_SECONDS
        waiting = [handle for handle in self._handles if handle.requests or handle.failures]
        late = [handle for handle in waiting if now - handle.waiting_since > allowed]
        if late and liveness.step_timeout is None:
            lacks_cpus = liveness.lacks_cpus
            late = [handle for handle in late if handle.failures or (lacks_cpus and handle.process_id == -1)]
        longest = max((now - handle.waiting_since for handle in late), default=0.0)
        error = next((handle.last_error for handle in late if handle.last_error), None)
        liveness.check(f"Workers {[handle.env_index for handle in late]}", longest, allowed, error)

    def _receive(self, handle: WorkerHandle) -> Any:
        """Return the oldest reply of a worker; None if it was lost."""
        try:
            reply: Any = ray.get(handle.requests.popleft())
        except Exception as error:
            if not is_process_lost(error):
                raise unwrap_ray_error(error, f"worker {handle.env_index}") from None
            now = time.monotonic()
            handle.retry_at = now + min(FIRST_RETRY_DELAY * 2**handle.failures, MAX_RETRY_DELAY)
            if not handle.failures:
                handle.waiting_since = now
            handle.failures += 1
            handle.last_error = error
            return None
        handle.waiting_since = time.monotonic()
        handle.last_error = None
        handle.failures = 0
        process_id = reply.summary.process_id
        self.restarts += handle.process_id not in (-1, process_id)
        handle.process_id = process_id
        return reply
