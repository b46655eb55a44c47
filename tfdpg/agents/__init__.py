"""Agents: the base class in `agent`, and one file for each algorithm."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfdpg.agents.classes import AGENTS, agent_class, checked_class, imported
from tfdpg.files import CHECKPOINT, CheckpointError

if TYPE_CHECKING:
    from tfdpg.agents.agent import Agent

__all__ = ["AGENTS", "agent_class", "load_agent"]


def load_agent(
    directory: str | Path,
    env: Any = None,
    *,
    agent_class: "type[Agent] | None" = None,
    trusted: bool = False,
    **changes: Any,
) -> "Agent":
    """Load an agent that `Agent.save` saved, ready to resume training.

    Args:
        directory: the directory of the saved agent.
        env: the environment of further training, if its spaces are to be checked now; None checks nothing.
        agent_class: the class of the agent, if it is not one of tfdpg's. It must have the name of the class that was
            saved, and may have moved to another module. None imports the class by its import path in the file, if the
            file is trusted.
        trusted: whether to import what the file names (the agent's class, custom callables and schedules) and to follow
            it (symbolic links, the directory of the replay buffer). Otherwise pass the class as `agent_class` and the
            options among `changes`.
        **changes: new values of options. The options that describe the structure of the networks, and `seed`, cannot
            change. A new optimizer starts without the moments of the old one.

    Returns:
        An agent of the class that was saved, with its weights, optimizers, replay buffer, counters and random states.

    Raises:
        FileNotFoundError: there is no saved agent.
        tfdpg.files.CheckpointError: a file is damaged, missing or of another checkpoint.
        ValueError: this machine does not have the agent's `device`, so that another one must be among the changes;
            `env` has other spaces than the agent; a change names an option that cannot change or does not
            exist; an object that was not saved, or is not trusted, is not passed again; or `agent_class` is another
            class.

    Example:
        ```python
        agent = tfdpg.load_agent("runs/td3", pi_lr=1e-4)
        agent.fit(env, epochs=10)
        ```
    """
    from tfdpg.arguments import shown
    from tfdpg.hints import did_you_mean
    from tfdpg.options import Structural, Unsaved, options_of
    from tfdpg.training.checkpoints import checkpoint
    from tfdpg.training.checkpoints.objects import why_missing

    find_class = functools.partial(_saved_class, directory, agent_class, trusted)
    saved = checkpoint.read(directory, find_class, changes, trusted)
    if env is not None:
        saved.spec.check(env)
    make: Any = saved.agent_class
    known = make.__init__.options_class
    if not saved.arguments.keys().isdisjoint(["env", *known.names(Unsaved)]):
        raise CheckpointError(f"{directory} has arguments that no agent saves.")
    for name in changes:
        if name in known.names(Structural):
            raise ValueError(f"`{name}` cannot change: a saved agent keeps it. Received: {name}={shown(changes[name])}")
        if name not in {option.name for option in options_of(known)}:
            meant = did_you_mean(name, (option.name for option in options_of(known)))
            raise ValueError(
                f"`{name}` is no argument of {make.__name__}. Received: {name}={shown(changes[name])}.{meant}"
            )
    arguments = saved.arguments | _follows_device(saved.arguments, changes) | changes
    for name, value in arguments.items():
        if reason := why_missing(value):
            raise ValueError(f"`{name}` {reason}. Give it again: load_agent(..., {name}=...)")
    try:
        agent = make(saved.spec, **arguments, **saved.networks)
        checkpoint.restore(agent, saved, changes)
    except Exception as error:
        if changes and isinstance(error, ValueError):
            raise
        raise CheckpointError(f"The saved agent in {directory} does not fit together: {error}") from error
    return agent


def _follows_device(arguments: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return `replay_device` if it must change with `device`."""
    follows = "device" in changes and arguments.get("replay_device") is not None
    return {"replay_device": changes["device"]} if follows else {}


def _saved_class(directory: str | Path, given: "type[Agent] | None", trusted: bool, name: Any) -> "type[Agent]":
    """The class of a saved agent.

    Only the module of `given`, a module of tfdpg, or a trusted import path is used.

    Args:
        directory: the saved agent.
        given: the class that the caller passed.
        trusted: whether the class may be imported by its path in the file.
        name: the class as recorded in the file; see `tfdpg.training.checkpoints.objects.class_name`.
    """
    from tfdpg.training.checkpoints.objects import class_name

    if not isinstance(name, str) or ":" not in name and name not in AGENTS:
        raise CheckpointError(f"Unknown agent class in {directory}/{CHECKPOINT}: {name!r}. Known: {', '.join(AGENTS)}")
    module, is_foreign, qualified_name = name.rpartition(":")
    short_name = qualified_name.rpartition(".")[2]
    if given is not None:
        received = checked_class(given, "`agent_class`")
        given_module, given_is_foreign, given_name = class_name(received).rpartition(":")
        if (is_foreign, short_name) != (given_is_foreign, given_name.rpartition(".")[2]):
            raise ValueError(f"`agent_class` must be the class that was saved, {name!r}. Received: {given!r}")
        return received
    if not is_foreign:
        return agent_class(name)
    here = f"The agent in {directory} is of"
    again = f"load_agent(..., agent_class={short_name})"
    if not module:
        raise ValueError(
            f"{here} the class {short_name!r}, which has no import path, because it was defined in a script or in a "
            f"function. Pass the class: {again}"
        )
    if not trusted:
        raise ValueError(
            f"{here} the class {name!r}, which is not part of tfdpg and is imported only with trusted=True. "
            f"Pass trusted=True, or the class: {again}"
        )
    try:
        return checked_class(imported(name), f"{name!r}, the class of the agent in {directory},")
    except ValueError as error:
        raise ValueError(f"{error}. Pass the class: {again}") from error
