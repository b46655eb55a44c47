"""Actions of any shape: the public interface has the environment's shape, networks and exports have flat actions."""

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import tfdpg
from tests.agents.roster import EAGER, parametrize_agents
from tests.environments import Counter

SMALL = {"hidden_units": (4,), "batch_size": 8, "jit_compile": False}
LOW = np.array([[-1, -2, 0], [-4, -5, -6]], np.float32)
HIGH = np.array([[1, 2, 1], [4, 6, 6]], np.float32)


class Matrix(Counter):
    """The reward is highest where the action equals the target. Actions must lie inside the space."""

    action_space = spaces.Box(LOW, HIGH)
    target = LOW + np.array([[0.2, 0.8, 0.5], [0.35, 0.65, 0.1]], np.float32) * (HIGH - LOW)

    def step(self, action):
        assert self.action_space.contains(action), action
        observation, _, *ends = super().step(action)
        return observation, -10 * float(np.sum(((action - self.target) / (HIGH - LOW)) ** 2)), *ends


@parametrize_agents("TD3")
def test_the_public_interface_has_the_environments_action_shape(make, tmp_path):
    agent = make(Matrix(length=10), **EAGER)
    agent.fit(Matrix(length=10), epochs=1, steps_per_epoch=60, verbose=0)
    one = np.zeros(2, np.float32)
    batch = np.zeros((5, 2), np.float32)
    for act in (agent.act, agent.predict, agent):
        assert act(one).shape == (2, 3) and act(batch).shape == (5, 2, 3)
    policy = tfdpg.load(agent.export(tmp_path / "model"))
    assert policy(one).shape == (2, 3) and policy(batch).shape == (5, 2, 3)
    np.testing.assert_allclose(policy(batch), agent.predict(batch), rtol=1e-4, atol=1e-5)
    assert policy.q1(one, policy(one)).shape == () and policy.q1(batch, policy(batch)).shape == (5,)
    with pytest.raises(ValueError, match=r"`action` must be .*shape \(5, 2, 3\)"):
        policy.q1(batch, policy(one))
    flat = tf.saved_model.load(str(policy.directory)).signatures["pi"](x=tf.constant(batch))["pi"]
    np.testing.assert_array_equal(flat.numpy().reshape(5, 2, 3), policy(batch))  # row by row, in NumPy's order
    scores = [tfdpg.evaluate(each, Matrix(length=10), 3)["return"] for each in (agent, policy)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-4)
    agent.save(tmp_path / "agent")
    np.testing.assert_array_equal(tfdpg.load_agent(tmp_path / "agent", Matrix()).predict(batch), agent.predict(batch))


@pytest.mark.slow
def test_vector_environments_and_stored_transitions_have_the_action_shape(tmp_path):
    env = SyncVectorEnv([lambda: Matrix(length=10)] * 2)
    agent = tfdpg.DDPG(env, **SMALL, start_steps=10, update_after=10, recorders=tmp_path / "r")
    agent.fit(env, epochs=1, steps_per_epoch=60, verbose=0)
    shaped = {
        "observations": np.zeros((8, 2)),
        "actions": np.stack([Matrix.target] * 8),
        "rewards": np.zeros(8),
        "terminations": np.zeros(8),
        "next_observations": np.zeros((8, 2)),
    }
    flat = shaped | {"actions": shaped["actions"].reshape(8, 6)}
    other = tfdpg.DDPG(env, **SMALL)
    again = tfdpg.DDPG(env, **SMALL)
    assert other.train_on_batch(shaped) == again.train_on_batch(flat)
    for data in (shaped, tmp_path / "r"):
        one = tfdpg.DDPG(env, **SMALL)
        one.fit_offline(data, epochs=1, steps_per_epoch=3, verbose=0)
        assert one.updates == 3 and one.replay.transitions()["actions"].shape[1:] == (2, 3)
    with pytest.raises(ValueError, match=r"shape \(8, 6\). Received: \(8, 3, 2\)"):
        other.train_on_batch(shaped | {"actions": np.zeros((8, 3, 2))})


@pytest.mark.slow
def test_entries_of_the_action_are_not_permuted():
    class Still(Matrix):
        def _observation(self):
            return np.zeros(2, np.float32)

    env = Still(length=1)
    agent = tfdpg.TD3(env, hidden_units=(32,), start_steps=500, update_after=100, gamma=0.0, pi_lr=3e-3, q_lr=3e-3)
    agent.fit(env, epochs=1, steps_per_epoch=5000, verbose=0)
    learnt = agent.predict(np.zeros(2, np.float32))
    assert np.abs((learnt - Matrix.target) / (HIGH - LOW)).max() < 0.15  # another order gives at least 0.3


def test_a_scalar_action_needs_no_axis(on_pendulum):
    policy = tfdpg.load(on_pendulum)
    observation = np.zeros(3, np.float32)
    assert policy.q1(observation, 0.5) == policy.q1(observation, [0.5])
    np.testing.assert_array_equal(policy.q1([observation] * 2, [0.5, 1]), policy.q1([observation] * 2, [[0.5], [1]]))
    with pytest.raises(ValueError, match="`action` must be numbers of shape"):
        policy.q1(observation, [0.5, 1])


def test_empty_spaces_are_rejected():
    for shape in ((0,), (2, 0)):
        with pytest.raises(ValueError, match="is not supported"):
            tfdpg.Spec(gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(-1, 1, shape))
