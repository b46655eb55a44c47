"""Where the rows of the workers go: into the agent's own replay, or into shards."""

from typing import Any, Protocol, Self

import numpy as np

from tfdpg.agents.agent import Agent
from tfdpg.distributed.chunks import Chunk, ChunkSequence
from tfdpg.distributed.liveness import LivenessMonitor
from tfdpg.distributed.processes import start_ray_actor
from tfdpg.distributed.sharded_replay import ShardedReplay
from tfdpg.distributed.worker import Worker


class Storage(Protocol):
    """Starts workers, and knows what became of their rows."""

    def __enter__(self) -> Self:
        """Begins a training."""
        ...

    def __exit__(self, *exception: Any) -> None:
        """Ends it."""
        ...

    def start_worker(self, env_index: int, *arguments: Any) -> Any:
        """Starts the worker of a lane, as a Ray actor; `arguments` are the other ones of `Worker`."""
        ...

    def receive(self, env_index: int, reply: Any) -> np.ndarray:
        """`ended` for each environment step that was stored and not counted yet, bool `[steps]`."""
        ...

    def ready(self, due: int) -> int:
        """How many of the updates that are due can be made now."""
        ...


class LocalReplay:
    """The agent's own replay."""

    def __init__(self, agent: Agent):
        self._collector = agent.collector
        self._chunk_sequence = ChunkSequence()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        """Closes the episodes that are open."""
        self._collector.close_episodes()
        self._collector.flush()

    def start_worker(self, env_index: int, *arguments: Any) -> Any:
        """See `Storage`."""
        return start_ray_actor(Worker, env_index, *arguments)

    def receive(self, env_index: int, reply: Chunk) -> np.ndarray:
        """Stores a chunk.

        Raises:
            ValueError: what came is not finite. Nothing is stored.
        """
        is_next, ended = self._chunk_sequence.advance(env_index, reply)
        self._collector.receive(env_index, reply.rows, is_next)
        return ended

    def ready(self, due: int) -> int:
        """All of them."""
        return due


def storage(agent: Agent, shards: int, liveness: LivenessMonitor) -> Storage:
    """Shards, so many, or the agent's own replay for 0."""
    return ShardedReplay(agent, shards, liveness) if shards else LocalReplay(agent)
