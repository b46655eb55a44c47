"""The file `policy.npz`: the weights of a policy and its critics, and their layers as JSON."""

import contextlib
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from tfdpg.acting.network import Node, NumpyCritic, NumpyPolicy
from tfdpg.acting.recurrent import RecurrentSpec
from tfdpg.spec import Spec

DAMAGE = AttributeError, EOFError, MemoryError, OverflowError, RecursionError
"""Errors that a damaged file may raise, besides those of `load_numpy_policy`."""
POLICY_FORMAT = 2
"""The format of the files, which their description names. Files of format 1 did not name it."""


def save_numpy_policy(
    path: Path, policy: NumpyPolicy, critics: Mapping[str, NumpyCritic] = MappingProxyType({})
) -> None:
    """Write a policy and its critics, with their weights.

    The array `weights`, float32 `[n]`, holds the policy's weights in Keras' order. The string `description` is JSON.
    Its entry `policy` lists the layers, each with its name, its inputs, its configuration and the position and shape
    of its weights (see `tfdpg.acting.network.Node`). The weights of each critic are in an array of its name, and its
    layers are listed under `critics`.
    """
    description = {
        "format": POLICY_FORMAT,
        "policy": [node._asdict() for node in policy.nodes],
        "critics": {name: [node._asdict() for node in critic.nodes] for name, critic in critics.items()},
    }
    values: Any = {name: critic.weights for name, critic in critics.items()}
    np.savez(path, weights=policy.weights, description=np.array(json.dumps(description)), **values)


def load_numpy_policy(path: Path, spec: Spec, recurrent_spec: RecurrentSpec | None) -> NumpyPolicy:
    """Load the policy that `save_numpy_policy` wrote.

    Args:
        path: the file.
        spec: the spaces.
        recurrent_spec: the recurrent state; None if the policy is not recurrent.

    Raises:
        OSError, ValueError, LookupError, TypeError: the file does not hold a policy.
    """
    with _reading(path) as (arrays, description):
        policy = NumpyPolicy(spec, [_node(each) for each in description["policy"]], recurrent_spec)
        policy.load(arrays["weights"])
        _check_shapes(path, policy)
        return policy


def _check_shapes(path: Path, policy: NumpyPolicy) -> None:
    """Raise `ValueError` if the layers fit neither each other nor the spaces, as those of another model's policy."""
    spec, recurrent = policy.spec, policy.recurrent_spec
    rows = [np.zeros((1, width), group) for group, width in zip(spec.groups, spec.widths, strict=True)]
    expected = spec.act_dim if spec.actions is None else spec.actions
    if recurrent is not None:
        rows.append(recurrent.initial_state(1))
        expected += recurrent.state_width
    try:
        width = policy(tuple(rows)).shape[1]
    except (IndexError, TypeError, ValueError) as error:
        raise ValueError(f"the layers in {path} do not fit the observations, or each other: {error}") from error
    if width != expected:
        raise ValueError(f"the policy in {path} must have {expected} outputs. Received: {width}")


def load_critics(path: Path, spec: Spec) -> dict[str, NumpyCritic]:
    """Load the critics that `save_numpy_policy` wrote, by name; see `load_numpy_policy`."""
    critics = {}
    with _reading(path) as (arrays, description):
        for name, stored in description["critics"].items():
            critics[name] = NumpyCritic(spec, [_node(each) for each in stored])
            critics[name].load(arrays[name])
    return critics


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[tuple[dict[str, np.ndarray], dict[str, Any]]]:
    """Return the arrays and the description; raise `ValueError` for what a damaged file raises inside the context."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        description = json.loads(str(arrays.pop("description")))
        if (found := description.get("format", 1)) != POLICY_FORMAT:
            raise ValueError(f"{path} has format {found!r}; this version of tfdpg reads format {POLICY_FORMAT} only")
        for name, values in arrays.items():
            if values.dtype != np.float32 or values.ndim != 1:
                came = f"{values.dtype} {list(values.shape)}"
                raise ValueError(f"`{name}` of {path} must be float32 [n]. Received: {came}")
        yield arrays, description
    except (*DAMAGE, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error


def _node(stored: Mapping[str, Any]) -> Node:
    weights = tuple((int(start), tuple(int(size) for size in shape)) for start, shape in stored["weights"])
    return Node(str(stored["layer"]), tuple(int(number) for number in stored["inputs"]), stored["config"], weights)
