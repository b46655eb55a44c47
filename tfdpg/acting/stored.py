"""The stock actors as a file, `policy.npz`: the weights, and in JSON what they are the weights of."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from tfdpg.acting.critic import NumpyCritic
from tfdpg.acting.mlp import NumpyPolicy
from tfdpg.acting.outputs import BoxAction, GaussianOutput, OutputTransform, Probabilities
from tfdpg.acting.recurrent import RecurrentSpec
from tfdpg.acting.torsos import Hidden, Layer, Norm, Residual, Torso
from tfdpg.spec import Spec

LAYERS: dict[str, type[Layer]] = {"hidden": Hidden, "norm": Norm, "residual": Residual}
OUTPUTS: dict[str, type[OutputTransform]] = {
    "action": BoxAction,
    "probabilities": Probabilities,
    "loc_scale": GaussianOutput,
}


def save_numpy_policy(
    path: Path, actor: NumpyPolicy, critics: Mapping[str, NumpyCritic] = MappingProxyType({})
) -> None:
    """Writes an actor: `weights`, float32 `[n]` in Keras' order, and `description`, a text in JSON.

    The description has the `layers` before the last one, whether each part of an observation has a first layer of its
    own (`has_branches`), epsilon and clip of the features' `normalizer` or null, the `cells` of a memory in front of
    the layers, and the `output`. The weights of critics have their names; under `critics` it says of each the `layers`,
    the one that takes the action, the `head`, and the numbers that this gives.
    """
    torso = actor.torso
    output = actor.output
    description = {
        "layers": [{"layer": _name(LAYERS, layer), **layer._asdict()} for layer in torso.pi],
        "critics": {
            name: {
                "layers": [{"layer": _name(LAYERS, layer), **layer._asdict()} for layer in critic.torso.q],
                "action_layer": critic.torso.action_layer,
                "head": critic.head,
                "size": critic.size,
            }
            for name, critic in critics.items()
        },
        "has_branches": torso.has_branches,
        "normalizer": actor.normalizer,
        "cells": actor.cell_kinds,
        "output": {"kind": _name(OUTPUTS, output)}
        | ({"sigma": output.sigma} if isinstance(output, GaussianOutput) else {}),
    }
    values: Any = {name: critic.weights for name, critic in critics.items()}
    np.savez(path, weights=actor.weights, description=np.array(json.dumps(description)), **values)


def load_numpy_policy(path: Path, spec: Spec, recurrent_spec: RecurrentSpec | None) -> NumpyPolicy:
    """The actor that `save_numpy_policy` wrote.

    Args:
        path: the file.
        spec: the spaces.
        recurrent_spec: what it recalls; None where it has no memory.

    Raises:
        OSError, ValueError, LookupError, TypeError: it is no such file.
    """
    arrays, description = _read(path)
    layers = tuple(_made(LAYERS, "layer", values) for values in description["layers"])
    torso = Torso("stored", layers, (), has_branches=description["has_branches"])
    normalizer = description["normalizer"] and tuple(description["normalizer"])
    cells = tuple((kind, units) for kind, units in description["cells"])
    output = _made(OUTPUTS, "kind", {"spec": spec, **description["output"]})
    actor = NumpyPolicy(spec, torso, normalizer, output, cells, recurrent_spec)
    actor.load(arrays["weights"])
    return actor


def load_critics(path: Path, spec: Spec) -> dict[str, NumpyCritic]:
    """The critics that `save_numpy_policy` wrote, by name; see `load_numpy_policy`."""
    arrays, description = _read(path)
    normalizer = description["normalizer"] and tuple(description["normalizer"])
    critics = {}
    for name, said in description["critics"].items():
        layers = tuple(_made(LAYERS, "layer", values) for values in said["layers"])
        torso = Torso("stored", (), layers, said["action_layer"], description["has_branches"])
        critics[name] = NumpyCritic(spec, torso, normalizer, said["head"], said["size"])
        critics[name].load(arrays[name])
    return critics


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    description = {"critics": {}} | json.loads(str(arrays.pop("description")))
    for name, values in arrays.items():
        if values.dtype != np.float32 or values.ndim != 1:
            raise ValueError(f"`{name}` of {path} must be float32 [n]. Received: {values.dtype} {list(values.shape)}")
    return arrays, description


def _name(kinds: dict[str, Any], thing: Any) -> str:
    return next(name for name, kind in kinds.items() if type(thing) is kind)


def _made(kinds: dict[str, Any], tag: str, values: dict[str, Any]) -> Any:
    arguments = dict(values)
    return kinds[arguments.pop(tag)](**arguments)
