"""The agents: what all of them do once, in `agent`, and one file for each algorithm."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfdpg.agents.agent import Agent

AGENTS = {name: f"tfdpg.agents.{name.lower()}" for name in ("DDPG", "TD3", "D4PG", "ACER")}
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


def load_agent(directory: str | Path, env: Any = None, *, trusted: bool = False, **changes: Any) -> "Agent":
    """Loads what `Agent.save` wrote, ready to go on.

    Args:
        directory: the saved agent.
        env: the environment to go on with, if its spaces are to be checked now.
        trusted: whether what the file names may be imported (custom callables and schedules) and followed
            (symbolic links, the directory of the replay); otherwise options are given again among `changes`.
        **changes: options that are to be others from now on: all but those of the networks' structure and `seed`. A new
            optimizer starts without the old one's moments.

    Returns:
        An agent of the class that was saved, with its weights, optimizers, replay, counters and random states.

    Raises:
        FileNotFoundError: there is no saved agent.
        tfdpg.training.checkpoints.checkpoint.CheckpointError: a file is damaged, missing or of another checkpoint.
        ValueError: the spaces of `env` are not the agent's; a change that is structural or no argument; or
            something that could not be saved, or is not trusted, is not given again.
    """
    from tfdpg.agents.options import OPTIONS
    from tfdpg.hints import did_you_mean
    from tfdpg.options import Structural, Unsaved, options_of
    from tfdpg.training.checkpoints import checkpoint
    from tfdpg.training.checkpoints.objects import why_missing

    saved = checkpoint.read(directory, changes.get("device"), trusted)
    if env is not None:
        saved.spec.check(env)
    known = OPTIONS.get(str(saved.agent))
    if known is None or not saved.arguments.keys().isdisjoint(["env", *known.names(Unsaved)]):
        raise checkpoint.CheckpointError(f"{directory} names no agent of tfdpg, or arguments that no agent saves.")
    for name in changes:
        if name in known.names(Structural):
            raise ValueError(f"`{name}` cannot change: a saved agent keeps it. Received: {name}={changes[name]!r}")
        if name not in {option.name for option in options_of(known)}:
            meant = did_you_mean(name, (option.name for option in options_of(known)))
            raise ValueError(f"`{name}` is no argument of {saved.agent}. Received: {name}={changes[name]!r}.{meant}")
    arguments = saved.arguments | changes
    for name, value in arguments.items():
        if reason := why_missing(value):
            raise ValueError(f"`{name}` {reason}. Give it again: load_agent(..., {name}=...)")
    try:
        agent: Any = agent_class(saved.agent)
        agent = agent(saved.spec, **arguments, **saved.networks)
        checkpoint.restore(agent, saved, changes)
    except Exception as error:
        if changes and isinstance(error, ValueError):
            raise
        raise checkpoint.CheckpointError(f"The saved agent in {directory} does not fit together: {error}") from error
    return agent
