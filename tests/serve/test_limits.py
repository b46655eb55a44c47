"""No client can stop the server: rows and responses are limited, and silent connections are closed."""

import contextlib
import json
import socket

import numpy as np
import pytest

from tests.serve.conftest import serving
from tests.serve.test_command import SHIPPED
from tests.serve.test_requests import A, X, code_of, request
from tfdpg.serve.limits import Limits

LSTM = SHIPPED.parent / "td3-lstm-pendulum"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The first bytes of an HTTP/2 connection, with empty settings."""
TOO_MANY_ROWS = "The request has {} rows; the server accepts at most 20 (--max-rows)"


@pytest.fixture(scope="module")
def narrow(loaded):
    """A server with low limits and short timeouts."""
    with serving(loaded, Limits(response_bytes=10_000, rows=20, timeout=0.5)) as client:
        yield client


def connect(client, sent=b"", port="rest"):
    connection = socket.create_connection(("127.0.0.1", getattr(client.ports, port)), timeout=30)
    connection.sendall(sent)
    return connection


def received(connection):
    """Return the bytes that arrive until the server closes the connection."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def head(client, length=1000):
    return f"POST /v1/models/{client.name}:predict HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n".encode()


def test_rows_are_limited_in_both_protocols(narrow):
    rows = np.tile(X[:1], (21, 1))
    for form in ("instances", "inputs"):
        assert narrow.post({form: rows.tolist()}) == (413, {"error": TOO_MANY_ROWS.format(21)})
        assert narrow.post({form: rows[:20].tolist()})[0] == 200
    assert code_of(narrow.predict, request(narrow, x=rows)) == ("RESOURCE_EXHAUSTED", TOO_MANY_ROWS.format(21))
    assert len(narrow.predict(request(narrow, x=rows[:20])).outputs["pi"].float_val) == 20


def test_a_response_is_limited_before_it_is_computed(narrow):
    levels = np.linspace(0.1, 0.9, 400, dtype=np.float32)
    for form in (levels[None], np.tile(levels, (3, 1))):
        columns = {"x": X.tolist(), "a": A.tolist(), "levels": form.tolist()}
        status, answer = narrow.post({"signature_name": "z", "inputs": columns})
        assert status == 413 and "--max-response-mib" in answer["error"]
        code, message = code_of(narrow.predict, request(narrow, "z", x=X, a=A, levels=form))
        assert code == "RESOURCE_EXHAUSTED" and "--max-response-mib" in message
    columns["levels"] = [levels[:2].tolist()]
    status, answer = narrow.post({"signature_name": "z", "inputs": columns})
    assert status == 200 and np.shape(answer["outputs"]["quantiles"]) == (3, 2)


def test_a_recurrent_model_has_the_same_limits():
    x = np.zeros((3, 7, 3), np.float32)
    a = np.zeros((3, 7, 1), np.float32)
    with serving(LSTM, Limits(rows=20, response_bytes=20_000)) as client:
        for batch, expected in ((1_000_000_000, 413), (21, 413), (20, 413), (10, 200), (-1, 400)):
            assert client.post({"signature_name": "initial_state", "inputs": {"batch": batch}})[0] == expected
        batch = request(client, "initial_state", batch=np.int32(1_000_000_000))
        assert code_of(client.predict, batch) == ("RESOURCE_EXHAUSTED", TOO_MANY_ROWS.format(1_000_000_000))
        status, answer = client.post({"signature_name": "q1", "inputs": {"x": x.tolist(), "a": a.tolist()}})
        assert (status, answer["error"]) == (413, TOO_MANY_ROWS.format(21))
        columns = {"x": x[:2].tolist(), "a": a[:2].tolist()}
        assert np.shape(client.post({"signature_name": "q1", "inputs": columns})[1]["outputs"]) == (2, 7)
        columns["a"] = a[:2, :4].tolist()
        status, answer = client.post({"signature_name": "q1", "inputs": columns})
        assert status == 400 and "must have the same number of time steps" in answer["error"]


def test_connections_whose_header_or_body_does_not_arrive_are_closed(narrow):
    """Those of gRPC too. All wait at the same time."""
    intact = b"GET /v1/models/d4pg HTTP/1.1\r\nHost: x\r\n\r\n"
    half_a_body = head(narrow) + b'\r\n{"instances": [[1, 0'
    with contextlib.ExitStack() as stack:
        rest = [b"", head(narrow), intact + head(narrow), half_a_body]
        rest = [stack.enter_context(connect(narrow, sent)) for sent in rest]
        silent = [stack.enter_context(connect(narrow, sent, "grpc")) for sent in (b"", b"PRI * HTTP/2.0\r\n")]
        *answers, refused = map(received, rest)
        for connection in silent:
            received(connection)
    assert answers[:2] == [b"", b""] and answers[2].startswith(b"HTTP/1.1 200 OK")
    assert narrow.predict(request(narrow, x=X)).outputs
    answer, _, body = refused.partition(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 408 ") and b"Connection: close" in answer
    assert json.loads(body) == {"error": "The body of the request did not arrive within 0.5 seconds"}


def test_a_client_that_does_not_read_is_closed(loaded):
    body = json.dumps(
        {"signature_name": "z", "inputs": {"x": X[:1].tolist(), "a": A[:1].tolist(), "levels": [[0.5] * 10_000]}}
    )
    with serving(loaded, Limits(timeout=0.5)) as client:
        sent = head(client, len(body)) + b"\r\n" + body.encode()
        with connect(client) as connection:
            with pytest.raises((ConnectionError, TimeoutError)):
                connection.settimeout(20)
                for _ in range(1000):
                    connection.sendall(sent)
