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
from pathlib import Path

import numpy as np
import pytest

from tfdpg import cli, export

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


def test_without_aiohttp_the_error_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    assert cli.main(["serve", str(SHIPPED)]) == 1
    assert "`tfdpg serve` needs aiohttp: pip install 'tfdpg[serve]'" in capsys.readouterr().err


@contextlib.contextmanager
def process(*flags):
    """A server in its own process; yields the process, REST port, path of the model, gRPC port and printed lines."""
    command = [sys.executable, "-m", "tfdpg", "serve", str(SHIPPED), "--port", "0", "--grpc-port", "0", *flags]
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    with subprocess.Popen(command, **pipes) as process:
        try:
            lines = []
            while not lines or "REST at" not in lines[-1]:
                lines.append(process.stdout.readline())
                assert lines[-1], process.communicate()
            pattern = r"td3-halfcheetah: REST at http://127.0.0.1:(\d+)(/\S+), gRPC at 127.0.0.1:(\d+)\n"
            port, path, grpc_port = re.fullmatch(pattern, lines[-1]).groups()
            yield process, int(port), path, int(grpc_port), lines
        finally:
            process.kill()


BODY = json.dumps({"instances": [[0.0] * 17]}).encode()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_once_requests_are_answered(number):
    with process() as (server, port, path, grpc_port, lines):
        assert lines[0] == "td3-halfcheetah: version 1 is served\n"
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
            connection.sendall(BODY)
            with http.client.HTTPResponse(connection) as response:
                response.begin()
                assert response.status == 200 and np.shape(json.load(response)["predictions"]) == (1, 6)
        assert server.communicate(timeout=60) == ("", "") and server.returncode == 0


@pytest.mark.slow
def test_clients_cannot_delay_its_end():
    with process() as (server, port, path, _, _), contextlib.ExitStack() as stack:
        incomplete = f"POST {path}:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{{".encode()
        for sent in (b"", b"POST", incomplete):
            stack.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(sent)
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0  # sooner than the `timeout` of 75 seconds
