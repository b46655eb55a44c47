"""Each example does what it says."""

import gymnasium as gym
import numpy as np
import pytest

import tfdpg
from examples import offline, own_loop, own_networks, pixels
from examples.demonstrations import compare as comparison
from examples.fine_tuning import compare as fine_tuning
from examples.smoothness import compare
from tests.agents.roster import SMALL, brief, fit_briefly


def test_own_loop(capsys):
    env = gym.make("Pendulum-v1")
    agent = tfdpg.TD3(env, **SMALL)
    own_loop.train(env, agent, 400)
    assert agent.env_steps == 400 and agent.updates == 390
    assert capsys.readouterr().out.count("return") == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*lie at their bounds")
def test_own_networks(tmp_path):
    env = gym.make("Pendulum-v1")
    options = {name: value for name, value in SMALL.items() if name != "hidden_units"}
    agent = tfdpg.TD3(env, **own_networks.build(tfdpg.Spec.of(env)), **options)
    fit_briefly(agent, env, epochs=1, steps_per_epoch=40)
    agent.save(tmp_path / "agent")
    agent.export(tmp_path / "model")
    observation = np.array([1.0, 0.0, 2.0], np.float32)
    expected = agent(observation)
    np.testing.assert_allclose(tfdpg.load(tmp_path / "model")(observation), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(tfdpg.load_agent(tmp_path / "agent")(observation), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_offline(tmp_path):
    returns = offline.compare("Pendulum-v1", tmp_path / "recording", steps=300, updates=20, **SMALL)
    assert set(returns) == {"online", "offline"} and all(-2000 < value < 0 for value in returns.values())


@pytest.mark.slow
def test_pixels(tmp_path):
    options = {"n_steps": 5, "batch_size": 2, "replay_start": 10, "hidden_units": (), "replay_ratio": 1}
    agent, history = pixels.train(30, num_envs=2, **options)
    assert np.isfinite(history["loss_q"]).all() and agent.updates >= 3
    frames, _ = pixels.make_env().reset(seed=0)
    assert frames.size == 3 * 40 * 75 and agent.replay.transitions()["observations"].shape[1:] == frames.shape
    assert frames.min() == 0 and frames.max() == 255  # the sky, and the cart
    assert tfdpg.load(agent.export(tmp_path / "model"))(frames) == agent(frames)


def test_controllers_earn_rewards_that_are_rare():
    means = {task: comparison.demonstrated_return(task, episodes=2, seeds=1) for task in comparison.TASKS}
    assert means["MountainCarContinuous-v0"] > 85 and means["SparsePendulum"] > 130


@brief
def test_demonstrations_are_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "RESULTS", tmp_path / "results.csv")
    for ratio in (0.0, 0.5):
        short = {"episodes": 1, "every": 20, **SMALL, "run_eagerly": True, "gradient_steps": 1}
        comparison.append(comparison.train("SparsePendulum", 40, ratio, 0, **short))
    ratios = comparison.curves()["SparsePendulum"]
    assert [[step for step, _ in seeds[0]] for seeds in ratios.values()] == [[20, 40]] * 2 and ratios.keys() == {0, 0.5}


def test_smoothness_is_the_change_of_actions_as_a_fraction_of_the_action_scale():
    env = gym.make("Pendulum-v1", max_episode_steps=5)
    signs = iter([1, -1] * 5)
    returned, change = compare.measure(lambda observation: np.float32([next(signs)]), env, episodes=2)
    assert change == 1 and -16.4 * 5 < returned < 0  # the action scale is 2
    assert compare.measure(lambda observation: np.float32([0.5]), env, episodes=1)[1] == 0


@brief
@pytest.mark.slow
def test_smoothness_is_compared():
    row = compare.train("Pendulum-v1", 40, 0.1, 0, episodes=1, **SMALL)
    assert row["smoothness"] == 0.1 and -2000 < row["return"] < 0 and 0 <= row["change"] <= 2


@brief
@pytest.mark.slow
def test_fine_tuned_policies_are_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(fine_tuning, "RESULTS", tmp_path / "results.csv")
    task = fine_tuning.TASKS["Pendulum-v1"]._replace(epochs=1, steps=20, every=20, episodes=1)
    monkeypatch.setitem(fine_tuning.TASKS, "Pendulum-v1", task)
    model = fine_tuning.exported("Pendulum-v1", tmp_path / "model", **SMALL)
    for setting in fine_tuning.SETTINGS:
        fine_tuning.append(fine_tuning.fine_tune("Pendulum-v1", model, setting, 0, steps=40, update_after=20))
    found = fine_tuning.curves()["Pendulum-v1"]
    assert list(found) == list(fine_tuning.SETTINGS)
    first = {seeds[0][0] for seeds in found.values()}
    assert len(first) == 1 and all([step for step, _ in seeds[0]] == [0, 20, 40] for seeds in found.values())
