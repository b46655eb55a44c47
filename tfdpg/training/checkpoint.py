"""Saved agents: a directory that is written as a whole, or not at all.

    agent.json      class, arguments, spaces, counters, random states; the sums of all files (`tfdpg.files`)
    variables.npz   weights of networks and targets, optimizer states
    replay.npz      what drawing from the rows needs
    rows-0.npz, ... the rows (`tfdpg.replay.segments`); those that are elsewhere are in replay-0.npz, replay-1.npz, ...
    pi.keras, ...   the networks that cannot be rebuilt from the arguments

Weights are read back from `variables.npz`, in order; the `.keras` files only say how the networks are built.
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdpg import files
from tfdpg.replay import segments
from tfdpg.spec import Spec
from tfdpg.training.network_weights import check_finite
from tfdpg.training.objects import class_name, from_json, to_json, untrusted
from tfdpg.training.protocols import SavableAgent

FORMAT = 4
DESCRIPTION = "agent.json"


class CheckpointError(RuntimeError):
    """A saved agent is damaged, incomplete, or of another version."""


class Saved(NamedTuple):
    """A saved agent, read and checked, before anything is built from it."""

    agent_class: type
    spec: Spec
    arguments: dict[str, Any]
    networks: Mapping[str, Any]
    state: dict[str, Any]
    variables: dict[str, np.ndarray]
    replay: dict[str, Any]
    rows: Iterable[Mapping[str, Any]]
    saved_segments: segments.SavedSegments | None


def save(agent: SavableAgent, directory: str | Path, overwrite: bool = True) -> None:
    """Writes an agent beside `directory`, and renames it into place once it is on the disk.

    Raises:
        FileExistsError: `directory` exists and `overwrite` is False, or it is not a saved agent.
        FloatingPointError: weights, or the last losses, are NaN or infinite. Nothing is written.
        tfdpg.files.DiskFullError: the disk is full. What was at `directory` still is.
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
    with files.writing(directory, lambda: _nbytes(agent)):
        files.make_directory(directory.parent)
        with files.scratch_directory(directory.parent) as scratch:
            checksums, linked = _write(agent, scratch)
            files.replace(scratch, directory, linked)
    if agent.learner.remote_replay is None:
        agent.replay.saved_segments = segments.saved_segments(directory, segments.state(agent.replay), checksums)
    else:
        agent.learner.remote_replay.on_saved(directory)


def read(
    directory: str | Path, find_class: Callable[[Any], type], device: str | None = None, trusted: bool = False
) -> Saved:
    """Reads and checks a saved agent, and builds its own networks on `device`, or else where they were.

    Args:
        directory: the saved agent.
        find_class: finds the agent's class from its recorded name. It is called before networks are loaded, because
            the module of a user's class may register the user's layers.
        device: where the networks are to be; None is where they were.
        trusted: whether to import and to follow what the files name.

    Raises:
        FileNotFoundError: there is none.
        CheckpointError: a file is damaged, missing, changed, or of another checkpoint; the message names it.
    """
    directory, description = _read_description(directory, trusted)
    agent_class = find_class(description.get("agent"))
    try:
        paths = {name: directory / name for name in description["files"]}
        arguments = {name: from_json(value, trusted) for name, value in description["arguments"].items()}
        if arguments.get("replay_dir") is not None and not trusted:
            arguments["replay_dir"] = untrusted(arguments["replay_dir"])
        with tf.device(device or arguments["device"]):
            own = {name: paths[f"{name}.keras"] for name in description["own_networks"]}
            networks = {name: keras.saving.load_model(file, compile=False) for name, file in own.items()}
        variables = _read_arrays(paths["variables.npz"])
        replay = _read_arrays(paths["replay.npz"])
        spec = Spec.from_json(description)
        rows = read_rows(_row_files(paths))
        has_segments = "segment_length" in replay
        saved_segments = segments.saved_segments(directory, replay, description["files"]) if has_segments else None
        return Saved(
            agent_class,
            spec,
            arguments,
            networks,
            description["state"],
            variables,
            replay,
            rows,
            saved_segments,
        )
    except Exception as error:
        raise CheckpointError(f"The saved agent in {directory} cannot be loaded: {error!r}") from error


def copy_agent(agent: Any) -> Any:
    """Another agent, as saving and loading would give it.

    Raises:
        ValueError: the rows are in `replay_dir`, or in other processes.
    """
    if agent.options.replay_dir is not None or agent.learner.remote_replay is not None:
        raise ValueError(
            "An agent with `replay_dir`, or whose rows are in other processes, is copied by save and load."
        )
    arguments, networks, state = copy.deepcopy((agent.saved_options, agent.custom_networks, agent.state()))
    other = type(agent)(agent.spec, **arguments, **networks)
    facts = type(agent), agent.spec, arguments, networks, state
    saved = Saved(*facts, _arrays(agent), _replay(agent), segments.iter_segments(agent.replay), None)
    restore(other, saved, {})
    return other


def is_saved(directory: Path) -> bool:
    """Whether a directory is a saved agent, sound or not."""
    return (files.current_path(directory) / DESCRIPTION).exists()


def _read_description(directory: str | Path, trusted: bool = False) -> tuple[Path, dict[str, Any]]:
    """Where a saved agent is, and what its `agent.json` says, once links and all sums have been checked."""
    requested = Path(directory)
    directory = files.current_path(requested)
    if not is_saved(directory):
        raise FileNotFoundError(f"No saved agent in {directory}: there is no {DESCRIPTION}{_hint(directory)}")
    if directory != requested:
        warnings.warn(f"Saving to {requested} was cut short; the agent that was there before is loaded.", stacklevel=4)
    try:
        files.check_tree(directory, trusted)
        return directory, files.read_manifest(directory, DESCRIPTION, FORMAT)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"The saved agent cannot be loaded: {error}") from error


def _hint(directory: Path) -> str:
    """What a directory is that is no saved agent, and what to do."""
    if (directory / "checkpoints").exists():
        return f". It is a run: load {directory}/checkpoints/<steps>"
    if any((each / "saved_model.pb").exists() for each in (directory, *directory.glob("*"))):
        return ". It is an exported model, for tfdpg.load"
    held = [each.name for each in directory.glob("*") if is_saved(each)]
    return f". It holds saved agents: {', '.join(sorted(held))}" if held else ""


def restore(agent: SavableAgent, saved: Saved, changes: Mapping[str, Any]) -> None:
    """Gives an agent that was built from `saved` its variables, replay, counters and random states.

    Args:
        agent: the new agent.
        saved: the old one.
        changes: the arguments that are not the old ones.
    """
    agent.restore_variables(saved.variables, changes)
    _restore_replay(agent, saved)
    agent.restore(saved.state)


def _restore_replay(agent: SavableAgent, saved: Saved) -> None:
    own = "added" in saved.replay
    if own:
        agent.replay.restore(saved.replay, saved.rows)
        if agent.replay.added == saved.replay["added"]:
            agent.replay.saved_segments = saved.saved_segments
    else:
        for segment in saved.rows:
            agent.replay.append(segment)
    agent.minibatch_builder.sampler.restore(saved.replay)
    if agent.observation_statistics is not None:
        agent.observation_statistics.restore(saved.replay)
        rows = agent.replay.added
        agent.observation_statistics.set_rows_seen(min(agent.observation_statistics.rows_seen, rows) if own else rows)


def replay_files(directory: str | Path) -> list[Path]:
    """The files with the rows of a saved agent, in their order, for `read_rows`.

    Raises:
        FileNotFoundError: there is no saved agent.
        CheckpointError: it is damaged.
    """
    directory, description = _read_description(directory)
    return _row_files({name: directory / name for name in description["files"]})


def _row_files(paths: Mapping[str, Path]) -> list[Path]:
    """The files with rows, in the order of their numbers."""
    for prefix in ("replay-", segments.PREFIX):
        if found := segments.segment_files(paths, prefix):
            return [paths[name] for name in found.values()]
    return []


def read_rows(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Reads segments from `replay_files`, one at a time."""
    for path in paths:
        arrays = _read_arrays(path)
        if "rows" in arrays:
            yield arrays


def _write(agent: SavableAgent, directory: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Writes a saved agent; returns the sums of its files, and of those that are links to files of another."""
    np.savez(directory / "variables.npz", **_arrays(agent))
    np.savez(directory / "replay.npz", **_replay(agent))
    linked = {}
    if agent.learner.remote_replay is None:
        linked = segments.write(agent.replay, directory)
    else:
        agent.learner.remote_replay.save(directory)
    for name, network in agent.custom_networks.items():
        network.save(directory / f"{name}.keras")
    description = {
        "format": FORMAT,
        "agent": class_name(type(agent)),
        "arguments": {name: to_json(value) for name, value in agent.saved_options.items()},
        **agent.spec.to_json(),
        "own_networks": sorted(agent.custom_networks),
        "state": agent.state(),
    }
    return files.write_manifest(directory, DESCRIPTION, description, linked), linked


def _nbytes(agent: SavableAgent) -> int:
    """What `_write` writes of an agent, but for rows that are elsewhere."""
    arrays = [*_arrays(agent).values(), *_replay(agent).values()]
    rows = 0 if agent.learner.remote_replay is not None else segments.unwritten_bytes(agent.replay)
    return rows + sum(np.asarray(array).nbytes for array in arrays)


def _arrays(agent: SavableAgent) -> dict[str, Any]:
    """The weights and the optimizers' states."""
    return {
        f"{name}/{i}": np.asarray(variable)
        for name, variables in agent.saved_variables.items()
        for i, variable in enumerate(variables)
    }


def _replay(agent: SavableAgent) -> dict[str, Any]:
    """What drawing and normalising needs of the rows that the agent holds itself, beside them."""
    remote_replay = agent.learner.remote_replay is not None
    rows = {} if remote_replay else segments.state(agent.replay) | agent.minibatch_builder.sampler.state()
    return rows | (agent.observation_statistics.state() if agent.observation_statistics is not None else {})


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    with open(path, "rb") as stream, np.load(stream) as file:
        return {name: file[name] for name in file.files}
