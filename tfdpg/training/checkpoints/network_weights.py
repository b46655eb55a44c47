"""The weights of several networks: files of weights, setting them, and checking that they are finite."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

from tfdpg import files


def save_weights(networks: Mapping[str, keras.Model], filepath: str | Path, overwrite: bool) -> None:
    """Write the weights of networks to a `.weights.h5` file, with a group for each network."""
    path = Path(filepath)
    if not path.name.endswith(".weights.h5"):
        raise ValueError(f"`filepath` must end in .weights.h5. Received: filepath={filepath}")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists. Pass overwrite=True to replace it.")
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.part")
    scratch.unlink(missing_ok=True)  # it might be a link to another file
    with h5py.File(scratch, "w") as file:
        for name, network in networks.items():
            for i, weight in enumerate(network.get_weights()):
                file.create_dataset(f"{name}/{i}", data=weight)
    files.flush(scratch)
    scratch.replace(path)
    files.flush(path.parent)


def load_weights(networks: Mapping[str, keras.Model], filepath: str | Path) -> list[np.ndarray]:
    """Read the file that `save_weights` wrote for the same networks, in the order of their weights.

    Raises:
        ValueError: the file holds other weights, or weights that are NaN or infinite, and the message names the first
            one; or it has links to other files, which are not followed.
        tfdpg.files.UnsafeFileError: it is not a regular file.
    """
    with _opened(filepath) as file:
        stored = {name: _own_arrays(file, name) for name in map(str, file)}
        if difference := _first_difference(networks, stored):
            raise ValueError(f"{filepath} holds the weights of another architecture: {difference}")
        weights = [array[()] for name in networks for array in stored[name]]
    _refuse_nonfinite(networks, weights, f"{filepath} must hold", "loaded")
    return weights


def _refuse_nonfinite(networks: Mapping[str, keras.Model], weights: Sequence[Any], must: str, done: str) -> None:
    """Raise `ValueError`, with the name of the first one, for weights of networks that are NaN or infinite."""
    variables = [(name, weight.path) for name, network in networks.items() for weight in network.weights]
    for (name, path), weight in zip(variables, weights, strict=True):
        with np.errstate(over="ignore"):
            bad = np.count_nonzero(~np.isfinite(np.asarray(weight, np.float32)))
        if bad:
            raise ValueError(
                f"{must} finite weights. Received: {bad} of {np.size(weight)} numbers of `{path}` of the network "
                f"`{name}` are NaN or infinite. Nothing is {done}."
            )


def _first_difference(networks: Mapping[str, keras.Model], given: Mapping[str, Sequence[Any]]) -> str:
    """Describe the first difference between arrays and the weights of networks; return "" if there is none.

    Args:
        networks: the networks, by name.
        given: the arrays for each network, by the same names.
    """
    if missing := [name for name in networks if name not in given]:
        return f"the network `{missing[0]}` is missing. Received: {', '.join(given) or 'none'}"
    if unknown := [name for name in given if name not in networks]:
        return f"the network `{unknown[0]}` is unknown. Expected: {', '.join(networks)}"
    for name, network in networks.items():
        expected = [(weight.path, tuple(weight.shape)) for weight in network.weights]
        arrays = given[name]
        for (path, shape), array in zip(expected, arrays, strict=False):
            if np.shape(array) != shape:
                return f"`{path}` of the network `{name}` must have the shape {shape}. Received: {np.shape(array)}"
        if len(arrays) < len(expected):
            path, shape = expected[len(arrays)]
            return f"`{path}` of the network `{name}`, of shape {shape}, is missing. Received: {len(arrays)} weights"
        if len(arrays) > len(expected):
            return f"the network `{name}` must have {len(expected)} weights. Received: {len(arrays)}"
    return ""


def _own_arrays(file: Any, name: str) -> list[Any]:
    """Return the numbered arrays of a group in an HDF5 file, all of which must be in the file itself."""
    paths = [name]
    if _is_own(file, name, h5py.Group):
        paths = [f"{name}/{i}" for i in range(len(file[name]))]
        if all(_is_own(file, path, h5py.Dataset) for path in paths):
            return [file[path] for path in paths]
    raise ValueError(f"{file.filename} must hold float arrays, without links to other files. Received: {paths}")


def _opened(filepath: str | Path) -> h5py.File:
    files.check_entry(Path(filepath), trusted=True)  # opening a named pipe would wait
    try:
        return h5py.File(filepath, "r")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{filepath} is not an HDF5 file, or is damaged: {error}") from error


def _is_own(file: Any, path: str, kind: type) -> bool:
    """Return whether `path` is a group or an array in the file itself; links are not followed."""
    if not isinstance(file.get(path, getlink=True), h5py.HardLink) or not isinstance(file[path], kind):
        return False
    array = file[path]
    return kind is h5py.Group or not (array.external or array.is_virtual or array.dtype.kind != "f")


def set_weights(networks: Mapping[str, keras.Model], weights: Sequence[np.ndarray]) -> None:
    """Set the weights of networks, in order.

    Raises:
        ValueError: the weights have other shapes, or are NaN or infinite; the message names the first such one. Nothing
            is set.
    """
    variables = [variable for network in networks.values() for variable in network.weights]
    rest = iter(weights)
    parts = {name: list(itertools.islice(rest, len(network.weights))) for name, network in networks.items()}
    if difference := _first_difference(networks, parts):
        raise ValueError(f"`weights` are those of another architecture: {difference}")
    if len(weights) != len(variables):
        raise ValueError(f"`weights` must have {len(variables)} arrays. Received: {len(weights)}")
    _refuse_nonfinite(networks, weights, "`weights` must be", "set")
    for variable, weight in zip(variables, weights, strict=True):
        variable.assign(weight)


def check_finite(networks: Mapping[str, keras.Model]) -> None:
    """Raise `FloatingPointError`, with the name of the network, if a weight is NaN or infinite."""
    for name, network in networks.items():
        if not all(np.isfinite(weight).all() for weight in network.get_weights()):
            raise FloatingPointError(f"The weights of `{name}` are not finite, so the agent is not saved.")
