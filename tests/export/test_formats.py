"""Exports in other formats than SavedModel, run by their own runtimes."""

import json
import re
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import gymnasium as gym
import jsonschema
import numpy as np
import pytest
from gymnasium import spaces

import tfdpg
from tests.agents.roster import ACER, SMALL, brief, fit_briefly
from tests.docs.pages import PAGES, fences, module, table
from tfdpg import export
from tfdpg.export.convert import FORMATS
from tfdpg.export.fidelity import differences
from tfdpg.export.source import Source

pytestmark = brief

RUNTIMES = {
    "litert": """
        from ai_edge_litert.interpreter import Interpreter
        interpreter = Interpreter(model_path=f"{directory}/model.tflite")
        def run(name, inputs):
            return interpreter.get_signature_runner(name)(**inputs)
        """,
    "onnx": """
        import onnxruntime
        def run(name, inputs):
            session = onnxruntime.InferenceSession(f"{directory}/{name}.onnx")
            return dict(zip([output.name for output in session.get_outputs()], session.run(None, inputs)))
        """,
}
CLIENT = """
    import json, sys
    sys.modules["tensorflow"] = sys.modules["keras"] = sys.modules["tfdpg"] = None  # importing them fails
    import numpy as np

    directory, inputs = sys.argv[1], dict(np.load(sys.argv[2]))
    {runtime}
    found = {{}}
    for name, signature in json.load(open(f"{{directory}}/tfdpg.json"))["signatures"].items():
        outputs = run(name, {{one["name"]: inputs[one["name"]] for one in signature["inputs"]}})
        assert set(outputs) == {{one["name"] for one in signature["outputs"]}}
        found[name] = {{key: values.tolist() for key, values in outputs.items()}}
    print(json.dumps(found))
"""
"""What somebody writes who has the files alone."""


class Halves(gym.ObservationWrapper):
    """HalfCheetah's numbers would do: those of a pendulum, and the same of one step before, far from 0."""

    def __init__(self):
        super().__init__(gym.make("Pendulum-v1", max_episode_steps=20))
        box = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.observation_space = spaces.Dict({"former": box, "latter": box})
        self._former = np.zeros(3, np.float32)

    def observation(self, observation):
        former, self._former = self._former, observation
        return {"former": 10 * former + 30, "latter": observation}


@pytest.fixture(scope="module")
def agent():
    agent = tfdpg.TD3(Halves(), **SMALL | {"normalize_observations": True, "hidden_units": (16, 16)})
    fit_briefly(agent, Halves(), epochs=1, steps_per_epoch=40)
    return agent


@pytest.fixture(scope="module")
def version(agent, tmp_path_factory):
    return agent.export(tmp_path_factory.mktemp("saved") / "model")


@pytest.fixture(scope="module")
def source(version):
    return Source.open(version)


def references(agent):
    return {name: signature.reference(agent.spec) for name, signature in agent.signatures.items()}


formats = pytest.mark.parametrize("format", FORMATS)


def client(format, directory, inputs, scratch):
    """What a process without TensorFlow computes with the files."""
    np.savez(scratch / "inputs.npz", **inputs)
    code = textwrap.dedent(CLIENT).format(runtime=textwrap.dedent(RUNTIMES[format]))
    command = [sys.executable, "-c", code, str(directory), str(scratch / "inputs.npz")]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@formats
@pytest.mark.parametrize("count", [1, 5])
def test_a_process_without_tensorflow_computes_what_the_agent_does(agent, format, count, tmp_path):
    directory = agent.export(tmp_path / "model", format=format)
    assert directory == tmp_path / "model" and [path.name for path in tmp_path.iterdir()] == ["model"]
    rng = np.random.default_rng(count)
    observations = {name: rng.normal(size=(count, 3)).astype(np.float32) for name in ("former", "latter")}
    actions = rng.uniform(-2, 2, (count, 1)).astype(np.float32)
    found = client(format, directory, observations | {"a": actions}, tmp_path)
    assert set(found) == {"pi", "q1", "q2"}
    np.testing.assert_allclose(found["pi"]["pi"], agent.predict(observations), rtol=1e-4, atol=1e-5)
    for name in ("q1", "q2"):
        expected = agent.networks[name]([observations, actions])
        np.testing.assert_allclose(found[name][name], expected, rtol=1e-4, atol=1e-5)


@formats
def test_a_mutated_weight_is_noticed(agent, source, format, tmp_path):
    written, _ = FORMATS[format].write(source, tmp_path, None)
    kernel = agent.networks["pi"].layers[-2].kernel if hasattr(agent.networks["pi"].layers[-2], "kernel") else None
    kernel = max((v for v in agent.networks["pi"].trainable_variables if v.shape == (16, 16)), key=lambda v: v.shape)
    weight = float(np.max(np.abs(kernel.numpy())))
    weight = weight if weight in kernel.numpy() else -weight
    assert differences_of(agent, source, format, tmp_path, written)
    file = tmp_path / written["pi"]
    before, after = struct.pack("<f", weight), struct.pack("<f", weight + 0.1)
    assert file.read_bytes().count(before) == 1
    file.write_bytes(file.read_bytes().replace(before, after))
    with pytest.raises(export.ExportError, match="The signature 'pi' differs from the agent by up to"):
        differences_of(agent, source, format, tmp_path, written)


@formats
def test_swapped_inputs_are_noticed(agent, source, format, tmp_path):
    written, _ = FORMATS[format].write(source, tmp_path, None)
    for file in set(written.values()):
        content = (tmp_path / file).read_bytes()
        swapped = re.sub(b"former|latter", lambda name: {b"former": b"latter", b"latter": b"former"}[name[0]], content)
        assert swapped != content
        (tmp_path / file).write_bytes(swapped)
    for name in written:
        with pytest.raises(export.ExportError, match=f"The signature '{name}' differs from the agent by up to"):
            differences_of(agent, source, format, tmp_path, {name: written[name]})


def differences_of(agent, source, format, directory, written):
    with FORMATS[format].run(directory) as run:
        return differences(source, run, references(agent), list(written))


@formats
def test_a_missing_normaliser_is_noticed_and_nothing_is_left(agent, format, tmp_path):
    other = tfdpg.TD3(Halves(), **SMALL | {"normalize_observations": True, "hidden_units": (16, 16)})
    for name, network in other.networks.items():
        network.set_weights(agent.networks[name].get_weights())
    for normalizer in other.normalizers:
        for variable in normalizer.variables:
            variable.assign(np.ones(variable.shape) if "var" in variable.name or "std" in variable.name else 0 * variable)
    bare = other.export(tmp_path / "bare")
    with pytest.raises(export.ExportError, match="The signature 'pi' differs from the agent by up to"):
        export.convert(bare, tmp_path / "deep/er", format, references=references(agent))
    assert [path.name for path in tmp_path.iterdir()] == ["bare"]
