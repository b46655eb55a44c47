"""Exports, run by loaders that use neither tfdpg nor Keras."""

import importlib.metadata
import json
import shutil
import subprocess
import sys
import textwrap

import gymnasium as gym
import keras
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces
from tensorflow_serving.apis import prediction_log_pb2

import tfdpg
from tests.agents.roster import AGENTS, EAGER, SMALL, brief
from tests.export.runtimes import verify
from tests.test_spec import ACTION, OBSERVATIONS
from tfdpg import export, networks
from tfdpg.export import verify as verification
from tfdpg.networks.tensors import unpack_observation
from tfdpg.streams import Purpose, stream

pytestmark = brief

SESSION = """
    import json, sys
    sys.modules["keras"] = sys.modules["tf_keras"] = sys.modules["tfdpg"] = None  # importing them fails
    import numpy as np
    import tensorflow as tf

    inputs, *directories = sys.argv[1:]
    inputs, found = dict(np.load(inputs)), []
    for directory in directories:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            model = tf.compat.v1.saved_model.load(session, ["serve"], directory)
            found.append(out := {})
            for name, signature in model.signature_def.items():
                if name.startswith("__"):
                    continue
                feed = {tensor.name: inputs[key] for key, tensor in signature.inputs.items()}
                for key, tensor in signature.outputs.items():
                    out[f"{name}/{key}"] = session.run(tensor.name, feed).tolist()
    assert not any(name.startswith(("keras.", "tfdpg.")) for name in sys.modules)
    print(json.dumps(found))
"""

TOOL = """
    import json, sys
    from tensorflow.python.tools import saved_model_cli

    for sys.argv in json.loads(sys.argv[1]):
        try:
            saved_model_cli.main()
        except SystemExit as end:
            assert not end.code
"""


@pytest.fixture(scope="module")
def td3():
    """A trained agent, for tests that do not change it."""
    env = gym.make("Pendulum-v1", g=9.0)
    agent = AGENTS["TD3"](env, **EAGER)
    agent.fit(env, epochs=1, steps_per_epoch=40, verbose=0)
    return agent


@pytest.fixture(scope="module")
def exported(td3, tmp_path_factory):
    """Its export, of version 1, for tests that only read it.

    It is made where no distribution is named "tensorflow", which may be installed as "tensorflow-cpu".
    """

    def version_of(name):
        if name != "tfdpg":
            raise importlib.metadata.PackageNotFoundError(name)
        return "0.1.0"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.metadata, "version", version_of)
        return td3.export(tmp_path_factory.mktemp("exported") / "pendulum")


def moved(agent):
    """Return the agent with weights that are not the initial ones."""
    rng = np.random.default_rng(0)
    agent.set_weights([weight + rng.normal(0, 0.1, weight.shape) for weight in agent.get_weights()])
    return agent


def batch(spec, count):
    spec.observation_space.seed(2)
    rows = [spec.pack(spec.observation_space.sample()) for _ in range(count)]
    return tuple(np.concatenate(parts) for parts in zip(*rows, strict=True))


@pytest.mark.slow
def test_a_fresh_process_without_tfdpg_computes_what_the_agents_do(td3, exported, tmp_path):
    env = gym.make("Pendulum-v1")
    agents = [moved(make(env)) for name, make in AGENTS.items() if name != "TD3"]
    directories = [agent.export(tmp_path / type(agent).__name__) for agent in agents]
    observations = np.stack([env.reset(seed=seed)[0] for seed in range(5)])
    actions = np.linspace(-2, 2, 5, dtype=np.float32)[:, None]
    np.savez(tmp_path / "inputs.npz", x=observations, a=actions, levels=np.array([[0.1, 0.5]], np.float32))
    command = [sys.executable, "-c", textwrap.dedent(SESSION), tmp_path / "inputs.npz", exported, *directories]
    shown = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    for agent, found in zip([td3, *agents], json.loads(shown), strict=True):
        assert_computes(agent, found, observations, actions)


def assert_computes(agent, found, observations, actions):
    """Check that another process computed the same as the agent."""
    further = set(agent.signatures) - {"pi", "q1", "q2"}
    named = {name for name in found if name.split("/")[0] not in further}
    assert named == {"pi/pi", "serving_default/pi", "q1/q1", "q2/q2"}
    for name in ("pi/pi", "serving_default/pi"):
        np.testing.assert_allclose(found[name], agent.predict(observations), rtol=1e-4, atol=1e-5)
    for name in ("q1", "q2"):
        critic = agent.exported_critics.get(name, agent.exported_critics["q1"])
        expected = networks.head_of(critic).mean(critic([observations, actions]))
        if "v" in agent.networks:  # dueling: the critic's advantage, less its mean under stored noise, on top of V
            samples = agent.options.dueling_samples
            noises = np.random.default_rng(stream(Purpose.DUELING, agent.seed, samples)).standard_normal((samples, 1))
            drawn = [agent.predict(observations) + 0.3 * 2 * np.float32(noise) for noise in noises]
            expected -= np.mean([critic([observations, action]) for action in drawn], axis=0)
            expected += agent.networks["v"](observations)
        assert np.shape(found[f"{name}/{name}"]) == (5,)
        np.testing.assert_allclose(found[f"{name}/{name}"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_saved_model_cli_runs_every_signature(td3, exported, tmp_path):
    x = np.ones((2, 3), np.float32)
    a = np.ones((2, 1), np.float32)
    outputs = {"pi": "pi", "serving_default": "pi", "q1": "q1", "q2": "q2"}
    commands = []
    for signature, output in outputs.items():
        expressions = f"x={x.tolist()}" + (f";a={a.tolist()}" if output != "pi" else "")
        command = ["saved_model_cli", "run", "--dir", exported, "--tag_set", "serve", "--signature_def", signature]
        command += ["--input_exprs", expressions, "--outdir", tmp_path / signature]
        commands.append(list(map(str, command)))
    command = [sys.executable, "-c", textwrap.dedent(TOOL), json.dumps(commands)]
    subprocess.run(command, capture_output=True, check=True)
    for signature, output in outputs.items():
        expected = td3.predict(x) if output == "pi" else td3.networks[output]([x, a]).numpy()
        np.testing.assert_allclose(np.load(tmp_path / signature / f"{output}.npy"), expected, rtol=1e-4, atol=1e-5)


QUICK = {"types", "dict"}


@pytest.mark.parametrize(
    "space",
    [
        pytest.param(space, id=name, marks=[] if name in QUICK else [pytest.mark.slow])
        for name, space in OBSERVATIONS.items()
    ],
)
def test_every_observation_space_is_served_raw(space, tmp_path):
    spec = tfdpg.Spec(space, ACTION)
    agent = tfdpg.DDPG(spec, **SMALL)
    agent.export(tmp_path / "model", scores={"return": 1.5})
    policy = tfdpg.load(tmp_path / "model")
    assert policy.spec.observation_space == space and policy.spec.action_space == ACTION
    space.seed(3)
    observation = space.sample()
    action = policy(observation)
    assert action.shape == (2,)
    np.testing.assert_allclose(action, agent(observation), rtol=1e-4, atol=1e-5)
    packed = batch(spec, 6)
    arrays = spec.unpack(packed)
    observations = arrays if spec.is_dict else arrays["x"]
    actions = policy(observations)
    np.testing.assert_allclose(actions, agent.predict(observations), rtol=1e-4, atol=1e-5)
    tensors = unpack_observation(spec, packed)
    for name in ("q1", "q2"):
        values = getattr(policy, name)(observations, actions)
        np.testing.assert_allclose(values, agent.networks["q1"]([tensors, tf.constant(actions)]), rtol=1e-4, atol=1e-5)
    assert np.shape(policy.q1(observation, action)) == ()
    assert policy.metadata["scores"] == {"return": 1.5}


def test_versions_count_up_and_the_newest_is_loaded(on_pendulum, tmp_path):
    agent = tfdpg.DDPG(gym.make("Pendulum-v1"), **SMALL)
    observation = np.array([-1.0, 1.0, 3.0])
    (tmp_path / "model/7").mkdir(parents=True)
    assert export.copy(on_pendulum, tmp_path / "model").name == "8"
    agent.set_weights([weight * 0 for weight in agent.get_weights()])
    assert agent.export(tmp_path / "model").name == "9"
    assert tfdpg.load(tmp_path / "model").directory.name == "9"
    np.testing.assert_array_equal(tfdpg.load(tmp_path / "model")(observation), [0.0])
    assert tfdpg.load(tmp_path / "model/8")(observation) != 0
    assert [path.name for path in (tmp_path / "model").iterdir() if path.name.startswith(".")] == []


def test_a_path_may_hold_characters_of_patterns(tmp_path, monkeypatch):
    name = "[a]*?\\*b"
    monkeypatch.chdir(tmp_path)
    agent = tfdpg.DDPG("Pendulum-v1", **SMALL)
    observation = np.array([-1.0, 1.0, 3.0], np.float32)
    version = agent.export(f"{name}/model")
    np.testing.assert_allclose(tfdpg.load(version)(observation), agent(observation), rtol=1e-4)
    with verification.in_session(version) as run:
        np.testing.assert_allclose(run("pi", {"x": observation[None]})["pi"][0], agent(observation), rtol=1e-4)
    assert (export.convert(version, f"{name}/c", "c") / "policy.h").exists()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_metadata_names_everything(exported):
    metadata = json.loads((exported / "tfdpg.json").read_text())
    assert metadata["agent"] == "TD3" and metadata["critics"] == 2
    assert metadata["environment"] == {"id": "Pendulum-v1", "kwargs": {"g": 9.0}}
    assert metadata["env_steps"] == 40 and metadata["updates"] == 6
    assert metadata["versions"]["tensorflow"] == tf.__version__ and metadata["versions"]["keras"] == keras.__version__


def test_an_export_that_does_not_verify_leaves_nothing_behind(tmp_path, monkeypatch):
    """A network with random outputs cannot be exported."""

    @keras.saving.register_keras_serializable("tfdpg-test")
    class Random(keras.layers.Layer):
        def call(self, x):
            return x + tf.random.normal(tf.shape(x))

    x = keras.Input((3,))
    pi = keras.Model(x, Random()(keras.layers.Dense(1)(x)))
    agent = tfdpg.DDPG(gym.make("Pendulum-v1"), pi=pi, **SMALL)
    with pytest.raises(export.ExportError, match="'pi' differs from the agent by up to"):
        agent.export(tmp_path / "a/b/model")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "model").mkdir()
    with pytest.raises(export.ExportError):
        agent.export(tmp_path / "model")
    assert list((tmp_path / "model").iterdir()) == []


def test_verification_sees_the_export_trap(tmp_path):
    """A tracked Keras model loads in Python and fails when it is served (keras#20095)."""
    pi = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    module = tf.Module()
    module.net = pi
    signature = tf.function(lambda x: {"pi": pi(x)}, input_signature=[tf.TensorSpec([None, 3], name="x")])
    tf.saved_model.save(module, str(tmp_path), signatures={"pi": signature, "serving_default": signature})
    observations = {"x": np.ones((7, 3), np.float32)}
    assert tf.saved_model.load(str(tmp_path)).signatures["pi"](x=tf.ones((1, 3)))["pi"].shape == (1, 1)
    with pytest.raises(Exception, match="(?i)find variable|not load|uninitialized"):
        verify(tmp_path, {"pi": lambda inputs: {"pi": pi(inputs["x"]).numpy()}}, {"pi": [observations]})


def test_verification_compares_every_signature(td3, exported):
    observation = np.ones((7, 3), np.float32)
    action = np.ones((7, 1), np.float32)
    cases: dict = {"pi": [{"x": observation}]} | {name: [{"x": observation, "a": action}] for name in ("q1", "q2")}

    def reference(name, offset=0.0):
        network = td3.networks[name]
        if name == "pi":
            return lambda inputs: {name: network(inputs["x"]).numpy() + offset}
        return lambda inputs: {name: network([inputs["x"], inputs["a"]]).numpy() + offset}

    right = {name: reference(name) for name in ("pi", "q1", "q2")}
    verify(exported, right, cases)
    for name in right:
        with pytest.raises(export.ExportError, match=repr(name)):
            verify(exported, {**right, name: reference(name, 0.01)}, cases)


def test_warm_up_requests_fit_the_signatures(exported):
    records = tf.data.TFRecordDataset(str(exported / "assets.extra/tf_serving_warmup_requests"))
    logs = [prediction_log_pb2.PredictionLog.FromString(record.numpy()) for record in records]
    signatures = tf.saved_model.load(str(exported)).signatures
    requested = []
    for log in logs:
        request = log.predict_log.request
        assert request.model_spec.name == "pendulum"
        inputs = {key: tf.constant(tf.make_ndarray(value)) for key, value in request.inputs.items()}
        signatures[request.model_spec.signature_name](**inputs)
        requested.append((request.model_spec.signature_name, len(inputs["x"])))
    names = "serving_default", "pi", "q1", "q2", "pi_and_q"
    assert sorted(requested) == sorted((name, n) for name in names for n in (1, 7))


def test_every_file_of_an_export_is_its_own(exported, on_pendulum, tmp_path):
    first = exported
    other = on_pendulum
    names = sorted(path.relative_to(first).as_posix() for path in first.rglob("*") if path.is_file())
    assert "saved_model.pb" in names and "assets.extra/tf_serving_warmup_requests" in names
    assert set(tfdpg.load(first).metadata["files"]) == set(names) - {"tfdpg.json"}

    def refused(match, copy):
        with pytest.raises(export.ExportError, match=match):
            tfdpg.load(copy)
        with pytest.raises(export.ExportError, match=match):
            export.copy(copy, tmp_path / "copied")
        shutil.rmtree(copy)

    for name in names:
        mixed = shutil.copytree(first, tmp_path / "mixed")
        if (other / name).exists():  # the other agent has no training data, and so no statistics
            shutil.copy(other / name, mixed / name)
        else:
            (mixed / name).write_text("{}")
        if (first / name).read_bytes() != (mixed / name).read_bytes():
            refused(f"{mixed}/.* is damaged, or belongs", mixed)
        else:
            shutil.rmtree(mixed)
        (shutil.copytree(first, tmp_path / "short") / name).unlink()
        if name in ("tfdpg.json", "saved_model.pb"):
            with pytest.raises(FileNotFoundError, match="not exported by tfdpg|No exported model"):
                tfdpg.load(tmp_path / "short")
            shutil.rmtree(tmp_path / "short")
        else:
            refused(f"{tmp_path}/short/{name} is missing", tmp_path / "short")
    edited = shutil.copytree(first, tmp_path / "edited")
    text = (edited / "tfdpg.json").read_text()
    (edited / "tfdpg.json").write_text(text.replace('"high": 2.0', '"high": 20.0'))
    assert text != (edited / "tfdpg.json").read_text()
    refused("tfdpg.json is damaged, or was changed", edited)
    (shutil.copytree(first, tmp_path / "more") / "saved_model.cpb").write_bytes(b"another graph")
    refused("saved_model.cpb does not belong to it", tmp_path / "more")
    (tmp_path / "secret").write_text("secret")
    (shutil.copytree(first, tmp_path / "linked") / "assets.extra/x").symlink_to(tmp_path / "secret")
    copied = export.copy(tmp_path / "linked", tmp_path / "served")
    assert sorted(path.relative_to(copied).as_posix() for path in copied.rglob("*") if path.is_file()) == names
    old = shutil.copytree(first, tmp_path / "old")
    (old / "tfdpg.json").write_text(json.dumps(json.loads(text) | {"format": 1}))
    refused("has format 1; .*reads format 2 only", old)
    assert not (tmp_path / "copied").exists()


def test_directories_that_cannot_be_used(tmp_path):
    agent = tfdpg.DDPG(gym.make("Pendulum-v1"), **SMALL)
    file = tmp_path / "file"
    file.write_text("precious")
    with pytest.raises(NotADirectoryError, match="Received a file"):
        agent.export(file)
    assert file.read_text() == "precious"
    with pytest.raises(FileNotFoundError, match="No exported model"):
        tfdpg.load(tmp_path)
    tf.saved_model.save(tf.Module(), str(tmp_path / "foreign/1"))
    with pytest.raises(FileNotFoundError, match="not exported by tfdpg"):
        tfdpg.load(tmp_path / "foreign")


def test_a_wide_box_verifies_on_samples_of_the_space(tmp_path):
    spec = tfdpg.Spec(spaces.Box(-np.inf, np.inf, (4,), np.float64), ACTION)
    tfdpg.DDPG(spec, **SMALL).export(tmp_path / "model")


def test_evaluate_is_the_same_for_agent_and_export(td3, exported):
    policy = tfdpg.load(exported)
    expected = td3.evaluate(gym.make("Pendulum-v1"), episodes=2)
    found = tfdpg.evaluate(policy, gym.make("Pendulum-v1"), episodes=2)
    assert found == pytest.approx(expected, rel=1e-3)
    assert tfdpg.evaluate(td3, gym.make("Pendulum-v1"), episodes=2) == pytest.approx(expected, rel=1e-3)


def test_describe_shows_signatures(exported):
    text = export.describe(exported.parent)
    assert "pi(x: float32[batch, 3]) -> pi: float32[batch, 1]" in text
    assert "q2(x: float32[batch, 3], a: float32[batch, 1]) -> q2: float32[batch]" in text
    assert '"id": "Pendulum-v1"' in text
