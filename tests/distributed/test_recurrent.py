"""Recurrent policies in workers."""

import functools

import keras
import numpy as np
import pytest

import tfdpg
from tests.agents.cells import Leaky, hard, recurrent_agent
from tests.agents.roster import brief
from tests.distributed.callbacks import StopAfterReports
from tests.distributed.environments import ReportingCounter, counter, read_reports
from tests.environments import Counter
from tfdpg import distributed
from tfdpg.distributed.plan import policy_for_workers
from tfdpg.replay.segments import as_one_segment
from tfdpg.training.callbacks import Checkpoint

SHORT = {"epochs": 1, "steps_per_epoch": 60, "actors": 2, "chunk": 7, "verbose": 0}


def check_stored_states(agent):
    """Check that the current policy computes the same recurrent states as those stored in each episode."""
    held = as_one_segment(agent.replay)
    rows = held["rows"]
    steps_to_next = held["successor_after"]
    acts = agent.data.behaviour
    width = agent.replay.obs_width
    after = width + agent.spec.act_dim
    followed = 0
    for row in np.flatnonzero((steps_to_next > 0) & (rows[:, 1] == 0)):
        policy_state = acts.policy_state.fresh_copy()
        while steps_to_next[row] > 0:
            policy_state.forward(acts.network, (rows[row : row + 1, :width],))
            kept = policy_state.record_step(rows[row : row + 1, width:after])
            np.testing.assert_allclose(kept[0], rows[row, width:-1], atol=1e-5)
            policy_state.received(rows[row : row + 1, -1])
            row = row + steps_to_next[row]
            followed = followed + 1
    assert followed > 40


@brief
@pytest.mark.slow
@pytest.mark.parametrize(
    "options, how",
    [
        pytest.param({"recurrent": "lstm"}, {}, id="numpy"),
        pytest.param({"recurrent": "gru"}, {"replay_shards": 2}, id="shards", marks=pytest.mark.hours),
        pytest.param({"recurrent": Leaky}, {"worker_backend": "tensorflow"}, id="own", marks=pytest.mark.hours),
    ],
)
def test_states_come_with_the_chunks(local_ray, options, how):
    cell = {"recurrent_units": 3} if isinstance(options["recurrent"], str) else {"recurrent": options["recurrent"](3)}
    remembers = {"remembers": ("observation", "action", "reward")}
    agent = recurrent_agent(Counter(), **options | cell | remembers, start_steps=0)
    distributed.fit(agent, counter, **SHORT | how, samples_per_insert=0)  # without updates
    check_stored_states(agent)


@brief
@pytest.mark.hours
@pytest.mark.parametrize("shards", [0, 2])
def test_it_learns_from_sequences_of_workers_and_is_saved(local_ray, shards, tmp_path):
    memory = {"recurrent": "lstm", "recurrent_units": (3, 2), "replay": "prioritized", "normalize_observations": True}
    agent = recurrent_agent(Counter(), **memory)
    callbacks = [Checkpoint(tmp_path)]
    options = SHORT | {"steps_per_epoch": 200}  # surely with updates: workers are at most 70 steps ahead of them
    logs = distributed.fit(agent, counter, **options, replay_shards=shards, callbacks=callbacks).history
    assert np.isfinite(logs["loss"]).all() and agent.updates >= 3 and agent.data.observation_statistics.count > 0
    loaded = tfdpg.load_agent(tmp_path / str(agent.env_steps))
    distributed.fit(loaded, counter, **SHORT | {"epochs": 2, "initial_epoch": 1}, replay_shards=shards)
    assert loaded.env_steps >= agent.env_steps + 60 and loaded.learn(updates=1)


@pytest.mark.hours
def test_named_cells_need_no_tensorflow_in_workers(local_ray, tmp_path):
    agent = recurrent_agent(Counter(), recurrent_units=3)
    options = SHORT | {"epochs": 10**6, "callbacks": [StopAfterReports(tmp_path, 2)]}
    distributed.fit(agent, functools.partial(ReportingCounter, tmp_path), **options)
    modules = [set(facts["modules"]) for facts in read_reports(tmp_path)]
    assert len(modules) == 2 and not any({"tensorflow", "keras"} & each for each in modules)


def test_keras_policies_take_recurrent_inputs_and_include_custom_classes():
    agent = recurrent_agent(Counter(), recurrent=keras.layers.StackedRNNCells([Leaky(3), hard()]))
    with pytest.raises(ValueError, match="`worker_backend` .* a cell that is not"):
        policy_for_workers(agent, "numpy")
    policy, weights = policy_for_workers(agent, "tensorflow")
    assert policy.classes == {"tests>Leaky": Leaky}
    policy.load(weights())
    recurrent_inputs = agent.data.behaviour.policy_state.recurrent_spec.initial_state(2) + np.float32(0.1)
    packed = np.ones((2, 2), np.float32), recurrent_inputs
    np.testing.assert_allclose(policy(packed), agent.data.actor(packed), atol=1e-6)
