"""The workers as Ray actors: orders go out, chunks come in, and what dies comes back."""

import collections
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import ray

from tfdpg.distributed.chunks import Order
from tfdpg.distributed.processes import FIRST_DELAY, LONGEST_DELAY, is_loss

IN_FLIGHT = 2
"""Orders that each worker has at a time, so that it never waits for the learner."""
GRACE = 60.0
"""Seconds in which a process starts, or comes back, or one that it waits for does."""
MANY = 20
"""Failures of a worker in a row that are worth a warning."""


class _Lane:
    """A worker, the orders that it has, and what is known of it."""

    def __init__(self, worker: Any):
        self.worker = worker
        self.orders: collections.deque[tuple[Any, int]] = collections.deque()
        self.incarnation = -1
        self.failures, self.not_before = 0, 0.0
        self.since = 0.0  # when its oldest order became the oldest


class Fleet:
    """The workers of a training.

    Args:
        workers: one Ray actor for each lane, with a method `rollout(weights, version, order)`.
        step_timeout: seconds that an environment step may take; None waits for ever.

    Attributes:
        in_flight: environment steps that were ordered and did not arrive yet.
        restarts: how often a worker came back as a new process.
    """

    def __init__(self, workers: Sequence[Any], step_timeout: float | None = None):
        self._lanes = [_Lane(worker) for worker in workers]
        self._timeout = step_timeout
        self.in_flight = self.restarts = 0

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *exception: object) -> None:
        """Ends all workers."""
        for lane in self._lanes:
            ray.kill(lane.worker)

    def order(self, weights: Any, version: int, next_order: Callable[[int], Order]) -> None:
        """Gives each worker that has less than `IN_FLIGHT` orders one more.

        Args:
            weights: a reference to them.
            version: their version.
            next_order: gives the next order for a lane.
        """
        now = time.monotonic()
        for number, lane in enumerate(self._lanes):
            if len(lane.orders) < IN_FLIGHT and now >= lane.not_before:
                order = next_order(number)
                lane.since = lane.since if lane.orders else now
                lane.orders.append((lane.worker.rollout.remote(weights, version, order), order.steps))
                self.in_flight += order.steps

    def arrivals(self, timeout: float) -> list[tuple[int, Any]]:
        """The replies that arrived, each with its lane, in order for each lane; waits up to `timeout` s for the first.

        Raises:
            Exception: what was raised in a worker, with the traceback there. What died is not raised: its orders
                are lost, and it gets new ones when it is back.
            TimeoutError: workers deliver nothing.
        """
        oldest = self._oldest()
        if not oldest:
            time.sleep(min(timeout, FIRST_DELAY))
            return []
        ray.wait(list(oldest), num_returns=1, timeout=timeout)
        received: list[tuple[int, Any]] = []
        while oldest:  # until no lane's oldest order has its reply
            ready, _ = ray.wait(list(oldest), num_returns=len(oldest), timeout=0)
            received += [(oldest[reference], self._receive(oldest[reference])) for reference in ready]
            oldest = self._oldest() if ready else {}
        self._check_time()
        return [(number, reply) for number, reply in received if reply is not None]

    def _check_time(self) -> None:
        """Raises `TimeoutError` if workers have had an order for longer than its steps may take."""
        if self._timeout is None:
            return
        now, late = time.monotonic(), {}
        for number, lane in enumerate(self._lanes):
            if lane.orders and now - lane.since > (allowed := lane.orders[0][1] * self._timeout + GRACE):
                late[number] = allowed
        if late:
            raise TimeoutError(
                f"Workers {list(late)}, which are the lanes of these numbers, delivered nothing within "
                f"{max(late.values()):g} seconds (`step_timeout={self._timeout:g}` for each step of a chunk, and "
                f"{GRACE:g} for a process to start). Find out what they wait for, or raise `step_timeout`."
            )

    def _oldest(self) -> dict[Any, int]:
        """The oldest order of each lane that has one: its reference, and the lane."""
        return {lane.orders[0][0]: number for number, lane in enumerate(self._lanes) if lane.orders}

    def _receive(self, number: int) -> Any:
        """The oldest reply of a worker; None if it was lost."""
        lane = self._lanes[number]
        reference, steps = lane.orders.popleft()
        self.in_flight -= steps
        lane.since = time.monotonic()
        try:
            reply: Any = ray.get(reference)
        except Exception as error:
            if not is_loss(error):
                error.add_note(f"It was raised in worker {number}, which is lane {number}.")
                raise
            lane.not_before = time.monotonic() + min(FIRST_DELAY * 2**lane.failures, LONGEST_DELAY)
            lane.failures += 1
            if lane.failures == MANY:
                warnings.warn(f"Worker {number} has lost {MANY} orders in a row. The last one: {error}", stacklevel=2)
            return None
        lane.failures, incarnation = 0, reply.summary.incarnation
        self.restarts += lane.incarnation not in (-1, incarnation)
        lane.incarnation = incarnation
        return reply
