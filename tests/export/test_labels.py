"""The versions that a server finds: they are complete, and removal keeps those with labels."""

import os
import threading
from pathlib import Path

import pytest
from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from tfdpg import export

SHIPPED = Path(__file__).parents[2] / "exported_models/td3-halfcheetah/1"
FILES = {path.relative_to(SHIPPED) for path in SHIPPED.rglob("*") if path.is_file()}


def make_versions(directory, count):
    """Create a model directory with `count` versions."""
    for _ in range(count):
        export.copy(SHIPPED, directory)
    return directory


def incomplete_versions(directory):
    """Yield the versions of a model directory that lack some of their files."""
    for path in directory.iterdir():
        if path.name.isdigit():
            held = {(Path(folder) / name).relative_to(path) for folder, _, names in os.walk(path) for name in names}
            if held != FILES and path.exists():
                yield path.name, held


def test_a_server_that_polls_never_finds_an_incomplete_model(tmp_path):
    over = threading.Event()
    seen = []
    polls = 0

    def write():
        try:
            for _ in range(12):
                export.copy(SHIPPED, tmp_path)
                export.keep_newest(tmp_path, 1)
        finally:
            over.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not over.is_set():
        seen += incomplete_versions(tmp_path)
        polls += 1
    writer.join()
    assert not seen and polls > 50
    assert export.versions(tmp_path) == [12] and [path.name for path in tmp_path.iterdir()] == ["12"]
    (tmp_path / "12/saved_model.pb").unlink()
    assert [name for name, _ in incomplete_versions(tmp_path)] == ["12"]  # the check above can fail


def test_labels_are_written_as_a_config_of_the_server(tmp_path):
    directory = make_versions(tmp_path / "robot", 3)
    path = export.write_labels(directory, {"stable": 1, "canary": 3})
    config = text_format.Parse(path.read_text(), model_server_config_pb2.ModelServerConfig())
    (model,) = config.model_config_list.config
    assert (path, model.name, model.base_path) == (directory / "models.config", "robot", "/models/robot")
    assert model.model_platform == "tensorflow" and list(model.model_version_policy.specific.versions) == [1, 3]
    assert dict(model.version_labels) == export.read_labels(directory) == {"stable": 1, "canary": 3}
    export.write_labels(directory, {"stable": 3}, base_path="/srv/robot")
    config = text_format.Parse(path.read_text(), model_server_config_pb2.ModelServerConfig())
    assert config.model_config_list.config[0].base_path == "/srv/robot" and export.read_labels(directory) == {
        "stable": 3
    }


def test_configs_of_other_programs_are_read(tmp_path):
    written = model_server_config_pb2.ModelServerConfig()
    written.model_config_list.config.add().version_labels.update({"stable": 42, "canary": 43})
    for text in (text_format.MessageToString(written), text_format.MessageToString(written, as_one_line=True)):
        (tmp_path / "models.config").write_text(text)
        assert export.read_labels(tmp_path) == {"stable": 42, "canary": 43}
    (tmp_path / "models.config").write_text("version_labels {\n  key: 'stable',\n  value: 4\n}")
    assert export.read_labels(tmp_path) == {"stable": 4} and export.read_labels(tmp_path / "none") == {}


def test_versions_with_labels_are_kept(tmp_path):
    export.write_labels(make_versions(tmp_path, 4), {"stable": 1})
    export.keep_newest(tmp_path, 2)
    assert export.versions(tmp_path) == [1, 3, 4]
    export.write_labels(tmp_path, {"stable": 3})
    export.keep_newest(tmp_path, 1)
    assert export.versions(tmp_path) == [3, 4]


@pytest.mark.parametrize(
    "labels, message",
    [
        ({}, "`labels` must be a version for each"),
        ({"stable": 2}, r"`stable` .*versions \[1\]. .*stable=2"),
        ({"stable": "new"}, "`stable` must be an integer"),
        ({'a" b': 1}, "`labels` must be of letters, digits"),
    ],
)
def test_invalid_labels_are_refused(tmp_path, labels, message):
    make_versions(tmp_path, 1)
    with pytest.raises(ValueError, match=message):
        export.write_labels(tmp_path, labels)
    assert not (tmp_path / "models.config").exists()


def test_labels_need_an_undamaged_version(tmp_path):
    with pytest.raises(FileNotFoundError, match="No exported model"):
        export.write_labels(tmp_path, {"stable": 1})
    (make_versions(tmp_path, 1) / "1/saved_model.pb").write_bytes(b"")
    with pytest.raises(export.ExportError, match="saved_model.pb is damaged"):
        export.write_labels(tmp_path, {"stable": 1})
