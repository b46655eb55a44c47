"""The weights of several networks: in files, in lists, and whether they are numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

from tfdpg import files


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
    files.flush(scratch)
    scratch.replace(path)
    files.flush(path.parent)


def load_weights(networks: Mapping[str, keras.Model], filepath: str | Path) -> list[np.ndarray]:
    """Reads what `save_weights` wrote for the same networks, in the order of their weights.

    Raises:
        ValueError: the file holds others, or links to other files, which are not followed.
    """
    expected = {name: [tuple(weight.shape) for weight in network.weights] for name, network in networks.items()}
    with _opened(filepath) as file:
        stored = {name: _own_arrays(file, name) for name in map(str, file)}
        found = {name: [array.shape for array in arrays] for name, arrays in stored.items()}
        if found != expected:
            raise ValueError(f"{filepath} must hold the weights of {expected}. Received: {found}")
        return [array[()] for name in expected for array in stored[name]]


def _own_arrays(file: Any, name: str) -> list[Any]:
    """The numbered arrays of a group of an HDF5 file, all of which lie in the file itself."""
    paths = [name]
    if _is_own(file, name, h5py.Group):
        paths = [f"{name}/{i}" for i in range(len(file[name]))]
        if all(_is_own(file, path, h5py.Dataset) for path in paths):
            return [file[path] for path in paths]
    raise ValueError(f"{file.filename} must hold real arrays of its own, without links to others. Received: {paths}")


def _opened(filepath: str | Path) -> h5py.File:
    try:
        return h5py.File(filepath, "r")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{filepath} is no HDF5 file, or damaged: {error}") from error


def _is_own(file: Any, path: str, kind: type) -> bool:
    """Whether there is a group or an array at `path` that lies in the file itself; links are not followed."""
    if not isinstance(file.get(path, getlink=True), h5py.HardLink) or not isinstance(file[path], kind):
        return False
    array = file[path]
    return kind is h5py.Group or not (array.external or array.is_virtual or array.dtype.kind != "f")


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


def check_finite(networks: Mapping[str, keras.Model]) -> None:
    """Raises `FloatingPointError` if a weight of a network is NaN or infinite, naming the network."""
    for name, network in networks.items():
        if not all(np.isfinite(weight).all() for weight in network.get_weights()):
            raise FloatingPointError(f"The weights of `{name}` are not finite, so the agent is not saved.")
