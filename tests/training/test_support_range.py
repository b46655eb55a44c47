"""The support of categorical critics that follows the returns."""

import json
import types

import keras
import numpy as np
import tensorflow as tf

import tfdpg
from tests.agents.roster import EAGER, SMALL
from tests.environments import Counter
from tfdpg import losses
from tfdpg.agents.support_range import PERIOD, choose_support, follow_returns
from tfdpg.networks import Categorical, head_of
from tfdpg.replay import return_range
from tfdpg.training.checkpoints.checkpoint import state_of


class Returns:
    """Minibatches of rows whose returns are given."""

    def __init__(self):
        self.range = -1.0, 2.0

    def return_range(self):
        return self.range


def agent_with(head):
    """What the functions of `support` read of an agent with one categorical critic."""
    critic = keras.Sequential([keras.Input((3,)), head])
    return types.SimpleNamespace(
        updates=0, networks={"q1": critic}, copies={}, host_state={"support_period": 0, "edges_warned": None}
    )


def test_a_support_that_follows_returns_widens_once_in_a_period_and_never_shrinks():
    head = Categorical(-149.5, 150.5, 5)
    returns = Returns()
    agent = agent_with(head)

    def largest_after(updates, prepare=follow_returns):
        agent.updates = updates
        prepare(agent, returns)
        largest = float(head.atoms[-1])
        np.testing.assert_allclose(head.atoms, np.linspace(-largest, largest, 5), rtol=1e-6)
        return largest

    assert largest_after(0) == 2
    returns.range = -8.0, 0.5
    assert largest_after(PERIOD - 1) == 2
    saved = json.loads(json.dumps(agent.host_state))
    assert largest_after(PERIOD) == 8
    returns.range = -9.0, 9.0
    assert largest_after(PERIOD + 50) == 8
    assert largest_after(3 * PERIOD, choose_support) == 8
    agent.host_state = saved  # saved just before it was due
    assert largest_after(PERIOD) == 9
    returns.range = -1.0, 1.0
    assert largest_after(2 * PERIOD) == 9


def test_a_support_that_follows_returns_is_the_same_as_scaled_rewards():
    head = Categorical(-149.5, 150.5, 11)
    returns = Returns()
    rng = np.random.default_rng(0)
    agent = agent_with(head)
    logits = rng.normal(size=(6, 11))
    reward = rng.normal(size=6)
    discount = np.array([0.9, 0.0, 0.9, 0.0, 0.9, 0.9])
    for period, wide in enumerate((2.0, 14.0)):
        returns.range = -1.0, wide
        agent.updates = period * PERIOD
        follow_returns(agent, returns)
        atoms = head.atoms.numpy().astype(np.float64)
        ours = losses.categorical_target(reward, discount, tf.constant(logits), atoms)
        scaled = losses.categorical_target(reward / wide, discount, tf.constant(logits), np.linspace(-1, 1, 11))
        np.testing.assert_allclose(ours, scaled, atol=1e-6)


def test_an_agent_s_running_support_starts_from_its_returns():
    env = Counter(length=4)
    agent = tfdpg.D4PG(env, v_range="running", **SMALL, **EAGER)
    agent.fit(env, epochs=1, steps_per_epoch=40, verbose=0)
    low, high = return_range(agent.replay, agent.data.minibatch_builder.gamma)
    saved = json.loads(json.dumps(state_of(agent)))
    now = agent.head.atoms.numpy()
    assert -now[0] == now[-1] and abs(now[-1] - 150.5) > 1
    np.testing.assert_allclose(now[-1], max(-low, high), rtol=1e-3)
    np.testing.assert_array_equal(head_of(agent.targets["q1"]).atoms, now)
    assert saved["host_state"]["support_period"] == 0
