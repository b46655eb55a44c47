"""Requests that TensorFlow Serving replays when it loads a model, so that the first client does not wait."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"


def write_warmup(directory: Path, model: str, observations: Mapping[str, np.ndarray], actions: np.ndarray) -> None:
    """Writes one request for each signature and batch size (1 and all) into a SavedModel.

    Args:
        directory: the SavedModel.
        model: the name under which it will be served.
        observations: raw observations by input name, `[n, ...]` each.
        actions: actions for the critics, `[n, act_dim]`.
    """
    path = directory / WARMUP_FILE
    path.parent.mkdir(parents=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for batch in (1, len(actions)):
            for signature in ("serving_default", "pi", "q1", "q2"):
                inputs = {key: values[:batch] for key, values in observations.items()}
                if signature.startswith("q"):
                    inputs["a"] = actions[:batch]
                log = prediction_log_pb2.PredictionLog()  # pyright: ignore[reportAttributeAccessIssue]
                request = log.predict_log.request
                request.model_spec.name = model
                request.model_spec.signature_name = signature
                for key, values in inputs.items():
                    request.inputs[key].CopyFrom(tf.make_tensor_proto(values))
                writer.write(log.SerializeToString())
