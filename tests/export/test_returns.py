"""The signature `z` of distributional critics: the distribution, its quantiles and its conditional values at risk."""

import functools

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

import tfdpg
from tests.agents.roster import SMALL
from tfdpg.export import describe

OUTPUTS = {"categorical": {"atoms", "probs"}, "mixture": {"weights", "means", "stddevs"}, "scalar": {"atoms", "probs"}}
kinds = pytest.mark.parametrize(
    "kind", [kind if kind == "categorical" else pytest.param(kind, marks=pytest.mark.slow) for kind in OUTPUTS]
)
X = np.array([[1, 0, 0.5], [0, 1, -3.0]], np.float32)
A = np.array([[1.5], [-0.5]], np.float32)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """An agent of each kind of critic and its export, for tests that do not change them."""

    @functools.cache
    def of(kind):
        support = {"v_min": -200, "v_max": 10, "atoms": 11} if kind == "categorical" else {}
        agent = tfdpg.D4PG(gym.make("Pendulum-v1"), critic=kind, **support, **SMALL)
        return agent, agent.export(tmp_path_factory.mktemp(kind) / "model")

    return of


@kinds
def test_the_mean_is_q1_and_the_risk_measures_are_consistent(kind, exported):
    policy = tfdpg.load(exported(kind)[1])
    levels = [0.05, 0.5, 1.0]
    z = policy.z(X, A, levels)
    assert set(z) == OUTPUTS[kind] | {"quantiles", "cvar"}
    weight, value = (z["weights"], z["means"]) if kind == "mixture" else (z["probs"], z["atoms"])
    np.testing.assert_allclose((weight * value).sum(axis=1), policy.q1(X, A), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(z["cvar"][:, 2], policy.q1(X, A), rtol=1e-3, atol=1e-3)
    assert (z["cvar"] <= z["quantiles"] + 1e-4).all() and (np.diff(z["quantiles"], axis=1) >= 0).all()
    one = policy.z(X[0], A[0], levels)
    for name, values in one.items():
        np.testing.assert_allclose(values, z[name][0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(policy.z(X, A, 0.5)["cvar"], z["cvar"][:, 1:2], rtol=1e-4, atol=1e-5)


def test_categorical_by_hand(exported):
    agent, directory = exported("categorical")
    z = tfdpg.load(directory).z(X, A, [0.25])
    logits = agent.networks["q1"]([X, A]).numpy()
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    atoms = np.linspace(-200, 10, 11)
    np.testing.assert_allclose(z["probs"], probs, rtol=1e-4)
    np.testing.assert_allclose(z["atoms"], [atoms, atoms], rtol=1e-5)
    for row in range(2):
        index = int(np.searchsorted(np.cumsum(probs[row]), 0.25))
        np.testing.assert_allclose(z["quantiles"][row, 0], atoms[index], rtol=1e-5)
        whole = probs[row, :index]
        tail = whole @ atoms[:index] + (0.25 - whole.sum()) * atoms[index]
        np.testing.assert_allclose(z["cvar"][row, 0], tail / 0.25, rtol=1e-3)


@kinds
def test_a_session_takes_a_row_of_levels_for_all_or_for_each(kind, exported):
    directory = exported(kind)[1]
    expected = tfdpg.load(directory).z(X, A, [0.1, 0.9])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        signature = tf.compat.v1.saved_model.load(session, ["serve"], str(directory)).signature_def["z"]
        shape = [axis.size for axis in signature.inputs["levels"].tensor_shape.dim]
        assert shape == [-1, -1] and not signature.inputs["levels"].tensor_shape.unknown_rank
        for levels in (np.array([[0.1, 0.9]]), np.array([[0.1, 0.9], [0.1, 0.9]])):
            inputs = {"x": X, "a": A, "levels": levels}
            feed = {signature.inputs[key].name: value for key, value in inputs.items()}
            for name, values in expected.items():
                found = session.run(signature.outputs[name].name, feed)
                np.testing.assert_allclose(found, values, rtol=1e-4, atol=1e-5)


def test_invalid_requests_are_refused(exported, on_pendulum):
    policy = tfdpg.load(exported("categorical")[1])
    with pytest.raises(ValueError, match=r"`levels` must .*\[0, 1\].*levels=1.5"):
        policy.z(X, A, [1.5])
    with pytest.raises(ValueError, match="has no signature `z`"):
        tfdpg.load(on_pendulum).z(X, A)
    space = spaces.Dict(levels=spaces.Box(-1, 1, (2,)))
    with pytest.raises(ValueError, match="key 'levels' of the observation space"):
        tfdpg.D4PG(tfdpg.Spec(space, spaces.Box(-1, 1, (1,))), **SMALL)


def test_it_is_described(exported):
    text = describe(exported("categorical")[1])
    assert "z(x: float32[batch, 3], a: float32[batch, 1], levels: float32[batch, levels]) ->" in text
    assert "cvar: float32[batch, levels]" in text and 'agent: "D4PG"' in text
