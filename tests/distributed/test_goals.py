"""Goal-conditioned tasks on a Ray cluster on this machine."""

import numpy as np
import pytest

import tfdpg
from tests.agents.roster import brief
from tests.distributed.environments import reach
from tests.environments import Reach
from tfdpg import distributed

pytestmark = [brief, pytest.mark.slow]

OPTIONS = {"her": "future", "start_steps": 300, "update_after": 300, "batch_size": 64, "hidden_units": (32, 32)}


def test_an_agent_learns_to_reach_goals_with_workers(local_ray):
    agent = tfdpg.TD3(Reach(), **OPTIONS, gamma=0.9, replay_size=10_000)
    history = distributed.fit(
        agent, reach, epochs=3, steps_per_epoch=1000, actors=2, chunk=10, verbose=0, validation_env=Reach()
    ).history
    assert history["val_success_rate"][-1] == 1.0
    assert len(history["success_rate"]) == 3 and np.isfinite(history["success_rate"]).all()


def test_replay_shards_are_refused(local_ray):
    agent = tfdpg.TD3(Reach(), **OPTIONS)
    with pytest.raises(ValueError, match="`replay_shards` must be 0 with `her`"):
        distributed.fit(agent, reach, epochs=1, steps_per_epoch=50, actors=2, replay_shards=1, verbose=0)
