"""Torsos: the layer sizes of their sources, and acting in NumPy compared with Keras."""

import gymnasium as gym
import keras
import numpy as np
import pytest
from gymnasium import spaces

import tfdpg
from tests.acting.test_acting import in_numpy, packed_samples
from tests.agents.roster import EAGER, SMALL
from tests.test_spec import ACTION, OBSERVATIONS
from tfdpg import Spec, networks
from tfdpg.networks.actor import CompiledActor

DICT = spaces.Dict(
    [("z", spaces.Box(-1, 1, (3,))), ("kind", spaces.Discrete(4)), ("image", spaces.Box(0, 255, (2, 2), np.uint8))]
)
TORSOS = ("mlp", "control", "layer_norm", "two_branch")


def kernels(network):
    return [w.shape for w in network.get_weights() if w.ndim == 2]


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("torso", TORSOS)
def test_acting_equals_keras(torso, normalized):
    spec = Spec(DICT, ACTION)
    normalizer = networks.Normalizer(1e-8, 5.0, dtype="float32") if normalized else None
    pi = networks.mlp_actor(spec, torso=torso, hidden_units=(16, 8), normalizer=normalizer, seed=3)
    rng = np.random.default_rng(0)
    pi.set_weights([w + rng.uniform(0.01, 0.2, w.shape) for w in pi.get_weights()])
    packed = packed_samples(spec, 5)
    np.testing.assert_allclose(in_numpy(spec, pi)(packed), CompiledActor(spec, pi)(packed), rtol=1e-4, atol=1e-5)


def test_control_has_the_sizes_of_the_report():
    spec = Spec(OBSERVATIONS["box"], ACTION)
    obs = len(packed_samples(spec, 1)[0][0])
    assert kernels(networks.mlp_actor(spec, torso="control")) == [(obs, 300), (300, 200), (200, 2)]
    assert kernels(networks.mlp_critic(spec, torso="control")) == [(obs, 400), (402, 300), (300, 1)]


def test_layer_norm_has_the_sizes_of_acme():
    spec = Spec(OBSERVATIONS["box"], ACTION)
    obs = len(packed_samples(spec, 1)[0][0])
    pi = networks.mlp_actor(spec, torso="layer_norm")
    q = networks.mlp_critic(spec, torso="layer_norm")
    assert kernels(pi) == [(obs, 256), (256, 256), (256, 256), (256, 2)]
    assert kernels(q) == [(obs + 2, 512), (512, 512), (512, 256), (256, 1)]
    for network in (pi, q):
        kinds = [type(layer) for layer in network.layers]
        assert kinds.count(keras.layers.LayerNormalization) == 1
    assert np.abs(pi(packed_samples(spec, 8)[0]) - spec.center).max() < 0.05 * spec.action_scale.max()


def test_each_branch_receives_only_its_observation():
    spec = Spec(DICT, ACTION)
    q = networks.mlp_critic(spec, torso="two_branch", hidden_units=(8, 6))
    assert kernels(q) == [(3, 8), (4, 8), (4, 8), (26, 6), (6, 1)]


@pytest.mark.parametrize(
    "torso", [pytest.param(name, marks=[pytest.mark.slow] * (name != "layer_norm")) for name in TORSOS]
)
def test_agents_with_each_torso_learn_save_and_load(torso, tmp_path):
    env = gym.make("Pendulum-v1")
    spec = Spec(spaces.Dict(a_=env.observation_space, b=spaces.Box(-1, 1, (2,))), env.action_space)
    units = {} if torso in ("mlp", "two_branch") else {"hidden_units": (256, 256)}
    agent = tfdpg.D4PG(spec, torso=torso, v_min=-9, v_max=1, **SMALL | EAGER | units)
    rng = np.random.default_rng(0)

    def observation():
        return {"a_": rng.normal(size=3).astype(np.float32), "b": rng.uniform(-1, 1, 2).astype(np.float32)}

    for _ in range(20):
        agent.act(observation())
        agent.observe(-1.0, observation(), True, False)
    assert np.isfinite(agent.learn(updates=3)["loss"])
    agent.save(tmp_path / "agent")
    again = tfdpg.load_agent(tmp_path / "agent")
    example = observation()
    np.testing.assert_array_equal(agent.act(example, explore=False), again.act(example, explore=False))
    np.testing.assert_allclose(agent(example), agent.act(example, explore=False), rtol=1e-4, atol=1e-5)
