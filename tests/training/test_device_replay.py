"""`replay_device`: minibatches are gathered on the device, and training is the same to the last bit."""

import gymnasium as gym
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdpg
from tests.agents.roster import AGENTS, brief, fit_briefly
from tests.environments import Counter, RandomWalk, Reach
from tests.training.test_flat_state import assert_same, flat, is_flat  # noqa: F401 (flat is a fixture)
from tfdpg.replay import transition_outcomes

pytestmark = brief
HERE = {"device": "cpu:0", "replay_device": "cpu:0"}
KINDS = {
    "TD3": {"replay_size": 40, "update_every": 1},  # which is full, so that rows are overwritten
    "n_step": {"n_step": 3, "normalize_observations": True, "replay_size": 40},
    "passes": {"epochs_per_round": 2, "max_minibatches_per_round": 6, "batch_size": 4},
    "prioritized": {"replay": "prioritized", "beta_steps": 30},
    "TD7": {"replay": "lap", "keep_best_policy": True, "target_update_every": 5},
    "D4PG": {"replay": "prioritized", "n_step": 3},
}


def make(name, env, **options):
    kind = name if name in AGENTS else "TD3"
    return AGENTS[kind](env, **{"device": "cpu:0"} | KINDS[name] | options)


def walks(num_envs):
    return gym.vector.SyncVectorEnv([RandomWalk] * num_envs)


@pytest.mark.parametrize("name", ["TD3", *(pytest.param(n, marks=pytest.mark.slow) for n in KINDS if n != "TD3")])
def test_training_is_the_same(name, flat, tmp_path):  # noqa: F811
    agents = [make(name, RandomWalk(), **where) for where in ({}, HERE)]
    once = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epoch or agents[1].save(tmp_path / "agent"))
    for agent, callbacks in zip(agents, ([], [once]), strict=True):
        fit_briefly(agent, RandomWalk(), epochs=2, steps_per_epoch=45, callbacks=callbacks)
    assert all(map(is_flat, agents)) and agents[0].updates >= 50
    assert_same(*agents)
    for changes in ({}, {"replay_device": None}):
        resumed = tfdpg.load_agent(tmp_path / "agent", **changes)
        assert resumed.updates < agents[0].updates
        fit_briefly(resumed, RandomWalk(), epochs=2, initial_epoch=1, steps_per_epoch=45)
        assert_same(agents[0], resumed)


@pytest.mark.slow
def test_training_on_several_environments_in_an_own_loop_is_the_same():
    agents = [make("n_step", walks(3), **where) for where in ({}, HERE)]
    for agent in agents:
        fit_briefly(agent, walks(3), epochs=1, steps_per_epoch=30)
        agent.learn(updates=5)
    assert_same(*agents)


def rows_of(agent):
    return agent.data.device_replay.rows.numpy()


def test_the_copy_has_all_rows_whatever_was_stored(rng):
    agent = make("TD3", walks(3), **HERE, update_after=10**9)
    buffer = agent.replay
    stored = 0
    envs = np.arange(3)
    for i in range(60):
        observation = (rng.normal(size=(3, 2)),)
        if rng.random() < 0.3 or not len(buffer.current):
            buffer.begin(envs, observation)
        else:
            some = np.flatnonzero(rng.random(3) < 0.7)
            buffer.add(some, rng.normal(size=(len(some), 1)), some, some < 0, (observation[0][some],))
        if rng.random() < 0.4:
            agent.data.device_replay.update()
            held = buffer.transition_slots()
            np.testing.assert_array_equal(rows_of(agent)[held], buffer.rows[held, :-1], strict=True)
            stored += len(held)
        if i == 40:
            buffer.clear()
    assert stored > 200


def test_minibatches_are_gathered_as_they_are_packed():
    agent = make("n_step", RandomWalk(), **HERE, update_after=10**9)
    fit_briefly(agent, RandomWalk(), epochs=1, steps_per_epoch=37)
    data = agent.data
    (expected,), slots = data.sample(3, 4)
    packed, same = data.sample_for_update(3, 4)
    np.testing.assert_array_equal(slots, same)
    assert [part.nbytes for part in packed] == [4 * 8 * 16, 4 * 8 * 12]
    for minibatch, wanted in zip(zip(*packed, strict=True), expected, strict=True):
        (found,) = data.device_replay.gather(*map(tf.constant, minibatch))
        np.testing.assert_array_equal(found.numpy(), wanted, strict=True)
    last, outcomes = transition_outcomes(agent.replay, slots.ravel(), 3, 0.99)
    np.testing.assert_array_equal(outcomes.reshape(4, 8, 3), expected[..., 3:6])
    np.testing.assert_array_equal(last.reshape(4, 8), packed[0][..., 1])


@pytest.mark.parametrize(
    "options, fault",
    [
        ({"device": None}, "`replay_device` must be None or the same as `device`.*device=None"),
        ({"replay_device": "cpu:1"}, "`replay_device` must be None or the same as `device`.*'cpu:1'.*'cpu:0'"),
        ({"device": "gpu:0", "replay_device": "gpu:0"}, "`device` must be .*gpu:0"),
        ({"recurrent": "lstm"}, "`replay_device` is for transitions, not sequences.*recurrent='lstm'"),
    ],
)
def test_what_is_not_possible_is_rejected(options, fault):
    with pytest.raises(ValueError, match=fault):
        AGENTS["TD3"](Counter(), **HERE | options)


@pytest.mark.slow
def test_a_replay_buffer_that_is_too_large_for_the_device_is_rejected():
    spec = tfdpg.Spec(gym.spaces.Box(-1, 1, (100_000,)), Counter().action_space)
    with pytest.raises(ValueError, match="needs 859,002,048,734,588 bytes of the memory of cpu:0.*replay_size=214748"):
        tfdpg.TD3(spec, hidden_units=(4,), replay_size=2_147_483_647, **HERE)


def test_other_agents_and_kinds_of_data_are_rejected():
    with pytest.raises(TypeError, match="'replay_device'"):
        AGENTS["ACER"](Counter(), **HERE)
    with pytest.raises(ValueError, match="`replay_device` has no place .*her='future'"):
        AGENTS["TD3"](Reach(), her="future", **HERE)
    images = tfdpg.Spec(gym.spaces.Box(0, 255, (8, 8, 1), np.uint8), Counter().action_space)
    with pytest.raises(ValueError, match="`replay_device` is for observations without images"):
        tfdpg.TD3(images, **HERE)
    agent = make("TD3", RandomWalk(), **HERE, start_steps=40)
    fit_briefly(agent, RandomWalk(), epochs=1, steps_per_epoch=10)
    data = agent.replay.transitions()
    for call in (
        lambda: agent.train_on_batch(agent.replay.sample(8, seed=0)),
        lambda: agent.fit(RandomWalk(), demonstrations=data, epochs=1, steps_per_epoch=5, verbose=0),
        lambda: agent.fit(RandomWalk(), realtime=True, epochs=1, steps_per_epoch=5, verbose=0),
    ):
        with pytest.raises(ValueError, match="is not possible with `replay_device`. Received: replay_device='cpu:0'"):
            call()
