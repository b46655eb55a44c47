"""Where the rows of the workers go: into the agent's own replay, or into shards."""

from typing import Any, Protocol, Self

import numpy as np

from tfdpg.agents.agent import Agent
from tfdpg.distributed.chunks import Chunk, Links
from tfdpg.distributed.processes import start_process
from tfdpg.distributed.shards import Shards
from tfdpg.distributed.waiting import Waiting
from tfdpg.distributed.worker import Worker


class Storage(Protocol):
    """Starts workers, and knows what became of their rows."""

    def __enter__(self) -> Self:
        """Begins a training."""
        ...

    def __exit__(self, *exception: Any) -> None:
        """Ends it."""
        ...

    def start_worker(self, lane: int, *arguments: Any) -> Any:
        """Starts the worker of a lane, as a Ray actor; `arguments` are the other ones of `Worker`."""
        ...

    def take(self, lane: int, reply: Any) -> np.ndarray:
        """`ended` for each environment step that was stored and not counted yet, bool `[steps]`."""
        ...

    def ready(self, due: int) -> int:
        """How many of the updates that are due can be made now."""
        ...


class OwnReplay:
    """The agent's own replay."""

    def __init__(self, agent: Agent):
        self._collector, self._links = agent.collector, Links()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        """Closes the episodes that are open."""
        self._collector.close_episodes()
        self._collector.flush()

    def start_worker(self, lane: int, *arguments: Any) -> Any:
        """See `Storage`."""
        return start_process(Worker, lane, *arguments)

    def take(self, lane: int, reply: Chunk) -> np.ndarray:
        """Stores a chunk.

        Raises:
            ValueError: what came is not finite. Nothing is stored.
        """
        goes_on, ended = self._links.follow(lane, reply)
        self._collector.receive(lane, reply.rows, goes_on)
        return ended

    def ready(self, due: int) -> int:
        """All of them."""
        return due


def storage(agent: Agent, shards: int, waiting: Waiting) -> Storage:
    """Shards, so many, or the agent's own replay for 0."""
    return Shards(agent, shards, waiting) if shards else OwnReplay(agent)
