"""Saving, copying, recording and describing recurrent agents."""

import copy
import json

import keras
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import tfdpg
from tests.agents.cells import Leaky, hard, recurrent_agent
from tests.agents.roster import brief
from tests.environments import Counter
from tfdpg.files import CheckpointError


def encoder():
    x = keras.Input((2,))
    return keras.Model(x, keras.layers.Dense(3, "tanh")(x))


ALL = ("observation", "action", "reward")
RECURRENT_OPTIONS = {
    "lstm": {"recurrent": "lstm", "recurrent_units": 3, "normalize_observations": True},
    "gru": {"recurrent": "gru", "recurrent_units": (3, 2), "stored_state": False, "remembers": ("observation",)},
    "rnn": {"recurrent": "rnn", "recurrent_units": 3, "replay": "prioritized", "remembers": ALL, "noise": "ou"},
    "own": {"recurrent": lambda: keras.layers.StackedRNNCells([Leaky(3), hard()])},
    "encoder": {"recurrent": "gru", "recurrent_units": 3, "encoder": encoder},
}
OTHERS = "gru", "rnn", "own", "encoder"


def made(env, options):
    return recurrent_agent(env, **{name: value() if callable(value) else value for name, value in options.items()})


def step(env, agents, observation):
    """Make a step in all sub-environments; all agents take the actions of the first."""
    actions = [agent.act(observation) for agent in agents]
    for action in actions[1:]:
        np.testing.assert_array_equal(action, actions[0])
    observation, *outcome, info = env.step(actions[0])
    for agent in agents:
        agent.observe(outcome[0], observation, *outcome[1:], info.get("final_obs"))
        agent.learn()
    return observation


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstm", *OTHERS])
def test_agents_saved_or_copied_within_episodes_continue_bit_identically(name, tmp_path):
    env = SyncVectorEnv([lambda: Counter(length=9), lambda: Counter(length=5)])
    agent = made(env, RECURRENT_OPTIONS[name])
    observation, _ = env.reset(seed=0)
    for _ in range(13):
        observation = step(env, [agent], observation)
    states = agent.data.behaviour.policy_state.state[
        :, agent.data.behaviour.policy_state.recurrent_spec.previous_width :
    ]
    assert states.any(axis=1).all() and agent.updates > 0
    agent.save(tmp_path / "agent")
    others = [tfdpg.load_agent(tmp_path / "agent"), copy.deepcopy(agent)]
    for _ in range(12):
        observation = step(env, [agent, *others], observation)
    for other in others:
        assert other.updates == agent.updates and other.replay.size == agent.replay.size
        stored = agent.replay.transitions()
        for name, values in other.replay.transitions().items():
            np.testing.assert_array_equal(values, stored[name])
        for x, y in zip(other.get_weights(), agent.get_weights(), strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.slow
def test_sampling_options_may_change_and_recurrent_options_may_not(tmp_path):
    agent = recurrent_agent(Counter(), recurrent=hard())
    agent.fit(Counter(), epochs=1, steps_per_epoch=30, verbose=0)
    agent.save(tmp_path / "agent")
    again = tfdpg.load_agent(tmp_path / "agent", sequence_length=4, burn_in=0)
    assert (again.options.sequence_length, again.options.burn_in) == (4, 0) and again.learn(updates=2)
    assert again.options.recurrent.get_config() == agent.options.recurrent.get_config()
    for name, value in {"recurrent": "gru", "stored_state": False, "remembers": ALL}.items():
        with pytest.raises(ValueError, match=f"`{name}` cannot change"):
            tfdpg.load_agent(tmp_path / "agent", **{name: value})


def test_an_unregistered_cell_is_rejected_in_the_constructor_and_in_load_agent(tmp_path, monkeypatch):
    class Strange(keras.layers.SimpleRNNCell):
        pass

    with pytest.raises(ValueError, match="`recurrent` cannot be copied.*@keras"):
        recurrent_agent(Counter(), recurrent=Strange(3))
    with pytest.raises(ValueError, match="`recurrent` must be .*a Keras RNN cell"):
        recurrent_agent(Counter(), recurrent=keras.layers.LSTM(3))
    recurrent_agent(Counter(), recurrent=Leaky(3)).save(tmp_path / "agent")
    monkeypatch.delitem(keras.saving.get_custom_objects(), "tests>Leaky")
    with pytest.raises(CheckpointError, match="class 'Leaky'.*@keras.saving.register"):
        tfdpg.load_agent(tmp_path / "agent")


@pytest.mark.slow
@brief
def test_offline_training_on_recordings_and_saved_agents(tmp_path):
    agent = recurrent_agent(Counter(), recurrent_units=3, recorders=[tmp_path / "recorded"])
    agent.fit(Counter(), epochs=1, steps_per_epoch=33, verbose=0)
    agent.save(tmp_path / "agent")
    for data in ("recorded", "agent"):
        other = recurrent_agent(Counter(), recurrent_units=3)
        logs = other.fit_offline(tmp_path / data, epochs=1, steps_per_epoch=7, verbose=0).history
        assert np.isfinite(logs["loss"]).all() and other.updates == 7
        stored = other.replay.transitions()
        assert (np.abs(stored["states"]).max() > 0) == (data == "agent")  # not in recordings
        np.testing.assert_array_equal(stored["observations"], agent.replay.transitions()["observations"])


@pytest.mark.slow
def test_other_agents_train_on_the_data_of_a_recurrent_agent(tmp_path):
    agent = recurrent_agent(Counter())
    agent.fit(Counter(), epochs=1, steps_per_epoch=30, verbose=0)
    agent.save(tmp_path / "agent")
    for other in (
        recurrent_agent(Counter(), recurrent_units=5),
        tfdpg.TD3(Counter(), hidden_units=(4,), batch_size=4, run_eagerly=True),
    ):
        other.fit_offline(tmp_path / "agent", epochs=1, steps_per_epoch=2, verbose=0)
        stored = other.replay.transitions()
        for name in ("observations", "actions", "rewards", "next_observations"):
            np.testing.assert_array_equal(stored[name], agent.replay.transitions()[name])
        assert (stored.get("states", np.zeros(1)) == 0).all()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"recurrent_units": ()}, r"at least one. .*recurrent_units=\(\)"),
        ({"remembers": ("action",)}, '`remembers` must .*"observation" among'),
        ({"remembers": ("observation",) * 2}, "`remembers` must be different names"),
    ],
)
def test_remembers_must_not_be_empty(options, message):
    with pytest.raises(ValueError, match=message):
        recurrent_agent(Counter(), **options)


def test_an_encoder_may_be_a_sequential_model(tmp_path):
    layers = [keras.Input((2,)), keras.layers.Dense(3, "tanh")]
    agent = recurrent_agent(Counter(), encoder=keras.Sequential(layers))
    agent.save(tmp_path / "agent")
    sequences = np.ones((2, 4, 2), np.float32)
    np.testing.assert_array_equal(tfdpg.load_agent(tmp_path / "agent").predict(sequences), agent.predict(sequences))


def test_a_policy_takes_one_observation_at_a_time_and_predict_a_sequence():
    agent = recurrent_agent(Counter())
    policy = agent.policy()
    sequence = np.arange(6, dtype=np.float32).reshape(3, 2)
    for _ in range(2):
        actions = [policy(observation) for observation in sequence]
        np.testing.assert_allclose(actions, agent.predict(sequence), rtol=1e-5, atol=1e-6)
        policy.reset()
    assert agent.policy(seed=1)(sequence[0]).shape == (1,)
    with pytest.raises(ValueError, match="A recurrent agent predicts for sequences"):
        agent.predict(sequence[0])


def test_shaped_rewards_are_not_remembered():
    def shaper(reward, step, steps):
        return 2 * reward

    with pytest.raises(ValueError, match="`reward_shaper` changes .*remembers="):
        recurrent_agent(Counter(), remembers=ALL, reward_shaper=shaper)
    recurrent_agent(Counter(), recurrent_units=2, reward_shaper=shaper)


def test_descriptions_have_the_cells_and_the_size_of_the_states():
    agent = recurrent_agent(Counter(), recurrent=hard(), replay_size=1_000_000)
    lines = []
    assert "recurrent=<LSTMCell>, " in repr(agent)
    agent.summary(print_fn=lines.append)
    table = "\n".join(lines)
    assert "unbuilt" not in table and "functional" not in table and "?" not in table
    for part in ("encoder", "before", "memory", "torso"):
        assert table.count(f" {part} (") == 2
    assert lines[-1] == "replay: <ReplayBuffer: 0 of 1,000,000 rows, 49.0 MB when full, of which 24.0 are states>"
    config = json.loads(json.dumps(agent.get_config()))
    assert "recurrent" not in config and config["sequence_length"] == 3
    again = tfdpg.DDPG(Counter(), **config, recurrent=hard())
    for x, y in zip(again.get_weights(), agent.get_weights(), strict=True):
        np.testing.assert_array_equal(x, y)
    named = recurrent_agent(Counter(), recurrent_units=(3, 2)).get_config()
    assert named["recurrent"] == "lstm" and named["recurrent_units"] == [3, 2]
