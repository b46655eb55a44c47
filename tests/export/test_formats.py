"""Exports to LiteRT, ONNX and C, run by their own runtimes."""

import copy
import functools
import json
import re
import shutil
import struct
import sys
from pathlib import Path

import gymnasium as gym
import jsonschema
import numpy as np
import pytest
from gymnasium import spaces

import tfdpg
from tests.agents.roster import EAGER, SMALL, brief, fit_briefly
from tests.export.runtimes import client, quickly, schema, whole_formats
from tfdpg import cli, export
from tfdpg.export.source import Source
from tfdpg.export.verify import differences
from tfdpg.formats.convert import FORMATS

pytestmark = brief


class TwoStepObservation(gym.ObservationWrapper):
    """A pendulum's observation, and that of the step before in another range."""

    def __init__(self):
        super().__init__(gym.make("Pendulum-v1", max_episode_steps=20))
        box = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.observation_space = spaces.Dict({"former": box, "latter": box})
        self._former = np.zeros(3, np.float32)

    def observation(self, observation):
        former = self._former
        self._former = observation
        return {"former": 10 * former + 30, "latter": observation}


@pytest.fixture(scope="module")
def agent():
    agent = tfdpg.TD3(
        TwoStepObservation(), **SMALL | EAGER | {"normalize_observations": True, "hidden_units": (16, 16)}
    )
    fit_briefly(agent, TwoStepObservation(), epochs=1, steps_per_epoch=40)
    return agent


@pytest.fixture(scope="module")
def exported(agent, tmp_path_factory):
    """The exported directory of each format, for tests that do not change it."""
    return functools.cache(lambda format: agent.export(tmp_path_factory.mktemp(format) / "model", format=format))


@pytest.fixture(scope="module")
def bare(agent, tmp_path_factory):
    """An export of the agent without the normaliser's statistics."""
    other = copy.deepcopy(agent)
    for normalizer in other.data.normalizers:
        normalizer.mean.assign(0 * normalizer.mean)
        normalizer.variance.assign(0 * normalizer.variance + 1)
    return other.export(tmp_path_factory.mktemp("bare") / "model")


@pytest.fixture(scope="module")
def version(agent, tmp_path_factory):
    return agent.export(tmp_path_factory.mktemp("saved") / "model")


@pytest.fixture(scope="module")
def source(version):
    return Source(version)


@pytest.fixture
def files(exported, format, tmp_path):
    """A copy of an export, to be damaged, and the name of the file of each signature."""
    directory = shutil.copytree(exported(format), tmp_path / "files")
    description = json.loads((directory / "tfdpg.json").read_text())
    return directory, {name: signature["file"] for name, signature in description["signatures"].items()}


def references(agent):
    return {name: signature.reference(agent.spec) for name, signature in agent.signatures.items()}


@pytest.mark.slow
@whole_formats
def test_a_process_without_tensorflow_computes_what_the_agent_does(agent, exported, format, tmp_path):
    rng = np.random.default_rng(0)
    directory = exported(format)
    batches = []
    for count in (1, 5):
        observations = {name: rng.normal(size=(count, 3)).astype(np.float32) for name in ("former", "latter")}
        batches.append((observations, rng.uniform(-2, 2, (count, 1)).astype(np.float32)))
    answers = client(format, directory, [observations | {"a": actions} for observations, actions in batches], tmp_path)
    for (observations, actions), found in zip(batches, answers, strict=True):
        assert set(found) == {"pi", "q1", "q2", "pi_and_q"}
        np.testing.assert_allclose(found["pi"]["pi"], agent.predict(observations), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found["pi_and_q"]["pi"], found["pi"]["pi"], rtol=1e-4, atol=1e-5)
        for name in ("q1", "q2"):
            expected = agent.networks[name]([observations, actions])
            np.testing.assert_allclose(found[name][name], expected, rtol=1e-4, atol=1e-5)


@quickly("onnx")
def test_the_description_is_valid_by_the_schema(agent, exported, format):
    description = json.loads((exported(format) / "tfdpg.json").read_text())
    jsonschema.validate(description, json.loads(schema()))
    written = {one["file"] for one in description["signatures"].values()}
    assert set(description["files"]) == {*written, "references.npz"}
    assert {path.name for path in exported(format).iterdir()} == {*description["files"], "tfdpg.json"}
    inputs = [(one["name"], one["shape"]) for one in description["signatures"]["q1"]["inputs"]]
    assert inputs == [("former", ["batch", 3]), ("latter", ["batch", 3]), ("a", ["batch", 1])]
    (action,) = description["signatures"]["pi"]["outputs"]
    expected = {"name": "pi", "dtype": "float32", "shape": ["batch", 1], "unit": "action", "low": -2.0, "high": 2.0}
    assert action == expected
    assert description["left_out"] == {} and description["env_steps"] == agent.env_steps
    assert all(0 <= signature["difference"] < 1e-4 for signature in description["signatures"].values())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(description | {"export_format": "keras"}, json.loads(schema()))


@quickly("onnx")
def test_a_changed_weight_is_refused(agent, source, format, files):
    directory, written = files
    assert compared(agent, source, format, directory, written)
    (kernel,) = (each.numpy() for each in agent.networks["pi"].trainable_variables if each.shape == (16, 16))
    weight = kernel.flat[np.argmax(np.abs(kernel))]
    file = directory / written["pi"]
    before = struct.pack("<f", weight)
    after = struct.pack("<f", weight + 0.1)
    assert file.read_bytes().count(before) >= 1
    file.write_bytes(file.read_bytes().replace(before, after))
    with pytest.raises(export.ExportError, match="signature 'pi' differs from the agent"):
        compared(agent, source, format, directory, written)


@quickly("onnx")
def test_swapped_inputs_are_refused(agent, source, format, files):
    directory, written = files
    other = {b"former": b"latter", b"latter": b"former"}
    for file in set(written.values()):
        content = (directory / file).read_bytes()
        swapped = re.sub(b"former|latter", lambda name: other[name[0]], content)
        assert swapped != content
        (directory / file).write_bytes(swapped)
    for name in written:
        with pytest.raises(export.ExportError, match=f"signature '{name}' differs from"):
            compared(agent, source, format, directory, [name])


def compared(agent, source, format, directory, names):
    with FORMATS[format].run(source, directory) as run:
        return differences(source, run, references(agent), list(names))


@quickly("c")
def test_a_missing_normaliser_is_noticed_and_nothing_is_left(agent, bare, format, tmp_path):
    with pytest.raises(export.ExportError, match="signature 'pi' differs from the agent"):
        export.convert(bare, tmp_path / "deep/er", format, references=references(agent))
    assert list(tmp_path.iterdir()) == []


@quickly("c")
def test_tfdpg_does_not_load_other_formats(exported, format, capsys):
    with pytest.raises(FileNotFoundError, match="an exported model in another format"):
        tfdpg.load(exported(format))
    assert cli.main(["inspect", str(exported(format))]) == 1
    assert "it is an exported model in another format" in capsys.readouterr().err


@quickly()
def test_a_saved_model_is_converted_without_its_agent(agent, version, format, tmp_path):
    directory = export.convert(version, tmp_path / "model", format)
    observations = {name: np.full((2, 3), 0.5, np.float32) for name in ("former", "latter")}
    (found,) = client(format, directory, [observations | {"a": np.ones((2, 1), np.float32)}], tmp_path)
    np.testing.assert_allclose(found["pi"]["pi"], agent.predict(observations), rtol=1e-4, atol=1e-5)


def test_invalid_targets_and_options_are_refused_and_nothing_is_lost(agent, version, tmp_path, monkeypatch):
    held = {version.parent: r"the versions \[1\] of", tmp_path: "contains precious"}
    (tmp_path / "precious").write_text("text")
    for directory, message in held.items():
        for write in (agent.export, lambda *args, **options: export.convert(version, *args, **options)):
            with pytest.raises(FileExistsError, match=f"`directory` must .*{message}"):
                write(directory, format="onnx")
    with pytest.raises(NotADirectoryError, match="Received a file"):
        agent.export(tmp_path / "precious", format="litert")
    with pytest.raises(ValueError, match="one of litert, onnx, c. .*format='keras'"):
        export.convert(version, tmp_path / "model", "keras")
    with pytest.raises(ValueError, match='`format` must be "tf_saved_model".*"c"'):
        agent.export(tmp_path / "model", format="keras")
    with pytest.raises(ValueError, match="`quantize` must .*None.*quantize='int8'"):
        export.convert(version, tmp_path / "model", "onnx", "int8")
    with pytest.raises(ValueError, match="`quantize` does .*`format` is 'onnx'"):
        agent.export(tmp_path / "model", format="onnx", quantize="int8")
    for opset in (11, 19, 17.5, None):
        for write in (agent.export, functools.partial(export.convert, version)):
            with pytest.raises(
                ValueError, match=r"^`opset` must be an integer in \[12, 18\]\. Received: opset=[^\n]*$"
            ):
                write(tmp_path / "model", format="onnx", opset=opset)
    with pytest.raises(ValueError, match="`opset` does .*`format` is 'litert'"):
        agent.export(tmp_path / "model", format="litert", opset=13)
    with pytest.raises(ValueError, match="`opset` must be 17 unless format=\"onnx\", for format='litert'"):
        export.convert(version, tmp_path / "model", "litert", opset=13)
    with pytest.raises(ValueError, match="`max_error` does .*`quantize` is None"):
        agent.export(tmp_path / "model", format="litert", max_error=0.1)
    monkeypatch.setitem(sys.modules, "tf2onnx", None)  # importing it fails
    with pytest.raises(ImportError, match=r'"onnx" needs tf2onnx: .*tfdpg\[onnx\]'):
        agent.export(tmp_path / "model", format="onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]
    assert (tmp_path / "precious").read_text() == "text"


@pytest.fixture(scope="module")
def wide():
    """An agent whose layers are large enough to be quantized, and whose actions are not at their bounds."""
    agent = tfdpg.DDPG(gym.make("Pendulum-v1"), **SMALL | {"hidden_units": (64, 64)})
    fit_briefly(agent, gym.make("Pendulum-v1"), epochs=1, steps_per_epoch=12)
    return agent


@pytest.mark.slow
def test_int8_is_measured_in_units_of_the_action_scale(wide, tmp_path, capsys):
    directory = wide.export(tmp_path / "model", format="litert", quantize="int8")
    description = json.loads((directory / "tfdpg.json").read_text())
    jsonschema.validate(description, json.loads(schema()))
    quantized = description["quantized"]
    assert set(description["signatures"]) == {"pi"} and set(description["left_out"]) == {"q1", "q2", "pi_and_q"}
    assert quantized["observations"] == 1000 and quantized["max_error"] == 0.05
    measured = export.measured_observations(wide.spec, wide.replay, wide.seed)
    assert quantized["observations_from"] == measured.origin
    found = client("litert", directory, [measured.values], tmp_path)[0]["pi"]["pi"]
    errors = np.abs(found - wide.predict(measured.values["x"])) / 2
    assert 1e-4 < np.max(errors) == pytest.approx(quantized["error"], rel=1e-3)  # it is quantized
    assert np.mean(errors) == pytest.approx(quantized["mean_error"], rel=1e-3)
    numbers = f"{quantized['mean_error']:.3g} on average and {quantized['error']:.3g} at most"
    said = f"int8: the error of an action, in units of the action scale, is {numbers}, measured on 1000 observations"
    assert capsys.readouterr().out == f"{said}: {measured.origin}\n"
    with pytest.raises(export.ExportError, match=f"is {numbers}, .*max_error=0.0001"):
        wide.export(tmp_path / "other", format="litert", quantize="int8", max_error=1e-4)
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_a_policy_at_its_bounds_is_not_quantized(tmp_path):
    version = Path(__file__).parents[2] / "exported_models/td3-halfcheetah/1"
    with pytest.raises(export.ExportError, match="int8: the error .*most max_error=0.05"):
        export.convert(version, tmp_path / "model", "litert", "int8")
    export.convert(version, tmp_path / "model", "litert", "int8", max_error=2.0)
