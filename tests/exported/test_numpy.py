"""`policy.npz`, from which a policy is loaded without TensorFlow."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import tfdpg
from tests.agents.roster import SMALL
from tests.exported.test_shipped import FOLDER
from tfdpg import networks
from tfdpg.acting import load_numpy_policy, save_numpy_policy
from tfdpg.exported import ExportError
from tfdpg.networks import numpy_policy
from tfdpg.networks.mlp import gaussian_output
from tfdpg.spec import Spec

OPTIONS = {
    "plain": {},
    "layer": {"norm": "layer", "normalize_observations": True},
    "batch": {"norm": "batch", "activation": "elu"},
    "blocks": {"blocks": 1, "hidden_units": (8,)},
    "lstm": {"recurrent": "lstm", "remembers": ("observation", "action", "reward"), "recurrent_units": (4, 3)},
    "gru": {"recurrent": "gru", "recurrent_units": 4},
}
STEPS = 4


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """An export of each kind of policy, created on demand."""
    made = {}

    def export(kind):
        if kind not in made:
            made[kind] = tfdpg.TD3("Pendulum-v1", **SMALL | {"seed": 3} | OPTIONS[kind]).export(
                tmp_path_factory.mktemp(kind)
            )
        return made[kind]

    return export


@pytest.mark.parametrize(
    "kind", [kind if kind == "layer" else pytest.param(kind, marks=pytest.mark.slow) for kind in OPTIONS]
)
def test_numpy_acts_as_the_signature_does(exported, kind):
    policy = tfdpg.load(exported(kind))
    rng = np.random.default_rng(0)
    by_numpy = policy.numpy()
    for _ in range(STEPS):
        observations = rng.normal(size=(3, 3)).astype(np.float32)
        np.testing.assert_allclose(by_numpy(observations), policy(observations), rtol=1e-5, atol=1e-6)
        rewards = rng.normal(size=3)
        policy.received(rewards)
        by_numpy.received(rewards)
    policy.reset([1])
    by_numpy.reset([1])
    np.testing.assert_allclose(by_numpy(observations), policy(observations), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: tfdpg.ACER("CartPole-v1", hidden_units=(8,), seed=0),
        lambda: tfdpg.ACER("Pendulum-v1", hidden_units=(8,), seed=0, shared_torso=True),
        lambda: tfdpg.ACER("Pendulum-v1", hidden_units=(8,), seed=0, learn_sigma=True),
        lambda: tfdpg.D4PG("Pendulum-v1", seed=0, torso="control", v_min=-9, v_max=9),
    ],
)
def test_other_agents_act_by_numpy(tmp_path, make):
    policy = tfdpg.load(make().export(tmp_path))
    observations = np.random.default_rng(0).normal(size=(5, policy.spec.leaves[0].shape[0])).astype(np.float32)
    found = policy.numpy()(observations)
    wanted = policy(observations)
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_numpy_needs_no_tensorflow(exported):
    code = (
        "import sys; sys.modules['tensorflow'] = sys.modules['keras'] = None;"  # importing them fails
        "import tfdpg; policy = tfdpg.load(sys.argv[1]).numpy(); print(float(policy([1.0, 0.0, 0.5])[0]))"
    )
    version = str(exported("layer"))
    found = subprocess.run([sys.executable, "-c", code, version], capture_output=True, text=True, check=True)
    assert float(found.stdout) == pytest.approx(tfdpg.load(version)([1.0, 0.0, 0.5])[0], abs=1e-6)


def test_an_actor_is_read_as_it_was_written(tmp_path):
    spec = Spec(spaces.Box(-1, 1, (3,)), spaces.Box(-2, 1, (2,)))
    layers = {"hidden_units": (4,), "activation": "silu", "norm": "layer"}
    pi = networks.mlp_actor(spec, **layers, normalizer=networks.Normalizer(), output=gaussian_output(spec, 0.3), seed=1)
    actor = numpy_policy(spec, pi, None)
    actor.load(np.random.default_rng(0).normal(size=3 + 3 + 16 + 8 + 20).astype(np.float32) ** 2)
    save_numpy_policy(tmp_path / "policy.npz", actor)
    packed = spec.pack(np.random.default_rng(1).normal(size=(5, 3)))
    four = Spec(spec.observation_space, spaces.Box(-2, 1, (4,)))  # location and scale of two actions
    np.testing.assert_array_equal(load_numpy_policy(tmp_path / "policy.npz", four, None)(packed), actor(packed))
    with pytest.raises(ValueError, match="must have 2 outputs. Received: 4"):
        load_numpy_policy(tmp_path / "policy.npz", spec, None)
    with pytest.raises(ValueError, match="do not fit the observations, or each other"):
        load_numpy_policy(tmp_path / "policy.npz", Spec(spaces.Box(-1, 1, (5,)), four.action_space), None)
    for weights, came in ((actor.weights.astype("U32"), "<U32"), (actor.weights[None], "float32")):
        np.savez(tmp_path / "policy.npz", **dict(np.load(tmp_path / "policy.npz")) | {"weights": weights})
        with pytest.raises(ValueError, match=rf"`weights` .*float32 \[n\]. .*: {came}"):
            load_numpy_policy(tmp_path / "policy.npz", spec, None)


@pytest.mark.parametrize("name", ["pi", pytest.param("q2", marks=pytest.mark.slow)])
def test_a_changed_weight_is_refused(monkeypatch, tmp_path, name):
    def save_changed(path, actor, critics):
        (actor if name == "pi" else critics[name]).weights[7] += 0.1
        save_numpy_policy(path, actor, critics)

    agent = tfdpg.TD3("Pendulum-v1", **SMALL, seed=3)
    monkeypatch.setattr(sys.modules["tfdpg.export.write"], "save_numpy_policy", save_changed)
    with pytest.raises(ExportError, match=rf"'{name} of policy.npz' differs from"):
        agent.export(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_custom_policy_has_no_numpy_form(tmp_path):
    agent = tfdpg.DDPG(gym.make("Pendulum-v1"), **SMALL | {"activation": "gelu"})
    policy = tfdpg.load(agent.export(tmp_path))
    with pytest.raises(ValueError, match=r"has no policy\.npz, because its policy"):
        policy.numpy()


def test_a_damaged_file_is_named(exported, tmp_path):
    version = tmp_path / "1"
    shutil.copytree(exported("layer"), version)
    content = bytearray((version / "policy.npz").read_bytes())
    content[-40] ^= 1
    Path(version / "policy.npz").write_bytes(content)
    with pytest.raises(ExportError, match=r"policy\.npz"):
        tfdpg.load(version)


@pytest.mark.parametrize("name", [path.name for path in sorted(FOLDER.iterdir())])
def test_numpy_policies_of_shipped_models_act_as_their_signatures_do(name):
    policy = tfdpg.load(FOLDER / name)
    by_numpy = policy.numpy()
    space = policy.spec.observation_space
    space.seed(0)
    for _ in range(3):
        observations = np.stack([np.clip(space.sample(), -2, 2) for _ in range(4)])
        np.testing.assert_allclose(by_numpy(observations), policy(observations), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("description, found", [({"format": 3}, 3), ({"layers": []}, 1)])
def test_a_file_of_another_format_is_refused(tmp_path, description, found):
    weights = np.zeros(0, np.float32)
    np.savez(tmp_path / "policy.npz", weights=weights, description=np.array(json.dumps(description)))
    with pytest.raises(ValueError, match=f"has format {found}; this version of tfdpg reads format 2 only"):
        load_numpy_policy(tmp_path / "policy.npz", Spec(spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (1,))), None)
