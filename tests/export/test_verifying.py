"""`tfdpg verify`: reference inputs and outputs in exports, run by every runtime."""

import copy
import json
import os
import re
import shutil
import subprocess
import sys

import gymnasium as gym
import keras
import numpy as np
import pytest
from gymnasium import spaces

import tfdpg
from tests.agents.roster import ACER, SMALL, TD7, brief, fit_briefly, parametrize_agents
from tests.export.test_formats import TwoStepObservation
from tests.serve.conftest import serving
from tfdpg import cli, files
from tfdpg.export.references import REFERENCES, read_references
from tfdpg.exported import Policy
from tfdpg.formats import c
from tfdpg.replay import ReplayBuffer

pytestmark = brief
RECURRENT = SMALL | {"recurrent": "lstm", "recurrent_units": 4, "remembers": ("observation", "action", "reward")}


def verified(capsys, *words):
    """Run the command, and return the exit status and its JSON object."""
    capsys.readouterr()
    status = cli.main(["verify", *map(str, words), "--json"])
    return status, json.loads(capsys.readouterr().out)


def of(found, runtime):
    """Return whether each signature passed in the runtimes whose name begins so."""
    return {each["signature"]: each["passed"] for each in found["checks"] if each["runtime"].startswith(runtime)}


def reseal(directory):
    """Write the checksums of an export again, as someone who forges it would."""
    facts = json.loads((directory / "tfdpg.json").read_text())
    del facts["files"], facts["sha256"]
    (directory / "tfdpg.json").unlink()
    files.write_manifest(directory, "tfdpg.json", facts)


def rewrite(directory, **changes):
    """Replace arrays of the references."""
    with np.load(directory / REFERENCES) as file:
        arrays = dict(file)
    np.savez(directory / REFERENCES, **{name: x for name, x in (arrays | changes).items() if x is not None})
    reseal(directory)


@pytest.fixture(scope="module")
def trained():
    """A trained agent with a normaliser and Dict observations."""
    agent = tfdpg.TD3(TwoStepObservation(), **SMALL | {"update_after": 1000}, normalize_observations=True)
    fit_briefly(agent, TwoStepObservation(), epochs=1, steps_per_epoch=100)
    return agent


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    return trained.export(tmp_path_factory.mktemp("exported") / "model")


@pytest.fixture(scope="module")
def converted(exported, tmp_path_factory):
    """The export in each format, made when it is first needed."""
    directory = tmp_path_factory.mktemp("converted")

    def convert(format, **options):
        target = directory / "-".join([format, *map(str, options.values())])
        return target if target.exists() else tfdpg.export.convert(exported, target, format, **options)

    return convert


@pytest.fixture
def copied(exported, tmp_path):
    return shutil.copytree(exported, tmp_path / "copied/1")


@parametrize_agents("TD3")
def test_every_agent_carries_references_that_its_export_fulfils(make, tmp_path, capsys):
    agent = make(gym.make("Pendulum-v1"))
    version = agent.export(tmp_path / "model")
    status, found = verified(capsys, tmp_path / "model")
    assert status == 0 and found["verdict"] == "passed" and found["observations"] == 50 and not found["unchecked"]
    assert of(found, "SavedModel") == dict.fromkeys(agent.signatures, True)
    assert of(found, "NumPy")["pi"] and all(each["difference"] < each["tolerance"] for each in found["checks"])
    with np.load(version / REFERENCES, allow_pickle=False) as file:
        observations, actions, q1 = (file[name] for name in ("observations/x", "outputs/pi/pi", "outputs/q1/q1"))
        np.testing.assert_array_equal(file["inputs/q1/a"], actions)
    np.testing.assert_allclose(actions, agent.predict(observations), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(q1, tfdpg.load(version).q1(observations, actions), rtol=1e-5, atol=1e-5)
    assert "references.npz" in json.loads((version / "tfdpg.json").read_text())["files"]


def test_observations_are_those_of_the_replay_buffer(trained, exported):
    references = read_references(Policy(exported))
    slots = np.linspace(0, trained.replay.size - 1, 50).astype(int)
    expected = trained.spec.unpack(trained.replay.observation(slots))
    for name in ("former", "latter"):
        np.testing.assert_array_equal(references.calls["pi"].inputs[name], expected[name])
        np.testing.assert_array_equal(references.calls["q1"].inputs[name], expected[name])
    assert len(np.unique(expected["former"], axis=0)) > 40


def test_the_same_agent_writes_the_same_references(trained, exported, tmp_path):
    again = trained.export(tmp_path / "model")
    assert (again / REFERENCES).read_bytes() == (exported / REFERENCES).read_bytes()


def test_large_observations_are_fewer():
    def count(shape):
        spec = tfdpg.Spec(spaces.Box(0, 255, shape, np.uint8), spaces.Box(-1, 1, (1,)))
        return len(tfdpg.export.example_observations(spec, ReplayBuffer(spec, 10), 0)["x"])

    assert count((84, 84, 4)) == 50 and count((210, 160, 3)) == 20 and count((400, 400, 3)) == 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["TD3", "D4PG"])
def test_a_recurrent_policy_steps_through_episodes(kind, tmp_path, capsys):
    agent = getattr(tfdpg, kind)("Pendulum-v1", **RECURRENT)
    version = agent.export(tmp_path / "model")
    references = read_references(Policy(version))
    pi = references.calls["pi"]
    assert pi.outputs["pi"].shape == (10, 5, 1) and references.rewards.shape == (10, 5)
    policy = agent.policy()
    for t in range(5):
        action = policy(pi.inputs["x"][:, t])
        np.testing.assert_allclose(pi.outputs["pi"][:, t], action, rtol=1e-4, atol=1e-5)
        policy.received(references.rewards[:, t])
    status, found = verified(capsys, version)
    assert status == 0 and of(found, "SavedModel") == dict.fromkeys(agent.signatures, True)
    assert of(found, "NumPy") == {"pi": True}
    rewrite(version, **{"outputs/pi/h": pi.outputs["h"] + 0.01})
    status, found = verified(capsys, version)
    assert status == 1 and of(found, "NumPy") == {"pi": False}
    assert of(found, "SavedModel") == dict.fromkeys(agent.signatures, True) | {"pi": False}


def test_discrete_actions_are_equal_or_not(tmp_path, capsys):
    agent = tfdpg.ACER(gym.make("CartPole-v1"), **ACER)
    version = agent.export(tmp_path / "model")
    status, found = verified(capsys, version)
    assert status == 0 and of(found, "SavedModel") == dict.fromkeys(agent.signatures, True)
    actions = read_references(Policy(version)).calls["pi"].outputs["pi"]
    assert actions.dtype == np.int64
    other = actions.copy()
    other[7] = 1 - other[7]
    rewrite(version, **{"outputs/pi/pi": other})
    status, found = verified(capsys, version)
    assert status == 1 and of(found, "NumPy") == {"pi": False}
    assert [name for name, passed in of(found, "SavedModel").items() if not passed] == ["pi"]


def test_a_changed_weight_fails_the_signature(trained, exported, tmp_path, capsys):
    """The weight is that of the last layer of q1, in the SavedModel alone."""
    changed = copy.deepcopy(trained)
    kernel = changed.networks["q1"].trainable_variables[-2]
    kernel.assign(kernel + 0.1)
    copied = changed.export(tmp_path / "model")
    for name in (REFERENCES, "policy.npz"):
        shutil.copy(exported / name, copied / name)
    assert cli.main(["verify", str(copied)]) == 2
    assert f"{copied / 'policy.npz'} is damaged, or belongs to another than" in capsys.readouterr().err
    reseal(copied)
    assert cli.main(["verify", str(copied)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "failed: SavedModel (q1, pi_and_q)"
    assert re.fullmatch(r"SavedModel +q1 +difference [\d.]+, tolerance [\d.e-]+ +FAILED", lines[1])
    assert re.fullmatch(r"NumPy +q1 +difference \S+, tolerance \S+ +passed", lines[5])


def test_a_small_number_may_differ_less_than_a_large_one(copied, capsys):
    with np.load(copied / REFERENCES) as file:
        wanted = file["outputs/q1/q1"]
        critics = [np.abs(file[name]).max() for name in file.files if name.startswith("outputs/q")]
    tolerance = 1e-5 * max(1, *critics) + 1e-4 * np.abs(wanted)
    smallest, largest = np.argmin(np.abs(wanted)), np.argmax(np.abs(wanted))
    assert tolerance[largest] > 6 * tolerance[smallest]
    wanted[largest] += 0.5 * tolerance[largest]
    rewrite(copied, **{"outputs/q1/q1": wanted})
    assert of(verified(capsys, copied)[1], "SavedModel")["q1"]
    wanted[smallest] += 2 * tolerance[smallest]  # less than the difference of the largest
    rewrite(copied, **{"outputs/q1/q1": wanted})
    assert not of(verified(capsys, copied)[1], "SavedModel")["q1"]


def test_exports_without_references_are_not_checked(copied, capsys):
    (copied / REFERENCES).unlink()
    reseal(copied)
    for model in (copied, "exported_models/td3-halfcheetah"):
        assert cli.main(["verify", str(model)]) == 2
        shown = capsys.readouterr()
        assert f"{REFERENCES} is missing: the export has no reference outputs, because an older" in shown.err
        assert "Export the policy again." in shown.err and shown.out == ""


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("harm",)


DAMAGE = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:1000]),
    "no archive": lambda path: path.write_bytes(b"x" * 100),
    "empty": lambda path: path.write_bytes(b""),
    "pickled": lambda path: np.savez(path, harm=np.array([Harmful()], object)),
    "without outputs": lambda path: rewrite(path.parent, **{"outputs/q2/q2": None}),
    "without inputs": lambda path: rewrite(path.parent, **{"inputs/q1/a": None}),
    "without observations": lambda path: rewrite(path.parent, **{"observations/latter": None}),
    "text": lambda path: rewrite(path.parent, **{"outputs/q1/q1": np.array(["x"])}),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_references_are_refused(copied, damage, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    damage(copied / REFERENCES)
    reseal(copied)
    assert cli.main(["verify", str(copied)]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"tfdpg: {copied / REFERENCES} is damaged: ") and shown.out == ""
    assert not (tmp_path / "harm").exists()


def test_references_that_are_changed_are_refused(copied, capsys):
    path = copied / REFERENCES
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert cli.main(["verify", str(copied)]) == 2
    assert f"{path} is damaged, or belongs to another" in capsys.readouterr().err


@pytest.mark.parametrize("format", ["onnx", *(pytest.param(name, marks=pytest.mark.slow) for name in ("c", "litert"))])
def test_every_format_fulfils_the_references(exported, converted, format, capsys):
    directory = converted(format)
    for words in ([exported, directory], [directory]):  # an export in another format has the references, too
        status, found = verified(capsys, *words, "--trusted")
        assert status == 0 and of(found, format)["pi"] and of(found, format)["q1"] and of(found, format)["q2"]
    (file,) = [path for path in directory.iterdir() if path.name in ("pi.onnx", "policy.h", "model.tflite")]
    status, found = verified(capsys, exported, file, "--trusted")
    assert status == 0 and of(found, format)["pi"] and ("q1" in of(found, format)) == (format != "onnx")


@pytest.mark.slow
@pytest.mark.parametrize("format", ["c", "litert", "onnx"])
def test_a_file_of_another_policy_differs(converted, format, tmp_path, capsys):
    env = TwoStepObservation()
    other = tfdpg.TD3(env, **SMALL, seed=1).export(tmp_path / "other")
    status, found = verified(capsys, other, converted(format), "--trusted")
    assert status == 1 and found["verdict"] == "failed"
    assert not of(found, f"{format} {converted(format)}")["pi"] and all(of(found, "SavedModel").values())
    unlike = tfdpg.TD3("Pendulum-v1", **SMALL).export(tmp_path / "unlike")
    status, found = verified(capsys, unlike, converted(format), "--trusted")
    assert status == 1 and not any(of(found, f"{format} {converted(format)}").values())
    assert all(each["problem"] for each in found["checks"] if each["runtime"].startswith(format))


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", "litert", "c"])
@pytest.mark.parametrize("kind", ["recurrent", "discrete"])
def test_formats_of_other_policies_fulfil_the_references(kind, format, tmp_path, capsys):
    agent = tfdpg.ACER("CartPole-v1", **ACER) if kind == "discrete" else tfdpg.TD3("Pendulum-v1", **RECURRENT)
    version = agent.export(tmp_path / "model")
    target = agent.export(tmp_path / "target", format=format)
    status, found = verified(capsys, version, target, "--trusted")
    assert status == 0 and of(found, format)["pi"]


def test_c_code_is_run_only_if_trusted(exported, converted, capsys, monkeypatch):
    monkeypatch.setattr(c, "run", None)
    assert cli.main(["verify", str(exported), str(converted("c"))]) == 2
    shown = capsys.readouterr()
    assert "could not be checked: it is C code, which is compiled and run only with --trusted" in shown.err
    assert shown.out.splitlines()[-1] == f"not checked: c {converted('c')}"


@pytest.mark.slow
def test_litert_files_of_fixed_size_and_in_8_bits(exported, converted, tmp_path, capsys):
    status, found = verified(capsys, exported, converted("litert", batch=3))
    assert status == 0 and of(found, "litert") == of(found, "SavedModel")
    quantized = converted("litert", quantize="int8", max_error=1.0)
    status, found = verified(capsys, exported, quantized)
    (check,) = [each for each in found["checks"] if each["runtime"].startswith("litert")]
    assert status == 0 and check["tolerance"] == 1.0 and check["signature"] == "pi"
    facts = json.loads((quantized / "tfdpg.json").read_text())
    facts["quantized"]["max_error"] = check["difference"] / 2
    del facts["files"], facts["sha256"]
    strict = shutil.copytree(quantized, tmp_path / "strict")
    (strict / "tfdpg.json").unlink()
    files.write_manifest(strict, "tfdpg.json", facts)
    status, found = verified(capsys, exported, strict)
    assert status == 1 and of(found, "litert") == {"pi": False}


def test_half_precision_has_its_own_tolerance(tmp_path, capsys):
    x, a = keras.Input((3,)), keras.Input((1,))
    pi = keras.layers.Dense(1, "tanh", dtype="mixed_bfloat16")(keras.layers.Dense(8, dtype="mixed_bfloat16")(x))
    pi = keras.Model(x, keras.layers.Activation("linear", dtype="float32")(pi))
    q1 = keras.layers.Dense(8, "relu")(keras.layers.Concatenate()([x, a]))
    q1 = keras.Model([x, a], keras.layers.Dense(1)(q1))
    options = {name: value for name, value in SMALL.items() if name != "hidden_units"}
    version = tfdpg.DDPG("Pendulum-v1", pi=pi, q1=q1, **options).export(tmp_path / "model")
    outputs = read_references(Policy(version)).calls["pi"].outputs["pi"]
    for error, expected in ((0.01, 0), (0.2, 1)):
        rewrite(version, **{"outputs/pi/pi": outputs + np.float32(error)})
        assert verified(capsys, version)[0] == expected


def test_what_cannot_be_checked_has_status_2(exported, converted, tmp_path, monkeypatch, capsys):
    onnx = shutil.copytree(converted("onnx"), tmp_path / "onnx")
    (tmp_path / "alone.onnx").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    url = "http://127.0.0.1:9/v1/models/model"
    for words, message in (
        ([exported, onnx], "Verifying onnx needs onnxruntime: pip install 'tfdpg[onnx]'"),
        ([exported, tmp_path / "none"], "No exported model in"),
        (
            [exported, tmp_path / "alone.onnx"],
            "tfdpg.json is missing. Keep it beside alone.onnx",
        ),
        ([exported, "--server", url], "Connection refused"),
        ([exported, "--server", "grpc://127.0.0.1:9/model"], "UNAVAILABLE"),
        ([exported, "--server", "http://127.0.0.1/model"], "`server` must be http://HOST:PORT/v1/models/NAME or"),
        ([tmp_path], f"No exported model in {tmp_path}"),
        ([tmp_path / "none"], "there is no such directory"),
    ):
        assert cli.main(["verify", *map(str, words)]) == 2
        shown = capsys.readouterr()
        assert message in shown.err and "Traceback" not in shown.err
    (onnx / "q1.onnx").write_bytes(b"x")
    assert cli.main(["verify", str(exported), str(onnx)]) == 2
    assert "q1.onnx is damaged, or belongs to another" in capsys.readouterr().err


def test_served_models_are_verified(exported, capsys):
    model = exported.parent
    with serving(model) as client:
        rest, rpc = f"{client.url}", f"grpc://127.0.0.1:{client.ports.grpc}/{client.name}"
        status, found = verified(capsys, model, "--server", rest, rpc, f"{rest}/versions/1", f"{rpc}/versions/1")
        assert status == 0
        for url in (rest, rpc):
            own = {each["signature"] for each in found["checks"] if each["runtime"] == url}
            assert own == {"pi", "q1", "q2", "pi_and_q"} and of(found, f"{url}/versions/1")["version"]
        for missing in (f"{rest}/versions/2", f"{rpc}/versions/2", f"{rpc}-other"):
            status, found = verified(capsys, model, "--server", missing)
            assert status == 2 and "Servable not found" in found["unchecked"][missing]
        for unknown in (f"{rest}/labels/stable", f"{rpc}/labels/stable"):
            status, found = verified(capsys, model, "--server", unknown)
            assert status == 1 and not any(of(found, unknown).values())


@pytest.mark.slow
def test_a_recurrent_policy_is_verified_where_it_is_served(tmp_path, capsys):
    version = tfdpg.TD3("Pendulum-v1", **RECURRENT).export(tmp_path / "model")
    with serving(version.parent) as client:
        rpc = f"grpc://127.0.0.1:{client.ports.grpc}/{client.name}"
        status, found = verified(capsys, version, "--server", client.url, rpc)
    assert status == 0 and of(found, client.url) == of(found, rpc) == of(found, "SavedModel")


@pytest.mark.slow
def test_a_server_process_with_another_version_differs(tmp_path, capsys):
    for seed in (0, 1):
        tfdpg.TD7("Pendulum-v1", **SMALL | TD7, seed=seed).export(tmp_path / "model")
    tfdpg.export.write_labels(tmp_path / "model", {"stable": 1, "canary": 2})
    command = [sys.executable, "-m", "tfdpg", "serve", str(tmp_path / "model"), "--port", "0", "--grpc-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = next(line for line in process.stdout if "REST at" in line)
            rest, rpc = re.search(r"REST at (\S+), gRPC at (\S+)", line).groups()
            assert any("ready" in line for line in process.stdout)
            rpc = f"grpc://{rpc}/model"
            for url in (rest, rpc):
                status, found = verified(capsys, tmp_path / "model/2", "--server", url, f"{url}/labels/canary")
                assert status == 0 and of(found, f"{url}/labels/canary")["version"]
                status, found = verified(capsys, tmp_path / "model", "--server", f"{url}/labels/stable")
                failed = of(found, url)
                assert status == 1 and not failed["version"] and not failed["pi"] and not failed["q1"]
                assert "version 1 answers, and not 2" in [each["problem"] for each in found["checks"]]
                assert verified(capsys, tmp_path / "model/1", "--server", f"{url}/versions/1")[0] == 0
                assert verified(capsys, tmp_path / "model/1", "--server", url)[0] == 1
        finally:
            process.terminate()
