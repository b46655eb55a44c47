"""The NumPy forward pass equals Keras'."""

import numpy as np
import pytest
from gymnasium import spaces

from tests.test_spec import ACTION, OBSERVATIONS
from tfdpg import Spec, networks
from tfdpg.acting import ACTIVATIONS, RunningStatistics, encode, greedy_actions
from tfdpg.networks import flat_weights, numpy_policy
from tfdpg.networks.actor import CompiledActor
from tfdpg.networks.tensors import unpack_observation


def in_numpy(spec, pi, recurrent_spec=None):
    """A policy's forward pass in NumPy, with its weights; None if NumPy cannot compute it."""
    policy = numpy_policy(spec, pi, recurrent_spec)
    if policy is not None:
        policy.load(flat_weights(pi).numpy())
    return policy


def packed_samples(spec, count):
    spec.observation_space.seed(1)
    rows = [spec.pack(spec.observation_space.sample()) for _ in range(count)]
    return tuple(np.concatenate(parts) for parts in zip(*rows, strict=True))


@pytest.mark.parametrize("space", OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_actions_equal_keras(space):
    spec = Spec(space, ACTION)
    pi = networks.mlp_actor(spec, hidden_units=(16, 8), seed=3)
    actor = in_numpy(spec, pi)
    for num_envs in (1, 5):
        packed = packed_samples(spec, num_envs)
        expected = CompiledActor(spec, pi)(packed)
        assert expected.shape == (num_envs, 2)
        np.testing.assert_allclose(actor(packed), expected, rtol=1e-5, atol=1e-6)
        assert (actor(packed) >= spec.low).all() and (actor(packed) <= spec.high).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_equal_keras(activation):
    spec = Spec(OBSERVATIONS["matrix"], ACTION)
    pi = networks.mlp_actor(spec, hidden_units=(32, 32), activation=activation, seed=1)
    actor = in_numpy(spec, pi)
    packed = packed_samples(spec, 9)
    np.testing.assert_allclose(actor(packed), CompiledActor(spec, pi)(packed), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("space", OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_features_equal_the_keras_encoder(space):
    spec = Spec(space, ACTION)
    model = networks.encoder(spec)
    packed = packed_samples(spec, 4)
    observation = unpack_observation(spec, packed)
    np.testing.assert_allclose(encode(spec, packed), model(observation), rtol=1e-6)


def test_one_hot_by_hand():
    spec = Spec(OBSERVATIONS["multi"], ACTION)
    np.testing.assert_array_equal(encode(spec, spec.pack(np.array([3, 1]))), [[0, 0, 1, 0, 1, 0, 0]])


def test_greedy_actions_stay_in_the_box():
    outputs = np.array([[3, -1], [-3, 2], [1.5, 0.5]], np.float32)
    expected = [[2, 0], [-2, 1], [1.5, 0.5]]
    np.testing.assert_array_equal(greedy_actions(Spec(OBSERVATIONS["box"], ACTION), outputs), expected)


def test_wrong_number_of_weights():
    spec = Spec(OBSERVATIONS["box"], ACTION)
    actor = numpy_policy(spec, networks.mlp_actor(spec, hidden_units=(4,)), None)
    with pytest.raises(ValueError, match="must have 26 elements. Received: 27"):
        actor.load(np.zeros(27, np.float32))


def test_a_worker_that_acts_never_imports_tensorflow():
    import subprocess
    import sys

    code = "import sys, tfdpg.spec, tfdpg.acting, tfdpg.exploration, tfdpg.replay; print('tensorflow' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_stored_moments_are_of_as_many_features():
    observation_statistics = RunningStatistics(Spec(spaces.Box(-1, 1, (3,)), ACTION))
    for name in ("moments_mean", "moments_squares"):
        with pytest.raises(ValueError, match="must be of 3 features"):
            observation_statistics.restore(observation_statistics.state() | {name: np.zeros(2)})
    observation_statistics.restore(observation_statistics.state())
