"""ONNX files as ONNX Runtime and OpenVINO read them."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest

import tfdpg
from tests.agents.roster import brief
from tfdpg import export

MODELS = Path(__file__).parents[2] / "exported_models"
pytestmark = brief


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """The directory of an exported model's ONNX files."""

    @functools.cache
    def of(name, opset=17):
        return export.convert(MODELS / name / "1", tmp_path_factory.mktemp(name) / "model", "onnx", opset=opset)

    return of


def onnx_runtime(file):
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


def open_vino(file):
    """Without bfloat16, in which OpenVINO computes by default where the processor has it."""
    import openvino

    model = openvino.Core().compile_model(file, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda inputs: {name: values.copy() for output, values in model(inputs).items() for name in output.names}


SLOW = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("td3-halfcheetah", "acer-pendulum", "acer-cartpole", "d4pg-scalar-pendulum")
]


@pytest.mark.parametrize("runtime", [onnx_runtime, open_vino])
@pytest.mark.parametrize("name", ["ddpg-pendulum", *SLOW])
def test_a_runtime_computes_what_the_policy_does(converted, name, runtime):
    policy = tfdpg.load(MODELS / name)
    rng = np.random.default_rng(0)
    directory = converted(name)
    for rows in (1, 7):
        x = rng.normal(size=(rows, *policy.spec.shapes["x"])).astype(np.float32)
        actions = policy(x)
        found = runtime(directory / "pi_and_q.onnx")({"x": x})
        assert {"pi", "q1", "q2"} <= set(found)
        np.testing.assert_allclose(found["pi"], actions, rtol=1e-4, atol=1e-4)
        for critic in ("q1", "q2"):
            wanted = getattr(policy, critic)(x, actions)
            np.testing.assert_allclose(found[critic], wanted, rtol=1e-3, atol=1e-2)
            values = runtime(directory / f"{critic}.onnx")({"x": x, "a": actions})[critic]
            np.testing.assert_allclose(values, wanted, rtol=1e-3, atol=1e-2)


ALL_OPSETS = [pytest.param(opset, marks=() if opset == 12 else pytest.mark.slow) for opset in range(12, 19)]


@pytest.mark.parametrize("opset", ALL_OPSETS)
def test_every_opset_computes_what_the_policy_does(converted, opset):
    check_opset(converted, "ddpg-pendulum", opset)


OTHERS = "acer-cartpole", "acer-pendulum", "d4pg-categorical-pendulum", "d4pg-mixture-pendulum"
KINDS = [(name, opset) for name in OTHERS for opset in (12, 13, 18)]  # many operators changed with 13 and 18


@pytest.mark.slow
@pytest.mark.parametrize("name, opset", [*KINDS, *(("td3-lstm-pendulum", opset) for opset in range(12, 19))])
def test_other_kinds_of_policies_compute_in_old_and_new_opsets(converted, name, opset):
    """The conversion compares each file with the SavedModel in ONNX Runtime."""
    check_opset(converted, name, opset)


def check_opset(converted, name, opset):
    import onnx

    described = json.loads((converted(name, opset) / "tfdpg.json").read_text())
    assert set(described["left_out"]) <= {"z"} and {"pi", "q1", "q2"} <= set(described["signatures"])
    for file in converted(name, opset).glob("*.onnx"):
        versions = {each.domain: each.version for each in onnx.load(file).opset_import}
        assert versions[""] == opset, file
    x = np.random.default_rng(0).normal(size=(7, *tfdpg.load(MODELS / name).spec.shapes["x"])).astype(np.float32)
    if name != "td3-lstm-pendulum":
        found = onnx_runtime(converted(name, opset) / "pi.onnx")({"x": x})["pi"]
        np.testing.assert_allclose(found, tfdpg.load(MODELS / name)(x), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", [onnx_runtime, open_vino])
def test_a_runtime_steps_a_recurrent_policy(converted, runtime):
    policy = tfdpg.load(MODELS / "td3-lstm-pendulum")
    directory = converted("td3-lstm-pendulum")
    given = runtime(directory / "initial_state.onnx")({"batch": np.array(2, np.int32)})
    pi = runtime(directory / "pi.onnx")
    rng = np.random.default_rng(0)
    for _ in range(4):
        x = rng.normal(size=(2, 3)).astype(np.float32)
        found = pi({"x": x, **given})
        np.testing.assert_allclose(found["pi"], policy(x), rtol=1e-4, atol=1e-4)
        given = {"a_before": found["pi"], "h": found["h_next"], "c": found["c_next"]}


def shapes(directory):
    """The shape of each input and output of the files in a directory, free axes by name."""
    import onnx

    graphs = {file.stem: onnx.load(file).graph for file in directory.glob("*.onnx")}
    return {
        (name, tensor.name): [axis.dim_param or axis.dim_value for axis in tensor.type.tensor_type.shape.dim]
        for name, graph in graphs.items()
        for tensor in (*graph.input, *graph.output)
    }


def test_the_free_axis_is_named_batch(converted):
    found = shapes(converted("ddpg-pendulum"))
    assert found["q1", "x"] == ["batch", 3] and found["q1", "a"] == ["batch", 1] and found["q1", "q1"] == ["batch"]


@pytest.mark.slow
def test_other_free_axes_have_names(converted):
    found = shapes(converted("td3-lstm-pendulum"))
    assert found["pi", "x"] == ["batch", 3] and found["pi", "h_next"] == ["batch", 32]
    assert found["initial_state", "batch"] == [] and found["initial_state", "h"] == ["batch", 32]
    assert found["q1", "x"] == ["batch", "time", 3] and found["q1", "q1"] == ["batch", "time"]
    found = shapes(converted("d4pg-scalar-pendulum"))
    assert found["z", "levels"] == found["z", "cvar"] == ["batch", "levels"]
