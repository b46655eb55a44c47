"""Requests that TensorFlow Serving replays when it loads a model, so that the first client does not wait.

They are `PredictionLog`s, protocol buffers of the package tensorflow-serving-api. The few fields that are used are
declared in `prediction_log.pbtxt`, so that the package is not needed.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from tfdpg.compat.tensorflow import tensor_from_bytes

WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
SCHEMA = resources.files("tfdpg.export").joinpath("prediction_log.pbtxt").read_text()
POOL = descriptor_pool.DescriptorPool()
POOL.AddSerializedFile(text_format.Parse(SCHEMA, descriptor_pb2.FileDescriptorProto()).SerializeToString())
PredictionLog: Any = message_factory.GetMessageClass(POOL.FindMessageTypeByName("tfdpg.PredictionLog"))


def write_warmup(directory: Path, model: str, cases: Mapping[str, Sequence[Mapping[str, np.ndarray]]]) -> None:
    """Write requests into a SavedModel.

    Args:
        directory: the SavedModel.
        model: the name under which the model will be served.
        cases: for each signature the inputs of its requests.
    """
    path = directory / WARMUP_FILE
    path.parent.mkdir(parents=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, requests in cases.items():
            for inputs in requests:
                writer.write(prediction_log(model, signature, inputs))


def read_warmup(directory: Path) -> dict[str, list[dict[str, np.ndarray]]]:
    """Read what `write_warmup` wrote: for each signature the inputs of its requests."""
    cases: dict[str, list[dict[str, np.ndarray]]] = defaultdict(list)
    records: Any = tf.data.TFRecordDataset(str(directory / WARMUP_FILE)).as_numpy_iterator()
    for record in records:
        (request,) = PredictionLog.FromString(record).predict_log.request
        inputs = {tensor.name.decode(): tensor_from_bytes(tensor.content) for tensor in request.inputs}
        cases[request.model_spec.signature_name.decode()].append(inputs)
    return dict(cases)


def prediction_log(model: str, signature: str, inputs: Mapping[str, np.ndarray]) -> bytes:
    """Encode a request as a `PredictionLog`.

    Args:
        model: the name under which the model will be served.
        signature: the signature that the request calls.
        inputs: its inputs.
    """
    log = PredictionLog()
    request = log.predict_log.request.add()
    request.model_spec.name = model.encode()
    request.model_spec.signature_name = signature.encode()
    for name, values in inputs.items():
        request.inputs.add(name=name.encode(), content=tf.make_tensor_proto(values).SerializeToString())
    return log.SerializeToString()
