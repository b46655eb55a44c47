"""Descriptions of an agent: summary, configuration, and the metadata of exports."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tfdpg.agents.options import AgentOptions
from tfdpg.options import options_of
from tfdpg.ranges import KerasCell
from tfdpg.training.checkpoints.objects import to_json

if TYPE_CHECKING:
    from tfdpg.agents.agent import Agent

PUBLIC = (
    *("act", "diagnose", "env_steps", "environment", "epoch", "evaluate", "export", "fit"),
    *("fit_offline", "get_config", "get_weights", "history", "learn", "load_weights", "networks", "next_reset_seed"),
    *("observe", "optimizers", "options", "policy", "predict", "relabel_with", "replay", "save", "save_weights"),
    *("seed", "set_weights", "spec", "stop_training", "summary", "targets", "train_on_batch", "updates"),
)
"""The attributes that tab completion shows; the others are for the rest of tfdpg."""


def one_line_summary(agent: "Agent") -> str:
    """Return the algorithm, the environment, the seed, the changed options, and the numbers of steps and updates."""
    where = " ".join(str((agent.environment or {}).get("id") or agent.spec).split())
    options = agent.options
    values = options.values()
    changed = [
        f"{option.name}={_shown(values[option.name])}"
        for option in options_of(type(options))
        if option.name != "seed" and not option.is_object and options.is_changed(option.name)
    ]
    what = ", ".join([f"{type(agent).__name__} on {where}", f"seed={agent.seed}", *changed])
    return f"<{what}: {agent.env_steps:,} environment steps, {agent.updates:,} updates>"


def _shown(value: Any) -> str:
    return f"<{type(value).__name__}>" if isinstance(value, KerasCell) else repr(value)


def configuration(agent: "Agent") -> dict[str, Any]:
    """Return the options as plain values, from which the class makes another such agent: `TD3(env, **config)`.

    Custom networks, cells, optimizers and callables are not included.

    Args:
        agent: the agent.
    """
    objects = [option.name for option in options_of(type(agent.options)) if option.is_object]
    values = agent.options.values(without=objects)
    return {name: to_json(value) for name, value in values.items() if not isinstance(value, KerasCell)}


def refuse_pickling(agent: "Agent", protocol: Any) -> Any:
    """Raise `TypeError` with a hint; `copy.copy` calls this, too."""
    raise TypeError(
        "An agent is neither pickled nor copied in part. Use agent.save(directory) and tfdpg.load_agent(directory), "
        "or copy.deepcopy(agent)."
    )


def not_preprocessed(options: AgentOptions) -> list[str]:
    """Return the options that are set and with which observations are not preprocessed, as text."""
    values = options.values()
    refused = [f'{name}="{values[name]}"' for name in ("recurrent", "her") if values.get(name) is not None]
    return refused + (["recorders"] if values.get("recorders") else [])


def export_metadata(agent: "Agent") -> dict[str, Any]:
    """Return the metadata of the agent for `tfdpg.json`."""
    counters = {"env_steps": agent.env_steps, "updates": agent.updates}
    facts = {"agent": type(agent).__name__, "environment": agent.environment, "critics": len(agent.exported_critics)}
    return facts | counters


def summary(agent: "Agent", line_length: int | None = None, print_fn: Callable[[str], Any] = print) -> None:
    """Print the agent's options, spaces, networks (as Keras does), optimizers and replay buffer.

    Args:
        agent: the agent.
        line_length: the width of Keras' tables in characters; None is Keras' default.
        print_fn: called with each line, in place of `print`.
    """
    print_fn(one_line_summary(agent))
    for leaf in agent.spec.leaves:
        print_fn(f"observation {leaf.name}: {leaf.dtype} {leaf.shape}")
    print_fn(f"action: {agent.spec.action_space}")
    for network in agent.networks.values():
        network.summary(line_length=line_length, print_fn=lambda text, *args, **kwargs: print_fn(text))
    for name, network in agent.networks.items():
        target = ", with a target network" if name in agent.targets else ""
        print_fn(f"{name}: {network.count_params():,} parameters{target}")
    for name, source in agent.parts.sources.items():
        if name not in [f"{component}_target" for component in agent.targets]:
            print_fn(f"{name}: a copy of {source}")
    for optimizer in agent.optimizers.values():
        print_fn(f"{optimizer.name}: learning rate {float(optimizer.learning_rate):g}")
    print_fn(f"replay: {agent.replay!r}")
