"""The commands and programs of docs/serving.md are run, or checked where they need other software."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

import tfdpg
from examples.serving import grpc_client, rest_client
from tests.docs.pages import PAGES, ROOT, fences, table
from tests.docs.test_commands import called
from tests.serve.conftest import serving
from tfdpg import export
from tfdpg.serve import rest as rest_protocol

PAGE = "docs/serving.md"
MODEL = "exported_models/td3-halfcheetah"
X = np.zeros((1, 17), np.float32)
A = np.array([[0.5, 0, 0, 0, 0, -0.5]], np.float32)
BATCHING = {"max_batch_size", "batch_timeout_micros", "max_enqueued_batches", "num_batch_threads"}


def block(mark):
    """Return the code of the block below a mark."""
    return PAGES[PAGE].split(f"<!-- {mark} -->\n```")[1].partition("\n")[2].split("```")[0]


def shell(code, directory, ports=(8501, 8500)):
    """Return the output of shell code that runs in a directory with the examples and the exported models."""
    for name in ("examples", "exported_models"):
        if not (directory / name).exists():
            (directory / name).symlink_to(ROOT / name)
    code = code.replace("localhost:8501", f"localhost:{ports[0]}").replace("localhost:8500", f"localhost:{ports[1]}")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


@pytest.fixture(scope="module")
def policy():
    return tfdpg.load(ROOT / MODEL)


def close(found, expected):
    np.testing.assert_allclose(np.asarray(found, np.float32), expected, rtol=1e-4, atol=1e-5)


def test_every_block_is_covered():
    marked = ("the metrics", "by curl", "the clients", "the programs", "the tool")
    assert [each.code for each in fences(PAGE, "bash")] == [block(mark) for mark in marked]


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_curl_requests_are_answered(policy, tmp_path):
    lines = re.sub(r"\\\n\s*", "", block("by curl")).splitlines()
    with serving(ROOT / MODEL) as client:
        code = "; echo; ".join(lines[2:])
        printed = shell("\n".join([*lines[:2], code]), tmp_path, client.ports)
    decoder = json.JSONDecoder()
    answers = []
    while printed := printed.lstrip():
        answer, end = decoder.raw_decode(printed)
        printed = printed[end:]
        answers.append(answer)
    two = np.repeat(X, 2, axis=0)
    expected = [("predictions", policy(two)), ("outputs", policy(two)), ("predictions", policy.q1(X, A))]
    expected += [("outputs", policy.q2(X, A)), ("predictions", policy(X))]
    for answer, (key, values) in zip(answers, expected, strict=False):
        close(answer[key], values)
    assert [list(answer)[0] for answer in answers[5:]] == ["model_version_status", "model_spec"] and len(answers) == 7


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_metrics_are_those_of_the_table(tmp_path):
    documented = re.findall(r"^\| `(:\S+)` \| (.*?) \|", PAGES[PAGE], re.MULTILINE)
    with serving(ROOT / MODEL) as client:
        client.post({"instances": X.tolist()})
        text = shell(block("the metrics"), tmp_path, client.ports)
    assert [name for name, _ in documented] == re.findall(r"^# TYPE (\S+) (?:counter|histogram)$", text, re.MULTILINE)
    for name, labels in documented:
        for sample in re.findall(rf"^{name}\w*{{(.*)}}", text, re.MULTILINE):
            assert [label for label in re.findall(r'(\w+)="', sample) if label != "le"] == re.findall(
                r"`(\w+)`", labels
            )
    assert f'{documented[0][0]}{{model_name="td3-halfcheetah",status="OK"}} 1\n' in text
    scraping = yaml.safe_load(next(each.code for each in fences(PAGE, "yaml") if "scrape_configs" in each.code))
    assert scraping["scrape_configs"][0]["metrics_path"] == rest_protocol.METRICS


@pytest.mark.slow
def test_the_clients_print_the_actions_of_the_policy(policy, tmp_path):
    with serving(ROOT / MODEL) as client:
        rest, by_grpc = [
            re.findall(r": (\[.*\])", shell(line, tmp_path, client.ports)) for line in block("the clients").splitlines()
        ]
        with pytest.raises(rest_client.Refused, match="404: Servable not found .*: Specific"):
            rest_client.in_columns(f"{client.url}/versions/7", "pi", x=X.tolist())
    for printed, x in ((rest, np.repeat([[0.0], [1.0]], 17, axis=1)), (by_grpc, np.zeros((2, 17)))):
        actions = policy(x)
        for found, expected in zip(printed, (actions, policy.q1(x, actions), policy.q2(x, actions)), strict=True):
            close(json.loads(found), expected)


def test_clients_request_versions_and_labels(tmp_path, policy):
    for _ in range(2):
        export.copy(ROOT / MODEL / "1", tmp_path / "robot")
    export.write_labels(tmp_path / "robot", {"stable": 1, "canary": 2})
    with serving(tmp_path / "robot") as client:
        stub = grpc_client.prediction_service_pb2_grpc.PredictionServiceStub(client.channel)
        assert grpc_client.widths(stub, "robot") == (17, 6)
        for where, version in (({}, 2), ({"label": "stable"}, 1), ({"label": "canary"}, 2), ({"version": 1}, 1)):
            outputs, found = grpc_client.predict(stub, "robot", "pi", x=X, **where)
            assert found == version
            close(outputs["pi"], policy(X))
        close(rest_client.in_rows(f"{client.url}/labels/canary", "pi", [{"x": X[0].tolist()}]), policy(X))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None or shutil.which("g++") is None, reason="there is no compiler")
def test_the_programs_print_the_actions_of_the_policy(policy, tmp_path):
    lines = shell(block("the programs"), tmp_path).splitlines()
    for line, expected in zip(lines, 2 * [policy(X)[0], policy.q1(X, A)], strict=True):
        close([float(number) for number in line.split()], expected)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 17)).astype(np.float32)
    a = rng.uniform(-1, 1, (50, 6)).astype(np.float32)
    np.savetxt(tmp_path / "rows", np.concatenate([x, a], axis=1), fmt="%.9g")
    for program in ("./session", "./load_saved_model"):
        close(shell(f"{program} {MODEL}/1 q2 q2 x=17 a=6 < rows", tmp_path).split(), policy.q2(x, a))
        for wrong in ("q3 q3 x=17", "q1 q9 x=17 a=6", "q1 q1 y=17 a=6", "q1 q1 x=17", "q1 q1 x a=6", "q1 q1"):
            with pytest.raises(subprocess.CalledProcessError):
                shell(f"{program} {MODEL}/1 {wrong} < rows", tmp_path)


@pytest.mark.slow
def test_the_tool_writes_the_actions_of_the_policy(policy, tmp_path):
    assert "inputs['x'] tensor_info" in shell(block("the tool"), tmp_path)
    close(np.load(tmp_path / "outputs/q1.npy"), policy.q1(np.zeros((2, 17)), np.full((2, 6), 0.5)))


def test_the_container_receives_the_model(tmp_path):
    code = next(each.code for each in fences(PAGE, "sh") if each.code.startswith("docker"))
    ((program, *words),) = called(code, tmp_path)
    assert (program, words[-1]) == ("docker", "tensorflow/serving")
    given = {}
    for flag, value in zip(words[2:-1:2], words[3:-1:2], strict=True):
        given.setdefault(flag, []).append(value)
    assert given == {
        "-p": ["8500:8500", "8501:8501"],
        "-e": ["MODEL_NAME=td3-halfcheetah"],
        "-v": [f"{tmp_path}/{MODEL}:/models/td3-halfcheetah:ro"],
    }
    compose = next(each for each in fences(PAGE, "yaml") if "services" in each.code)
    (service,) = yaml.safe_load(compose.code)["services"].values()
    mounts = dict(mount.split(":")[:2] for mount in service["volumes"])
    assert mounts == {f"./{MODEL}": "/models/td3-halfcheetah", "./batching.config": "/models/batching.config"}
    flags = dict(flag.removeprefix("--").split("=") for flag in service["command"])
    model, batching = mounts.values()
    assert flags == {
        "model_config_file": f"{model}/models.config",
        "model_config_file_poll_wait_seconds": "10",
        "allow_version_labels_for_unavailable_models": "true",
        "enable_batching": "true",
        "batching_parameters_file": batching,
    }


def test_the_documented_configurations_are_those_of_the_server(tmp_path):
    shutil.copytree(ROOT / MODEL, tmp_path / "td3-halfcheetah")
    written = export.write_labels(tmp_path / "td3-halfcheetah", {"stable": 1}).read_text()
    assert block("the labels") == written
    text_format.Parse(written, model_server_config_pb2.ModelServerConfig())
    batching = dict(
        re.fullmatch(r"(\w+) { value: (\d+) }", line).groups() for line in block("the batches").splitlines()
    )
    assert batching.keys() == BATCHING


def test_the_load_measurement_lost_no_request():
    rows = table(PAGE, "protocol")
    assert [row[:3] for row in rows] == [
        [protocol, batch, clients] for protocol in ("REST", "gRPC") for batch in ("1", "32") for clients in ("1", "32")
    ]
    assert all(int(row[6]) >= 2 and row[7:] == ["0", "0"] for row in rows)
