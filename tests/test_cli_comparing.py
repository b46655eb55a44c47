"""`tfdpg compare`: two policies in the same episodes, or on the same logged observations."""

import json
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from gymnasium.wrappers import TransformReward

import tfdpg
from tests.agents.roster import SMALL, brief
from tests.commands import EAGER, train
from tests.environments import Counter
from tests.serve.conftest import serving
from tests.training.serving_logs import Client, write
from tfdpg import cli
from tfdpg.cli import comparing
from tfdpg.companions import companion

pytestmark = brief


class Rewarded(Counter):
    """The reward is the action, with noise that depends on the seed of the episode."""

    def step(self, action):
        observation, _, terminated, truncated, _ = super().step(action)
        cost = self.np_random.normal()
        return observation, float(action[0]) + cost, terminated, truncated, {"cost": cost}


def compared(*actions, episodes=8):
    policies = [lambda observation, action=action: np.full(1, action, np.float32) for action in actions]
    return comparing.in_episodes(policies, Rewarded, episodes, 0, None)


def test_episodes_are_paired():
    comparison = compared(0.5, 0.25)
    old, new = comparison.values["return"]
    np.testing.assert_allclose(old - new, 5 * 0.25)
    assert old.std() > 0.5  # the noise, which is the same for both
    np.testing.assert_array_equal(*comparison.values["info cost"])
    assert comparison.distances == [0.25] and comparison.observations == 8 * 5
    assert list(comparison.values) == ["return", "length", "terminated", "truncated", "info cost"]


def test_the_verdict_is_that_of_the_interval():
    worse = compared(0.5, 0.25)
    assert worse.verdict(0) == "worse" and worse.verdict(-1.2) == "worse" and worse.verdict(-1.3) == "not worse"
    assert compared(0.5, 0.5).verdict(0) == "not worse"
    assert compared(0.25, 0.5).verdict(0) == "not worse" and compared(0.25, 0.5).verdict(2) == "worse"
    noisy = comparing.Comparison({"return": np.array([[0.0] * 6, [-1, 1, -1, 1, -1, 1.5]])}, np.zeros(1), 6, False)
    assert noisy.verdict(0) == "cannot tell"
    text = noisy.text("cannot tell", 0)
    assert "6 episodes are too few to tell: pass more (--episodes) (difference of returns, --fail-below 0)" in text


@pytest.mark.parametrize("n", [5, 6, 10, 50])
def test_the_interval_is_students(n, rng):
    values = rng.normal(size=(2, n))
    mean, low, high = comparing.difference(values)
    expected = scipy.stats.ttest_rel(values[1], values[0]).confidence_interval(0.95)
    np.testing.assert_allclose([low, high], [expected.low, expected.high], rtol=2e-3, atol=1e-3)
    assert mean == pytest.approx(np.mean(values[1] - values[0]))


def test_two_runs_are_compared_by_the_command(tmp_path, capsys):
    for seed in (0, 1):
        assert train("--run-dir", tmp_path / str(seed), "--seeds", seed, *EAGER) == 0
    old, new = (str(tmp_path / f"{seed}/seed-{seed}") for seed in (0, 1))
    capsys.readouterr()
    assert cli.main(["compare", old, new, "--episodes", "6", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["episodes"], found["old"]["return"]) == ("not worse", 6, 15)
    assert found["differences"]["return"] == [0, 0, 0] and found["actions"]["observations"] == 6 * 5
    agents = [tfdpg.load_agent(f"{run}/checkpoints/60") for run in (old, new)]
    actions = [agent.predict(np.array([[e, t] for e in range(6) for t in range(5)], np.float32)) for agent in agents]
    np.testing.assert_allclose(
        found["actions"]["largest_differences"], np.abs(actions[1] - actions[0]).max(), rtol=1e-4
    )
    assert cli.main(["compare", old, f"{new}/best", "--episodes", "6", "--fail-below", "1"]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[1].split()[:3] == ["return", "15", "15"] and shown[-1].startswith("new is worse")
    for words, message in (
        ([old, str(tmp_path / "none")], "No run and no exported model in"),
        ([old, new, "--episodes", "2"], "`episodes` must be at least 5"),
        ([old, new, "--fail-below", "nan"], "`fail_below` must be a finite number"),
        ([old, new, "--log", str(tmp_path)], "`--log` compares exported policies"),
        ([old, new, "--log", str(tmp_path), "--fail-below", "1"], "`--fail-below` does nothing where `--log`"),
    ):
        assert cli.main(["compare", *words]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_policies_of_different_environments_need_a_common_one(tmp_path, capsys):
    assert train("--run-dir", tmp_path / "a", *EAGER) == 0
    assert train("--run-dir", tmp_path / "b", *EAGER, "--env-kwargs", "length=3") == 0
    runs = [str(tmp_path / f"{name}/seed-0") for name in "ab"]
    assert cli.main(["compare", *runs]) == 1
    assert "of different environments, or of different arguments" in capsys.readouterr().err
    assert cli.main(["compare", *runs, "--episodes", "5", "--env", "tfdpg-test/Counter-v0"]) == 0


def tenth_of_pendulum(**kwargs):
    return TransformReward(gym.make("Pendulum-v1", max_episode_steps=20, **kwargs), lambda reward: reward / 10)


def test_commands_keep_the_step_limit_and_warn_of_wrappers_that_they_cannot_make(tmp_path, capsys):
    wrapped = str(tfdpg.DDPG(tenth_of_pendulum(), **SMALL).export(tmp_path / "wrapped"))
    plain = str(tfdpg.DDPG(gym.make("Pendulum-v1", max_episode_steps=20), **SMALL).export(tmp_path / "plain"))
    warning = f"tfdpg: warning: The policy in {wrapped} was trained in an environment with the wrappers ['TransformR"
    for words in (["evaluate", wrapped], ["compare", wrapped, plain, "--fail-below", "-9999"]):
        found = []
        for env in ([], ["--env", f"{__name__}:tenth_of_pendulum"]):
            with warnings.catch_warnings():
                warnings.simplefilter("always", UserWarning)
                assert cli.main([*words, *env, "--episodes", "5", "--json"]) == 0
            shown = capsys.readouterr()
            assert shown.err.count(warning) == (not env) and shown.err.count("warning: The policy in") == (not env)
            found.append(json.loads(shown.out))
        without, with_wrapper = (each.get("old", each) for each in found)
        assert without["return"] == pytest.approx(10 * with_wrapper["return"])
        assert 20 in (without.get("length"), without.get("episode_length"))


def test_a_discrete_action_differs_or_not():
    env = gym.make("CartPole-v1")
    comparison = comparing.in_episodes(
        [lambda observation: np.int64(0), lambda observation: np.int64(observation[0] > 0)],
        lambda: env,
        5,
        0,
        None,
    )
    assert 0 < comparison.distances[0] < 1 and comparison.is_discrete
    assert "share of different actions: 0." in comparison.text("worse", 0)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The exports of two agents, and a prediction log of the first."""
    directory = tmp_path_factory.mktemp("exported")
    env = gym.make("Pendulum-v1")
    agents = [tfdpg.TD3(env, **SMALL, seed=seed) for seed in (0, 1)]
    models = [str(agent.export(directory / str(agent.seed))) for agent in agents]
    client = Client(env)
    signatures = tf.saved_model.load(models[0]).signatures
    log = write(directory / "log.tfrecord", [client.step(signatures) for _ in range(7)])
    return agents, models, log


def test_actions_and_the_critics_opinions_are_compared_on_a_log(exported, capsys):
    agents, models, log = exported
    observations = companion("read_prediction_logs")(log, agents[0].spec)["observations"]
    actions = [agent.predict(observations) for agent in agents]
    assert cli.main(["compare", *models, "--log", str(log), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    apart = np.abs(actions[1] - actions[0])
    assert found["observations"] == 7 and found["note"] == comparing.OPINION
    np.testing.assert_allclose(found["actions"]["largest_differences"], apart.max(axis=0), rtol=1e-4)
    np.testing.assert_allclose(found["actions"]["mean_differences"], apart.mean(axis=0), rtol=1e-4)
    assert list(found["values"]) == ["q1 of old", "q2 of old", "q1 of new", "q2 of new"]
    policy = tfdpg.load(models[1])
    expected = [policy.q1(observations, action).mean() for action in actions]
    np.testing.assert_allclose(found["values"]["q1 of new"], expected, rtol=1e-5)
    assert cli.main(["compare", *models, "--log", str(log)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "7 logged observations" and lines[-1] == comparing.OPINION


def test_actions_are_compared_on_recorded_steps(exported, tmp_path, capsys):
    agents, models, _ = exported
    steps = str(tmp_path / "steps")
    assert cli.main(["evaluate", models[0], "--episodes", "2", "--max-ep-len", "6", "--record", steps]) == 0
    capsys.readouterr()
    assert cli.main(["compare", *models, "--log", steps, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    observations = np.concatenate([np.load(f"{steps}/000{i}.npz")["observations"] for i in (0, 1)])
    actions = [agent.predict(observations) for agent in agents]
    assert found["observations"] == 12
    np.testing.assert_allclose(
        found["actions"]["largest_differences"], [np.abs(actions[1] - actions[0]).max()], rtol=1e-4
    )


def test_a_served_policy_is_compared_with_its_export(exported, capsys):
    _, models, _ = exported
    with serving(Path(models[0]).parent) as client:
        url = f"http://127.0.0.1:{client.ports.rest}/v1/models/{client.name}"
        words = [models[0], url, "--env", "Pendulum-v1", "--max-ep-len", "20", "--episodes", "5", "--json"]
        assert cli.main(["compare", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["actions"]["observations"] == 100 and max(found["actions"]["largest_differences"]) < 1e-5
    assert found["old"]["return"] == pytest.approx(found["new"]["return"], rel=1e-5)
