"""Export an agent in any format."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfdpg import export
from tfdpg.acting import NumpyCritic
from tfdpg.agents import description, from_export
from tfdpg.agents.options import ExportOptions
from tfdpg.companions import companion
from tfdpg.components import Declaration, Networks
from tfdpg.networks import free_graphs, numpy_critic
from tfdpg.training.agent_data import AgentData

if TYPE_CHECKING:
    from tfdpg.agents.agent import Agent


def export_agent(agent: "Agent", directory: str | Path, options: ExportOptions) -> Path:
    """See `Agent.export`."""
    if options.format == "tf_saved_model":
        return _write(agent, directory, options)
    companion("check_target")(directory, options.format)
    references = {name: signature.reference(agent.spec) for name, signature in agent.signatures.items()}
    observations = export.measured_observations(agent.spec, agent.replay, agent.seed, agent.data.preprocessing)
    with tempfile.TemporaryDirectory() as scratch:
        version = _write(agent, Path(scratch) / Path(directory).absolute().name, options)
        conversion = options.format, options.quantize, options.max_error, references, observations, options.batch
        conversion = *conversion, options.prefix, options.weights_in_c_file, options.opset
        return companion("convert")(version, directory, *conversion, trusted=True)


def signatures(
    declaration: Declaration, networks: Networks, data: AgentData
) -> tuple[dict[str, export.Signature], dict[str, Any]]:
    """Return the signatures of the export, and the models that have one from observations and actions, by name.

    The models receive features if the environment's observations are preprocessed.
    """
    values = declaration.action_values
    critics = dict(networks.components if values is None else values(networks.all))
    made = dict(declaration.signatures(networks.all | critics, data.evaluation_actor.pi))
    of_actions = [name for name, signature in made.items() if "a" in signature.inputs]
    whole: Any = data.whole_policy().pi
    if data.preprocessing is not None:
        made = export.preprocessed_signatures(whole, data.preprocessing.recurrent_spec, made)
    return made, {name: critics[name] for name in of_actions if name in critics}


def _write(agent: "Agent", directory: str | Path, options: ExportOptions) -> Path:
    preprocessing = agent.data.preprocessing
    examples = export.example_observations(agent.spec, agent.replay, agent.seed, preprocessing=preprocessing)
    metadata = description.export_metadata(agent) | from_export.record_options(agent)
    metadata |= {"scores": dict(options.scores or {})}
    policy_to_export = agent.data.whole_policy()
    networks = agent.networks | agent.copies | {"policy": policy_to_export.pi}
    contents = agent.spec, networks, agent.signatures, examples, metadata, agent.data.policy_state
    policy = policy_to_export.numpy_policy()
    critics = {} if policy is None else _numpy_critics(agent)
    statistics = export.training_statistics(agent.spec, agent.replay, agent.env_steps, preprocessing)
    with free_graphs():
        weights = from_export.record_weights(agent)
        return export.write(directory, *contents, policy, critics, options.signatures, statistics, weights)


def _numpy_critics(agent: "Agent") -> dict[str, NumpyCritic]:
    """The forward passes of the built-in critics whose value is the output of one network."""
    networks = {name: signature.network for name, signature in agent.signatures.items()}
    built_in = {name: each for name, each in networks.items() if each is not None and name not in agent.parts.given}
    critics = {name: numpy_critic(agent.spec, network) for name, network in built_in.items()}
    return {name: critic for name, critic in critics.items() if critic is not None}
