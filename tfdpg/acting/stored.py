"""Built-in actors and critics as a file, `policy.npz`: their weights, and a description of the networks in JSON."""

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
    """Save an actor, and optionally critics, as `policy.npz`.

    The file contains `weights`, float32 `[n]` in Keras' order, `description`, a JSON text, and the weights of each
    critic under its name. The keys of the description are:

    - `layers`: the layers of the actor before the last one;
    - `has_branches`: whether each part of an observation has its own first layer;
    - `normalizer`: epsilon and clip of the observation normaliser, or null;
    - `cells`: the recurrent cells before the layers;
    - `output`: the output transform;
    - `critics`: for each critic its `layers`, the `action_layer` that receives the action, the `head`, and the `size`
      of the head.
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
    """Load the actor of a file that `save_numpy_policy` wrote.

    Args:
        path: the file.
        spec: the spaces of the environment.
        recurrent_spec: the recurrent inputs; None for a policy that is not recurrent.

    Raises:
        OSError, ValueError, LookupError, TypeError: The file is missing, damaged or of another kind.
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
    """Load the critics of a file that `save_numpy_policy` wrote, by name; raises as `load_numpy_policy`."""
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
