"""Requests that TensorFlow Serving replays when it loads a model, so that the first client does not wait."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from tfdpg.export.protobuf import field, fields

WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"


def write_warmup(directory: Path, model: str, cases: Mapping[str, Sequence[Mapping[str, np.ndarray]]]) -> None:
    """Writes requests into a SavedModel.

    Args:
        directory: the SavedModel.
        model: the name under which it will be served.
        cases: for each signature the inputs of its requests.
    """
    path = directory / WARMUP_FILE
    path.parent.mkdir(parents=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, requests in cases.items():
            for inputs in requests:
                writer.write(prediction_log(model, signature, inputs))


def read_warmup(directory: Path) -> dict[str, list[dict[str, np.ndarray]]]:
    """What `write_warmup` wrote: for each signature the inputs of its requests."""
    cases: dict[str, list[dict[str, np.ndarray]]] = defaultdict(list)
    records: Any = tf.data.TFRecordDataset(str(directory / WARMUP_FILE)).as_numpy_iterator()
    protos: Any = tensor_pb2
    for record in records:
        request = fields(fields(fields(record)[6][0])[1][0])
        entries = map(fields, request[2])
        tensors = {entry[1][0].decode(): protos.TensorProto.FromString(entry[2][0]) for entry in entries}
        signature = fields(request[1][0])[3][0].decode()
        cases[signature].append({name: tf.make_ndarray(tensor) for name, tensor in tensors.items()})
    return dict(cases)


def prediction_log(model: str, signature: str, inputs: Mapping[str, np.ndarray]) -> bytes:
    """A request as a `PredictionLog`, a protocol buffer of the package tensorflow-serving-api.

    It is written by hand, since it has fields of one kind only:

        PredictionLog {PredictLog predict_log = 6}
        PredictLog {PredictRequest request = 1}
        PredictRequest {ModelSpec model_spec = 1; map<string, TensorProto> inputs = 2}
        ModelSpec {string name = 1; string signature_name = 3}

    Args:
        model: the name under which the model will be served.
        signature: the signature that is asked.
        inputs: its inputs.
    """
    request = field(1, field(1, model.encode()) + field(3, signature.encode()))
    for name, values in inputs.items():
        request += field(2, field(1, name.encode()) + field(2, tf.make_tensor_proto(values).SerializeToString()))
    return field(6, field(1, request))
