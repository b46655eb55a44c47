"""Writing a SavedModel with the signatures `pi`, `q1`, `q2`."""

import contextlib
import importlib.metadata
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdpg.export.verify import verify
from tfdpg.export.versions import check_directory, move_to_next_version
from tfdpg.export.warmup import write_warmup
from tfdpg.networks import bounded, flat_values, in_half_precision, network_inputs
from tfdpg.spec import Spec

SIGNATURES = ("pi", "q1", "q2")
METADATA = "tfdpg.json"


def write(
    directory: str | Path,
    *,
    spec: Spec,
    pi: keras.Model,
    critics: Mapping[str, keras.Model],
    examples: Mapping[str, np.ndarray],
    metadata: Mapping[str, Any],
) -> Path:
    """Writes a new version of a model, verifies it, and only then moves it into place.

    Args:
        directory: the model directory; made if need be.
        spec: the spaces.
        pi: the policy.
        critics: `q1`, and `q2` if there is one; without, the signature `q2` is the same estimate as `q1`.
        examples: raw observations by input name, at least seven, to verify and to warm up with.
        metadata: what goes into `tfdpg.json` beside spaces, critics and library versions.

    Returns:
        The directory of the new version.

    Raises:
        NotADirectoryError: `directory` is a file.
        ExportError: the model that was written does not compute what the networks do.
    """
    directory = Path(directory)
    check_directory(directory)
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".tfdpg-export-", dir=directory))
    try:
        functions = _functions(spec, pi, critics)
        signatures = {**functions, "serving_default": functions["pi"]}
        tf.saved_model.save(_RawVariables([pi, *critics.values()]), str(scratch), signatures=signatures)
        actions = functions["pi"](**_tensors(spec, examples))["pi"].numpy()
        inputs = {name: values[:7] for name, values in examples.items()}
        references = {name: _reference(name, spec, pi, critics) for name in SIGNATURES}
        verify(scratch, references, inputs, actions[:7], any(map(in_half_precision, [pi, *critics.values()])))
        write_warmup(scratch, directory.resolve().name, inputs, actions[:7])
        (scratch / METADATA).write_text(json.dumps(_describe(spec, critics, metadata), indent=2) + "\n")
        scratch.chmod(0o755)
        return move_to_next_version(scratch, directory)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        with contextlib.suppress(OSError):  # someone else uses the directory by now
            for path in made:
                path.rmdir()
        raise


def _functions(spec: Spec, pi: keras.Model, critics: Mapping[str, keras.Model]) -> dict[str, Any]:
    """The exported functions; each takes raw inputs by name and returns a dict with its output."""
    observation = {leaf.name: tf.TensorSpec([None, *leaf.shape], leaf.dtype, name=leaf.name) for leaf in spec.leaves}
    action = tf.TensorSpec([None, spec.act_dim], tf.float32, name="a")

    def policy(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"pi": bounded(spec, pi(network_inputs(spec, inputs)))}

    def critic(name: str) -> Any:
        network = critics.get(name, critics["q1"])

        def q(a: tf.Tensor, **inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            return {name: flat_values(network([network_inputs(spec, inputs), a]))}

        return tf.function(q, autograph=False).get_concrete_function(a=action, **observation)

    functions = {"pi": tf.function(policy, autograph=False).get_concrete_function(**observation)}
    return functions | {name: critic(name) for name in ("q1", "q2")}


class _RawVariables(tf.Module):
    """Tracks raw variables. A tracked Keras model loads in Python and fails in TensorFlow Serving's loader."""

    def __init__(self, networks: Iterable[keras.Model]):
        super().__init__()
        self.raw = [variable.value for network in networks for variable in network.variables]


def _reference(name: str, spec: Spec, pi: keras.Model, critics: Mapping[str, keras.Model]) -> Any:
    """What a signature must compute, straight from the networks."""
    network = pi if name == "pi" else critics.get(name, critics["q1"])

    def compute(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        tensors = _tensors(spec, inputs)
        observation = network_inputs(spec, tensors)
        if name == "pi":
            return bounded(spec, network(observation)).numpy()
        return flat_values(network([observation, tf.constant(inputs["a"])])).numpy()

    return compute


def _tensors(spec: Spec, inputs: Mapping[str, np.ndarray]) -> dict[str, tf.Tensor]:
    return {leaf.name: tf.constant(inputs[leaf.name], leaf.dtype) for leaf in spec.leaves}


def _describe(spec: Spec, critics: Mapping[str, keras.Model], metadata: Mapping[str, Any]) -> dict[str, Any]:
    libraries = ("tfdpg", "tensorflow", "keras", "gymnasium", "numpy")
    return {
        "format": 1,
        **metadata,
        **spec.to_json(),
        "critics": len(critics),
        "versions": {name: importlib.metadata.version(name) for name in libraries},
    }
