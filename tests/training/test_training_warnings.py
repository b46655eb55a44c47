"""Warnings of `fit` about training runs that cannot learn."""

import re
import warnings

import gymnasium as gym
import keras
import numpy as np
import pytest

import tfdpg
from tests.agents.roster import ACER, EAGER, OWN, SMALL, custom_networks
from tests.environments import Counter, Distances, Reach, Remote
from tfdpg.training import training_warnings
from tfdpg.training.environment import env_runner
from tfdpg.training.options import FitOptions


class Stop(Exception):
    pass


class Unstepped(Counter):
    def step(self, action):
        raise Stop


def test_a_training_without_updates_is_told_before_its_first_step():
    agent = tfdpg.DDPG(Counter(), **SMALL | {"start_steps": 0, "update_after": 40})
    message = r"step 40: .*no update \(update_after=40, "
    with pytest.warns(UserWarning, match=message), pytest.raises(Stop):
        agent.fit(Unstepped(), epochs=2, steps_per_epoch=20, verbose=0)


def test_a_training_at_random_is_told():
    env = Counter()
    agent = tfdpg.DDPG(env, **SMALL | EAGER | {"start_steps": 40})
    with pytest.warns(UserWarning, match=r"step 40: .*random \(start_steps=40\)\. ") as caught:
        agent.fit(env, epochs=2, steps_per_epoch=20, verbose=0)
    assert [warning.filename for warning in caught] == [__file__]
    agent.fit(env, epochs=1, steps_per_epoch=5, verbose=0)  # step 45 is not random


def test_a_round_that_never_comes_is_told():
    env = Counter()
    agent = tfdpg.DDPG(env, **SMALL | EAGER | {"update_every": 50})
    with pytest.warns(UserWarning, match=r"no update \(.*=10, update_every=50\)"):
        agent.fit(env, epochs=1, steps_per_epoch=49, verbose=0)
    agent.fit(env, epochs=1, steps_per_epoch=5, verbose=0)
    assert agent.updates > 0


def test_acer_s_own_schedule():
    env = Counter()
    agent = tfdpg.ACER(env, **ACER | {"n_steps": None})
    with pytest.warns(UserWarning, match=r"step 49: .*\(n_steps=50, replay_start=10"):
        agent.fit(env, epochs=1, steps_per_epoch=49, verbose=0)
    agent = tfdpg.ACER(env, **ACER | {"on_policy": False, "replay_start": 400})
    with pytest.warns(UserWarning, match=r"step 50: .*\(n_steps=5, replay_start=400"):
        agent.fit(env, epochs=1, steps_per_epoch=50, verbose=0)  # known only at the end


def test_rounds_by_episodes_that_do_not_end_are_told_at_the_end():
    env = Counter(length=100)
    agent = tfdpg.DDPG(env, **SMALL | {"update_every": "episode"})
    with pytest.warns(UserWarning) as caught:
        agent.fit(env, epochs=2, steps_per_epoch=20, verbose=0)
    assert ["no update" in str(warning.message) for warning in caught] == [True, False]
    assert str(caught[1].message) == (
        "No episode ended in the 40 environment steps of this training run, so it has no `return`; the longest open "
        "one has 40 steps. Raise `epochs` or `steps_per_epoch`, or truncate episodes with `max_ep_len`."
    )


def test_sub_environments_round_an_epoch_up():
    envs = gym.vector.SyncVectorEnv([Counter] * 4)
    agent = tfdpg.DDPG(envs, **SMALL | EAGER | {"start_steps": 0, "update_after": 20, "update_every": 4})
    agent.fit(envs, epochs=3, steps_per_epoch=5, verbose=0)  # 8 steps per epoch
    assert agent.env_steps == 24 and agent.updates > 0


def shares(agent):
    return agent.fit_offline(None, epochs=2, steps_per_epoch=1, verbose=0).history["actions_at_bounds"]


@pytest.mark.slow
def test_actions_at_their_bounds():
    class Two(Counter):
        action_space = gym.spaces.Box(np.float32([-1, -4]), np.float32([1, 0]))

    env = Two()
    agent = tfdpg.DDPG(env, **SMALL, pi_lr=1e-9)
    assert agent.fit(env, epochs=1, steps_per_epoch=20, verbose=0).history["actions_at_bounds"] == [0.0]
    *_, kernel, bias = agent.networks["pi"].trainable_weights
    for logits, share in (([2.6, -2.6], 0.0), ([0, 2.7], 0.5)):  # tanh(2.6) = 0.989, tanh(2.7) = 0.991
        kernel.assign(0 * kernel)
        bias.assign(logits)
        assert shares(agent) == [share, share]
    bias.assign([-2.7, 2.7])
    with pytest.warns(UserWarning, match=r"100% of .*\(`actions_at_bounds`\)") as caught:
        assert shares(agent) == [1.0, 1.0]
    assert len(caught) == 1


@pytest.mark.slow
def test_discrete_actions_have_no_bounds():
    env = gym.make("CartPole-v1")
    agent = tfdpg.ACER(env, **ACER)
    assert "actions_at_bounds" not in agent.fit(env, epochs=1, steps_per_epoch=60, verbose=0).history


QUIET = EAGER | {"update_after": 10**6, "start_steps": 10**6}


def caught_in_fit(env, steps, **options):
    agent = tfdpg.DDPG(env, **SMALL | QUIET)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = agent.fit(env, epochs=1, steps_per_epoch=steps, verbose=0, **options).history
    texts = [str(warning.message) for warning in caught]
    return history, [text for text in texts if not text.startswith("This training ends at")]


@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: gym.wrappers.TimeLimit(env, 2500)])
def test_an_environment_ends_its_own_episodes(wrap):
    history, texts = caught_in_fit(
        wrap(Counter(length=2400)), 2400, validation_env=wrap(Counter(length=2400)), validation_episodes=1
    )
    assert history["episode_length"] == history["val_episode_length"] == [2400.0]
    assert texts == []


def test_an_episode_without_an_end_is_told_once():
    env = Counter(length=10**6)
    told = (
        "An episode has lasted 10,000 steps, and the environment has no known step limit. If its episodes never end, "
        "pass `max_ep_len`, or wrap the environment in gymnasium.wrappers.TimeLimit."
    )
    _, texts = caught_in_fit(env, 10_100)
    assert texts == [told]


def test_an_evaluation_without_an_end_is_told_once(monkeypatch):
    monkeypatch.setattr(env_runner, "LONG_EPISODE", 20)
    env = Counter(length=30)
    with pytest.warns(UserWarning, match="An episode has lasted 20 steps"):
        tfdpg.evaluate(lambda observation: np.zeros(1, np.float32), env, 3)
    tfdpg.evaluate(lambda observation: np.zeros(1, np.float32), env, 3)  # of which nothing more is told
    for limited in (gym.wrappers.TimeLimit(Counter(length=30), 25), gym.wrappers.TimeLimit(Counter(length=30), 50)):
        tfdpg.evaluate(lambda observation: np.zeros(1, np.float32), limited, 3)


def test_limits_of_the_user_and_of_the_environment_are_not_told(monkeypatch):
    monkeypatch.setattr(env_runner, "LONG_EPISODE", 40)
    limited = gym.make("tfdpg-test/Counter-v0", length=10_000, max_episode_steps=100, disable_env_checker=True)
    endless = Counter(length=10_000)
    for env, limit in ((endless, 30), (gym.wrappers.TimeLimit(endless, 70), None), (limited, None)):
        assert caught_in_fit(env, 120, max_ep_len=limit)[1] == []
    (told,) = caught_in_fit(limited.unwrapped, 120)[1]  # without the wrapper that ends its episodes
    assert told.startswith("An episode has lasted 40 steps")


class Logs:
    """A training run as `TrainingWarnings` sees it: only the logs of its epochs matter."""

    def __init__(self, agent):
        self.training_warnings = training_warnings.TrainingWarnings(agent, FitOptions())
        agent.learner.counter.assign_add(1)

    def caught(self, *epochs):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for value, best in epochs:
                self.training_warnings.epoch({"actions_at_bounds": 0.95, "return": value, "return_max": best})
        return [str(warning.message) for warning in caught]


def test_a_task_that_is_solved_with_actions_at_the_bounds_is_no_failure():
    agent = tfdpg.DDPG(Counter(), **SMALL)
    assert len(Logs(agent).caught((-1240.0, -850.0), (-1210.0, -900.0), (-1190.0, -870.0))) == 1
    first, *later = (-1240.0, -850.0), (-600.0, -130.0), (-156.0, -1.0), (-160.0, -2.0)
    logs = Logs(agent)
    logs.training_warnings.epoch({"actions_at_bounds": 0.1, "return": first[0], "return_max": first[1]})
    assert logs.caught(*later) == []


def stored(agent, env):
    """Let an agent store 20 steps without updates."""
    observation, _ = env.reset(seed=0)
    for _ in range(20):
        agent.act(observation)
        observation, reward, terminated, truncated, _ = env.step(np.zeros(1, np.float32))
        agent.observe(reward, observation, terminated, truncated)
        if terminated or truncated:
            observation, _ = env.reset(seed=0)
    return agent


def test_custom_networks_are_told_of_a_layer_unless_they_rescale():
    spec = tfdpg.Spec.of(Remote())
    (text,) = Logs(stored(tfdpg.DDPG(spec, **OWN, **custom_networks(None, spec)), Remote())).caught((0.0, 0.0))
    (layer,) = re.findall(r"first apply the layer (tfdpg\.networks\.Normalizer\(\)) to the observation", text)
    assert "x[1]" in text and "normalize_observations" not in text
    for advised in (lambda: eval(layer), lambda: keras.layers.Rescaling([1.0, 1e-3])):
        agent = stored(tfdpg.DDPG(spec, **OWN, **custom_networks(advised, spec)), Remote())
        (text,) = Logs(agent).caught((0.0, 0.0))
        assert "If returns do not rise, use a smaller learning rate" in text
    (text,) = Logs(tfdpg.DDPG(Counter(), **OWN, **custom_networks(None, spec))).caught((0.0, 0.0))
    assert "If returns do not rise, use a smaller learning rate" in text
    (text,) = Logs(stored(tfdpg.DDPG(Reach(), her="future", **SMALL), Reach())).caught((0.0, 0.0))
    assert "smaller rewards, or" in text


def test_each_agent_is_told_and_the_feature_that_is_badly_scaled_is_named():
    for _ in range(2):
        agent = stored(tfdpg.DDPG(Distances(), **SMALL), Distances())
        (text,) = Logs(agent).caught((0.0, 0.0))
        assert (
            "first pass `normalize_observations=True`, since the observation feature `distance[0]` has the mean" in text
        )
