"""Checkpoints: saved agents. The directory of a checkpoint is written completely, or not at all.

    checkpoint.json    class, arguments, spaces, counters, random states; the checksums of all files (`tfdpg.files`)
    variables.npz      weights of networks and their copies, optimizer states
    replay.npz         the state of the replay buffer and of the sampler, without the rows; observation statistics; the
                       state of demonstrations, without their data
    rows-0.npz, ...    the rows (`tfdpg.replay.segments`); those of replay shards are in replay-0.npz, replay-1.npz, ...
    pi.keras, ...      the custom networks, which cannot be rebuilt from the arguments

Weights are restored from `variables.npz`, in order; the `.keras` files only describe how the networks are built.
"""

import copy
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdpg import files
from tfdpg.compat.keras import flatten_layers, quiet_build
from tfdpg.files import CHECKPOINT, CheckpointError
from tfdpg.networks import UnavailableDeviceError, check_device
from tfdpg.options import BuiltIn, Unsaved
from tfdpg.replay import segments
from tfdpg.spec import Spec
from tfdpg.training.checkpoints.network_weights import check_finite
from tfdpg.training.checkpoints.objects import class_name, from_json, to_json, untrusted
from tfdpg.training.trained_agent import TrainedAgent

FORMAT = 6
DEMONSTRATIONS = "demonstrations/"
"""The prefix of the arrays of `replay.npz` that are the state of demonstrations."""


class Saved(NamedTuple):
    """A checkpoint that was read and verified, and from which no agent was built yet."""

    agent_class: type
    spec: Spec
    arguments: dict[str, Any]
    networks: Mapping[str, Any]
    state: dict[str, Any]
    variables: dict[str, np.ndarray]
    replay: dict[str, Any]
    rows: Iterable[Mapping[str, Any]]
    saved_segments: segments.SavedSegments | None


class Capture(NamedTuple):
    """What an agent's data was at one moment.

    Attributes:
        state: the counters and random states.
        replay: the state of the replay buffer, without the rows.
        rows: the rows, or the files that have them.
    """

    state: dict[str, Any]
    replay: dict[str, Any]
    rows: segments.Snapshot

    @property
    def env_steps(self) -> int:
        """The number of environment steps taken."""
        return self.state["env_steps"]


def capture(agent: TrainedAgent) -> Capture:
    """Return what `save` writes of an agent's data; copies, if another thread goes on to change them."""
    copied = segments.copied_segments(agent.replay, agent.data.lock) if agent.data.is_shared else None
    with agent.data.lock:
        captured = Capture(state_of(agent), _replay(agent), segments.snapshot(agent.replay, copied))
        return captured._replace(replay=copy.deepcopy(captured.replay)) if agent.data.is_shared else captured


def save(
    agent: TrainedAgent,
    directory: str | Path,
    overwrite: bool = True,
    finish: Callable[[Path], None] = lambda scratch: None,
    captured: Capture | None = None,
) -> None:
    """Write an agent to a temporary directory beside `directory`, and rename that when it is on the disk.

    Args:
        agent: the agent.
        directory: the directory of the checkpoint.
        overwrite: whether to replace a checkpoint.
        finish: called with the complete temporary directory, to which it may add files.
        captured: the result of `capture`; None captures it first.

    Raises:
        FileExistsError: `directory` exists and `overwrite` is False, or it is not a saved agent.
        FloatingPointError: weights, or the last losses, are NaN or infinite. Nothing is written.
        tfdpg.files.DiskFullError: the disk is full. A checkpoint that was in `directory` is still there.
    """
    directory = Path(directory)
    if directory.exists():
        if not overwrite:
            raise FileExistsError(f"{directory} exists. Pass overwrite=True to replace it.")
        if not is_saved(directory):
            raise FileExistsError(f"{directory} exists and is not a saved agent, so it is not replaced.")
    check_finite(agent.networks | agent.copies)
    if agent.learner.has_diverged:
        raise FloatingPointError("The last losses are not finite, so the agent is not saved.")
    captured = captured or capture(agent)
    with files.writing(directory, lambda: _nbytes(agent)):
        files.make_directory(directory.parent)
        with files.scratch_directory(directory.parent) as scratch:
            checksums, linked = _write(agent, captured, scratch)
            finish(scratch)
            files.replace(scratch, directory, linked)
    if agent.learner.remote_replay is None:
        agent.replay.saved_segments = segments.saved_segments(directory, captured.replay, checksums)
    else:
        agent.learner.remote_replay.on_saved(directory)


def read(
    directory: str | Path, find_class: Callable[[Any], type], changes: Mapping[str, Any], trusted: bool = False
) -> Saved:
    """Read and verify a checkpoint, and build its custom networks.

    Args:
        directory: the directory of the checkpoint.
        find_class: finds the agent's class from its recorded name. It is called before networks are loaded, because
            the module of a user's class may register the user's layers.
        changes: new values of options; `device` says where the networks are from now on.
        trusted: whether to import callables, and to follow links and paths, that the files name.

    Raises:
        FileNotFoundError: there is no checkpoint.
        CheckpointError: a file is damaged, missing, changed, or of another checkpoint; the message names it.
        tfdpg.networks.UnavailableDeviceError: this process does not have the device of the networks.
    """
    directory, description = _read_description(directory, trusted)
    agent_class = find_class(description.get("agent"))
    try:
        paths = {name: directory / name for name in description["files"]}
        arguments = {name: from_json(value, trusted) for name, value in description["arguments"].items()}
        if arguments.get("replay_dir") is not None and not trusted:
            arguments["replay_dir"] = untrusted(arguments["replay_dir"])
        with tf.device(check_device({**arguments, **changes}["device"], {})):
            own = {name: paths[f"{name}.keras"] for name in description["custom_networks"]}
            networks = {name: _load_network(file, description, directory) for name, file in own.items()}
        variables = _read_arrays(paths["variables.npz"])
        replay = _read_arrays(paths["replay.npz"])
        spec = Spec.from_json(description)
        rows = read_rows(_row_files(paths))
        has_segments = "segment_length" in replay
        saved_segments = segments.saved_segments(directory, replay, description["files"]) if has_segments else None
        built = agent_class, spec, arguments, networks, description["state"]
        return Saved(*built, variables, replay, rows, saved_segments)
    except CheckpointError:
        raise
    except UnavailableDeviceError as error:
        if "device" in changes:
            raise
        fault = str(error).rstrip(".")
        raise UnavailableDeviceError(
            f"The saved agent in {directory} was on another device: {fault}. Load it with a `device` of this machine."
        ) from error
    except Exception as error:
        raise CheckpointError(f"The saved agent in {directory} cannot be loaded: {error!r}") from error


def _load_network(file: Path, description: Mapping[str, Any], directory: Path) -> Any:
    """Load a custom network.

    Raises:
        CheckpointError: a custom layer in it is not registered with Keras, because its module was not imported.
    """
    try:
        with quiet_build():
            return keras.saving.load_model(file, compile=False)
    except (TypeError, ValueError) as error:
        modules = description.get("layer_modules", {})
        missing = {name: modules[name] for name in modules if keras.saving.get_registered_object(name) is None}
        found = re.search(r"Could not locate (?:class|function) '([^']+)'", str(error))
        if found is None:
            raise
        name, module = next(iter(missing.items()), (found[1], None))
        where = f"from the module {module!r}" if module else "from a module that the file does not name"
        remedy = f"import {module}" if module and module != "__main__" else "define it, or import its module"
        raise CheckpointError(
            f"The saved agent in {directory} has the custom layer {name.rpartition('>')[2]!r} {where}, which is not "
            f"registered in this process.\nRegister it before you load the agent: {remedy}"
        ) from error


def copy_agent(agent: TrainedAgent, make: Callable[..., Any]) -> Any:
    """Return a copy of an agent, equal to what saving and loading would return.

    Args:
        agent: the agent.
        make: its class.

    Raises:
        ValueError: the rows are in `replay_dir`, or in other processes.
    """
    if agent.options.replay_dir is not None or agent.learner.remote_replay is not None:
        raise ValueError(
            "An agent with `replay_dir`, or whose rows are in other processes, is copied by save and load."
        )
    with quiet_build():
        arguments, networks, state = copy.deepcopy((saved_options(agent), agent.parts.given, state_of(agent)))
    other = make(agent.spec, **arguments, **networks)
    facts = type(agent), agent.spec, arguments, networks, state
    saved = Saved(*facts, _arrays(agent), _replay(agent), segments.iter_segments(agent.replay), None)
    restore(other, saved, {})
    return other


def is_saved(directory: Path) -> bool:
    """Return whether a directory is a saved agent, valid or damaged."""
    return (files.current_path(directory) / CHECKPOINT).exists()


def _read_description(directory: str | Path, trusted: bool = False) -> tuple[Path, dict[str, Any]]:
    """Return the directory of a checkpoint and its `checkpoint.json`, after verifying links and all checksums."""
    requested = Path(directory)
    directory = files.current_path(requested)
    if not is_saved(directory):
        raise FileNotFoundError(f"No saved agent in {directory}: there is no {CHECKPOINT}{_hint(directory)}")
    if directory != requested:
        warnings.warn(f"Saving to {requested} was interrupted; the agent saved there before is loaded.", stacklevel=4)
    try:
        files.check_tree(directory, trusted)
        return directory, files.read_manifest(directory, CHECKPOINT, FORMAT)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"The saved agent cannot be loaded: {error}") from error


def _hint(directory: Path) -> str:
    """Describe a directory that is not a saved agent, and say what to load instead."""
    if (directory / "agent.json").exists():
        return ". An older version of tfdpg saved it, and only that version can load it"
    if (directory / "checkpoints").exists():
        return f". It is a run: load {directory}/checkpoints/<steps>"
    if any((each / "saved_model.pb").exists() for each in (directory, *directory.glob("*"))):
        return ". It is an exported model, for tfdpg.load"
    held = [each.name for each in directory.glob("*") if is_saved(each)]
    return f". It holds saved agents: {', '.join(sorted(held))}" if held else ""


def restore(agent: TrainedAgent, saved: Saved, changes: Mapping[str, Any]) -> None:
    """Restore the variables, replay buffer, counters and random states of an agent.

    Args:
        agent: an agent that was built from `saved`.
        saved: the checkpoint.
        changes: the arguments that differ from the saved ones.
    """
    agent.parts.restore(saved.variables, changes)
    from_shards = "added" not in saved.replay
    if from_shards:
        for segment in saved.rows:
            agent.replay.append(segment)
    else:
        agent.replay.restore(saved.replay, saved.rows)
        if agent.replay.added == saved.replay["added"]:
            agent.replay.saved_segments = saved.saved_segments
    agent.data.minibatch_builder.sampler.restore(saved.replay)
    is_demonstrated = [name for name in saved.replay if name.startswith(DEMONSTRATIONS)]
    agent.data.demonstrations_state = {n.removeprefix(DEMONSTRATIONS): saved.replay[n] for n in is_demonstrated}
    statistics = agent.data.observation_statistics
    if statistics is not None:
        statistics.restore(saved.replay)
        rows = agent.replay.added
        statistics.set_rows_seen(rows if from_shards else min(statistics.rows_seen, rows))
    agent.learner.restore(saved.state)
    agent.data.restore(saved.state)
    agent.environment = saved.state["environment"]


def replay_files(directory: str | Path) -> tuple[Spec, list[Path]]:
    """Return the spaces of a checkpoint, and the files with its rows, in order, for `read_rows`.

    Raises:
        FileNotFoundError: there is no checkpoint.
        CheckpointError: it is damaged.
    """
    directory, description = _read_description(directory)
    return Spec.from_json(description), _row_files({name: directory / name for name in description["files"]})


def _row_files(paths: Mapping[str, Path]) -> list[Path]:
    """Return the files with rows, ordered by their numbers."""
    for prefix in ("replay-", segments.PREFIX):
        if found := segments.segment_files(paths, prefix):
            return [paths[name] for name in found.values()]
    return []


def read_rows(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Read the segments in `replay_files`, one at a time."""
    for path in paths:
        arrays = _read_arrays(path)
        if "rows" in arrays:
            yield arrays


def _write(agent: TrainedAgent, captured: Capture, directory: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Write a checkpoint; return the checksums of its files, and of those that are links to an earlier checkpoint."""
    np.savez(directory / "variables.npz", **_arrays(agent))
    np.savez(directory / "replay.npz", **captured.replay)
    linked = {}
    if agent.learner.remote_replay is None:
        linked = segments.write(captured.rows, directory)
    else:
        agent.learner.remote_replay.save(directory)
    for name, network in agent.parts.given.items():
        network.save(directory / f"{name}.keras")
    description = {
        "format": FORMAT,
        "agent": class_name(type(agent)),
        "arguments": {name: to_json(value) for name, value in saved_options(agent).items()},
        **agent.spec.to_json(),
        "custom_networks": sorted(agent.parts.given),
        "layer_modules": _layer_modules(agent.parts.given.values()),
        "state": captured.state,
    }
    return files.write_manifest(directory, CHECKPOINT, description, linked), linked


def _layer_modules(networks: Iterable[Any]) -> dict[str, str]:
    """Return the modules of the custom layers in networks, by the names under which the layers are registered."""
    kinds = {type(layer) for network in networks for layer in flatten_layers(network)}
    named = {keras.saving.get_registered_name(kind): kind.__module__ for kind in kinds}
    return {name: module for name, module in sorted(named.items()) if ">" in name and not name.startswith("tfdpg>")}


def _nbytes(agent: TrainedAgent) -> int:
    """Return the bytes that `_write` needs, without the rows of replay shards."""
    arrays = [*_arrays(agent).values(), *_replay(agent).values()]
    rows = 0 if agent.learner.remote_replay is not None else segments.unwritten_bytes(agent.replay)
    return rows + sum(np.asarray(array).nbytes for array in arrays)


def _arrays(agent: TrainedAgent) -> dict[str, Any]:
    """Return the weights and the optimizers' states, by name and position."""
    return {
        f"{name}/{i}": np.asarray(variable)
        for name, variables in agent.parts.variables.items()
        for i, variable in enumerate(variables)
    }


def state_of(agent: TrainedAgent) -> dict[str, Any]:
    """Return the counters and random states of an agent, as plain JSON values."""
    return agent.learner.state() | agent.data.state() | {"environment": agent.environment}


def saved_options(agent: TrainedAgent) -> dict[str, Any]:
    """Return the options that a checkpoint holds; those of built-in networks only if the agent has one."""
    options = agent.options
    built_in = options.names(BuiltIn) if agent.networks.keys() <= agent.parts.given.keys() else []
    return options.values(without=[*options.names(Unsaved), *built_in])


def _replay(agent: TrainedAgent) -> dict[str, Any]:
    """Return the state of the replay buffer, of its sampler, of the observation statistics and of demonstrations."""
    state = {} if agent.data.observation_statistics is None else agent.data.observation_statistics.state()
    if agent.learner.remote_replay is None:
        state = segments.state(agent.replay) | agent.data.minibatch_builder.sampler.state() | state
    shown = agent.data.demonstrations
    demonstrations = agent.data.demonstrations_state if shown is None else shown.state()
    return state | {DEMONSTRATIONS + name: values for name, values in demonstrations.items()}


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    with open(path, "rb") as stream, np.load(stream) as file:
        return {name: file[name] for name in file.files}
