"""Arguments that are objects, as JSON: optimizers and cells as configurations, callables as import paths."""

import dataclasses
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfdpg.imports import import_user_module

SCHEDULES = ("tfdpg.exploration:Linear", "tfdpg.exploration:Decay")
"""The objects that are imported also if the file that names them is not trusted."""


def to_json(value: Any) -> Any:
    """Convert an argument to JSON; a callable without an import path becomes `{"lost": ...}`."""
    if isinstance(value, keras.optimizers.Optimizer):
        return {"optimizer": keras.optimizers.serialize(value)}
    if isinstance(value, keras.layers.Layer):
        return {"layer": keras.saving.serialize_keras_object(value)}
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


def from_json(value: Any, trusted: bool) -> Any:
    """Return the argument that `to_json` converted; lists become tuples.

    Args:
        value: the JSON value, possibly from an untrusted file.
        trusted: whether to import the objects that the value names. Otherwise only tfdpg's own schedules and objects
            that Keras deserialises safely are created; others become `untrusted`.
    """
    match value:
        case {"optimizer": config}:
            return keras.optimizers.deserialize(config)
        case {"layer": config}:
            return keras.saving.deserialize_keras_object(config)
        case {"object": str(path), "fields": dict(fields)} if trusted or path in SCHEDULES:
            kind = _import_or_lost(path)
            if isinstance(kind, dict):
                return kind
            return kind(**{name: from_json(part, trusted) for name, part in fields.items()})
        case {"callable": str(path)} if trusted:
            return _import_or_lost(path)
        case {"object": path} | {"callable": path}:
            return untrusted(path)
        case list():
            return tuple(from_json(part, trusted) for part in value)
    return value


def untrusted(value: Any) -> dict[str, Any]:
    """Return the placeholder for an argument that is used only if the file is trusted."""
    return {"untrusted": value}


def class_name(agent_class: type) -> str:
    """The name under which a checkpoint records the class of its agent.

    This is "TD3" for a class of tfdpg, "module:Class" for another class, and ":Class" for a class that cannot be
    imported because it was defined in a script (`__main__`) or in a function.
    """
    if agent_class.__module__.partition(".")[0] == "tfdpg":
        return agent_class.__name__
    return _path(agent_class) or f":{agent_class.__name__}"


def why_missing(value: Any) -> str | None:
    """Return why `from_json` did not restore an argument; None if it did."""
    match value:
        case {"lost": thing}:
            return f"could not be saved or found again ({thing}), having no import path"
        case {"untrusted": thing}:
            return f"is {thing!r} in the file, which is followed only with trusted=True (--trusted)"
    return None


def _import_or_lost(path: str) -> Any:
    try:
        return _imported(path)
    except (ImportError, AttributeError):
        return {"lost": path}


def _path(thing: Any) -> str | None:
    """Return `module:name` of an object; None for lambdas, local functions and others that cannot be imported."""
    module = getattr(thing, "__module__", None)
    name = getattr(thing, "__qualname__", None)
    if module is None or name is None or module == "__main__":
        return None
    path = f"{module}:{name}"
    try:
        return path if _imported(path) is thing else None
    except (ImportError, AttributeError):
        return None


def _imported(path: str) -> Any:
    module, name = path.split(":")
    thing = import_user_module(module)
    for part in name.split("."):
        thing = getattr(thing, part)
    return thing
