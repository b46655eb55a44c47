"""What an agent writes for others to run."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tfdpg import export
from tfdpg.acting import MLPCritic
from tfdpg.agents import description
from tfdpg.agents.options import ExportOptions
from tfdpg.networks import graphs_are_freed, stock_critic

if TYPE_CHECKING:
    from tfdpg.agents.agent import Agent


def export_agent(agent: "Agent", directory: str | Path, options: ExportOptions) -> Path:
    """See `Agent.export`."""
    if options.format == "tf_saved_model":
        return _write(agent, directory, options)
    export.check_target(directory, options.format)
    references = {name: signature.reference(agent.spec) for name, signature in agent.signatures.items()}
    observations = export.measured_observations(agent.spec, agent.replay, agent.seed)
    with tempfile.TemporaryDirectory() as scratch:
        version = _write(agent, Path(scratch) / Path(directory).absolute().name, options)
        given = options.format, options.quantize, options.max_error, references, observations, options.batch
        given = *given, options.prefix, options.weights_in_c_file
        return export.convert(version, directory, *given, trusted=True)


def _write(agent: "Agent", directory: str | Path, options: ExportOptions) -> Path:
    examples = export.example_observations(agent.spec, agent.replay, agent.seed)
    facts = description.facts(agent) | {"scores": dict(options.scores or {})}
    what = agent.spec, agent.networks, agent.signatures, examples, facts, agent.recall
    with graphs_are_freed():
        return export.write(directory, *what, agent.actor.stock(), _stock_critics(agent), options.signatures)


def _stock_critics(agent: "Agent") -> dict[str, MLPCritic]:
    """The forward passes of the critics, beside a stock policy without a memory."""
    actor = agent.actor.stock()
    if actor is None or agent.recall is not None or "v" in agent.networks:  # beside which q1 is an advantage
        return {}
    stock = {name: network for name, network in agent.networks.items() if name not in agent.own_networks}
    made = {name: stock_critic(agent.spec, actor, network) for name, network in stock.items() if name in ("q1", "q2")}
    return {name: critic for name, critic in made.items() if critic is not None}
