"""The workers as Ray actors: orders go out, chunks come in, and what dies comes back."""

import collections
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray

from tfdpg.distributed.chunks import Order
from tfdpg.distributed.processes import FIRST_DELAY, LONGEST_DELAY, is_loss, unwrapped
from tfdpg.distributed.waiting import Waiting

IN_FLIGHT = 2
"""Orders that each worker has at a time, so that it never waits for the learner."""
GRACE = 60.0
"""Seconds in which a process starts, or comes back, or one that it waits for does."""
LOOK = 1.0
"""Seconds that the learner may be busy between two looks at what arrived, without an evaluation."""


class _Lane:
    """A worker, the orders that it has, and what is known of it."""

    def __init__(self, worker: Any):
        self.worker = worker
        self.orders: collections.deque[tuple[Any, int]] = collections.deque()
        self.incarnation = -1
        self.failures, self.not_before = 0, 0.0
        self.error: Exception | None = None  # of the last order, if that was lost
        self.since = 0.0  # when it delivered something, was lost, or got its first order after that
        self._ordered = 0

    @property
    def ordered(self) -> int:
        """The environment steps of its oldest order, or of the last one."""
        self._ordered = self.orders[0][1] if self.orders else self._ordered
        return self._ordered


class Fleet:
    """The workers of a training.

    Args:
        workers: one Ray actor for each lane, with a method `rollout(weights, version, order)`.
        step_timeout: seconds that an environment step may take; None waits for ever.
        waiting: tells the user, without a `step_timeout`, that workers do not come back.

    Attributes:
        in_flight: environment steps that were ordered and did not arrive yet.
        restarts: how often a worker came back as a new process.
    """

    def __init__(self, workers: Sequence[Any], step_timeout: float | None = None, waiting: Waiting | None = None):
        self._lanes = [_Lane(worker) for worker in workers]
        self._timeout, self._waiting = step_timeout, waiting
        self._left = time.monotonic()
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
                lane.since = lane.since if lane.orders or lane.failures else now
                lane.orders.append((lane.worker.rollout.remote(weights, version, order), order.steps))
                self.in_flight += order.steps

    def arrivals(self, timeout: float) -> list[tuple[int, Any]]:
        """The replies that arrived, each with its lane, in order for each lane; waits up to `timeout` s for the first.

        Raises:
            Exception: what was raised in a worker, with the traceback there. What died is not raised: its orders
                are lost, and it gets new ones when it is back.
            TimeoutError: workers deliver nothing.
        """
        if self._waiting is not None:
            self._waiting.check_cluster()
        self._leave_out_absence()
        oldest = self._oldest()
        if not oldest:
            time.sleep(min(timeout, FIRST_DELAY))
        else:
            ray.wait(list(oldest), num_returns=1, timeout=timeout)
        received: list[tuple[int, Any]] = []
        while oldest:  # until no lane's oldest order has its reply
            ready, _ = ray.wait(list(oldest), num_returns=len(oldest), timeout=0)
            received += [(oldest[reference], self._receive(oldest[reference])) for reference in ready]
            oldest = self._oldest() if ready else {}
        self._check_time()
        self._left = time.monotonic()
        return [(number, reply) for number, reply in received if reply is not None]

    def _leave_out_absence(self) -> None:
        """Does not count the time of an evaluation, in which nobody asks a lost worker again."""
        absence = time.monotonic() - self._left - LOOK
        for lane in self._lanes:
            lane.since += max(0.0, absence) if lane.failures else 0.0

    def _check_time(self) -> None:
        """Raises `TimeoutError` if workers have delivered nothing for longer than their steps may take.

        Without a limit, it warns of those whose process was lost, or cannot start.
        """
        now, waiting = time.monotonic(), self._waiting
        waited = {number: now - lane.since for number, lane in enumerate(self._lanes) if lane.orders or lane.failures}
        if self._timeout is None:
            if waiting is not None:
                self._warn(waiting, waited)
            return
        allowed = {number: self._lanes[number].ordered * self._timeout + GRACE for number in waited}
        late = [number for number in waited if waited[number] > allowed[number]]
        if late:
            reason = waiting.reason(self._error(late)) + " " if waiting else ""
            raise TimeoutError(
                f"Workers {late}, which are the lanes of these numbers, delivered nothing within "
                f"{max(allowed[number] for number in late):g} seconds (`step_timeout={self._timeout:g}` for each step "
                f"of a chunk, and {GRACE:g} for a process to start). {reason}Find out what they wait for, or raise "
                "`step_timeout`."
            )

    def _warn(self, waiting: Waiting, waited: dict[int, float]) -> None:
        """Warns of workers whose process was lost, or cannot start since CPUs are missing."""
        longest = max(waited.values(), default=0.0)
        lanes = self._lanes
        if longest >= GRACE:
            is_short = waiting.is_short
            lost = [n for n in waited if lanes[n].failures or (is_short and lanes[n].incarnation == -1)]
            longest = max((waited[number] for number in lost), default=0.0)
            waiting.warn(f"{len(lost)} of {len(lanes)} workers", longest, GRACE, self._error(lost))
        else:
            waiting.warn("", longest, GRACE)

    def _error(self, numbers: Sequence[int]) -> Exception | None:
        """Why an order of one of these workers was lost, if one was."""
        return next((error for number in numbers if (error := self._lanes[number].error)), None)

    def _oldest(self) -> dict[Any, int]:
        """The oldest order of each lane that has one: its reference, and the lane."""
        return {lane.orders[0][0]: number for number, lane in enumerate(self._lanes) if lane.orders}

    def _receive(self, number: int) -> Any:
        """The oldest reply of a worker; None if it was lost."""
        lane = self._lanes[number]
        reference, steps = lane.orders.popleft()
        self.in_flight -= steps
        try:
            reply: Any = ray.get(reference)
        except Exception as error:
            if not is_loss(error):
                raise unwrapped(error, f"worker {number}, which is lane {number}") from None
            lane.not_before = time.monotonic() + min(FIRST_DELAY * 2**lane.failures, LONGEST_DELAY)
            lane.since = lane.since if lane.failures else time.monotonic()
            lane.failures += 1
            lane.error = error
            return None
        lane.since, lane.error = time.monotonic(), None
        lane.failures, incarnation = 0, reply.summary.incarnation
        self.restarts += lane.incarnation not in (-1, incarnation)
        lane.incarnation = incarnation
        return reply
