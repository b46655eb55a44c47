"""The models in `exported_models/`, loaded in a session and compared with their score cards."""

import json
import shutil
from pathlib import Path

import gymnasium as gym
import jsonschema
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

import tfdpg
from tests.export.runtimes import schema
from tfdpg import files
from tfdpg.acting import GreedyPolicy
from tfdpg.export.verify import in_session
from tfdpg.exported import METADATA, ExportError, latest_version, named_recurrent_inputs

FOLDER = Path(__file__).parents[2] / "exported_models"
MODELS = sorted(path.name for path in FOLDER.iterdir())
QUICK = ("ddpg-pendulum",)
LARGEST = 3 << 20
EPISODES = 10


def by_session(policy, run):
    """Return the policy, computed in a session."""
    recurrent_spec = policy.recurrent_spec

    def forward(packed):
        inputs = policy.spec.unpack(packed)
        given = {} if recurrent_spec is None else named_recurrent_inputs(recurrent_spec, packed[-1])
        outputs = run("pi", inputs | given)
        if recurrent_spec is None:
            return outputs["pi"]
        return np.concatenate([outputs["pi"], *(outputs[name] for name, _ in recurrent_spec.parts)], axis=1)

    return GreedyPolicy(policy.spec, recurrent_spec, forward)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_a_shipped_model_is_as_good_as_its_card_says(name):
    policy = tfdpg.load(FOLDER / name)
    card = policy.metadata
    environment = policy.metadata["environment"]
    assert card["command"].startswith(f"tfdpg train {name.split('-')[0]} --env {environment['id']} ")
    assert card["command"].endswith(f"--seeds {card['seed']}")
    scores = card["scores"]
    with in_session(policy.directory) as run:
        found = tfdpg.evaluate(by_session(policy, run), gym.make(environment["id"]), EPISODES, seed=1)
    spread = 3 * scores["return_std"] / EPISODES**0.5 + 0.02 * abs(scores["return"])
    assert found["return"] > scores["return"] - spread
    assert scores["episodes"] >= 20 and scores["return_min"] <= scores["return"] <= scores["return_max"]


@pytest.mark.parametrize("name", MODELS)
def test_a_card_has_the_signatures_that_a_server_reads_from_the_model(name):
    version = latest_version(FOLDER / name)
    card = json.loads((version / METADATA).read_text())
    jsonschema.validate(card, json.loads(schema()))
    graph = SavedModel.FromString((version / "saved_model.pb").read_bytes()).meta_graphs[0]
    assert graph.signature_def.keys() - card["signatures"].keys() == {"serving_default", "__saved_model_init_op"}
    for key, said in card["signatures"].items():
        for way, tensors in (
            ("inputs", graph.signature_def[key].inputs),
            ("outputs", graph.signature_def[key].outputs),
        ):
            descriptions = {each["name"]: each for each in said[way]}
            assert descriptions.keys() == tensors.keys()
            for each, info in tensors.items():
                assert descriptions[each]["dtype"] == tf.dtypes.as_dtype(info.dtype).name
                assert info.tensor_shape.unknown_rank or len(descriptions[each]["shape"]) == len(info.tensor_shape.dim)


def test_each_algorithm_and_critic_is_shipped_and_small():
    cards = [tfdpg.load(FOLDER / name).metadata for name in MODELS]
    assert {card["agent"] for card in cards} == {"DDPG", "TD3", "D4PG", "ACER"}
    critics = [
        word for card in cards if card["agent"] == "D4PG" for word in ("mixture", "scalar") if word in card["command"]
    ]
    assert sorted(critics) == ["mixture", "scalar"] and sum(card["agent"] == "D4PG" for card in cards) == 3
    assert {tfdpg.load(FOLDER / name).spec.actions is None for name in MODELS if name.startswith("acer")} == {
        True,
        False,
    }
    assert any("state" in card for card in cards)
    for name in MODELS:
        assert sum(path.stat().st_size for path in (FOLDER / name).rglob("*") if path.is_file()) <= LARGEST, name
        assert len(list((FOLDER / name).iterdir())) == 1 and (latest_version(FOLDER / name) / METADATA).exists()


@pytest.mark.parametrize("other", ["acer-cartpole", "td3-lstm-pendulum"])
def test_a_model_that_is_not_what_its_description_says_is_refused(tmp_path, other):
    directory = shutil.copytree(FOLDER / "ddpg-pendulum/1", tmp_path / "model/1")
    description = json.loads((directory / METADATA).read_text())
    shutil.copytree(FOLDER / other / "1", directory, dirs_exist_ok=True)
    (directory / METADATA).unlink()
    files.write_manifest(
        directory, METADATA, {key: description[key] for key in description if key not in ("files", "sha256")}
    )
    policy = tfdpg.load(tmp_path / "model")
    with pytest.raises(ExportError, match=f"{directory} cannot .*outputs of `pi`"):
        policy(policy.spec.observation_space.sample())
