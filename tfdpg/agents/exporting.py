"""What an agent writes for others to run."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tfdpg import export
from tfdpg.agents import description
from tfdpg.agents.options import ExportOptions

if TYPE_CHECKING:
    from tfdpg.agents.agent import Agent

OBSERVATIONS = 1000
"""On so many a quantized policy is compared."""


def export_agent(agent: "Agent", directory: str | Path, options: ExportOptions) -> Path:
    """See `Agent.export`."""
    if options.format == "tf_saved_model":
        return _write(agent, directory, options)
    export.check_target(directory, options.format)
    references = {name: signature.reference(agent.spec) for name, signature in agent.signatures.items()}
    observations = export.example_observations(agent.spec, agent.replay, agent.seed, OBSERVATIONS)
    with tempfile.TemporaryDirectory() as scratch:
        version = _write(agent, Path(scratch) / Path(directory).absolute().name, options)
        given = options.format, options.quantize, options.max_error, references, observations
        return export.convert(version, directory, *given)


def _write(agent: "Agent", directory: str | Path, options: ExportOptions) -> Path:
    examples = export.example_observations(agent.spec, agent.replay, agent.seed)
    facts = description.facts(agent) | {"scores": dict(options.scores or {})}
    own, of_policy = (agent.spec, agent.networks, agent.signatures), (agent.recall, agent.actor.stock())
    return export.write(directory, *own, examples, facts, *of_policy, library=options.signatures)
