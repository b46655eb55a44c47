"""`tfdpg serve --log` writes the answered requests, with the version that answered, as TensorFlow Serving does."""

import resource

import numpy as np
import pytest

import tfdpg
from tests.agents.roster import SMALL
from tests.serve.conftest import serving
from tests.serve.test_requests import request
from tfdpg import cli, export
from tfdpg.export import read_prediction_logs
from tfdpg.serve.request_log import RequestLog

X = np.array([[1.0, 0.0, 0.5], [0.6, 0.8, -2.0]], np.float32)


@pytest.fixture(scope="module")
def canary(tmp_path_factory):
    """Two versions, of which the second is the canary."""
    directory = tmp_path_factory.mktemp("canary") / "td3"
    agent = tfdpg.DDPG("Pendulum-v1", **SMALL)
    for _ in range(2):
        agent.export(directory)
        agent.set_weights([weight + 0.5 for weight in agent.get_weights()])
    export.write_labels(directory, {"stable": 1, "canary": 2})
    return directory


def test_requests_of_both_protocols_have_their_version_and_label(canary, tmp_path):
    log = RequestLog(tmp_path / "logs", print)
    with serving(canary, request_log=log) as client:
        sent = [client.post({"instances": X.tolist()}, where) for where in ("", "/labels/stable", "/versions/1")]
        assert client.post({"instances": [[1.0]]})[0] == 400  # refused, so not logged
        assert client.post({"signature_name": "q1", "inputs": {"x": X.tolist(), "a": [[0.0], [1.0]]}})[0] == 200
        message = request(client, "pi", label="canary", x=X[:1])
        message.client_id = b"robot"
        by_grpc = client.predict(message, timeout=60)
        read = read_prediction_logs(tmp_path / "logs", tfdpg.load(canary).spec)  # while the server runs
    assert read["versions"].tolist() == [2, 2, 1, 1, 1, 1, 2] and set(read["models"]) == {"td3"}
    assert read["labels"] == ["", "", "stable", "stable", "", "", "canary"]
    assert read["client_ids"] == [*["", "/1"] * 3, "robot"]
    np.testing.assert_array_equal(read["observations"], np.concatenate([X, X, X, X[:1]]))
    answers = [row for status, answer in sent for row in answer["predictions"]]
    answers.append(by_grpc.outputs["pi"].float_val)
    np.testing.assert_allclose(read["actions"], answers, rtol=1e-6)
    for selection, rows in (
        ({"version": 1}, [2, 3, 4, 5]),
        ({"label": "canary"}, [6]),
        ({"version": 1, "label": ""}, [4, 5]),
    ):
        part = read_prediction_logs(tmp_path / "logs", tfdpg.load(canary).spec, **selection)
        np.testing.assert_array_equal(part["actions"], read["actions"][rows])
    message = r"versions \[1, 2\] and the labels \['canary', 'stable'\]. Received: version=2, label='stable'"
    with pytest.raises(ValueError, match=message):
        read_prediction_logs(tmp_path / "logs", tfdpg.load(canary).spec, version=2, label="stable")


def test_a_client_that_wants_values_only_leaves_the_log_readable(canary, tmp_path):
    with serving(canary, request_log=RequestLog(tmp_path / "logs", print)) as client:
        message = request(client, "pi_and_q", x=X)
        message.output_filter.append("q1")
        answer = client.predict(message, timeout=60)
        assert list(answer.outputs) == ["q1"]
    read = read_prediction_logs(tmp_path / "logs", tfdpg.load(canary).spec)
    np.testing.assert_allclose(read["actions"], tfdpg.load(canary / "2")(X), rtol=1e-4, atol=1e-5)


def test_each_server_has_its_own_file_in_chronological_order(tmp_path):
    logs = [RequestLog(tmp_path, print) for _ in range(3)]
    assert sorted(tmp_path.iterdir()) == [log.path for log in logs]


@pytest.mark.slow
def test_a_file_that_cannot_grow_ends_the_log_but_not_the_answers(canary, tmp_path):
    reported = []
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with serving(canary, request_log=RequestLog(tmp_path, reported.append)) as client:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
        try:
            for _ in range(2):
                assert client.post({"instances": [[0.0] * 3] * 8000})[0] == 200  # 128 KB of inputs and outputs
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (line,) = reported
    assert line.startswith("requests are no longer logged: ") and "a file is too large" in line


def test_the_directory_must_not_be_a_file(canary, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert cli.main(["serve", str(canary), "--log", str(tmp_path / "file")]) == 1
    assert "`log` must be a directory to write to" in capsys.readouterr().err
