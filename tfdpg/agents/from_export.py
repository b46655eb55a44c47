"""Agents that continue from an exported model: what an export records for them, and how they are made from it.

`tfdpg.json` has the options of the agent, and `agent.npz` the weights of its networks by name. Both are data: reading
them runs no code. This module does not import TensorFlow.
"""

import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tfdpg.arguments import check_value, shown, warn
from tfdpg.exported.versions import AGENT_FACTS, AGENT_WEIGHTS, ExportError, latest_version, metadata
from tfdpg.options import Only, Option, Options, Structural, options_of
from tfdpg.spec import Spec

if TYPE_CHECKING:
    from tfdpg.agents.agent import Agent

COUNT = "observation_count"
"""The array with the number of observations in the statistics that normalise observations."""
PREPROCESSED = "preprocessed"
"""The array with outputs of the user's preprocessing, by which another model is recognised."""
FLAGGED = "flagged"
"""The array that says which numbers of observations have been missing (`tfdpg.acting.Preprocessing.flagged`)."""
STATE = "state/"
"""The prefix of the names of an agent's other variables (`Declaration.device_state`)."""
NOT_RECORDED = "seed", "replay_dir", "replay_device", "device", "jit_compile", "run_eagerly"
"""Options of one machine or one training run, which an agent does not take from an export."""
BEGINNING = {"start_steps": 0, "update_after": 1000, "warm_up_updates": 0}
"""Options for the beginning of training, and their defaults for an agent that is made from an export."""
BC_WEIGHT = 2.5
"""The default of `bc_weight` if it is 0 in the export. The actions in the new replay buffer are at first those of the
exported policy with noise, so behaviour cloning keeps the policy near to it."""
LARGEST = {"pi_lr": 1e-4, "encoder_lr": 3e-5}
"""The largest defaults of the learning rates on whose networks the policy depends."""


class Exported(NamedTuple):
    """What an export records for `Agent.from_export`.

    Attributes:
        version: the directory of the version.
        facts: the content of `tfdpg.json`.
    """

    version: Path
    facts: Mapping[str, Any]


def record_options(agent: "Agent") -> dict[str, Any]:
    """Return entries of `tfdpg.json`: the agent's options, and what an agent must be given because no file has it."""
    objects = [option.name for option in options_of(type(agent.options)) if option.is_object]
    values = agent.get_config()
    cells = [name for name in agent.options.values(without=objects) if name not in values]
    _, newer = _exported_networks(agent)
    names = agent.spec.observation_names  # the options have their defaults if the agent was made for such a `Spec`
    values |= {"missing": agent.spec.missing, "observation_names": None if names is None else list(names)}
    return {
        "options": {
            name: str(value) if value == math.inf else value  # JSON has no infinity
            for name, value in values.items()
            if name not in (*NOT_RECORDED, *BEGINNING)
        },
        "own_networks": sorted([*agent.parts.given, *cells]),
        "newer_for_critics": newer,
    }


def record_weights(agent: "Agent") -> dict[str, np.ndarray]:
    """Return the arrays of `agent.npz`: for each component the weights with which it is exported, `<name>/<i>`."""
    networks, _ = _exported_networks(agent)
    arrays = {
        f"{component}/{i}": np.asarray(weight, np.float32 if weight.dtype == "bfloat16" else None)
        for component, name in networks.items()
        for i, weight in enumerate(agent.parts[name].weights)
    }
    arrays |= {f"{STATE}{name}": np.asarray(variable) for name, variable in agent.device_state.items()}
    return arrays | {name: np.array(value) for name, value in _from_observations(agent).items()}


def _from_observations(agent: "Agent") -> dict[str, Any]:
    """Return what an agent knows of observations besides its weights, by the names of the arrays."""
    statistics = agent.data.observation_statistics
    preprocessing = agent.data.preprocessing
    known = {} if statistics is None else {COUNT: statistics.count}
    if preprocessing is None:
        return known
    outputs = {} if preprocessing.is_invertible else {PREPROCESSED: preprocessing.examples()}
    return known | {FLAGGED: preprocessing.flagged} | outputs


def _exported_networks(agent: "Agent") -> tuple[dict[str, str], list[str]]:
    """Return the network with which each component is exported, and the components of which critics have another one.

    The exported policy may consist of copies, such as those of TD7's best policy, and so may the networks that critics
    call. Where both call the same component, that of the policy is taken.
    """
    parts = agent.parts
    networks: dict[str, str] = {}
    newer = []
    for models in ([agent.data.evaluation_actor.pi], agent.exported_critics.values()):
        used = {id(variable) for model in models for variable in model.variables}
        for name, network in parts.all.items():
            component = parts.source(name)
            if not network.weights or not used.issuperset(id(variable) for variable in network.weights):
                continue
            taken = parts[networks.setdefault(component, name)].get_weights()
            if not all(map(np.array_equal, taken, network.get_weights())):
                newer.append(component)
    return {name: networks.get(name, name) for name in parts.components}, sorted(set(newer))


def read(directory: str | Path, kinds: Sequence[str]) -> Exported:
    """Read what an export records for an agent.

    Args:
        directory: a model directory, whose newest version is read, or the directory of a version.
        kinds: the names of the agent's class and of those that it inherits from, whose exports it takes, too.

    Raises:
        FileNotFoundError: there is no exported model.
        ExportError: a file of the model is damaged, missing or changed; or an older version of tfdpg wrote it.
        ValueError: the model was exported by an agent of another class.
    """
    version = latest_version(directory)
    facts = metadata(version)
    agent = facts.get("agent")
    if agent not in kinds:
        raise ValueError(f"The exported model must be one of {kinds[0]}. Received: {version}, which is one of {agent}")
    recorded = tuple(map(facts.get, AGENT_FACTS))
    if recorded == (None, None, None) and not (version / AGENT_WEIGHTS).exists():
        raise ExportError(
            f"No agent can be made from the exported model in {version}: it has no {AGENT_WEIGHTS}, because an older "
            "version of tfdpg wrote it. Export the saved agent again, with `export` of tfdpg.load_agent(...) or with "
            "`tfdpg export RUN DIRECTORY --checkpoint latest`."
        )
    if list(map(type, recorded)) != [dict, list, list] or not all(isinstance(each, str) for each in recorded[1] or []):
        raise ExportError(f"The exported model in {version} is damaged: tfdpg.json has no valid options of the agent")
    return Exported(version, facts)


def recorded_options(exported: Exported, kind: type[Options]) -> dict[str, Any]:
    """Return the options that an agent of this kind has unless it is given others.

    These are the export's, apart from options for the beginning and those that protect the policy.

    Raises:
        ExportError: a value is not valid.
    """
    values: dict[str, Any] = {}
    stored = exported.facts["options"]
    for option in _recorded(kind):
        if option.name in BEGINNING:
            values[option.name] = BEGINNING[option.name]
        elif option.name in stored:
            try:
                values[option.name] = check_value(option.name, option.kind, _with_tuples(stored[option.name]))
            except ValueError as error:
                raise ExportError(f"The exported model in {exported.version} is damaged: {error}") from error
    if "bc_weight" in values:
        values["bc_weight"] = values["bc_weight"] or BC_WEIGHT
    return values | {name: min(values[name], largest) for name, largest in LARGEST.items() if name in values}


def _recorded(kind: type[Options]) -> Iterator[Option]:
    """Yield the options that an export records."""
    return (each for each in options_of(kind) if not each.is_object and each.name not in NOT_RECORDED)


def _with_tuples(value: Any) -> Any:
    if value == str(math.inf):
        return math.inf
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def merged_options(exported: Exported, kind: type[Options], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an agent that is made from an export.

    Args:
        exported: what the export records.
        kind: the class of the agent's options.
        given: the options that the user gives.

    Raises:
        ValueError: an option that determines the networks differs from the export's, or a custom network is not given.
        ExportError: the export's options are not valid.
    """
    recorded = recorded_options(exported, kind)
    missing = [name for name in exported.facts["own_networks"] if given.get(name) is None]
    if missing:
        raise ValueError(
            f"{' and '.join(f'`{name}`' for name in missing)} of the exported agent are not built in, and no export "
            f"has their code. Give them again: from_export(..., {', '.join(f'{name}=...' for name in missing)})"
        )
    check_structure(exported, kind, given)
    return without_effectless(kind, recorded | dict(given), recorded)


def check_structure(exported: Exported, kind: type[Options], given: Mapping[str, Any]) -> None:
    """Raise `ValueError` if an option that determines the networks differs from that of the export."""
    recorded = recorded_options(exported, kind)
    for option in _recorded(kind):
        name = option.name
        if Structural not in option.marks or name not in recorded or name not in given:
            continue
        value = check_value(name, option.kind, given[name])
        if value != recorded[name]:
            raise ValueError(
                f"`{name}` must be that of the exported agent in {exported.version}, {shown(recorded[name])}, whose "
                f"networks it determines. Received: {name}={shown(value)}"
            )


def without_effectless(kind: type[Options], values: Mapping[str, Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values without those of the export that have no effect beside the user's.

    Args:
        kind: the class of the options.
        values: the values of options.
        recorded: those of the export.
    """
    every = {name: getattr(kind, name, None) for name in vars(kind)["__dataclass_fields__"]} | dict(values)
    unused = {
        option.name
        for option in options_of(kind)
        if option.name in recorded and every[option.name] == recorded[option.name]
        if any(isinstance(mark, Only) and mark.problem(every) for mark in option.marks)
    }
    return {name: value for name, value in values.items() if name not in unused}


def make(kind: "type[Agent]", directory: str | Path, env: Any, given: Mapping[str, Any]) -> "Agent":
    """See `Agent.from_export`."""
    own: Any = kind
    exported = read(directory, [each.__name__ for each in kind.__mro__])
    options = merged_options(exported, own.__init__.options_class, given)
    try:
        spec = Spec.from_json(exported.facts)
    except Exception as error:
        raise ExportError(f"The exported model in {exported.version} cannot be loaded: {error}") from error
    spec.check(env)
    agent = own(env, **options)
    _restore(agent, exported.version)
    if newer := exported.facts["newer_for_critics"]:
        warn(
            f"The critics in {exported.version} have learnt with newer weights of {', '.join(map(str, newer))} than "
            "the policy has, so their values are less exact at first. Let them learn first: warm_up_updates=5000"
        )
    return agent


def _restore(agent: "Agent", version: Path) -> None:
    """Set the weights of networks, their copies and other variables, and the count of observations.

    Raises:
        ExportError: the file is damaged, or has the weights of other networks.
    """
    path = version / AGENT_WEIGHTS
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except (OSError, ValueError, EOFError, MemoryError, OverflowError, zipfile.BadZipFile, zlib.error) as error:
        raise ExportError(f"{path} is damaged or missing: {error}") from error
    parts = agent.parts
    policy = {parts.source(name) for name in agent.data.evaluation_networks}
    components = sorted(parts.components, key=lambda name: name in policy)  # layers that are shared are the policy's
    variables = {
        f"{name}/{i}": weight for name in components for i, weight in enumerate(parts.components[name].weights)
    }
    variables |= {f"{STATE}{name}": variable for name, variable in agent.device_state.items()}
    statistics = agent.data.observation_statistics
    others = _from_observations(agent)
    expected = {*variables, *others}
    if expected != set(arrays):
        name = min(expected ^ set(arrays))
        what = "is missing" if name in expected else "is unknown"
        raise ExportError(f"{path} has the weights of other networks than those of this agent: {name} {what}")
    for name, variable in variables.items():
        _check_array(f"{name} of {path}", arrays[name], tuple(variable.shape), name.startswith(STATE))
    _check_others(path, arrays, others)
    for name, variable in variables.items():
        variable.assign(arrays[name])
    for name, network in agent.copies.items():
        for variable, value in zip(network.weights, parts.components[parts.source(name)].weights, strict=True):
            variable.assign(value)
    if statistics is not None:
        normalizer = agent.data.normalizers[0]
        count = max(0, int(arrays[COUNT]))
        statistics.adopt(np.asarray(normalizer.mean, float), np.asarray(normalizer.variance, float), count)
    if agent.data.preprocessing is not None:
        agent.data.preprocessing.flagged[:] = arrays[FLAGGED]
    agent.data.actor.refresh()
    agent.data.evaluation_actor.refresh()


def _check_others(path: Path, arrays: Mapping[str, np.ndarray], others: Mapping[str, Any]) -> None:
    """Check the arrays besides weights; raise `ValueError` if the user's preprocessing is another one."""
    for name, value in others.items():
        _check_array(f"{name} of {path}", arrays[name], np.shape(value), False)
    if PREPROCESSED in others and not np.allclose(others[PREPROCESSED], arrays[PREPROCESSED], rtol=1e-4, atol=1e-5):
        raise ValueError(
            f"`preprocess` must be the model of the exported agent in {path.parent}. Received: one with other outputs"
        )


def _check_array(name: str, array: np.ndarray, shape: tuple[int, ...], may_be_infinite: bool) -> None:
    """Raise `ExportError` unless an array has the shape of its variable and finite numbers."""
    if array.shape != shape or array.dtype.kind not in "fiub":
        raise ExportError(f"{name} must have the shape {shape}. Received: {array.dtype} {array.shape}")
    if np.isnan(array).any() or not (may_be_infinite or np.isfinite(array).all()):
        raise ExportError(f"{name} has numbers that are not finite")
