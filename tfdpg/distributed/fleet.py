"""The workers as Ray actors: orders go out, chunks come in, and what dies comes back."""

import collections
import contextlib
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import ray
from ray.exceptions import ActorUnavailableError, NodeDiedError, ObjectLostError

from tfdpg.distributed.chunks import Chunk, Order

LOST = (ActorUnavailableError, NodeDiedError, ObjectLostError)
"""What a call raises when its process or node is gone, and not because of what it did."""
IN_FLIGHT = 2
"""Orders that each worker has at a time, so that it never waits for the learner."""
FIRST_DELAY, LONGEST_DELAY = 0.1, 5.0
"""Seconds until a worker that did not answer gets another order; it doubles with each failure."""
MANY = 20
"""Failures of a worker in a row that are worth a warning."""
OBJECT_STORE = 256 << 20
"""Bytes of shared memory of a Ray that is started here; what is under way takes a few MB."""
ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1"),
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
"""Environment variables of the actors: one thread each, and no GPU."""


@contextlib.contextmanager
def connected(address: str | None, cpus: int) -> Iterator[None]:
    """Joins the Ray at `address`, or starts one here with `cpus` logical CPUs, or takes the one that is there already.

    One that was started or joined here is left at the end; one that was there already stays.
    """
    ours = not ray.is_initialized()
    if ours:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address is None:
            options |= {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": OBJECT_STORE}
        ray.init(address=address or "local", **options)
    try:
        found = ray.cluster_resources().get("CPU", 0)
        if found < cpus:
            warnings.warn(
                f"The Ray cluster has {found:g} CPUs, and {cpus} actors take one each: "
                f"{cpus - found:g} of them start only once it has more.",
                stacklevel=2,
            )
        yield
    finally:
        if ours:
            ray.shutdown()


def start_actor(kind: type, *arguments: Any) -> Any:
    """Starts an actor that comes back whenever its process or node dies; a call that it cost is not repeated."""
    remote: Any = ray.remote(
        num_cpus=1,
        max_restarts=-1,
        max_task_retries=0,
        scheduling_strategy="SPREAD",
        runtime_env={"env_vars": ENVIRONMENT},
    )(kind)
    return remote.remote(*arguments)


class Arrival(NamedTuple):
    """A chunk, and what the fleet knows of it.

    Attributes:
        lane: its lane.
        chunk: what was collected.
        goes_on: whether it follows the last chunk of its lane that arrived.
    """

    lane: int
    chunk: Chunk
    goes_on: bool


class _Lane:
    """A worker, the orders that it has, and what is known of it."""

    def __init__(self, actor: Any):
        self.actor = actor
        self.orders: collections.deque[tuple[Any, int]] = collections.deque()
        self.incarnation, self.sequence = -1, 0
        self.failures, self.not_before = 0, 0.0


class Fleet:
    """The workers of a training.

    Args:
        actors: one Ray actor for each lane, with a method `rollout(weights, version, order)`.

    Attributes:
        in_flight: environment steps that were ordered and did not arrive yet.
        restarts: how often a worker came back as a new process.
    """

    def __init__(self, actors: Sequence[Any]):
        self._lanes = [_Lane(actor) for actor in actors]
        self.in_flight = self.restarts = 0

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *exception: object) -> None:
        """Ends all workers."""
        for lane in self._lanes:
            ray.kill(lane.actor)

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
                lane.orders.append((lane.actor.rollout.remote(weights, version, order), order.steps))
                self.in_flight += order.steps

    def arrivals(self, timeout: float) -> list[Arrival]:
        """The chunks that arrived, in order for each lane; waits up to `timeout` seconds for the first.

        Raises:
            Exception: what was raised in a worker, with the traceback there. What died is not raised: its orders
                are lost, and it gets new ones when it is back.
        """
        oldest = {lane.orders[0][0]: number for number, lane in enumerate(self._lanes) if lane.orders}
        if not oldest:
            time.sleep(min(timeout, FIRST_DELAY))
            return []
        ready, _ = ray.wait(list(oldest), num_returns=1, timeout=timeout)
        if ready:
            ready, _ = ray.wait(list(oldest), num_returns=len(oldest), timeout=0)
        received = (self._receive(oldest[reference]) for reference in ready)
        return [arrival for arrival in received if arrival is not None]

    def _receive(self, number: int) -> Arrival | None:
        lane = self._lanes[number]
        reference, steps = lane.orders.popleft()
        self.in_flight -= steps
        try:
            chunk: Chunk = ray.get(reference)
        except LOST as error:
            lane.not_before = time.monotonic() + min(FIRST_DELAY * 2**lane.failures, LONGEST_DELAY)
            lane.failures += 1
            if lane.failures == MANY:
                warnings.warn(f"Worker {number} has lost {MANY} orders in a row. The last one: {error}", stacklevel=2)
            return None
        lane.failures = 0
        is_new = chunk.incarnation != lane.incarnation
        self.restarts += is_new and lane.incarnation >= 0
        goes_on = not is_new and chunk.sequence == lane.sequence
        lane.incarnation, lane.sequence = chunk.incarnation, chunk.sequence + 1
        return Arrival(number, chunk, goes_on)
