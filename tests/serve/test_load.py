"""The load test for a few seconds: versions are replaced while many clients send requests."""

import numpy as np
import pytest

from examples.benchmarks import serving_load


@pytest.mark.slow
def test_no_request_is_lost_and_none_mixes_two_versions():
    found = list(serving_load.results(serving_load.MODEL, batches=[8], clients=[16], seconds=6, every=1.5))
    assert [result.protocol for result in found] == ["REST", "gRPC"]
    for result in found:
        assert (result.lost, result.wrong) == (0, 0) and result.swaps >= 1
        assert result.per_second > 20 and 0 < result.p50 <= result.p99


@pytest.mark.slow
def test_the_load_test_detects_wrong_responses(tmp_path):
    models = serving_load.Models(serving_load.MODEL, tmp_path)
    x = np.random.default_rng(0).standard_normal((4, 17)).astype(np.float32)
    first, second = models.answers(x)
    mixed = np.concatenate([first[:2], second[2:]])

    class Where:
        url = ""
        address = ""
        directory = models.directory

    rest = serving_load.Rest(Where, x)
    by_grpc = serving_load.Grpc(Where, x)
    for answer, is_right in ((first, True), (second, True), (mixed, False), (first[:3], False)):
        body = serving_load.json.dumps({"outputs": answer.tolist()})
        assert rest.is_right(body, [first, second]) == is_right
    for answer, version, is_right in ((first, 1, True), (first, 2, False), (second, 2, True), (mixed, 2, False)):
        message = serving_load.predict_pb2.PredictResponse()
        message.model_spec.version.value = version
        message.outputs["pi"].CopyFrom(serving_load.tf.make_tensor_proto(answer))
        assert by_grpc.is_right(message, [first, second]) == is_right
