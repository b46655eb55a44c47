"""Exports of further kinds of agents to other formats, and the table of differences in the documentation."""

import json
import re

import gymnasium as gym
import jsonschema
import numpy as np
import pytest
from gymnasium import spaces

import tfdpg
from tests.agents.roster import ACER, SMALL, brief
from tests.docs.pages import module, table
from tests.export.runtimes import client, formats, schema, whole_formats
from tfdpg import export
from tfdpg.export.source import Source
from tfdpg.formats.convert import FORMATS

pytestmark = brief


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Discrete", "recurrent"])
def test_int8_of_others(kind, tmp_path):
    if kind == "Discrete":
        agent = tfdpg.ACER(gym.make("CartPole-v1"), **ACER | {"hidden_units": (64, 64)})
    else:
        agent = tfdpg.TD3("Pendulum-v1", **SMALL, recurrent="lstm", recurrent_units=64)
    directory = agent.export(tmp_path / "model", format="litert", quantize="int8", max_error=1)
    description = json.loads((directory / "tfdpg.json").read_text())
    assert set(description["signatures"]) == ({"pi"} if kind == "Discrete" else {"pi", "initial_state"})
    assert 0 <= description["quantized"]["error"] < 1


@pytest.mark.slow
@whole_formats
@pytest.mark.parametrize("previous", [{"action": "a_before", "reward": "r_before"}, {}], ids=["all", "observation"])
def test_an_episode_of_a_recurrent_policy(format, previous, tmp_path):
    """The exported files compute the steps of the agent; ONNX returns the recurrent state under other names."""
    options = {"recurrent": "lstm", "remembers": ("observation", *previous), "recurrent_units": 4}
    agent = tfdpg.TD3("Pendulum-v1", **SMALL | options)
    directory = agent.export(tmp_path / "model", format=format)
    description = json.loads((directory / "tfdpg.json").read_text())
    jsonschema.validate(description, json.loads(schema()))
    names = {key: [one["name"] for one in description["signatures"]["pi"][key]] for key in ("inputs", "outputs")}
    after = "_next" if format == "onnx" else ""
    assert names == {"inputs": ["x", *previous.values(), "h", "c"], "outputs": ["pi", f"h{after}", f"c{after}"]}
    left_out = {} if format == "onnx" else dict.fromkeys(("q1", "q2"), "LiteRT has no TensorListReserve")
    assert description["left_out"] == left_out
    saved = agent.export(tmp_path / "saved")
    rng = np.random.default_rng(0)
    policy = tfdpg.load(saved)
    with FORMATS[format].run(Source(saved), directory) as run:
        given = run("initial_state", {"batch": np.array(2, np.int32)})
        for _ in range(4):
            observation = rng.normal(size=(2, 3)).astype(np.float32)
            reward = rng.normal(size=2).astype(np.float32)
            step = run("pi", {"x": observation, **given})
            np.testing.assert_allclose(step["pi"], policy(observation), rtol=1e-4, atol=1e-5)
            policy.received(reward)
            given = {"a_before": step["pi"], "r_before": reward, "h": step["h"], "c": step["c"]}
            given = {name: given[name] for name in names["inputs"] if name != "x"}


@pytest.mark.slow
@formats
def test_images_and_counts(format, tmp_path):
    space = spaces.Dict(camera=spaces.Box(0, 255, (16, 16, 3), np.uint8), gear=spaces.Discrete(3, start=1))
    agent = tfdpg.DDPG(tfdpg.Spec(space, spaces.Box(-1, 3, (2,))), **SMALL)
    description = json.loads((agent.export(tmp_path / "model", format=format) / "tfdpg.json").read_text())
    jsonschema.validate(description, json.loads(schema()))
    camera, gear = description["signatures"]["pi"]["inputs"]
    assert (camera["dtype"], camera["shape"], camera["high"]) == ("uint8", ["batch", 16, 16, 3], 255)
    assert (gear["dtype"], gear["shape"], gear["low"], gear["high"]) == ("int32", ["batch"], 1, 3)


@pytest.mark.slow
def test_an_operation_that_a_format_does_not_have(tmp_path):
    """A critic with such an operation is left out, and a policy with one is not exported."""
    import keras

    spec = tfdpg.Spec.of(gym.make("Pendulum-v1"))
    for name, width in (("q1", 1), ("pi", 1)):
        inputs = [keras.Input((3,)), keras.Input((1,))] if name == "q1" else [keras.Input((3,))]
        features = keras.layers.Concatenate()(inputs) if name == "q1" else inputs[0]
        odd = keras.layers.Dense(width)(keras.ops.erfinv(keras.ops.tanh(features) / 2))
        network = keras.Model(inputs if name == "q1" else inputs[0], odd)
        agent = tfdpg.DDPG(spec, **{name: network}, **SMALL)
        for format, library in (("litert", "LiteRT"), ("onnx", "ONNX")):
            if name == "q1":
                directory = agent.export(tmp_path / format, format=format)
                left_out = json.loads((directory / "tfdpg.json").read_text())["left_out"]
                assert set(left_out) == {"q1", "q2", "pi_and_q"} and re.match(
                    f"{library} has no Erfinv|{library} has no Ndtri", left_out["q1"]
                )
            else:
                with pytest.raises(export.ExportError, match=f"policy .*'{format}': {library} has no"):
                    agent.export(tmp_path / "none", format=format)
                assert not (tmp_path / "none").exists()


@pytest.mark.slow
@formats
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision(format, policy, tmp_path):
    """LiteRT has no half precision, and ONNX Runtime has one of the two types on a CPU."""
    import keras

    before = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy(policy)
        agent = tfdpg.DDPG("Pendulum-v1", **SMALL)
    finally:
        keras.config.set_dtype_policy(before)
    if (format, policy) == ("onnx", "mixed_float16"):
        directory = agent.export(tmp_path / "model", format=format)
        inputs = {"x": np.ones((2, 3), np.float32), "a": np.ones((2, 1), np.float32)}
        (found,) = client(format, directory, [inputs], tmp_path)
        np.testing.assert_allclose(found["pi"]["pi"], agent.predict(np.ones((2, 3))), atol=2e-2)
    else:
        with pytest.raises(export.ExportError, match="The policy cannot be exported "):
            agent.export(tmp_path / "model", format=format)
        assert list(tmp_path.iterdir()) == []


def test_the_table_has_every_agent():
    rows = table("docs/formats.md", "agent")
    exported_by_the_readme = "`td3-inverted-pendulum`"  # by its first command, in the directory of the tests
    named = [name for name in module("examples/formats.py").ROWS if name != exported_by_the_readme]
    assert [row[0] for row in rows] == named


FIRST, *OTHERS = (pytest.param(row, id=row[0]) for row in table("docs/formats.md", "agent"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "row", [FIRST, *(pytest.param(*row.values, id=row.id, marks=pytest.mark.hours) for row in OTHERS)]
)
def test_the_table_is_up_to_date(row):
    """Differences are rounding errors and depend on the machine; the signatures that are left out do not."""
    name, *written = row
    for text, found in zip(written, module("examples/formats.py").row(name).values(), strict=True):
        assert found.partition(";")[2] == text.partition(";")[2]
        pairs = [dict(part.split(" ") for part in each.partition(";")[0].split(", ")) for each in (text, found)]
        assert set(pairs[0]) == set(pairs[1])
        assert all(float(pair["pi"]) < 1e-4 and float(pair.get("critics", 0)) < 1e-3 for pair in pairs)
