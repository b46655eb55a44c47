"""Saved agents: a directory that is written as a whole, or not at all.

    agent.json      class, arguments, spaces, counters, random states
    variables.npz   weights of networks and targets, optimizer states
    replay.npz      the rows held; those that are elsewhere are in replay-0.npz, replay-1.npz, ...
    pi.keras, ...   the networks that cannot be rebuilt from the arguments

Weights are read back from `variables.npz`, in order; the `.keras` files only say how the networks are built.
"""

import json
import shutil
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import keras
import numpy as np
import tensorflow as tf

from tfdpg.spec import Spec
from tfdpg.training.objects import from_json, to_json
from tfdpg.training.optimizers import option_prefix
from tfdpg.training.protocols import Saves

FORMAT = 1


class CheckpointError(RuntimeError):
    """A saved agent is damaged, incomplete, or of another version."""


class Saved(NamedTuple):
    """A saved agent, read and checked, before anything is built from it."""

    agent: str
    spec: Spec
    arguments: dict[str, Any]
    networks: Mapping[str, Any]
    state: dict[str, Any]
    variables: dict[str, np.ndarray]
    replay: dict[str, np.ndarray]
    elsewhere: list[Path]


def save(agent: Saves, directory: str | Path, overwrite: bool = True) -> None:
    """Writes an agent to a temporary directory beside `directory`, then renames it into place.

    Raises:
        FileExistsError: `directory` exists and `overwrite` is False, or it is not a saved agent.
    """
    directory = Path(directory)
    if directory.exists():
        if not overwrite:
            raise FileExistsError(f"{directory} exists. Pass overwrite=True to replace it.")
        if not (directory / "agent.json").exists():
            raise FileExistsError(f"{directory} exists and is not a saved agent, so it is not replaced.")
    directory.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        _write(agent, scratch)
        scratch.chmod(0o755)
        _replace(directory, scratch)
        if agent.source is not None:
            agent.source.saved(directory)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def read(directory: str | Path, device: str | None = None) -> Saved:
    """Reads and checks a saved agent, and builds its own networks on `device`, or else where they were.

    Raises:
        FileNotFoundError: there is none.
        CheckpointError: a file is damaged or missing.
    """
    directory = Path(directory)
    if not (directory / "agent.json").exists():
        hint = f". It is a run: load {directory}/checkpoints/<steps>" if (directory / "checkpoints").exists() else ""
        raise FileNotFoundError(f"No saved agent in {directory}: there is no agent.json{hint}")
    try:
        state = json.loads((directory / "agent.json").read_text())
        if state["format"] != FORMAT:
            raise CheckpointError(f"{directory} has format {state['format']}; this version reads {FORMAT}")
        arguments = {name: from_json(value) for name, value in state["arguments"].items()}
        with tf.device(device or arguments["device"]):
            files = {name: directory / f"{name}.keras" for name in state["own_networks"]}
            networks = {name: keras.saving.load_model(file, compile=False) for name, file in files.items()}
        variables, replay = (_read_arrays(directory / name) for name in ("variables.npz", "replay.npz"))
        spec, elsewhere = Spec.from_json(state), replay_files(directory)
        return Saved(state["agent"], spec, arguments, networks, state["state"], variables, replay, elsewhere)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"The saved agent in {directory} is damaged, or cannot be loaded: {error}") from error


def restore(agent: Saves, saved: Saved, changes: Mapping[str, Any]) -> None:
    """Gives an agent that was built from `saved` its variables, replay, counters and random states.

    Args:
        agent: the new agent.
        saved: the old one.
        changes: the arguments that are not the old ones.
    """
    for name, variables in _variables(agent).items():
        optimizer = agent.optimizers.get(name.removesuffix("_optimizer")) if name.endswith("_optimizer") else None
        prefix = "" if optimizer is None else option_prefix(name.removesuffix("_optimizer"))
        if optimizer is not None and f"{prefix}optimizer" in changes:
            continue
        rate = None if optimizer is None else float(optimizer.learning_rate)
        for i, variable in enumerate(variables):
            variable.assign(saved.variables[f"{name}/{i}"])
        if optimizer is not None and f"{prefix}lr" in changes:
            optimizer.learning_rate = rate
    _restore_replay(agent, saved)
    state = saved.state
    agent.counter.assign(state["updates"])
    agent.epoch, agent.environment = state["epoch"], state["environment"]
    schedule = agent.schedule
    schedule.env_steps, schedule.last_round = state["env_steps"], state["last_round"]
    schedule.episode_ended = state["episode_ended"]
    agent.collector.restore(state["collector"])
    agent.actor.refresh()


def _restore_replay(agent: Saves, saved: Saved) -> None:
    if not saved.elsewhere:
        agent.replay.restore(saved.replay)
    for file in saved.elsewhere:  # one at a time, since they may be large
        agent.replay.append(_read_arrays(file))
    agent.sampler.restore(saved.replay)
    if agent.moments is not None:
        agent.moments.restore(saved.replay)
        rows = agent.replay.added
        agent.moments.rows = rows if saved.elsewhere else min(agent.moments.rows, rows)


def replay_files(directory: Path) -> list[Path]:
    """The files of a saved agent with rows that were elsewhere, in the order of their numbers."""
    return sorted(directory.glob("replay-*.npz"), key=lambda file: int(file.stem.removeprefix("replay-")))


def save_weights(networks: Mapping[str, keras.Model], filepath: str | Path, overwrite: bool) -> None:
    """Writes the weights of networks to a `.weights.h5` file, one group for each network."""
    path = Path(filepath)
    if not path.name.endswith(".weights.h5"):
        raise ValueError(f"`filepath` must end in .weights.h5. Received: filepath={filepath}")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists. Pass overwrite=True to replace it.")
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.part")
    with h5py.File(scratch, "w") as file:
        for name, network in networks.items():
            for i, weight in enumerate(network.get_weights()):
                file.create_dataset(f"{name}/{i}", data=weight)
    scratch.replace(path)


def load_weights(networks: Mapping[str, keras.Model], filepath: str | Path) -> list[np.ndarray]:
    """Reads what `save_weights` wrote for the same networks, in the order of their weights."""
    with h5py.File(filepath, "r") as file:
        expected = {name: len(network.weights) for name, network in networks.items()}
        found = {name: len(group) for name, group in file.items()}
        if found != expected:
            raise ValueError(f"{filepath} must hold the weights of {expected}. Received: {found}")
        return [np.asarray(file[f"{name}/{i}"]) for name, count in expected.items() for i in range(count)]


def set_weights(networks: Mapping[str, keras.Model], weights: Sequence[np.ndarray]) -> None:
    """Sets the weights of networks, in their order.

    Raises:
        ValueError: other shapes; nothing is set.
    """
    variables = [variable for network in networks.values() for variable in network.weights]
    wanted, given = [tuple(v.shape) for v in variables], [np.shape(w) for w in weights]
    if wanted != given:
        raise ValueError(f"`weights` must have the shapes {wanted}. Received: {given}")
    for variable, weight in zip(variables, weights, strict=True):
        variable.assign(weight)


def _replace(directory: Path, scratch: Path) -> None:
    """Renames `scratch` to `directory`; what was there is put back if that fails, and removed if it succeeds."""
    if not directory.exists():
        scratch.rename(directory)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{directory.name}-old-", dir=directory.parent))
    directory.rename(old / "agent")
    try:
        scratch.rename(directory)
    except BaseException:
        (old / "agent").rename(directory)
        raise
    finally:
        shutil.rmtree(old)


def _write(agent: Saves, directory: Path) -> None:
    arrays: dict[str, Any] = {
        f"{name}/{i}": np.asarray(variable)
        for name, variables in _variables(agent).items()
        for i, variable in enumerate(variables)
    }
    np.savez(directory / "variables.npz", **arrays)
    replay: dict[str, Any] = {}
    if agent.source is None:
        replay |= agent.replay.state() | agent.sampler.state()
    else:
        agent.source.save(directory)
    if agent.moments is not None:
        replay |= agent.moments.state()
    np.savez(directory / "replay.npz", **replay)
    for name, network in agent.own_networks.items():
        network.save(directory / f"{name}.keras")
    schedule = agent.schedule
    state = {
        "updates": int(agent.counter),
        "env_steps": schedule.env_steps,
        "last_round": schedule.last_round,
        "episode_ended": schedule.episode_ended,
        "epoch": agent.epoch,
        "environment": agent.environment,
        "collector": agent.collector.state(),
    }
    description = {
        "format": FORMAT,
        "agent": type(agent).__name__,
        "arguments": {name: to_json(value) for name, value in agent.arguments.items()},
        **agent.spec.to_json(),
        "own_networks": sorted(agent.own_networks),
        "state": state,
    }
    (directory / "agent.json").write_text(json.dumps(description, indent=2) + "\n")


def _variables(agent: Saves) -> dict[str, list[Any]]:
    networks = {name: network.variables for name, network in agent.networks.items()}
    targets = {f"{name}_target": network.variables for name, network in agent.targets.items()}
    optimizers = {f"{name}_optimizer": optimizer.variables for name, optimizer in agent.optimizers.items()}
    return networks | targets | optimizers


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    with open(path, "rb") as stream, np.load(stream) as file:
        return {name: file[name] for name in file.files}
