"""The workers as Ray actors: sends requests, collects replies, and retries workers that were lost."""

import collections
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray

from tfdpg.distributed.liveness import LivenessMonitor
from tfdpg.distributed.processes import is_process_lost, unwrap_ray_error
from tfdpg.distributed.worker import RolloutRequest, Summary

REQUESTS_PER_WORKER = 2
"""Requests that each worker has at a time, so that it never waits for the learner."""
FIRST_RETRY_DELAY = 0.1
MAX_RETRY_DELAY = 5.0
"""Seconds before the next request to a worker that was lost. The delay doubles with each failure, up to the maximum."""
STARTUP_SECONDS = 60.0
"""Seconds in which a process must start or restart."""
MAX_POLL_INTERVAL = 1.0
"""Seconds between two calls of `collect_replies` if the learner does not run an evaluation in between."""


class WorkerHandle:
    """A worker and its pending requests."""

    def __init__(self, env_index: int, worker: Any):
        self.env_index = env_index
        self.worker = worker
        self.requests: collections.deque[list[Any]] = collections.deque()  # references of summaries and of rows
        self.is_behind = False  # whether its earlier chunks must be stored before it gets requests
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
        store: stores the rows: `LocalReplay` or `ShardedReplay`.

    Attributes:
        restarts: the number of times that a worker restarted in a new process.
    """

    def __init__(self, workers: Sequence[Any], chunk: int, liveness: LivenessMonitor, store: Any):
        self._handles = [WorkerHandle(*numbered) for numbered in enumerate(workers)]
        self._chunk = chunk
        self._liveness = liveness
        self._store = store
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
            if len(handle.requests) >= REQUESTS_PER_WORKER or now < handle.retry_at:
                continue
            handle.is_behind = self._store.is_behind(handle.env_index)
            if not handle.is_behind:
                if not handle.requests and not handle.failures:
                    handle.waiting_since = now
                request = next_request(handle.env_index)
                rollout = handle.worker.rollout.options(num_returns=2)
                handle.requests.append(rollout.remote(weights, version, request))

    def collect_replies(self, timeout: float) -> list[tuple[int, Summary, Any]]:
        """Return the chunks that have arrived: the `env_index`, the summary, and what the store fetches of the rows.

        The chunks of each worker are in the order of its requests.

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
        replies: list[tuple[int, Summary, Any]] = []
        while oldest:  # until no worker's oldest request has its reply
            ready, _ = ray.wait(list(oldest), num_returns=len(oldest), timeout=0)
            replies += [reply for each in ready if (reply := self._receive(oldest[each])) is not None]
            oldest = self._oldest_requests() if ready else {}
        self._check_liveness()
        self._last_collected = time.monotonic()
        return replies

    def _oldest_requests(self) -> dict[Any, WorkerHandle]:
        """Return the worker of each oldest pending request, by the object reference of the summary."""
        return {handle.requests[0][0]: handle for handle in self._handles if handle.requests}

    def _exclude_pause(self) -> None:
        """Exclude the time of an evaluation, during which lost workers get no requests, from the time they waited."""
        pause = max(0.0, time.monotonic() - self._last_collected - MAX_POLL_INTERVAL)
        for handle in self._handles:
            if handle.failures or handle.is_behind:
                handle.waiting_since += pause

    def _check_liveness(self) -> None:
        """Raise `TimeoutError` if a worker has not replied for longer than its steps may take.

        Without a `step_timeout`, warn of workers whose process was lost or cannot start.
        """
        now = time.monotonic()
        liveness = self._liveness
        allowed = self._chunk * (liveness.step_timeout or 0.0) + STARTUP_SECONDS
        waiting = [handle for handle in self._handles if handle.requests or handle.failures or handle.is_behind]
        late = [handle for handle in waiting if now - handle.waiting_since > allowed]
        if late and liveness.step_timeout is None:
            lacks_cpus = liveness.lacks_cpus
            late = [
                handle
                for handle in late
                if handle.failures or handle.is_behind or (lacks_cpus and handle.process_id == -1)
            ]
        longest = max((now - handle.waiting_since for handle in late), default=0.0)
        error = next((handle.last_error for handle in late if handle.last_error), None)
        liveness.check(f"Workers {[handle.env_index for handle in late]}", longest, allowed, error)

    def _receive(self, handle: WorkerHandle) -> tuple[int, Summary, Any] | None:
        """Return the oldest chunk of a worker; None if it was lost."""
        summary_reference, rows = handle.requests.popleft()
        try:
            summary: Summary = ray.get(summary_reference)
            rows = self._store.fetch(rows)
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
        self.restarts += handle.process_id not in (-1, summary.process_id)
        handle.process_id = summary.process_id
        return handle.env_index, summary, rows
