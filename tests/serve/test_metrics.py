"""What a server counts, as text in the format of Prometheus."""

import threading
import time

import numpy as np
import pytest

from tests.serve.test_command import samples
from tfdpg.serve.errors import RequestError
from tfdpg.serve.metrics import Metrics


def requested(metrics, model="robot", error=None, seconds=0.0):
    with metrics.request(model, "predict", "REST", time.perf_counter() - seconds):
        if error is not None:
            raise error


def test_requests_are_counted_by_status():
    metrics = Metrics("robot")
    requested(metrics)
    for error in (RequestError("bad"), RequestError("none", "NOT_FOUND"), ZeroDivisionError(), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            requested(metrics, error=error)
    for model in ("a", "b", '"'):
        requested(metrics, model)
    metrics.refused("UNAVAILABLE")
    found = {labels: n for (name, labels), n in samples(metrics.text()).items() if name.endswith("request_count")}
    statuses = ("OK", "INVALID_ARGUMENT", "NOT_FOUND", "INTERNAL", "CANCELLED", "UNAVAILABLE")
    expected = {f'model_name="robot",status="{status}"': 1 for status in statuses}
    assert found == expected | {'model_name="(other)",status="OK"': 3}


def test_latencies_are_in_the_buckets_of_tensorflow_serving():
    metrics = Metrics("robot")
    for seconds in (0.001, 0.0011, 0.1, 5000):
        requested(metrics, seconds=seconds)
    found = samples(metrics.text())
    labels = 'model_name="robot",API="predict",entrypoint="REST"'
    buckets = {
        key.rpartition('le="')[2].rstrip('"'): value
        for (name, key), value in found.items()
        if name == ":tensorflow:serving:request_latency_bucket" and key.startswith(labels)
    }
    assert list(buckets)[:3] == ["10", "18", "32.4"] and list(buckets)[-1] == "+Inf" and len(buckets) == 34
    assert (buckets["612.22"], buckets["1983.59"], buckets["121440"]) == (0, 2, 3)
    assert list(buckets.values())[-2:] == [3, 4] == [3, found[":tensorflow:serving:request_latency_count", labels]]
    assert found[":tensorflow:serving:request_latency_sum", labels] == pytest.approx(5e9 + 102_100, rel=1e-5)


def test_answers_and_loaded_versions_are_counted():
    metrics = Metrics("robot")
    metrics.answered(2, "pi", {"pi": np.zeros((1, 2), np.float32)})
    metrics.answered(2, "pi", {"pi": np.array([[0.0, np.nan]]), "n": np.array([1])})
    metrics.loaded('a "quoted"\\path\n', True, 0.5)
    metrics.loaded("b", False, 0.25)
    metrics.loaded("b", False, 0.25)
    of_version = 'model_name="robot",version="2",signature="pi"'
    assert samples(metrics.text()) == {
        (":tensorflow:cc:saved_model:load_attempt_count", r'model_path="a \"quoted\"\\path\n",status="success"'): 1,
        (":tensorflow:cc:saved_model:load_attempt_count", 'model_path="b",status="fail"'): 2,
        (":tensorflow:cc:saved_model:load_latency", r'model_path="a \"quoted\"\\path\n"'): 500_000,
        (":tensorflow:cc:saved_model:load_latency", 'model_path="b"'): 500_000,
        (":tfdpg:serving:answer_count", of_version): 2,
        (":tfdpg:serving:nonfinite_answer_count", of_version): 1,
    }


def test_no_request_of_many_threads_is_lost():
    metrics = Metrics("robot")
    threads = [threading.Thread(target=lambda: [requested(metrics) for _ in range(1000)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = samples(metrics.text())
    assert found[":tensorflow:serving:request_count", 'model_name="robot",status="OK"'] == 8000
    labels = 'model_name="robot",API="predict",entrypoint="REST"'
    assert found[":tensorflow:serving:request_latency_count", labels] == 8000
