"""Arguments that are objects, as JSON: optimizers by their configuration, callables by their import path."""

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import keras
import numpy as np


def to_json(value: Any) -> Any:
    """An argument as a JSON value that `from_json` turns back; callables without an import path as `{"lost": ...}`."""
    if isinstance(value, keras.optimizers.Optimizer):
        return {"optimizer": keras.optimizers.serialize(value)}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [to_json(part) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and _path(type(value)):
        fields = {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"object": _path(type(value)), "fields": fields}
    path = _path(value)
    return {"callable": path} if path else {"lost": repr(value)}


def from_json(value: Any) -> Any:
    """The argument that `to_json` was given, lists as tuples; what cannot be imported any more is `{"lost": ...}`."""
    match value:
        case {"optimizer": config}:
            return keras.optimizers.deserialize(config)
        case {"object": path} | {"callable": path}:
            try:
                thing = _imported(path)
            except (ImportError, AttributeError):
                return {"lost": path}
            return thing(**{k: from_json(v) for k, v in value["fields"].items()}) if "fields" in value else thing
        case list():
            return tuple(from_json(part) for part in value)
    return value


def is_lost(value: Any) -> bool:
    """Whether `to_json` could not write the argument down."""
    return isinstance(value, dict) and "lost" in value


def _path(thing: Any) -> str | None:
    """module:name of what can be imported again; None for lambdas, local functions and other objects."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if module is None or name is None or module == "__main__":
        return None
    path = f"{module}:{name}"
    try:
        return path if _imported(path) is thing else None
    except (ImportError, AttributeError):
        return None


def _imported(path: str) -> Any:
    module, name = path.split(":")
    thing = importlib.import_module(module)
    for part in name.split("."):
        thing = getattr(thing, part)
    return thing
