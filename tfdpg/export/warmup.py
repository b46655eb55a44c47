"""Requests that TensorFlow Serving replays when it loads a model, so that the first client does not wait."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

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
                log = prediction_log_pb2.PredictionLog()  # pyright: ignore[reportAttributeAccessIssue]
                request = log.predict_log.request
                request.model_spec.name = model
                request.model_spec.signature_name = signature
                for key, values in inputs.items():
                    request.inputs[key].CopyFrom(tf.make_tensor_proto(values))
                writer.write(log.SerializeToString())
