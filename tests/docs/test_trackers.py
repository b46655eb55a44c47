"""The examples of docs/trackers.md: each runs in a process of its own, without a network, and leaves what it logs."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import tfdpg
from tests.docs.pages import ROOT, fences
from tests.training.test_scalars import hparams_tab

PAGE = "docs/trackers.md"
SHORTER = {
    "tfdpg.TD3(env, seed=0)": "tfdpg.TD3(env, seed=0, **SMALL)",
    'gym.make("Pendulum-v1")': 'gym.make("Pendulum-v1", max_episode_steps=20)',
    "epochs=20": "epochs=2",
    "steps_per_epoch=1000": "steps_per_epoch=60",
    '"--episodes", "1"': '"--episodes", "1", "--max-ep-len", "20"',
}
"""Texts on the page and what replaces them, so that training is short."""
WARNINGS = (
    "error",
    "ignore:distutils Version classes are deprecated:DeprecationWarning",
    "ignore:__array__ implementation:DeprecationWarning",
    "ignore:All actions:UserWarning",
)
pytestmark = pytest.mark.slow


def run(tracker, directory, changed=str):
    """Run the first block of the page and the block that imports a tracker."""
    first, *others = [block.code for block in fences(PAGE, "python")]
    (example,) = [code for code in others if tracker in code]
    code = first + example
    for text, replacement in SHORTER.items():
        assert text in code
        code = code.replace(text, replacement)
    code = changed(code)
    places = {f"WANDB_{name}_DIR": str(directory / name) for name in ("CACHE", "CONFIG", "DATA")}
    offline = {"WANDB_ERROR_REPORTING": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    unreachable = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | places | offline | unreachable | {"PATH": path, "PYTHONPATH": str(ROOT)}
    (directory / "example.py").write_text("from tests.agents.roster import SMALL\n" + code)
    options = [option for each in WARNINGS for option in ("-W", each)]
    command = [sys.executable, *options, "example.py"]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def records(file):
    """Return the records of an offline run: a log of LevelDB with a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data = file.read_bytes()
    position = 7
    part = b""
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        part += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield Record.FromString(part)
            part = b""


def wandb_records(directory):
    """Return the records of the only run in a directory, by their types."""
    (file,) = directory.glob("wandb/offline-run-*/*.wandb")
    found = {}
    for record in records(file):
        kind = record.WhichOneof("record_type")
        found.setdefault(kind, []).append(getattr(record, kind))
    return found


def values(items):
    """Return the values of a record of Weights & Biases, by their names."""
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def test_wandb(tmp_path):
    run("import wandb", tmp_path)
    found = wandb_records(tmp_path)
    config = values(found["run"][0].config.update)
    assert (config["gamma"], config["seed"], config["hidden_units"]) == (0.99, 0, [8])
    history = [values(record.item) for record in found["history"]]
    assert [logs["_step"] for logs in history] == [logs["env_steps"] for logs in history] == [60, 120]
    assert all({"return", "val_return", "loss_q"} <= logs.keys() for logs in history)
    (video,) = tmp_path.glob("wandb/offline-run-*/files/" + history[-1]["evaluation/path"])
    assert video.read_bytes() == (tmp_path / "evaluation.mp4").read_bytes()
    (artifact,) = found["artifact"]
    assert (artifact.name, artifact.type) == ("td3-pendulum", "model")
    assert {"saved_model.pb", "tfdpg.json", "policy.npz"} <= {file.path for file in artifact.manifest.contents}


@pytest.mark.hours
def test_wandb_with_the_events_of_tensorboard(tmp_path):
    def changed(code):
        code = code.replace('mode="offline"', 'mode="offline", sync_tensorboard=True')
        return code.replace("callbacks=[log]", 'callbacks=[tfdpg.callbacks.ScalarWriter("events", write_interval=10)]')

    run("import wandb", tmp_path, changed)
    history = [values(record.item) for record in wandb_records(tmp_path)["history"]]
    assert [logs["global_step"] for logs in history if "diagnosis/loss_q" in logs] == list(range(20, 130, 10))
    assert [logs["global_step"] for logs in history if "validation/return" in logs] == [60, 120]


def test_mlflow(tmp_path, monkeypatch):
    done = run("import mlflow", tmp_path)
    assert "unexpected error" not in done.stderr
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    (logged,) = client.search_runs([client.get_experiment_by_name("pendulum").experiment_id])
    assert logged.info.status == "FINISHED"
    assert (logged.data.params["gamma"], logged.data.params["seed"]) == ("0.99", "0")
    assert {"optimizer_pi_adam", "optimizer_q1_adam", "optimizer_q2_adam"} <= set(logged.data.params)
    for metric in ("return", "val_return", "loss_q"):
        assert [each.step for each in client.get_metric_history(logged.info.run_id, metric)] == [0, 1]
    artifacts = Path(logged.info.artifact_uri.removeprefix("file://"))
    assert (artifacts / "model_summary.txt").read_text().startswith("<TD3 on Pendulum-v1")
    assert (artifacts / "videos/evaluation.mp4").read_bytes() == (tmp_path / "evaluation.mp4").read_bytes()
    assert tfdpg.load(artifacts / "td3-pendulum").spec.act_dim == 1


def test_tensorboard(tmp_path):
    run("from tensorboard.plugins.hparams import", tmp_path)
    log_dir = tmp_path / "tensorboard"
    _, (row,) = hparams_tab(log_dir)
    options = dict(row.hparams.items())
    assert (options["gamma"].number_value, options["noise"].string_value) == (0.99, "gaussian")
    metrics = {(value.name.group, value.name.tag) for value in row.metric_values}
    assert {("train", "epoch_return"), ("validation", "epoch_return"), ("train", "epoch_loss_q")} <= metrics
    events = EventAccumulator(str(log_dir / "seed-0"), size_guidance={"tensors": 0}).Reload()
    width, height, *images = events.Tensors("evaluation")[0].tensor_proto.string_val
    assert (width, height, len(images)) == (b"500", b"500", 2)
    (text,) = events.Tensors("export")
    assert text.step == 120 and text.tensor_proto.string_val == [b"exported_models/td3-pendulum/1"]
