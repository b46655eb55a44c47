"""Both protocols respond with the outputs of the exported model, and refuse invalid requests."""

import gzip
import http.client
import json
import socket
import urllib.request
import zlib

import grpc
import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

import tfdpg
from tests.agents.roster import ACER, SMALL
from tests.serve.conftest import serving

X = np.array([[1.0, 0.0, 0.5], [0.6, 0.8, -2.0], [-1.0, 0.0, 8.0]], np.float32)
A = np.array([[0.5], [-2.0], [1.5]], np.float32)
LEVELS = np.array([0.05, 0.5], np.float32)


def request(client, signature="", version=None, label="", **inputs):
    """Return a `PredictRequest`."""
    message = predict_pb2.PredictRequest()
    message.model_spec.name = client.name
    message.model_spec.signature_name = signature
    if version is not None:
        message.model_spec.version.value = version
    if label:
        message.model_spec.version_label = label
    for name, values in inputs.items():
        message.inputs[name].CopyFrom(tf.make_tensor_proto(values))
    return message


def close(found, expected):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def policy(models):
    return tfdpg.load(models / "d4pg")


def test_responses_have_the_form_of_the_request(d4pg, policy):
    rows = [{"x": x, "a": a} for x, a in zip(X.tolist(), A.tolist(), strict=True)]
    for given in (X.tolist(), [{"x": x} for x in X.tolist()]):
        status, answer = d4pg.post({"instances": given})
        assert status == 200 and list(answer) == ["predictions"]
        close(answer["predictions"], policy(X))
    for given in (X.tolist(), {"x": X.tolist()}):
        status, answer = d4pg.post({"inputs": given, "signature_name": "pi"}, "/versions/1")
        assert status == 200 and list(answer) == ["outputs"]
        close(answer["outputs"], policy(X))
    for name, expected in (("q1", policy.q1(X, A)), ("q2", policy.q2(X, A))):
        close(d4pg.post({"signature_name": name, "instances": rows})[1]["predictions"], expected)
        columns = {"x": X.tolist(), "a": A.tolist()}
        close(d4pg.post({"signature_name": name, "inputs": columns})[1]["outputs"], expected)


def test_several_outputs_have_their_names(d4pg, policy):
    expected = policy.z(X, A, LEVELS)
    columns = {"x": X.tolist(), "a": A.tolist(), "levels": [LEVELS.tolist()]}
    outputs = d4pg.post({"signature_name": "z", "inputs": columns})[1]["outputs"]
    rows = [
        dict(zip(columns, row, strict=True)) for row in zip(X.tolist(), A.tolist(), [LEVELS.tolist()] * 3, strict=True)
    ]
    predictions = d4pg.post({"signature_name": "z", "instances": rows})[1]["predictions"]
    assert outputs.keys() == expected.keys() and len(predictions) == 3
    for name, values in expected.items():
        close(outputs[name], values)
        close([row[name] for row in predictions], values)


def test_grpc_answers_with_the_version_and_in_fields_that_clients_read(d4pg, policy):
    answer = d4pg.predict(request(d4pg, "q1", x=X, a=A))
    assert (answer.model_spec.name, answer.model_spec.version.value, answer.model_spec.signature_name) == (
        "d4pg",
        1,
        "q1",
    )
    close(answer.outputs["q1"].float_val, policy.q1(X, A))
    answer = d4pg.predict(request(d4pg, version=1, x=X[:1]))
    assert answer.model_spec.signature_name == "serving_default"
    close(tf.make_ndarray(answer.outputs["pi"]), policy(X[:1]))
    message = request(d4pg, "z", x=X, a=A, levels=LEVELS[None])
    message.output_filter.append("cvar")
    answer = d4pg.predict(message)
    assert list(answer.outputs) == ["cvar"]
    close(tf.make_ndarray(answer.outputs["cvar"]), policy.z(X, A, LEVELS)["cvar"])


@pytest.mark.slow
def test_discrete_actions_are_integers(tmp_path):
    x = np.array([[0.1, 0.2, 0.03, 0.4], [0.0, -1.0, 0.1, 1.0]], np.float32)
    policy = tfdpg.load(tfdpg.ACER("CartPole-v1", **ACER).export(tmp_path / "acer"))
    with serving(tmp_path / "acer") as client:
        assert client.post({"instances": x.tolist()})[1]["predictions"] == policy(x).tolist()
        assert client.predict(request(client, "pi", x=x)).outputs["pi"].int64_val == policy(x).tolist()
        rows = [{"x": row, "a": 1} for row in x.tolist()]
        close(client.post({"signature_name": "q1", "instances": rows})[1]["predictions"], policy.q1(x, [1, 1]))
        message = client.post({"signature_name": "q1", "inputs": {"x": x.tolist(), "a": [1.0, 0.5]}})[1]["error"]
        assert "JSON Value: 1.0 Type: Number is not of expected type: int64" in message
        assert client.post({"signature_name": "q1", "inputs": {"x": x.tolist(), "a": [2**70, 1]}})[0] == 400


@pytest.mark.slow
def test_images_and_dicts(tmp_path):
    image = gym.spaces.Box(0, 255, (2, 2, 1), "uint8")
    space = gym.spaces.Dict({"image": image, "speed": gym.spaces.Box(-1, 1, (1,))})
    agent = tfdpg.TD3(tfdpg.Spec(space, gym.spaces.Box(-1, 1, (2,))), **SMALL)
    image = np.arange(8).reshape(2, 2, 2, 1)
    policy = tfdpg.load(agent.export(tmp_path / "image"))
    with serving(tmp_path / "image") as client:
        rows = [{"image": row, "speed": [0.5]} for row in image.tolist()]
        expected = policy({"image": image.astype(np.uint8), "speed": np.full((2, 1), 0.5, np.float32)})
        close(client.post({"instances": rows})[1]["predictions"], expected)
        rows[1]["image"][0][0][0] = 256
        assert "256 to uint8 without loss" in client.post({"instances": rows})[1]["error"]


@pytest.mark.slow
def test_recurrent_states_are_inputs_and_outputs(tmp_path):
    policy = tfdpg.load(tfdpg.TD3("Pendulum-v1", recurrent="lstm", **SMALL).export(tmp_path / "lstm"))
    with serving(tmp_path / "lstm") as client:
        start = client.post({"signature_name": "initial_state", "inputs": 3})[1]["outputs"]
        step = client.post({"signature_name": "pi", "inputs": {"x": X.tolist(), **start}})[1]["outputs"]
        close(step["pi"], policy(X))
        assert step.keys() == {"pi", "h", "c"} and np.shape(step["h"]) == np.shape(start["h"])
        message = client.post({"signature_name": "initial_state", "instances": [3]})[1]["error"]
        assert message == "input tensor batch: expects shape () but (1,) is provided"
        x = [[float("nan"), 0.0, 0.5], [1.0, 0.0, float("-inf")], [1.0, 0.0, 0.5]]
        status, answer = client.post({"signature_name": "pi", "inputs": {"x": x, **start}})
        assert status == 400 and "NaN is not a finite number" in answer["error"]


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(d4pg, number):
    x = X.copy()
    a = A.copy()
    x[1, 2] = a[2, 0] = number
    for name, signature, inputs in (("x", "pi", {"x": x}), ("x", "pi_and_q", {"x": x}), ("a", "q1", {"x": X, "a": a})):
        expected = f"input tensor {name}: expects finite numbers but {number} is provided"
        content = {"signature_name": signature, "inputs": {key: values.tolist() for key, values in inputs.items()}}
        status, answer = d4pg.post(content)
        assert status == 400 and "is not a finite number" in answer["error"]
        with pytest.raises(grpc.RpcError) as error:
            d4pg.predict(request(d4pg, signature, **inputs), timeout=60)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT and error.value.details() == expected


@pytest.mark.parametrize("signature", ["pi", "action"])
def test_discrete_observations_outside_their_spaces_are_refused(tmp_path, signature):
    space = gym.spaces.Dict(mode=gym.spaces.Discrete(3), keys=gym.spaces.MultiDiscrete([2, 4], start=[1, 0]))
    agent = tfdpg.DDPG(tfdpg.Spec(space, gym.spaces.Box(-1, 1, (1,))), **SMALL)
    agent.export(tmp_path / "model", signatures="tf-agents" if signature == "action" else None)
    prefix = ""
    others = {}
    mode_type = np.int32
    if signature == "action":
        prefix = "0/observation/"
        others = {"0/step_type": np.ones(2, np.int32), "0/reward": A[:2, 0], "0/discount": A[:2, 0]}
        mode_type = np.int64

    def sent(mode, keys):
        return others | {f"{prefix}mode": np.array(mode, mode_type), f"{prefix}keys": np.array(keys, np.int32)}

    def posted(inputs):
        columns = {name: values.tolist() for name, values in inputs.items()}
        return client.post({"signature_name": signature, "inputs": columns})

    with serving(tmp_path / "model") as client:
        inside = sent([2, 0], [[2, 3], [1, 0]])
        assert posted(inside)[0] == 200 and client.predict(request(client, signature, **inside)).outputs
        for mode, keys, name, message in (
            ([0, 7], [[2, 3], [1, 0]], "mode", "integers in Discrete(3), from 0 to 2. Received: 7 in row 1"),
            ([-1, 0], [[2, 3], [1, 0]], "mode", "integers in Discrete(3), from 0 to 2. Received: -1 in row 0"),
            ([2, 0], [[2, 3], [1, 4]], "keys", "from [1, 0] to [2, 3]. Received: 4 in row 1 at [1]"),
        ):
            outside = sent(mode, keys)
            status, answer = posted(outside)
            code, details = code_of(client.predict, request(client, signature, **outside))
            assert (status, code, answer["error"]) == (400, "INVALID_ARGUMENT", details)
            assert details.startswith(f"input tensor {prefix}{name}: `{name}` of") and details.endswith(message)


REFUSED = {
    b"": "JSON Parse error",
    b'{"instances": [[1, 0': "JSON Parse error",
    b"\xff\xfe": "JSON Parse error",
    b"[" * 100_000: "JSON Parse error",
    b"[1]": "JSON Value: [1] Is not object",
    b"{}": "Missing 'inputs' or 'instances' key",
    b'{"instances": [[1, 0, 1]], "inputs": [[1, 0, 1]]}': "expecting only one of 'inputs' or 'instances' keys",
    b'{"instances": []}': "No values in 'instances' array",
    b'{"instances": 5}': "JSON Value: 5 Excepting 'instances' to be an list/array",
    b'{"signature_name": 5, "instances": [[1, 0, 1]]}': "'signature_name' key must be a string value.",
    b'{"signature_name": "q3", "instances": [[1, 0, 1]]}': 'Serving signature name: "q3" not found in signature def',
    b'{"signature_name": "__saved_model_init_op", "inputs": 1}': "not found in signature def",
    b'{"signature_name": "q1", "instances": [[1, 0, 1]]}': "expecting list of objects as multiple input tensors",
    b'{"signature_name": "q1", "inputs": [[1, 0, 1]]}': "expecting an object as multiple input tensors required",
    b'{"signature_name": "q1", "instances": [{"x": [1, 0, 1]}]}': "keys must be equal to: a,x",
    b'{"signature_name": "q1", "inputs": {"x": [[1, 0, 1]]}}': "Missing but required: {a}.",
    b'{"signature_name": "q1", "inputs": {"x": [[1, 0, 1]], "a": [[1], [1]]}}': "must have the same batch size",
    b'{"signature_name": "z", "inputs": {"x": [[1, 0, 1]], "a": [[1]], "levels": 0.5}}': "(None, None) but () is",
    b'{"signature_name": "z", "inputs": {"x": [[1, 0, 1]], "a": [[1]], "levels": [[[0.5]], [[0.5]]]}}': "(2, 1, 1) is",
    b'{"inputs": ' + b"[" * 480 + b"true" + b"]" * 480 + b"}": "input tensor x",
    b'{"instances": [' + b'{"x":' * 480 + b"1" + b"}" * 480 + b"]}": "input tensor x",
    b'{"signature_name": ' + b"[" * 900 + b"]" * 900 + b', "inputs": [[1, 0, 1]]}': "",
    b'{"inputs": [[1e400, 0, 1]]}': "input tensor x: a number is outside the range of float64",
    b'{"inputs": [[-1e400, 0, 1]]}': "outside the range of float64",
    b'{"inputs": [[1' + b"0" * 400 + b", 0, 1]]}": "input tensor x",
    b'{"inputs": [[NaN, 0, 1]]}': "NaN is not a finite number",
    b'{"inputs": [[1, -Infinity, 1]]}': "-Infinity is not a finite number",
    b'{"inputs": {"y": [[1, 0, 1]]}}': "alias not found in signature: y. Inputs expected to be in the set {x}.",
    b'{"inputs": {"x": [[1, 0, 1]], "levels": [0.5]}}': "alias not found in signature: levels",
    b'{"inputs": [1, 0, 1]}': "input tensor x: expects shape (None, 3) but (3,) is provided",
    b'{"inputs": [[1, 0]]}': "input tensor x: expects shape (None, 3) but (1, 2) is provided",
    b'{"inputs": [[]]}': "but (1, 0) is provided",
    b'{"inputs": {}}': "Missing but required: {x}.",
    b'{"inputs": [[1, 0, 1], [1]]}': "Encountered list at unexpected size",
    b'{"instances": [[1, 0, 1], {"x": [1, 0, 1]}]}': "Expecting value/list but got object",
    b'{"instances": [{"x": [1, 0, 1]}, [1, 0, 1]]}': "Expecting object but got list at item 1",
    b'{"inputs": [["1", 0, 1]]}': 'JSON Value: "1" Type: String is not of expected type: float32',
    b'{"inputs": [[1.0, true, 1]]}': "JSON Value: true Type: True is not of expected type: float32",
    b'{"inputs": [[1.0, null, 1]]}': "JSON Value: null Type: Null is not of expected type: float32",
    b'{"inputs": [[1.0, {"b64": ""}, 1]]}': "Type: Object is not of expected type: float32",
    b'{"inputs": [[1e39, 0, 1]]}': "Cannot convert JSON value: 1e+39 to float32 without loss of precision",
}
"""Bodies of invalid requests, and parts of the error messages."""


@pytest.mark.parametrize("body", REFUSED, ids=lambda body: body[:60].decode(errors="replace"))
def test_bad_requests_are_refused_with_a_message(d4pg, body):
    status, answer = d4pg.post(body)
    assert status == 400 and list(answer) == ["error"] and answer["error"] and REFUSED[body] in answer["error"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_bodies(d4pg, encoding):
    def answer(body, encoding=encoding):
        return d4pg.post(body, headers={"Content-Encoding": encoding})

    compress = {"gzip": gzip.compress, "deflate": zlib.compress}[encoding]
    intact = compress(b'{"instances": [[1, 0, 1]]}')
    assert answer(intact)[0] == answer(b'{"instances": [[1, 0, 1]]}', "identity")[0] == 200
    for body in (b'{"instances": [[1, 0, 1]]}', intact[:-5], intact + b"more", b""):
        status, content = answer(body)
        assert status == 400 and f"The body of the request is not valid {encoding}" in content["error"]
    assert answer(compress(b" " * (1 << 20) + b"{")) == (
        413,
        {"error": "The decompressed body has more than 1048576 bytes"},
    )
    status, content = answer(intact, "br")
    assert (status, content["error"]) == (400, "Content-Encoding must be gzip, deflate or identity. Received: br")


@pytest.mark.parametrize(
    "sent",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"y" * 20_000 + b"\r\n\r\n",
    ],
    ids=["HTTP/2", "TLS", "chunks", "long header"],
)
def test_invalid_http_is_refused_and_logged_in_one_line(loaded, sent, capfd):
    with serving(loaded) as client:
        with socket.create_connection(("127.0.0.1", client.ports.rest), timeout=30) as connection:
            connection.sendall(sent)
            response = http.client.HTTPResponse(connection)
            response.begin()
            assert response.status == 400
            assert "The request is not valid HTTP/1.1" in json.load(response)["error"]
        (line,) = client.reported
        assert line.startswith("REST: refused a request that is not valid HTTP/1.1")
    assert "Traceback" not in capfd.readouterr().err


def test_unknown_versions_and_models_are_not_found(d4pg):
    body = {"instances": X.tolist()}
    assert d4pg.post(body, "/versions/7") == (404, {"error": "Servable not found for request: Specific(d4pg, 7)"})
    assert d4pg.post(body, "/labels/stable") == (400, {"error": "Unrecognized servable version label: stable"})
    assert d4pg.post(body, "x") == (404, {"error": "Servable not found for request: Latest(d4pgx)"})
    assert d4pg.get("x") == (404, {"error": "Could not find any versions of model d4pgx"})
    assert d4pg.get("/versions/7") == (404, {"error": "Could not find version 7 of model d4pg"})
    assert d4pg.get("/versions/7/metadata")[0] == 404
    for digits in ("9" * 5000, str(2**63)):
        status, answer = d4pg.post(body, f"/versions/{digits}")
        assert status == 400 and answer["error"].startswith("Failed to convert version: 9")
        assert d4pg.get(f"/versions/{digits}") == d4pg.get(f"/versions/{digits}/metadata") == (400, answer)
    assert d4pg.get(f"/versions/{2**63 - 1}")[0] == 404
    assert d4pg.post(body, method="PUT") == (400, {"error": "Malformed request: PUT /v1/models/d4pg:predict"})
    assert d4pg.get("/nothing")[0] == d4pg.post(body, ":classify")[0] == 400


def code_of(call, *args):
    with pytest.raises(grpc.RpcError) as error:
        call(*args)
    return error.value.code().name, error.value.details()


def test_grpc_refuses_likewise(d4pg):
    def refused(message):
        return code_of(d4pg.predict, message)

    assert refused(request(d4pg, version=7, x=X)) == ("NOT_FOUND", "Servable not found for request: Specific(d4pg, 7)")
    assert refused(request(d4pg, label="stable", x=X))[0] == "INVALID_ARGUMENT"
    assert refused(predict_pb2.PredictRequest()) == ("INVALID_ARGUMENT", "Missing ModelSpec")
    for inputs, match in (
        ({"y": X}, "alias not found in signature: y"),
        ({"x": X.astype(np.float64)}, "input tensor x: expects to be float32 but float64 is provided"),
        ({"x": X[:, :2]}, "expects shape (None, 3) but (3, 2) is provided"),
        ({"x": np.array([["a", "b", "c"]])}, "expects to be float32"),
        ({}, "Missing but required: {x}"),
    ):
        code, message = refused(request(d4pg, **inputs))
        assert code == "INVALID_ARGUMENT" and match in message
    message = request(d4pg, x=X)
    message.output_filter.append("z")
    assert "output tensor alias not found in signature: z" in refused(message)[1]
    message = request(d4pg, x=X)
    message.inputs["x"].tensor_content = b"short"
    assert "tensor parsing error: x" in refused(message)[1]
    message.inputs["x"].CopyFrom(tf.make_tensor_proto(0.0, shape=[1_000_000_000, 3]))
    assert refused(message) == ("RESOURCE_EXHAUSTED", "tensor parsing error: x: more than 1048576 bytes")
    message.inputs["x"].tensor_shape.unknown_rank = True
    assert refused(message)[0] == "INVALID_ARGUMENT"
    for dtype in (0, 2, 7, 20, 21, 22, 23, 100, 101, 120, 121, 2000):
        message.inputs["x"].dtype = dtype
        code, details = refused(message)
        assert code == "INVALID_ARGUMENT" and "input tensor x: expects to be float32 but" in details
    for signature, inputs, match in (
        ("q1", {"x": X, "a": A[:2]}, "input tensors a and x: must have the same batch size"),
        ("z", {"x": X, "a": A, "levels": np.full((2, 2), 0.5, np.float32)}, "must have the same batch size"),
    ):
        code, details = refused(request(d4pg, signature, **inputs))
        assert code == "INVALID_ARGUMENT" and (match in details or match in details.replace("x and a", "a and x"))


def test_bodies_above_the_limit_are_refused(d4pg):
    rows = np.zeros((100_000, 3), np.float32)
    status, answer = d4pg.post({"instances": rows.tolist()})
    assert (status, answer) == (413, {"error": "The body of the request has more than 1048576 bytes"})
    code, _ = code_of(d4pg.predict, request(d4pg, x=np.zeros((100_000, 3), np.float32)))
    assert code == "RESOURCE_EXHAUSTED"
    assert d4pg.post({"instances": rows[:1000].tolist()})[0] == 200


def test_status_and_metadata_in_both_protocols(d4pg, models):
    available = {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    for where in ("", "/", "/versions/1"):
        assert d4pg.get(where) == (200, {"model_version_status": [available]})
    with urllib.request.urlopen(f"http://127.0.0.1:{d4pg.ports.rest}/healthz") as response:
        assert response.status == 200 and json.load(response) == {"status": "ok"}
    status, answer = d4pg.get("/metadata")
    assert status == 200 and answer["model_spec"] == {"name": "d4pg", "signature_name": "", "version": "1"}
    signatures = answer["metadata"]["signature_def"]["signature_def"]
    assert {"pi", "q1", "q2", "z", "serving_default"} <= signatures.keys()
    a = signatures["q1"]["inputs"]["a"]
    assert a["dtype"] == "DT_FLOAT" and [dim["size"] for dim in a["tensor_shape"]["dim"]] == ["-1", "1"]
    message = get_model_status_pb2.GetModelStatusRequest()
    message.model_spec.name = "d4pg"
    status = model_service_pb2_grpc.ModelServiceStub(d4pg.channel).GetModelStatus
    (found,) = status(message).model_version_status
    assert (found.version, found.state, found.status.error_code) == (1, found.AVAILABLE, 0)
    message.model_spec.name = "td3"
    assert code_of(status, message) == ("NOT_FOUND", "Could not find any versions of model td3")
    message = get_model_metadata_pb2.GetModelMetadataRequest()
    message.model_spec.name = "d4pg"
    metadata = prediction_service_pb2_grpc.PredictionServiceStub(d4pg.channel).GetModelMetadata
    assert "at least one metadata_field" in code_of(metadata, message)[1]
    message.metadata_field.append("signature_def")
    found = get_model_metadata_pb2.SignatureDefMap()
    metadata(message).metadata["signature_def"].Unpack(found)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(models / "d4pg/1"))
    assert dict(found.signature_def) == dict(loaded.signature_def)


def test_it_listens_on_the_given_host_only(d4pg):
    for port in d4pg.ports:
        others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), port, socket.AF_INET)} - {"127.0.0.1"}
        for address in others:
            with pytest.raises(OSError):
                socket.create_connection((address, port), timeout=5).close()
    assert d4pg.get()[0] == 200 and json.dumps(d4pg.reported) == "[]"
