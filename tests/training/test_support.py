"""The support of categorical critics that follows the returns."""

import numpy as np
import tensorflow as tf

import tfdpg
from tests.agents.roster import SMALL
from tests.environments import Counter
from tfdpg import losses
from tfdpg.networks import Categorical
from tfdpg.training.support import PERIOD, Support


class Returns:
    """Minibatches of rows whose returns are said."""

    def __init__(self):
        self.range = -1.0, 2.0

    def return_range(self):
        return self.range


def test_a_running_support_widens_once_in_a_period_and_never_shrinks():
    head, returns = Categorical(-149.5, 150.5, 5), Returns()
    head.build((None, 3))
    support = Support([head], runs=True)
    support(0, returns)
    np.testing.assert_allclose(head.atoms, np.linspace(-1, 2, 5))
    returns.range = -0.5, 8.0
    support(PERIOD - 1, returns)
    np.testing.assert_allclose(head.atoms, np.linspace(-1, 2, 5))
    support(PERIOD, returns)
    np.testing.assert_allclose(head.atoms, np.linspace(-1, 8, 5))
    returns.range = -9.0, 9.0
    Support([head], runs=True)(PERIOD + 50, returns)  # loaded within a period
    np.testing.assert_allclose(head.atoms, np.linspace(-1, 8, 5))
    Support([head])(3 * PERIOD, returns)
    np.testing.assert_allclose(head.atoms, np.linspace(-1, 8, 5))


def test_a_wider_support_is_the_same_as_smaller_rewards():
    rng, scale = np.random.default_rng(0), 7.0
    atoms, logits = np.linspace(-2, 3, 11), rng.normal(size=(6, 11))
    reward, discount = rng.normal(size=6), np.full(6, 0.9)
    scaled, raw = (
        losses.categorical_target(reward * factor, discount, tf.constant(logits), atoms * factor)
        for factor in (1.0, scale)
    )
    np.testing.assert_allclose(scaled, raw, rtol=1e-6, atol=1e-12)


def test_an_agent_s_running_support_starts_from_its_returns():
    env = Counter(length=4)
    agent = tfdpg.D4PG(env, v_range="running", **SMALL)
    agent.fit(env, epochs=1, steps_per_epoch=40, verbose=0)
    assert agent.head.atoms.numpy()[-1] > 9
