"""The workers as Ray actors: orders go out, chunks come in, and what dies comes back."""

import collections
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray

from tfdpg.distributed.chunks import RolloutRequest
from tfdpg.distributed.liveness import LivenessMonitor
from tfdpg.distributed.processes import FIRST_RETRY_DELAY, MAX_RETRY_DELAY, is_process_lost, unwrap_ray_error

REQUESTS_PER_WORKER = 2
"""Orders that each worker has at a time, so that it never waits for the learner."""
STARTUP_SECONDS = 60.0
"""Seconds in which a process starts, or comes back, or one that it waits for does."""
MAX_POLL_INTERVAL = 1.0
"""Seconds that the learner may be busy between two looks at what arrived, without an evaluation."""


class WorkerHandle:
    """A worker, the orders that it has, and what is known of it."""

    def __init__(self, worker: Any):
        self.worker = worker
        self.requests: collections.deque[tuple[Any, int]] = collections.deque()
        self.process_id = -1
        self.failures = 0
        self.retry_at = 0.0
        self.last_error: Exception | None = None  # of the last order, if that was lost
        self.waiting_since = 0.0  # when it delivered something, was lost, or got its first order after that
        self._oldest_request_steps = 0

    @property
    def oldest_request_steps(self) -> int:
        """The environment steps of its oldest order, or of the last one."""
        self._oldest_request_steps = self.requests[0][1] if self.requests else self._oldest_request_steps
        return self._oldest_request_steps


class WorkerPool:
    """The workers of a training.

    Args:
        workers: one Ray actor for each lane, with a method `rollout(weights, version, request)`.
        step_timeout: seconds that an environment step may take; None waits for ever.
        liveness: tells the user, without a `step_timeout`, that workers do not come back.

    Attributes:
        in_flight: environment steps that were ordered and did not arrive yet.
        restarts: how often a worker came back as a new process.
    """

    def __init__(
        self, workers: Sequence[Any], step_timeout: float | None = None, liveness: LivenessMonitor | None = None
    ):
        self._handles = [WorkerHandle(worker) for worker in workers]
        self._timeout = step_timeout
        self._liveness = liveness
        self._last_collected = time.monotonic()
        self.in_flight = self.restarts = 0

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *exception: object) -> None:
        """Ends all workers."""
        for handle in self._handles:
            ray.kill(handle.worker)

    def send_requests(self, weights: Any, version: int, next_request: Callable[[int], RolloutRequest]) -> None:
        """Gives each worker that has less than `REQUESTS_PER_WORKER` orders one more.

        Args:
            weights: a reference to them.
            version: their version.
            next_request: gives the next order for a lane.
        """
        now = time.monotonic()
        for env_index, handle in enumerate(self._handles):
            if len(handle.requests) < REQUESTS_PER_WORKER and now >= handle.retry_at:
                request = next_request(env_index)
                handle.waiting_since = handle.waiting_since if handle.requests or handle.failures else now
                handle.requests.append((handle.worker.rollout.remote(weights, version, request), request.steps))
                self.in_flight += request.steps

    def collect_replies(self, timeout: float) -> list[tuple[int, Any]]:
        """The replies that arrived, each with its lane, in order for each lane; waits up to `timeout` s for the first.

        Raises:
            Exception: what was raised in a worker, with the traceback there. What died is not raised: its orders
                are lost, and it gets new ones when it is back.
            TimeoutError: workers deliver nothing.
        """
        if self._liveness is not None:
            self._liveness.check_cluster()
        self._exclude_pause()
        oldest_requests = self._oldest_requests()
        if not oldest_requests:
            time.sleep(min(timeout, FIRST_RETRY_DELAY))
        else:
            ray.wait(list(oldest_requests), num_returns=1, timeout=timeout)
        received: list[tuple[int, Any]] = []
        while oldest_requests:  # until no lane's oldest order has its reply
            ready, _ = ray.wait(list(oldest_requests), num_returns=len(oldest_requests), timeout=0)
            received += [(oldest_requests[reference], self._receive(oldest_requests[reference])) for reference in ready]
            oldest_requests = self._oldest_requests() if ready else {}
        self._check_timeouts()
        self._last_collected = time.monotonic()
        return [(env_index, reply) for env_index, reply in received if reply is not None]

    def _exclude_pause(self) -> None:
        """Does not count the time of an evaluation, in which nobody asks a lost worker again."""
        pause = time.monotonic() - self._last_collected - MAX_POLL_INTERVAL
        for handle in self._handles:
            handle.waiting_since += max(0.0, pause) if handle.failures else 0.0

    def _check_timeouts(self) -> None:
        """Raises `TimeoutError` if workers have delivered nothing for longer than their steps may take.

        Without a limit, it warns of those whose process was lost, or cannot start.
        """
        now = time.monotonic()
        liveness = self._liveness
        waited = {
            env_index: now - handle.waiting_since
            for env_index, handle in enumerate(self._handles)
            if handle.requests or handle.failures
        }
        if self._timeout is None:
            if liveness is not None:
                self._warn(liveness, waited)
            return
        allowed = {
            env_index: self._handles[env_index].oldest_request_steps * self._timeout + STARTUP_SECONDS
            for env_index in waited
        }
        late = [env_index for env_index in waited if waited[env_index] > allowed[env_index]]
        if late:
            reason = liveness.reason(self._last_error(late)) + " " if liveness else ""
            raise TimeoutError(
                f"Workers {late}, which are the lanes of these numbers, delivered nothing within "
                f"{max(allowed[env_index] for env_index in late):g} seconds (`step_timeout={self._timeout:g}` for each "
                f"step of a chunk, and {STARTUP_SECONDS:g} for a process to start). {reason}"
                "Find out what they wait for, or raise `step_timeout`."
            )

    def _warn(self, liveness: LivenessMonitor, waited: dict[int, float]) -> None:
        """Warns of workers whose process was lost, or cannot start since CPUs are missing."""
        longest = max(waited.values(), default=0.0)
        handles = self._handles
        if longest >= STARTUP_SECONDS:
            lacks_cpus = liveness.lacks_cpus
            lost = [n for n in waited if handles[n].failures or (lacks_cpus and handles[n].process_id == -1)]
            longest = max((waited[env_index] for env_index in lost), default=0.0)
            liveness.warn(f"{len(lost)} of {len(handles)} workers", longest, STARTUP_SECONDS, self._last_error(lost))
        else:
            liveness.warn("", longest, STARTUP_SECONDS)

    def _last_error(self, env_indices: Sequence[int]) -> Exception | None:
        """Why an order of one of these workers was lost, if one was."""
        return next((error for env_index in env_indices if (error := self._handles[env_index].last_error)), None)

    def _oldest_requests(self) -> dict[Any, int]:
        """The oldest order of each lane that has one: its reference, and the lane."""
        return {handle.requests[0][0]: env_index for env_index, handle in enumerate(self._handles) if handle.requests}

    def _receive(self, env_index: int) -> Any:
        """The oldest reply of a worker; None if it was lost."""
        handle = self._handles[env_index]
        reference, steps = handle.requests.popleft()
        self.in_flight -= steps
        try:
            reply: Any = ray.get(reference)
        except Exception as error:
            if not is_process_lost(error):
                raise unwrap_ray_error(error, f"worker {env_index}, which is lane {env_index}") from None
            handle.retry_at = time.monotonic() + min(FIRST_RETRY_DELAY * 2**handle.failures, MAX_RETRY_DELAY)
            handle.waiting_since = handle.waiting_since if handle.failures else time.monotonic()
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
