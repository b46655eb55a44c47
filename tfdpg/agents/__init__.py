"""The agents: what all of them do once, in `agent`, and one file for each algorithm."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfdpg.agents.agent import Agent

AGENTS = {"TD3": "tfdpg.agents.td3"}
"""The algorithms, and where they live."""


def agent_class(name: str) -> "type[Agent]":
    """The class of an algorithm, in any case ("td3" or "TD3"); imports TensorFlow.

    Raises:
        ValueError: there is no such algorithm.
    """
    for known, module in AGENTS.items():
        if known.lower() == name.lower():
            return getattr(importlib.import_module(module), known)
    raise ValueError(f"There is no agent {name!r}. Known: {', '.join(AGENTS)}")


def load_agent(directory: str | Path, env: Any = None) -> "Agent":
    """Loads what `Agent.save` wrote, ready to go on.

    Args:
        directory: the saved agent.
        env: the environment to go on with, if its spaces are to be checked now.

    Returns:
        An agent of the class that was saved, with its weights, optimizers, replay, counters and random states.

    Raises:
        FileNotFoundError: there is no saved agent.
        tfdpg.training.checkpoint.CheckpointError: a file is damaged or missing.
        ValueError: the spaces of `env` are not the agent's.
    """
    from tfdpg.training import checkpoint

    saved = checkpoint.read(directory)
    if env is not None:
        saved.spec.check(env)
    agent = agent_class(saved.agent)(saved.spec, **saved.arguments, **saved.networks)
    checkpoint.restore(agent, saved)
    return agent
