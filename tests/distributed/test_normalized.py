"""Normalised policies in workers act as in the learner."""

import numpy as np
import pytest

import tfdpg
from tests.agents.roster import SMALL
from tfdpg.distributed.plan import policy_for_workers


@pytest.mark.parametrize("backend", ["numpy", "tensorflow"])
@pytest.mark.parametrize("options", [{"norm": "batch"}, {"blocks": 1, "hidden_units": (8,)}], ids=["batch", "blocks"])
def test_policies_with_statistics_or_blocks_act_as_in_the_learner(backend, options):
    agent = tfdpg.TD3("Pendulum-v1", **SMALL | options)
    rng = np.random.default_rng(0)
    agent.pi.set_weights([w + rng.uniform(0.1, 0.5, w.shape) for w in agent.pi.get_weights()])
    agent.data.actor.refresh()
    policy, weights = policy_for_workers(agent, backend)
    policy.load(weights())
    packed = (rng.normal(size=(4, 3)).astype(np.float32),)
    np.testing.assert_allclose(policy(packed), agent.pi(packed[0]), rtol=1e-4, atol=1e-5)
    assert np.std(policy(packed)) > 1e-3
