"""Warm-up requests, written without the package of the server."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from tfdpg.export.warmup import prediction_log


@pytest.mark.parametrize("rows", [0, 1, 40, 70_000])
def test_warm_up_requests_are_those_that_the_package_of_the_server_writes(rows):
    inputs = {"a": np.zeros(rows, np.int64), "größe": np.uint8([]), "x": np.ones((rows, 3), np.float32)}
    expected = prediction_log_pb2.PredictionLog()
    request = expected.predict_log.request
    request.model_spec.name, request.model_spec.signature_name = "m" * 127, "s" * 128
    for name, values in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(values))
    assert prediction_log("m" * 127, "s" * 128, inputs) == expected.SerializeToString(deterministic=True)
