import threading

import gymnasium as gym
import keras
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import tfdpg
from tests.agents.roster import SMALL, fit_briefly
from tests.environments import Counter

LOGS = {
    *("return", "return_std", "return_min", "return_max", "episode_length", "loss", "loss_q", "loss_pi", "q1", "q2"),
    *("env_steps", "steps_per_second", "q1_std", "q1_min", "q1_max", "q2_std", "q2_min", "q2_max"),
    *("td_error", "actions_at_bounds", "terminated", "truncated"),
}


def agent_for(env, kind=tfdpg.DDPG, **changes):
    return kind(env, **SMALL | changes)


def positions(observations):
    return observations["position"] if isinstance(observations, dict) else observations


def transitions(agent):
    """(episode, step, reward, terminated, next episode, next step) of every stored transition."""
    stored = agent.replay.transitions()
    before, after = (positions(stored[name]) for name in ("observations", "next_observations"))
    return np.column_stack([before, stored["rewards"], stored["terminations"], after])


def final_rows(agent):
    """The final observations of the episodes that have ended."""
    stored = agent.replay.transitions()
    return positions(stored["next_observations"])[stored["terminations"] | stored["truncations"]]


VECTORS = [(kind, mode) for kind in (SyncVectorEnv, AsyncVectorEnv) for mode in AutoresetMode]


@pytest.mark.parametrize("kind, mode", VECTORS, ids=[f"{kind.__name__}-{mode.name}" for kind, mode in VECTORS])
@pytest.mark.parametrize(
    "ends, as_dict",
    [("terminated", False), pytest.param("truncated", True, marks=pytest.mark.slow)],
    ids=["box", "dict"],
)
def test_ends_are_right_in_every_autoreset_mode(kind, mode, ends, as_dict):
    check_ends(kind, mode, ends, as_dict)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_ends_are_right_of_dicts_that_terminate_and_boxes_that_are_cut(mode):
    check_ends(SyncVectorEnv, mode, "terminated", as_dict=True)
    check_ends(SyncVectorEnv, mode, "truncated", as_dict=False)


def check_ends(kind, mode, ends, as_dict):
    envs = kind([lambda: Counter(length=3, ends=ends, as_dict=as_dict)] * 2, autoreset_mode=mode)
    agent = agent_for(envs, update_after=1000)
    fit_briefly(agent, envs, epochs=1, steps_per_epoch=20)
    envs.close()
    assert agent.env_steps == 20
    found = transitions(agent)
    assert len(found) == 20  # no reset row is stored, and no step is lost
    for episode, t, reward, terminated, next_episode, next_t in found:
        assert (next_episode, next_t) == (episode, t + 1)  # the real final observation, never the reset one
        assert reward == t + 1
        assert terminated == (ends == "terminated" and t + 1 == 3)
    assert {tuple(row) for row in final_rows(agent) if row[1]} >= {(0, 3)}
    assert all(t == 3 for _, t in final_rows(agent))


def test_single_and_vector_environments_see_the_same_episodes():
    single = Counter(length=4)
    vector = SyncVectorEnv([lambda: Counter(length=4)])
    logs = []
    for env in (single, vector):
        agent = agent_for(env, update_after=1000)
        logs.append(fit_briefly(agent, env, epochs=2, steps_per_epoch=16).history)
    for key in ("return", "episode_length"):
        assert logs[0][key] == logs[1][key]
    assert logs[0]["return"] == [10.0, 10.0] and logs[0]["episode_length"] == [4.0, 4.0]
    assert single.seeds == vector.envs[0].seeds and None not in single.seeds


def test_an_observation_is_packed_once(monkeypatch):
    packed = []
    pack = tfdpg.Spec.pack
    monkeypatch.setattr(tfdpg.Spec, "pack", lambda spec, observation: packed.append(1) or pack(spec, observation))
    env = Counter(length=5)
    fit_briefly(agent_for(env, update_after=1000, update_every=1), env, epochs=1, steps_per_epoch=40)
    assert len(packed) == 40 + 8  # the next observation of each step, and the first one of each episode


@pytest.mark.parametrize("kind", [None, SyncVectorEnv])
def test_max_ep_len_truncates(kind):
    env = Counter(length=100) if kind is None else kind([lambda: Counter(length=100)] * 2)
    agent = agent_for(env, update_after=1000)
    history = fit_briefly(agent, env, epochs=1, steps_per_epoch=20, max_ep_len=5)
    assert history.history["episode_length"] == [5.0]
    assert not agent.replay.transitions()["terminations"].any()
    assert len(transitions(agent)) == 20
    assert (final_rows(agent)[:, 1] == 5).all()


def test_logs_of_each_epoch_are_complete():
    env = gym.make("Pendulum-v1")
    history = agent_for(env, tfdpg.TD3).fit(
        env, epochs=2, steps_per_epoch=210, validation_env=gym.make("Pendulum-v1"), validation_episodes=2, verbose=0
    )
    assert isinstance(history, keras.callbacks.History)
    returns = ("return", "return_std", "return_min", "return_max", "episode_length", "terminated", "truncated")
    assert set(history.history) == LOGS | {f"val_{name}" for name in returns}
    assert all(len(values) == 2 and np.isfinite(values).all() for values in history.history.values())
    assert history.history["env_steps"] == [210, 420]
    np.testing.assert_allclose(
        history.history["loss"], np.add(history.history["loss_q"], history.history["loss_pi"]), rtol=1e-9
    )
    assert history.history["q1_min"][0] <= history.history["q1"][0] <= history.history["q1_max"][0]


def test_the_schedule_earns_one_update_a_step_after_update_after():
    env = Counter()
    agent = agent_for(env, update_after=20, update_every=10)
    fit_briefly(agent, env, epochs=1, steps_per_epoch=29)
    assert agent.updates == 0
    fit_briefly(agent, env, epochs=1, steps_per_epoch=1)
    assert agent.updates == 10  # nothing is caught up
    agent.fit(env, epochs=1, steps_per_epoch=35, verbose=0)
    assert agent.updates == 40


def test_the_schedule_by_episodes_and_with_gradient_steps():
    env = Counter(length=7)
    by_episode = {"update_after": 10, "update_every": "episode", "run_eagerly": True}
    agent = agent_for(env, **by_episode)
    agent.fit(env, epochs=1, steps_per_epoch=28, verbose=0)
    assert agent.updates == 18  # after steps 14, 21 and 28: 4 + 7 + 7
    agent = agent_for(env, **by_episode, gradient_steps=2)
    agent.fit(env, epochs=1, steps_per_epoch=28, verbose=0)
    assert agent.updates == 6


def test_a_replay_that_does_not_fit_in_memory_fails_before_training():
    env = Counter()
    agent = agent_for(env, replay_size=2**31 - 1)
    with pytest.raises(ValueError, match="`replay_size` .*memory .*=2147483647"):
        agent.fit(env, verbose=0)
    assert agent.env_steps == 0 and env.total == 0


class BatchRecorder(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.ends = []

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append((batch, logs["env_steps"]))


def test_a_batch_is_a_round():
    update_phases = BatchRecorder()
    env = Counter()
    agent = agent_for(env, update_after=1000, update_every=10)
    fit_briefly(agent, env, epochs=2, steps_per_epoch=25, callbacks=[update_phases])
    assert update_phases.ends == [(9, 10), (19, 20), (24, 25), (4, 30), (14, 40), (24, 50)]


def test_epochs_never_decrease():
    env = Counter()
    seen = []
    agent = agent_for(env, update_after=1000)
    for options in ({"epochs": 3}, {"epochs": 1}, {"epochs": 5, "initial_epoch": 4}, {"epochs": 2}):
        fit_briefly(agent, env, steps_per_epoch=4, **options)
        seen.append(agent.epoch)
    assert seen == [3, 3, 5, 5]


def test_a_second_fit_closes_the_open_episode_as_truncated():
    env = Counter(length=10)
    agent = agent_for(env, update_after=1000)
    fit_briefly(agent, env, epochs=1, steps_per_epoch=4)
    fit_briefly(agent, env, epochs=1, steps_per_epoch=4)
    found = transitions(agent)
    assert found[:, :2].tolist() == [[0, 0], [0, 1], [0, 2], [0, 3], [1, 0], [1, 1], [1, 2], [1, 3]]
    assert not found[:, 3].any()
    assert final_rows(agent).tolist() == [[0, 4]]
    assert agent.env_steps == 8


@pytest.mark.parametrize("bad", ["reward", "observation"])
def test_nan_from_the_environment_stops_and_names_the_step(bad, tmp_path):
    env = Counter(bad=bad, bad_at=23)
    agent = agent_for(env, update_after=1000)
    checkpoint = tfdpg.callbacks.Checkpoint(tmp_path)
    with pytest.raises(ValueError, match=f"{bad} is not .*environment step 23"):
        fit_briefly(agent, env, epochs=3, steps_per_epoch=20, callbacks=[checkpoint])
    again = tfdpg.load_agent(tmp_path / "22")
    assert again.env_steps == 22 and np.isfinite(again.replay.transitions()["next_observations"]).all()
    fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=10)  # the agent is as good as before
    assert agent.env_steps == 22 + 10


def test_environments_that_do_not_fit_are_refused():
    agent = agent_for(gym.make("Pendulum-v1"))
    with pytest.raises(ValueError, match="observation_space of `env` must be"):
        agent.fit(gym.make("MountainCarContinuous-v0"), verbose=0)
    with pytest.raises(ValueError, match="observation_space of `validation_env`"):
        agent.fit(gym.make("Pendulum-v1"), validation_env=gym.make("MountainCarContinuous-v0"), verbose=0)
    env = gym.make("Pendulum-v1")
    for same in (env, env.unwrapped):
        with pytest.raises(ValueError, match="`validation_env` must be another"):
            agent.fit(env, validation_env=same, verbose=0)
    with pytest.raises(ValueError, match="`env` must be the agent's"):
        agent.evaluate(gym.make("MountainCarContinuous-v0"))


def test_fit_arguments_out_of_range():
    env = Counter()
    agent = agent_for(env)
    bad = {"epochs": [0], "steps_per_epoch": [0], "validation_episodes": [0], "max_ep_len": [0], "verbose": [3]}
    for argument, values in (bad | {"initial_epoch": [-1, 100]}).items():
        for value in values:
            with pytest.raises(ValueError, match=f"`{argument}`"):
                agent.fit(env, **{"verbose": 0, argument: value})
    assert agent.env_steps == 0


def test_a_vector_environment_that_cannot_reset_a_sub_environment_is_refused():
    class Own(gym.vector.VectorEnv):
        num_envs = 2
        single_observation_space = Counter().observation_space
        single_action_space = Counter.action_space

    with pytest.raises(ValueError, match="reset single sub-environments"):
        agent_for(Counter()).fit(Own(), verbose=0)
    envs = AsyncVectorEnv([Counter], shared_memory=False)
    with pytest.raises(ValueError, match="shared_memory=True"):
        agent_for(Counter()).fit(envs, verbose=0)
    envs.close()


@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: gym.wrappers.TimeLimit(env, 3)])
def test_sub_environments_that_are_one_object_are_refused(wrap):
    env = Counter()
    envs = gym.vector.SyncVectorEnv([lambda: wrap(env)] * 2)
    for use in (lambda: agent_for(Counter()).fit(envs, verbose=0), lambda: agent_for(Counter()).evaluate(envs)):
        with pytest.raises(ValueError, match="Two sub-environments of `env` are, or wrap, one and the same"):
            use()


def test_fit_in_another_thread():
    env = Counter()
    results = []
    agent = agent_for(env)
    thread = threading.Thread(target=lambda: results.append(agent.fit(env, epochs=1, steps_per_epoch=20, verbose=0)))
    thread.start()
    thread.join()
    assert results[0].history["env_steps"] == [20]
