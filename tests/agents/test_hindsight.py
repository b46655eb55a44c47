"""Agents with hindsight experience replay."""

import copy
import csv

import gymnasium as gym
import keras
import numpy as np
import pytest

import tfdpg
from tests.agents.roster import AGENTS, EAGER, SMALL, brief, fit_briefly
from tests.environments import Counter, Reach

GOAL_AGENTS = ["DDPG", "D4PG", "TD3", "TD7"]
LEARNING = {"start_steps": 300, "update_after": 300, "batch_size": 64, "hidden_units": (32, 32), "gamma": 0.9}


@pytest.mark.parametrize("name", ["TD3", *(pytest.param(n, marks=pytest.mark.slow) for n in GOAL_AGENTS if n != "TD3")])
def test_it_learns_to_reach_goals(name):
    options = LEARNING | {"replay_size": 10_000, "update_every": 10, "her": "future", "jit_compile": False}
    options |= {"pi_lr": 1e-3, "q_lr": 1e-3} if name in ("D4PG", "TD7") else {}
    options |= {"v_min": -10, "v_max": 0} if name == "D4PG" else {}
    options |= {"encoder_units": (32,), "embedding_units": 32, "target_update_every": 200} if name == "TD7" else {}
    agent = AGENTS[name](Reach(), **options)
    history = fit_briefly(
        agent, Reach(), epochs=1, steps_per_epoch=1500 if name == "TD3" else 4000, validation_env=Reach()
    )
    assert history.history["val_success_rate"][0] >= 0.8


def run(make_env, epochs, agent=None, **options):
    agent = agent or tfdpg.TD3(make_env(), **SMALL | {"her": "future", "n_step": 2} | options)
    fit_briefly(agent, make_env(), epochs=epochs, steps_per_epoch=30, initial_epoch=agent.epoch)
    return agent


@pytest.mark.parametrize(
    "her", ["future", *(pytest.param(her, marks=pytest.mark.slow) for her in ("final", "episode"))]
)
def test_training_resumes_exactly(tmp_path, her):
    def make_env():
        return gym.vector.SyncVectorEnv([lambda: Reach(7), lambda: Reach(11)])

    options = EAGER | {"her": her, "replay_size": 60, "update_every": 10}
    whole = run(make_env, 4, **options)
    half = run(make_env, 2, **options)
    half.save(tmp_path / "agent")
    resumed = run(make_env, 4, tfdpg.load_agent(tmp_path / "agent"))
    assert whole.replay.added > 60 and whole.updates == resumed.updates > 0
    for one, other in zip(whole.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"replay": "prioritized"}, {"replay": "lap"}, {"epochs_per_round": 1}, {"normalize_observations": True}],
    ids=str,
)
def test_options_that_work_with_it(options):
    options = {"run_eagerly": True} | options
    agent = run(Reach, 1, **options)
    plain = run(Reach, 1, **options, her_ratio=0.0)
    assert agent.updates == plain.updates > 0
    assert any((a != b).any() for a, b in zip(agent.get_weights(), plain.get_weights(), strict=True))


def test_ratio_0_is_training_without_it():
    with_her = run(Reach, 1, **EAGER, her_ratio=0.0)
    without = run(Reach, 1, **EAGER, her=None)
    for one, other in zip(with_her.get_weights(), without.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"recurrent": "lstm"}, "`her` is for networks without a memory"),
        ({"reward_shaper": lambda *reward: reward[0]}, "does not know `reward_shaper`"),
        ({"her": "past"}, "`her` must be"),
        ({"her": None, "her_ratio": 0.5}, "her_ratio"),
        ({"her_ratio": 1.5}, "`her_ratio` must be"),
    ],
)
def test_options_that_do_not(options, message):
    with pytest.raises(ValueError, match=message):
        tfdpg.TD3(Reach(), **{"her": "future"} | options)


class OtherGoals(Reach):
    def __init__(self):
        super().__init__()
        box = gym.spaces.Box(-2, 2, (3,), np.float32)
        self.observation_space = gym.spaces.Dict(self.observation_space.spaces | {"achieved_goal": box})


class WithoutFunctions(Reach):
    compute_reward = None


@pytest.mark.parametrize(
    "make_env, message",
    [
        (Counter, "needs a Dict observation space in which"),
        (OtherGoals, "are equal Boxes of floats"),
        (WithoutFunctions, "needs an environment with compute_reward"),
    ],
)
def test_environments_that_do_not(make_env, message):
    with pytest.raises(ValueError, match=message):
        tfdpg.TD3(make_env(), her="future")


def test_a_loop_of_ones_own_with_a_loaded_agent(tmp_path):
    agent = run(Reach, 1, **EAGER)
    twin = copy.deepcopy(agent)
    agent.save(tmp_path / "agent")
    loaded = tfdpg.load_agent(tmp_path / "agent")
    with pytest.raises(ValueError, match=r"call agent\.relabel_with\(env\)"):
        loaded.learn(updates=1)
    loaded.relabel_with(Reach())
    for each in (agent, loaded, twin):
        each.learn(updates=2)
    for others in zip(agent.get_weights(), loaded.get_weights(), twin.get_weights(), strict=True):
        for other in others[1:]:
            np.testing.assert_array_equal(others[0], other)


def test_rewards_that_a_wrapper_changes_are_noticed():
    wrapped = gym.wrappers.TransformReward(Reach(), lambda reward: 10 * reward)
    agent = tfdpg.TD3(wrapped, her="future", **SMALL | EAGER)
    with pytest.warns(UserWarning, match="does not compute the rewards that its `step` returns"):
        agent.fit(wrapped, epochs=1, steps_per_epoch=30, verbose=0)


def test_rewards_that_do_not_depend_on_the_desired_goal_are_noticed():
    class OwnGoal(Reach):
        def compute_reward(self, achieved_goal, desired_goal, info):
            return super().compute_reward(achieved_goal, np.broadcast_to(self.goal, np.shape(achieved_goal)), info)

    agent = tfdpg.TD3(OwnGoal(), her="future", **SMALL | EAGER | {"batch_size": 100})
    with pytest.warns(UserWarning, match="the same outcome in all of 200 .* may ignore its argument `desired_goal`"):
        agent.fit(OwnGoal(), epochs=1, steps_per_epoch=30, verbose=0)


def test_goals_may_change_only_the_end_of_an_episode():
    class Shortest(Reach):
        def compute_reward(self, achieved_goal, desired_goal, info):
            return -np.ones(np.shape(achieved_goal)[:-1])

    agent = tfdpg.TD3(Shortest(ends="terminated"), her="future", **SMALL | EAGER | {"batch_size": 100})
    fit_briefly(agent, Shortest(ends="terminated"), epochs=1, steps_per_epoch=30)
    assert agent.updates > 2


@brief
@pytest.mark.parametrize("vector", [None, "next_step", "same_step"])
def test_success_rates_are_logged(tmp_path, vector, capsys):
    def make_env():
        if vector is None:
            return Reach(radius=0.7)
        mode = {"next_step": gym.vector.AutoresetMode.NEXT_STEP, "same_step": gym.vector.AutoresetMode.SAME_STEP}
        return gym.vector.SyncVectorEnv(
            [lambda: Reach(radius=0.7), lambda: Reach(12, radius=0.7)], autoreset_mode=mode[vector]
        )

    agent = tfdpg.TD3(make_env(), **SMALL | {"update_after": 1000})
    log = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    options = {"validation_env": make_env(), "validation_episodes": 6, "callbacks": [log], "verbose": 2}
    history = agent.fit(make_env(), epochs=2, steps_per_epoch=60, **options).history
    with open(tmp_path / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["success_rate"]) for row in rows] == history["success_rate"]
    assert "val_success_rate" in capsys.readouterr().out
    scores = agent.evaluate(make_env(), 6, per_episode=True)
    assert scores["success_rate"] == np.mean(scores["successes"]) == history["val_success_rate"][-1]
    reached = [episode.success for episode in tfdpg.training.evaluation.run_episodes(agent, make_env(), 6)]
    assert reached == scores["successes"] and {type(each) for each in reached} == {bool}


def test_success_is_that_of_the_last_step():
    class Passes(Reach):
        def step(self, action):
            *result, info = super().step(action)
            return *result, info | {"is_success": self.t != 10 and self.t > 3}

    always = tfdpg.evaluate(lambda observation: np.zeros(2, np.float32), Passes(length=5), 3)
    never = tfdpg.evaluate(lambda observation: np.zeros(2, np.float32), Passes(length=10), 3)
    assert (always["success_rate"], never["success_rate"]) == (1.0, 0.0)
    assert "success_rate" not in tfdpg.evaluate(lambda observation: np.zeros(1, np.float32), Counter(), 1)


def test_exports_have_the_three_inputs(tmp_path):
    agent = tfdpg.TD3(Reach(), her="future", **SMALL)
    agent.export(tmp_path / "model")
    policy = tfdpg.load(tmp_path / "model")
    observation, _ = Reach().reset(seed=1)
    np.testing.assert_allclose(policy(observation), agent.predict(observation), rtol=1e-5, atol=1e-6)
    scores = tfdpg.evaluate(policy, Reach(), 3)
    assert scores == pytest.approx(agent.evaluate(Reach(), 3, seed=0), rel=1e-4)
    import tensorflow as tf

    inputs = tf.saved_model.load(str(tmp_path / "model" / "1")).signatures["pi"].structured_input_signature[1]
    assert set(inputs) == {"observation", "achieved_goal", "desired_goal"}
