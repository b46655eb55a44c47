"""`tfdpg serve` and `tfdpg labels`, as processes and as functions."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tfdpg import cli, export

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import grpc
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

SHIPPED = Path(__file__).parents[2] / "exported_models/td3-halfcheetah"


def test_labels_are_written_and_shown(tmp_path, capsys):
    for _ in range(2):
        export.copy(SHIPPED / "1", tmp_path / "robot")
    command = ["labels", str(tmp_path / "robot"), "stable=1", "canary=2", "--base-path", "/srv/robot"]
    assert cli.main(command) == 0
    text = (tmp_path / "robot/models.config").read_text()
    assert capsys.readouterr().out == f"{text}wrote {tmp_path}/robot/models.config\n"
    assert 'base_path: "/srv/robot"' in text and export.read_labels(tmp_path / "robot") == {"stable": 1, "canary": 2}
    for words, message in (
        (["stable"], "`labels` must be as stable=3 canary=4. Received: labels='stable'"),
        (["stable=x"], "`labels` must be as stable=3 canary=4"),
        (["stable=9"], "`stable` must be one of the versions [1, 2]. Received: stable=9"),
    ):
        assert cli.main(["labels", str(tmp_path / "robot"), *words]) == 1
        assert message in capsys.readouterr().err
    assert (tmp_path / "robot/models.config").read_text() == text
    assert cli.main(["labels", str(tmp_path / "robot")]) == 0
    assert capsys.readouterr().out == "1  stable\n2  canary\n"
    assert cli.main(["inspect", str(tmp_path / "robot/2"), "--trusted"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "labels: canary"
    (tmp_path / "robot/models.config").unlink()
    assert cli.main(["labels", str(tmp_path / "robot")]) == 0
    assert capsys.readouterr().out == "1\n2\nNo version has a label, so the newest one is served.\n"
    assert cli.main(["labels", str(tmp_path), "stable=1"]) == 1
    assert "No exported model in" in capsys.readouterr().err


def test_invalid_arguments_are_refused(tmp_path, capsys):
    for words, message in (
        ([str(tmp_path)], f"No exported model in {tmp_path}"),
        ([str(SHIPPED / "1")], "is a version's directory; serve the model's"),
        ([str(SHIPPED), "--port", "70000"], "`port` must be in [0, 65535]. Received: port=70000"),
        ([str(SHIPPED), "--grpc-port", "-1"], "`grpc_port` must be in [0, 65535]"),
        ([str(SHIPPED), "--max-request-mib", "0"], "`max_request_mib` must be an integer in [1, 2047]"),
        ([str(SHIPPED), "--max-response-mib", "2048"], "`max_response_mib` must be an integer in [1, 2047]"),
        ([str(SHIPPED), "--max-rows", "0"], "`max_rows` must be a positive integer below 2**31. Received: max_rows=0"),
        ([str(SHIPPED), "--timeout", "0"], "`timeout` must be in [0.001, 86400] seconds. Received: timeout=0.0"),
        ([str(SHIPPED), "--timeout", "nan"], "`timeout` must be in [0.001, 86400] seconds"),
    ):
        assert cli.main(["serve", *words]) == 1
        assert message in capsys.readouterr().err


def test_a_port_that_is_taken_is_refused(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for flags in (["--port", port, "--grpc-port", "0"], ["--port", "0", "--grpc-port", port]):
            assert cli.main(["serve", str(SHIPPED), *flags]) == 1
            error = capsys.readouterr().err
            assert re.search("address already in use|the address is in use", error) and error.count("\n") == 1


def test_a_model_that_does_not_load_ends_it(tmp_path, capsys):
    damaged = export.copy(SHIPPED / "1", tmp_path / "robot") / "saved_model.pb"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert cli.main(["serve", str(tmp_path / "robot"), "--port", "0", "--grpc-port", "0"]) == 1
    shown = capsys.readouterr()
    assert f"{damaged} is damaged" in shown.err and shown.err.count("\n") == 1
    assert shown.out.endswith("robot: loading\n") and shown.out.count("\n") == 2


def test_without_aiohttp_the_error_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    assert cli.main(["serve", str(SHIPPED)]) == 1
    assert "`tfdpg serve` needs aiohttp: pip install 'tfdpg[serve]'" in capsys.readouterr().err


@contextlib.contextmanager
def process(*flags, until="ready"):
    """A server in its own process; yields the process, REST port, path of the model, gRPC port and printed lines."""
    command = [sys.executable, "-m", "tfdpg", "serve", str(SHIPPED), "--port", "0", "--grpc-port", "0", *flags]
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    with subprocess.Popen(command, **pipes) as process:
        try:
            lines = []
            while not lines or until not in lines[-1]:
                lines.append(process.stdout.readline())
                assert lines[-1], process.communicate()
            pattern = r"td3-halfcheetah: REST at http://127.0.0.1:(\d+)(/\S+), gRPC at 127.0.0.1:(\d+)\n"
            port, path, grpc_port = re.fullmatch(pattern, lines[0]).groups()
            yield process, int(port), path, int(grpc_port), lines
        finally:
            process.kill()


BODY = json.dumps({"instances": [[0.0] * 17]}).encode()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_once_requests_are_answered(number):
    with process() as (server, port, path, grpc_port, lines):
        assert lines[1:] == [f"td3-halfcheetah: {text}\n" for text in ("loading", "version 1 is served", "ready")]
        socket.create_connection(("127.0.0.1", grpc_port)).close()
        first = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        first.request("POST", f"{path}:predict", BODY)  # takes longer than later ones
        assert first.getresponse().read()
        first.close()
        head = f"POST {path}:predict HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\nExpect: 100-continue\r\n\r\n"
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(head.encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 100")  # the request is under way
            server.send_signal(number)
            assert server.stdout.readline() == "td3-halfcheetah: ends, once the requests under way are answered\n"
            connection.sendall(BODY[:10])
            time.sleep(0.5)
            connection.sendall(BODY[10:])
            with http.client.HTTPResponse(connection) as response:
                response.begin()
                assert response.status == 200 and np.shape(json.load(response)["predictions"]) == (1, 6)
        assert server.communicate(timeout=60) == ("", "") and server.returncode == 0


def ask(port, path, body=None):
    """Return the status and the body of a response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST" if body else "GET", path, body)
        response = connection.getresponse()
        return response.status, response.read().decode()


def samples(text):
    """Return the values of the samples in Prometheus' text format, by name and labels."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = re.fullmatch(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{(.*)\} (\S+)", line).groups()
            found[name, labels] = float(value)
    return found


@pytest.mark.slow
def test_it_answers_that_it_loads_and_then_counts_requests(tmp_path):
    count, latency = ":tensorflow:serving:request_count", ":tensorflow:serving:request_latency"
    metrics = "/monitoring/prometheus/metrics"
    with process(until="loading") as (server, port, path, grpc_port, _), grpc_stub(grpc_port) as predict:
        status, text = ask(port, path)
        expected = {"version": "1", "state": "LOADING", "status": {"error_code": "OK", "error_message": ""}}
        assert (status, json.loads(text)) == (200, {"model_version_status": [expected]})
        assert ask(port, "/v1/models/other")[0] == 404 and ask(port, "/healthz")[0] == 503
        assert ask(port, f"{path}/metadata")[0] == ask(port, f"{path}/versions/2")[0] == 503
        status, text = ask(port, f"{path}:predict", BODY)
        assert status == 503 and "The model td3-halfcheetah is being loaded." in text
        assert predict() == grpc.StatusCode.UNAVAILABLE
        refused = samples(ask(port, metrics)[1])
        assert refused == {(count, 'model_name="td3-halfcheetah",status="UNAVAILABLE"'): 2}

        while server.stdout.readline() != "td3-halfcheetah: ready\n":
            assert server.poll() is None
        assert ask(port, "/healthz") == (200, '{"status": "ok"}')
        assert json.loads(ask(port, path)[1])["model_version_status"][0]["state"] == "AVAILABLE"
        bodies = [b"{", BODY, BODY, BODY, b'{"instances": [[0]]}', json.dumps({"signature_name": "x"}).encode()]
        assert [ask(port, f"{path}:predict", body)[0] for body in bodies] == [400, 200, 200, 200, 400, 400]
        assert ask(port, "/v1/models/other:predict", BODY)[0] == 404
        assert ask(port, f"{path}/versions/9:predict", BODY)[0] == 404
        assert [predict() for _ in range(2)] == [grpc.StatusCode.OK] * 2
        assert predict("other") == grpc.StatusCode.NOT_FOUND

        response, text = ask(port, metrics)
        assert response == 200
        found = samples(text)
        of_model = 'model_name="td3-halfcheetah"'
        assert {labels: value for (name, labels), value in found.items() if name == count} == {
            f'{of_model},status="UNAVAILABLE"': 2,
            f'{of_model},status="OK"': 5,
            f'{of_model},status="INVALID_ARGUMENT"': 3,
            f'{of_model},status="NOT_FOUND"': 1,
            'model_name="(other)",status="NOT_FOUND"': 2,
        }
        for labels, requests in (('API="predict",entrypoint="REST"', 3), ('API="Predict",entrypoint="GRPC"', 2)):
            labels = f"{of_model},{labels}"
            buckets = [value for (name, key), value in found.items() if name == f"{latency}_bucket" and labels in key]
            assert len(buckets) == 34 and buckets == sorted(buckets) and buckets[-1] == requests
            assert found[f"{latency}_bucket", f'{labels},le="+Inf"'] == found[f"{latency}_count", labels] == requests
            assert 30 * requests < found[f"{latency}_sum", labels] < 60e6
        assert found[":tensorflow:cc:saved_model:load_attempt_count", f'model_path="{SHIPPED}/1",status="success"'] == 1
        assert found[":tensorflow:cc:saved_model:load_latency", f'model_path="{SHIPPED}/1"'] > 1e4
        assert found[":tfdpg:serving:answer_count", f'{of_model},version="1",signature="serving_default"'] == 5
        assert not any(name == ":tfdpg:serving:nonfinite_answer_count" for name, _ in found)


@contextlib.contextmanager
def grpc_stub(port):
    """A function that sends a Predict request for a model and returns the status."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)

        def predict(model="td3-halfcheetah"):
            request = predict_pb2.PredictRequest()
            request.model_spec.name = model
            request.inputs["x"].CopyFrom(tf.make_tensor_proto(np.zeros((1, 17), np.float32)))
            try:
                stub.Predict(request, timeout=60)
            except grpc.RpcError as error:
                return error.code()
            return grpc.StatusCode.OK

        yield predict


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0, 1.5])
def test_a_signal_ends_it_while_it_loads(seconds):
    with process(until="loading") as (server, *_):
        time.sleep(seconds)
        server.send_signal(signal.SIGTERM)
        assert server.communicate(timeout=60) == (
            "td3-halfcheetah: ends, once the requests under way are answered\n",
            "",
        )
        assert server.returncode == 0


@pytest.mark.slow
def test_clients_cannot_delay_its_end():
    with process() as (server, port, path, _, _), contextlib.ExitStack() as stack:
        incomplete = f"POST {path}:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{{".encode()
        for sent in (b"", b"POST", incomplete):
            stack.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(sent)
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0  # sooner than the `timeout` of 75 seconds
