"""SavedModels that an attacker could write: with any operations, and with valid checksums."""

import json
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from tfdpg import files
from tfdpg.export.warmup import write_warmup
from tfdpg.exported import METADATA

SHIPPED = Path(__file__).parents[2] / "exported_models/ddpg-pendulum/1"
X = np.zeros((1, 3), np.float32)


class Module(tf.Module):
    """A policy for Pendulum-v1; `effect` is called when it acts."""

    def __init__(self, effect=lambda: None):
        super().__init__()
        self.weights = tf.Variable(tf.ones([3, 1]))
        self.effect = effect

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, "x")])
    def pi(self, x):
        self.effect()
        return {"pi": x @ self.weights}


class Resource(tf.saved_model.experimental.TrackableResource):
    """A resource whose creation or initialisation has an effect, once it is loaded."""

    def __init__(self, create=lambda: None, initialize=lambda: None):
        super().__init__()
        self.create = create
        self.initialize = initialize
        _ = self.resource_handle

    def _create_resource(self):
        if not tf.executing_eagerly():
            self.create()
        return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[])

    def _initialize(self):
        if not tf.executing_eagerly():
            self.initialize()


def save(directory, module, edit=lambda model: None):
    """Write a module as a version of an exported model, with valid checksums.

    Args:
        directory: the model directory.
        module: the module, with a function `pi`.
        edit: changes the `SavedModel` before the checksums are computed.

    Returns:
        The directory of the version.
    """
    version = directory / "1"
    tf.saved_model.save(module, str(version), signatures={"pi": module.pi, "serving_default": module.pi})
    model = SavedModel.FromString((version / "saved_model.pb").read_bytes())
    edit(model)
    (version / "saved_model.pb").write_bytes(model.SerializeToString())
    write_warmup(version, directory.name, {"pi": [{"x": X}]})
    write_manifest(version)
    return version


def write_manifest(version):
    """Write `tfdpg.json` of a policy for Pendulum-v1, with valid checksums."""
    description = json.loads((SHIPPED / METADATA).read_text())
    (version / METADATA).unlink(missing_ok=True)
    kept = {key: value for key, value in description.items() if key not in ("files", "sha256")}
    files.write_manifest(version, METADATA, kept)


def saver_function(model, name):
    """Return the function of the saver whose name contains `save` or `restore`."""
    (function,) = (
        each for each in model.meta_graphs[0].graph_def.library.function if f"_traced_{name}_" in each.signature.name
    )
    return function
