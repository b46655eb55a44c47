"""The signature `pi_and_q`, which returns an action and its values."""

import functools

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

import tfdpg
from tests.agents.roster import ACER, AGENTS, SMALL, brief
from tests.export.runtimes import verify
from tfdpg import export

pytestmark = brief

X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
QUICK = ("TD3",)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """An agent with other than its initial weights, and its export, by name, for tests that do not change them."""

    @functools.cache
    def of(name):
        agent = AGENTS[name](gym.make("Pendulum-v1"))
        rng = np.random.default_rng(1)
        agent.set_weights([weight + rng.normal(0, 0.1, weight.shape) for weight in agent.get_weights()])
        return agent, agent.export(tmp_path_factory.mktemp(name) / "model")

    return of


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in AGENTS]
)
def test_it_equals_pi_q1_and_q2(name, exported):
    agent, directory = exported(name)
    policy = tfdpg.load(directory)
    action, q1, q2 = policy.pi_and_q(X)
    np.testing.assert_allclose(action, agent.predict(X), rtol=1e-4, atol=1e-5)
    for found, evaluate_critic in ((q1, policy.q1), (q2, policy.q2)):
        assert found.shape == (5,)
        np.testing.assert_allclose(found, evaluate_critic(X, action), rtol=1e-4, atol=1e-5)
    assert (np.abs(q1 - q2).max() > 1e-4) == (policy.metadata["critics"] == 2)
    one = policy.pi_and_q(X[1])
    assert [np.shape(part) for part in one] == [(1,), (), ()]
    np.testing.assert_allclose(np.concatenate([one[0], one[1:]]), [*action[1], q1[1], q2[1]], rtol=1e-4, atol=1e-5)


def test_actions_have_the_shape_of_the_environment(tmp_path):
    spec = tfdpg.Spec(spaces.Dict({"eye": spaces.Box(0, 255, (2, 2), np.uint8)}), spaces.Box(-1, 1, (2, 3)))
    policy = tfdpg.load(tfdpg.DDPG(spec, **SMALL).export(tmp_path / "model"))
    action, q1, _ = policy.pi_and_q({"eye": np.zeros((4, 2, 2), np.uint8)})
    assert action.shape == (4, 2, 3) and q1.shape == (4,)
    assert policy.pi_and_q({"eye": np.zeros((2, 2), np.uint8)})[0].shape == (2, 3)


def test_verification_compares_it(exported):
    agent, directory = exported("TD3")
    reference = agent.signatures["pi_and_q"].reference(agent.spec)
    for wrong, offset in (("pi", 0.0), ("pi", 0.01), ("q1", 0.01), ("q2", 0.01)):

        def changed(inputs, wrong=wrong, offset=offset):
            outputs = reference(inputs)
            return outputs | {wrong: outputs[wrong] + np.float32(offset)}

        def compare(changed=changed):
            verify(directory, {"pi": changed, "pi_and_q": changed}, {"pi_and_q": [{"x": X}]})

        if not offset:
            compare()
            continue
        with pytest.raises(export.ExportError, match="'pi_and_q' differs from the agent"):
            compare()


def test_half_precision_may_swap_two_actions_of_almost_equal_value(tmp_path):
    """Rows in which both chose the same action are still compared."""
    module = tf.Module()
    x = [tf.TensorSpec([None], tf.float32, "x")]
    module.pi = tf.function(lambda x: {"pi": tf.cast(x > 0, tf.int64), "q1": x}, input_signature=x)
    tf.saved_model.save(module, str(tmp_path / "model"), signatures={"pi": module.pi})

    def compare(q1):
        expected = {"pi": np.array([0, 1, 1]), "q1": np.array(q1, np.float32)}
        cases = {"pi": [{"x": np.array([-0.001, -0.001, 5], np.float32)}]}
        verify(tmp_path / "model", {"pi": lambda _: expected}, cases, in_half_precision=True)

    compare([-0.001, 7, 5])
    with pytest.raises(export.ExportError, match="'pi' differs from the agent by up to 1"):
        compare([-0.001, 7, 6])


def test_discrete_actions(tmp_path):
    policy = tfdpg.load(tfdpg.ACER("CartPole-v1", **ACER).export(tmp_path / "model"))
    action, q1, q2 = policy.pi_and_q(np.zeros((3, 4)))
    assert action.dtype == np.int64 and action.shape == q1.shape == q2.shape == (3,)
    np.testing.assert_allclose(q1, policy.q1(np.zeros((3, 4)), action), rtol=1e-4, atol=1e-5)
