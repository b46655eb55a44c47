"""Versions change while requests are answered: no request is lost, and no response mixes two versions."""

import gc
import json
import os
import shutil
import threading
import time
import weakref

import numpy as np
import pytest
import tensorflow as tf

import tfdpg
from tests.agents.roster import SMALL
from tests.exported.foreign import Module, save
from tests.serve.conftest import serving
from tests.serve.test_requests import request
from tfdpg import export, files
from tfdpg.cli import run_paths
from tfdpg.export.warmup import WARMUP_FILE
from tfdpg.serve import model_store as model_store_module
from tfdpg.serve.model import Model, RequestError
from tfdpg.serve.model_store import ModelStore

X = np.array([[1.0, 0.0, 0.5], [0.6, 0.8, -2.0]], np.float32)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two versions that answer differently."""
    directory = tmp_path_factory.mktemp("made") / "ddpg"
    agent = tfdpg.DDPG("Pendulum-v1", seed=0, **SMALL)
    first = agent.export(directory)
    agent.set_weights([weight + 0.5 for weight in agent.get_weights()])
    return first, agent.export(directory)


@pytest.fixture
def directory(made, tmp_path):
    export.copy(made[0], tmp_path / "ddpg")
    return tmp_path / "ddpg"


def answer(model):
    return model.signature("pi")({"x": X})["pi"]


def versions(model_store):
    return list(model_store.served.models)


def test_requests_under_way_end_on_the_model_that_they_began_with(made, directory):
    model_store = ModelStore(directory)
    before = model_store.find("ddpg")
    np.testing.assert_allclose(answer(before), tfdpg.load(made[0])(X), rtol=1e-5)
    export.copy(made[1], directory)
    assert model_store.poll() == ["version 2 is served", "version 1 is no longer served"] and versions(model_store) == [
        2
    ]
    export.keep_newest(directory, 1)
    np.testing.assert_allclose(answer(before), tfdpg.load(made[0])(X), rtol=1e-5)
    np.testing.assert_allclose(answer(model_store.find("ddpg")), tfdpg.load(made[1])(X), rtol=1e-5)
    session = weakref.ref(before)
    before = None
    gc.collect()
    assert session() is None and model_store.poll() == []


def test_a_damaged_version_is_not_served(made, directory):
    model_store = ModelStore(directory)
    export.copy(made[1], directory)
    intact = (directory / "2/saved_model.pb").read_bytes()
    (directory / "2/saved_model.pb").write_bytes(intact[:-1])
    (change,) = model_store.poll()
    assert change.startswith("version 2 is not served: ") and "2/saved_model.pb is damaged" in change
    assert model_store.poll() == [] and versions(model_store) == [1] and list(model_store.failed) == [2]
    (directory / "2/saved_model.pb").write_bytes(intact)
    assert model_store.poll()[0] == "version 2 is served" and versions(model_store) == [2] and not model_store.failed
    shutil.rmtree(directory / "2")
    (directory / "1/saved_model.pb").unlink()
    assert "version 1 is not served" in model_store.poll()[0] and versions(model_store) == [2]
    with pytest.raises(export.ExportError, match="1/saved_model.pb is missing"):
        ModelStore(directory)
    with pytest.raises(FileNotFoundError, match="No exported model in"):
        ModelStore(directory / "1")


def test_a_version_with_file_operations_is_not_served_unless_trusted(made, directory, tmp_path):
    model_store = ModelStore(directory)
    written_file = tmp_path / "harm"
    foreign = save(tmp_path / "foreign", Module(lambda: tf.io.write_file(str(written_file), "text")))
    shutil.copytree(foreign, directory / "2")
    (change,) = model_store.poll()
    assert change.startswith("version 2 is not served: ") and "`WriteFile`" in change and "--trusted" in change
    assert versions(model_store) == [1] and not written_file.exists()
    with pytest.raises(export.ExportError, match="`WriteFile`"):
        ModelStore(tmp_path / "foreign")
    assert not written_file.exists()
    assert (
        versions(ModelStore(tmp_path / "foreign", trusted=True)) == [1] and written_file.exists()
    )  # by its warm-up request


def damage_warm_up(version):
    """Replace the warm-up file with one that does not parse, and record its checksum."""
    (version / WARMUP_FILE).write_bytes(b"")
    with tf.io.TFRecordWriter(str(version / WARMUP_FILE)) as writer:
        writer.write(b"\xff" * 20)
    content = json.loads((version / "tfdpg.json").read_text())
    (version / "tfdpg.json").unlink()
    files.write_manifest(
        version, "tfdpg.json", {key: each for key, each in content.items() if key not in ("files", "sha256")}
    )


def link_to(target):
    def damage(version):
        (version / "tfdpg.json").unlink()
        (version / "tfdpg.json").symlink_to(target)

    return damage


def named_pipe(name):
    def damage(version):
        (version / name).unlink(missing_ok=True)
        os.mkfifo(version / name)

    return damage


DAMAGES = {
    "warm-up file": damage_warm_up,
    "pipe tfdpg.json": named_pipe("tfdpg.json"),
    "pipe saved_model.pb": named_pipe("saved_model.pb"),
    "pipe beside": named_pipe("assets.extra/pipe"),
    "device": link_to("/dev/zero"),
    "link to itself": lambda version: (
        (version / "tfdpg.json").unlink(),
        (version / "tfdpg.json").symlink_to("tfdpg.json"),
    ),
    "not JSON": lambda version: (version / "tfdpg.json").write_bytes(b"\xff"),
}
QUICK = ("warm-up file",)


@pytest.mark.parametrize(
    "damage",
    [pytest.param(damage, marks=[pytest.mark.slow] * (name not in QUICK), id=name) for name, damage in DAMAGES.items()],
)
def test_one_bad_version_never_affects_the_others(made, directory, damage, monkeypatch):
    tried = []
    monkeypatch.setattr(
        model_store_module, "Model", lambda path, trusted: tried.append(path.name) or Model(path, trusted)
    )
    model_store = ModelStore(directory)
    damage(export.copy(made[1], directory))
    (change,) = model_store.poll()
    assert (
        change.startswith("version 2 is not served: ")
        and versions(model_store) == [1]
        and list(model_store.failed) == [2]
    )
    assert model_store.poll() == [] and tried == ["1", "2"]  # it is not loaded again
    again = ModelStore(directory)  # as at the start
    assert versions(again) == [1] and list(again.failed) == [2]
    (failed, available) = model_store.status("ddpg").model_version_status
    assert (failed.version, failed.state, failed.status.error_code) == (2, failed.END, 15)
    assert failed.status.error_message == model_store.failed[2] and available.state == available.AVAILABLE
    export.copy(made[1], directory)
    assert model_store.poll() == ["version 3 is served", "version 1 is no longer served"]
    shutil.rmtree(directory / "2")
    shutil.copytree(made[1], directory / "2")
    shutil.rmtree(directory / "3")
    assert model_store.poll() == ["version 2 is served", "version 3 is no longer served"] and not model_store.failed


def test_an_unexpected_error_is_a_versions_own(made, directory, monkeypatch):
    def model(path, trusted):
        if path.name == "2":
            raise ZeroDivisionError("unexpected")
        return Model(path, trusted)

    monkeypatch.setattr(model_store_module, "Model", model)
    export.copy(made[1], directory)
    model_store = ModelStore(directory)
    assert versions(model_store) == [1] and model_store.failed == {2: "ZeroDivisionError: unexpected"}


def test_names_that_are_no_versions(directory):
    for name in ("²", "01", "1.0", "-1", "+2", "99999999999999999999", "٣"):
        (directory / name).mkdir()
    assert export.versions(directory) == [1] and versions(ModelStore(directory)) == [1]
    (directory / "²/saved_model.pb").touch()
    shutil.rmtree(directory / "1")
    assert not run_paths.is_model(directory)


def test_labels_are_served_and_move_once_their_version_is_loaded(made, directory):
    for _ in range(2):
        export.copy(made[1], directory)
    model_store = ModelStore(directory)
    assert versions(model_store) == [3]
    export.write_labels(directory, {"stable": 1, "canary": 2})
    model_store.poll()
    assert versions(model_store) == [1, 2] and model_store.find("ddpg").version == 2
    assert [model_store.find("ddpg", label=label).version for label in ("stable", "canary")] == [1, 2]
    with pytest.raises(RequestError, match=r"Specific\(ddpg, 3\)"):
        model_store.find("ddpg", 3)
    export.write_labels(directory, {"stable": 2, "canary": 3})
    (directory / "3/saved_model.pb").unlink()
    model_store.poll()
    assert versions(model_store) == [2] and model_store.find("ddpg", label="stable").version == 2
    assert model_store.find("ddpg", label="canary").version == 2  # as before
    (directory / "models.config").unlink()
    shutil.rmtree(directory / "3")
    model_store.poll()
    assert versions(model_store) == [2]
    with pytest.raises(RequestError, match="Unrecognized .*version label: stable"):
        model_store.find("ddpg", label="stable")


@pytest.mark.slow
def test_the_server_swaps_while_it_answers(made, directory):
    expected = {1: tfdpg.load(made[0])(X), 2: tfdpg.load(made[1])(X)}
    with serving(directory) as client:
        seen = []
        over = threading.Event()
        wrong = []

        def send_requests():
            try:
                while not over.is_set():
                    found = client.predict(request(client, "pi", x=X))
                    seen.append(found.model_spec.version.value)
                    np.testing.assert_allclose(
                        found.outputs["pi"].float_val, expected[2 - seen[-1] % 2].ravel(), rtol=1e-5, atol=1e-6
                    )
                    status, rest = client.post({"instances": X.tolist()})
                    assert status == 200 and any(np.allclose(rest["predictions"], each) for each in expected.values())
            except BaseException as error:
                wrong.append(error)
                raise

        clients = [threading.Thread(target=send_requests) for _ in range(4)]
        for each in clients:
            each.start()
        for version in (2, 3, 4):
            export.copy(made[1 - version % 2], directory)
            export.keep_newest(directory, 1)
            until = time.monotonic() + 60
            while f"version {version} is served" not in client.reported and time.monotonic() < until:
                time.sleep(0.1)
            while version not in seen and time.monotonic() < until:  # answers that have begun may be older
                time.sleep(0.1)
        over.set()
        for each in clients:
            each.join()
        assert not wrong and set(seen) == {1, 2, 3, 4} and client.reported[-1] == "version 3 is no longer served"
        status = client.get()[1]["model_version_status"]
        assert [(each["version"], each["state"]) for each in status] == [("4", "AVAILABLE")]
        (directory / "5").mkdir()
        until = time.monotonic() + 60
        while len(client.reported) < 7 and time.monotonic() < until:
            time.sleep(0.1)
        assert (
            client.reported[-1].startswith("version 5 is not served") and "tfdpg.json is missing" in client.reported[-1]
        )
        status = client.get()[1]["model_version_status"]
        assert [(each["version"], each["state"]) for each in status] == [("5", "END"), ("4", "AVAILABLE")]
        assert status[0]["status"]["error_code"] == "DATA_LOSS"
