"""Warm-up requests, which are written without the package tensorflow-serving-api."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from tfdpg.export.warmup import prediction_log, read_warmup, write_warmup


@pytest.mark.parametrize("rows", [0, 1, 40, 70_000])
def test_warm_up_requests_are_those_that_the_package_writes(rows):
    inputs = {"a": np.zeros(rows, np.int64), "größe": np.uint8([]), "x": np.ones((rows, 3), np.float32)}
    expected = prediction_log_pb2.PredictionLog()
    request = expected.predict_log.request
    request.model_spec.name = "m" * 127
    request.model_spec.signature_name = "s" * 128
    for name, values in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(values))
    assert prediction_log("m" * 127, "s" * 128, inputs) == expected.SerializeToString(deterministic=True)


def test_warm_up_requests_are_read_as_they_were_written(tmp_path):
    cases = {
        "pi": [
            {"x": np.arange(3 * n, dtype=np.float32).reshape(n, 3), "0/step": np.ones(n, np.int32)} for n in (1, 700)
        ],
        "initial_state": [{"batch": np.array(5, np.int32)}],
    }
    write_warmup(tmp_path, "m" * 300, cases)
    read = read_warmup(tmp_path)
    assert list(read) == list(cases)
    for name, requests in cases.items():
        for found, expected in zip(read[name], requests, strict=True):
            np.testing.assert_equal(found, expected)
            assert {key: value.dtype for key, value in found.items()} == {k: v.dtype for k, v in expected.items()}
