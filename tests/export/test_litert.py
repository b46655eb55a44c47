"""LiteRT files as LiteRT's runtimes read them: by position, by signature and by the names of tensors."""

import functools
import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf

import tfdpg
from tests.agents.roster import SMALL, brief
from tfdpg import export

MODELS = Path(__file__).parents[2] / "exported_models"
pytestmark = brief


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """The LiteRT file of an exported model, with a free batch or a fixed one."""

    @functools.cache
    def of(name, batch=None):
        directory = tmp_path_factory.mktemp(name) / "model"
        return export.convert(MODELS / name / "1", directory, "litert", batch=batch) / "model.tflite"

    return of


def interpreter(kind, file):
    if kind == "LiteRT":
        from ai_edge_litert.interpreter import Interpreter
    else:
        Interpreter = tf.lite.Interpreter
    return Interpreter(model_path=str(file))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated:UserWarning")
@pytest.mark.parametrize("kind", ["LiteRT", "TensorFlow"])
@pytest.mark.parametrize("name", ["d4pg-scalar-pendulum", "acer-pendulum", "td3-lstm-pendulum"])
def test_the_policy_runs_where_no_signature_is_named(converted, name, kind):
    policy = tfdpg.load(MODELS / name)
    runtime = interpreter(kind, converted(name))
    observation = np.array([[0.6, 0.8, -0.5]], np.float32)
    runtime.allocate_tensors()
    inputs = runtime.get_input_details()
    outputs = runtime.get_output_details()
    state = [] if policy.recurrent_spec is None else ["a_before", "h", "c"]
    assert [one["name"] for one in inputs] == ["x", *state]
    assert [one["name"] for one in outputs] == ["pi", *(f"{part}_next" for part in state[1:])]
    runtime.set_tensor(inputs[0]["index"], observation)
    for part in inputs[1:]:
        runtime.set_tensor(part["index"], np.zeros(part["shape"], np.float32))
    runtime.invoke()
    np.testing.assert_allclose(runtime.get_tensor(outputs[0]["index"]), policy(observation), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated:UserWarning")
@pytest.mark.parametrize("kind", ["LiteRT", "TensorFlow"])
@pytest.mark.parametrize("name", ["d4pg-scalar-pendulum", pytest.param("acer-pendulum", marks=pytest.mark.slow)])
def test_each_output_has_its_own_tensor(converted, name, kind):
    """Although `q1` and `q2` of an agent with one critic are equal, and so are the outputs of `z` of a scalar one."""
    runtime = interpreter(kind, converted(name))
    policy = tfdpg.load(MODELS / name)
    served = tf.saved_model.load(str(policy.directory)).signatures
    x = np.array([[0.6, 0.8, -0.5], [1, 0, 0]], np.float32)
    a = np.array([[0.5], [-2]], np.float32)
    inputs = {"x": x, "a": a, "levels": np.full((2, 3), 0.5, np.float32)}
    for signature, names in runtime.get_signature_list().items():
        runner = runtime.get_signature_runner(signature)
        details = runner.get_output_details()
        assert [details[key]["name"] for key in names["outputs"]] == names["outputs"]
        assert len({one["index"] for one in details.values()}) == len(names["outputs"])
        found = runner(**{key: inputs[key] for key in names["inputs"]})
        for key, values in found.items():
            wanted = (
                policy.z(x, a, [0.5] * 3)
                if signature == "z"
                else served[signature](**{each: tf.constant(inputs[each]) for each in names["inputs"]})
            )
            np.testing.assert_allclose(values, wanted[key], rtol=1e-4, atol=1e-4)


def test_the_compiled_model_finds_each_output_by_name(converted):
    from ai_edge_litert.compiled_model import CompiledModel

    model = CompiledModel.from_file(str(converted("d4pg-scalar-pendulum")))
    signatures = model.get_signature_list()
    assert signatures["pi_and_q"]["outputs"] == ["pi", "q1", "q2"]
    assert sorted(signatures["z"]["outputs"]) == ["atoms", "cvar", "probs", "quantiles"]


@pytest.mark.slow
def test_a_fixed_batch_runs_in_the_compiled_model(converted):
    from ai_edge_litert.compiled_model import CompiledModel

    file = converted("d4pg-scalar-pendulum", 7)
    model = CompiledModel.from_file(str(file))
    x = np.linspace(-1, 1, 21, dtype=np.float32).reshape(7, 3)
    buffers = {"x": model.create_input_buffer_by_name("pi_and_q", "x")}
    answers = {key: model.create_output_buffer_by_name("pi_and_q", key) for key in ("pi", "q1", "q2")}
    buffers["x"].write(x)
    model.run_by_name("pi_and_q", buffers, answers)
    expected = tfdpg.load(MODELS / "d4pg-scalar-pendulum").pi_and_q(x)
    for key, values in zip(answers, expected, strict=True):
        np.testing.assert_allclose(answers[key].read(7, np.float32), values.reshape(-1), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["d4pg-scalar-pendulum", "td3-lstm-pendulum"])
def test_a_fixed_batch_fixes_all_shapes(converted, name):
    """The number of levels of `z` is fixed too; `initial_state` returns the file's number of rows."""
    file = converted(name, 7)
    runtime = interpreter("LiteRT", file)
    runtime.allocate_tensors()
    assert not [one["name"] for one in runtime.get_tensor_details() if -1 in one["shape_signature"]]
    described = json.loads((file.parent / "tfdpg.json").read_text())["signatures"]
    shapes = {(name, one["name"]): one["shape"] for name in described for one in described[name]["inputs"]}
    assert shapes["pi", "x"] == [7, 3]
    for signature, names in runtime.get_signature_list().items():
        runner = runtime.get_signature_runner(signature)
        details = runner.get_input_details() | runner.get_output_details()
        assert set(names["outputs"]) <= set(details)
        assert not [key for key, one in details.items() if -1 in one["shape_signature"]]
    if name == "td3-lstm-pendulum":
        assert {len(each) for each in runtime.get_signature_runner("initial_state")(batch=np.int32(2)).values()} == {7}
    else:
        assert shapes["z", "levels"] == [7, 5]


def test_a_fixed_batch_is_for_litert(tmp_path):
    agent = tfdpg.TD3("Pendulum-v1", **SMALL)
    for format in ("onnx", "c"):
        with pytest.raises(ValueError, match='`batch` must .*format="litert".*batch=4'):
            export.convert(MODELS / "ddpg-pendulum/1", tmp_path / "model", format, batch=4)
        with pytest.raises(ValueError, match=f"`batch` does .*`format` is '{format}'"):
            agent.export(tmp_path / "model", format=format, batch=4)
    with pytest.raises(ValueError, match="`batch` must be a positive integer"):
        agent.export(tmp_path / "model", format="litert", batch=0)
    assert not (tmp_path / "model").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["d4pg-mixture-pendulum", "td3-lstm-pendulum"])
def test_int8_is_measured_on_a_thousand_observations(name, tmp_path):
    """On the seven observations of the warm-up requests, the error of both would be small enough."""
    with pytest.raises(export.ExportError, match="1000 observations: 1000 .*max_error=0.05"):
        export.convert(MODELS / name / "1", tmp_path / "model", "litert", "int8")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("environment", [None, {"id": "os:getcwd", "kwargs": {}}, {"id": "CartPole-v1", "kwargs": {}}])
def test_observations_where_the_environment_cannot_be_used(environment):
    """The environment is not known, would import a module, or has other spaces."""
    policy = tfdpg.load(MODELS / "td3-halfcheetah")
    rng = np.random.default_rng(0)
    requests = {"x": rng.normal(30, 2, (7, 17)).astype(np.float32)}
    measured = export.observations_of_export(policy.spec, policy, environment, requests)
    assert measured.values["x"].shape == (1000, 17) and measured.values["x"].dtype == np.float32
    np.testing.assert_array_equal(measured.values["x"][:7], requests["x"])
    np.testing.assert_allclose(measured.values["x"].mean(axis=0), requests["x"].mean(axis=0), atol=0.5)
    start = "7 of the warm-up requests and 993 drawn from the observation space, since "
    why = {
        "None": "tfdpg.json does not name the environment",
        "os:getcwd": "the environment imports, or reads, 'os:getcwd'",
        "CartPole-v1": "The observation_space of `env` must be the agent's",
    }[environment["id"] if environment else "None"]
    assert measured.origin.startswith(start + why)


def test_observations_of_a_small_replay_buffer():
    agent = tfdpg.TD3("Pendulum-v1", **SMALL)
    measured = export.measured_observations(agent.spec, agent.replay, 0)
    assert measured.origin == "1000 drawn from the observation space"
    env = gym.make("Pendulum-v1")
    agent.fit(env, epochs=1, steps_per_epoch=10, verbose=0)
    measured = export.measured_observations(agent.spec, agent.replay, 0)
    held = agent.replay.size
    assert measured.origin == f"{held} from the replay buffer and {1000 - held} drawn from the observation space"
    assert len(np.unique(measured.values["x"], axis=0)) == len(measured.values["x"]) == 1000
