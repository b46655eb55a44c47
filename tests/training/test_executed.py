"""Environments that execute other actions than those that the policy chose."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import tfdpg
from tests.agents.roster import SMALL, brief, fit_briefly
from tests.environments import Counter
from tfdpg.training.environment.env_runner import EnvRunner

pytestmark = brief
LIMIT = 0.25


class Limited(Counter):
    """A safety filter executes at most `LIMIT`; an operator makes each third step."""

    def __init__(self):
        super().__init__()
        self.executed = []

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        self.executed.append(np.clip(action, -LIMIT, LIMIT))
        info |= {"executed_action": self.executed[-1], "intervention": self.total % 3 == 0}
        return observation, reward, terminated, truncated, info


def stored_actions(agent):
    return agent.replay.transitions()["actions"]


@pytest.mark.parametrize("realtime", [False, True])
def test_fit_stores_what_was_executed(realtime):
    agent, env = tfdpg.TD3(Counter(), **SMALL | {"update_after": 1000}), Limited()
    history = fit_briefly(agent, env, epochs=1, steps_per_epoch=30, realtime=realtime, verbose=0).history
    np.testing.assert_array_equal(stored_actions(agent)[:30], env.executed)
    assert np.abs(env.executed).max() == LIMIT
    if realtime:
        assert history["interventions"] == [1 / 3]


def test_vector_environments_report_executed_actions_of_some_sub_environments():
    class Second(Limited):
        def step(self, action):
            *result, info = super().step(action)
            return *result, info if self.total % 2 else {}

    envs = [Second(), Limited()]
    vector = gym.vector.SyncVectorEnv([lambda: envs[0], lambda: envs[1]])
    agent = tfdpg.TD3(vector, **SMALL, act_noise=0.0)
    fit_briefly(agent, vector, epochs=1, steps_per_epoch=20, verbose=0)
    rows = stored_actions(agent)
    assert (np.abs(rows) <= LIMIT).mean() > 0.7 and (np.abs(rows) > LIMIT).any()


@pytest.mark.parametrize("mark", ["False", 2])
def test_a_mark_of_an_intervention_is_a_bool(mark):
    class Marked(Limited):
        def step(self, action):
            *result, info = super().step(action)
            return *result, info | {"intervention": mark}

    agent = tfdpg.TD3(Counter(), **SMALL)
    with pytest.raises(ValueError, match=f'`info."intervention".` must be a bool. Received: {mark!r}'):
        agent.fit(Marked(), epochs=1, steps_per_epoch=5, verbose=0)


def test_sub_environments_may_mark_with_bools_of_numpy_or_not_at_all():
    class Marked(Counter):
        def step(self, action):
            *result, _ = super().step(action)
            return *result, {"intervention": np.bool_(self.t == 2)} if self.t > 1 else {}

    envs = [Marked(), Counter()]
    vector = gym.vector.SyncVectorEnv([lambda: envs[0], lambda: envs[1]])
    runner = EnvRunner(vector, tfdpg.Spec.of(vector), lambda env_index: 0)
    runner.reset()
    marks = [runner.step(np.ones((2, 1), np.float32))[0].by_operator for _ in range(3)]
    assert marks[0] is None and [mark.tolist() for mark in marks[1:]] == [[True, False], [False, False]]


@pytest.mark.parametrize("mode", AutoresetMode)
def test_the_last_step_of_an_episode_is_reported_in_every_autoreset_mode(mode):
    class Ended(Limited):
        def step(self, action):
            *result, info = super().step(action)
            return *result, info | {"intervention": self.t == 5}

    envs = [Ended(), Ended()]
    vector = gym.vector.SyncVectorEnv([lambda: envs[0], lambda: envs[1]], autoreset_mode=mode)
    agent = tfdpg.TD3(vector, **SMALL | {"update_after": 1000})
    runner = EnvRunner(vector, agent.spec, lambda env_index: 0)
    runner.reset()
    for _ in range(5):
        step, _ = runner.step(np.ones((2, 1), np.float32))
    np.testing.assert_array_equal(step.action, np.full((2, 1), LIMIT))
    assert step.by_operator.tolist() == [True, True] and runner.interventions == 2


def test_a_recurrent_policy_receives_what_was_executed():
    agent = tfdpg.TD3(Counter(), **SMALL, recurrent="lstm", remembers=("observation", "action"), recurrent_units=4)
    agent.act(np.zeros(2, np.float32))
    agent.observe(1.0, np.ones(2, np.float32), False, False, action=[0.125])
    assert agent.data.behaviour.policy_state.state[0, 0] == 0.125
    assert agent.replay.action(np.array([0])) == 0.125


@pytest.mark.parametrize(
    "kind, action, message",
    [
        (tfdpg.TD3, [1.1], "must be inside the action space, from .-1.. to .1... Received: .1.1. at"),
        (tfdpg.TD3, [np.nan], "must be inside the action space"),
        (tfdpg.TD3, [0.1, 0.2], r"`action` must have the shape of the actions .* Received: \(2,\)"),
        (tfdpg.ACER, [0.5], "`action` must be None for agents that store the distributions"),
    ],
)
def test_actions_that_cannot_be_stored_are_refused_and_nothing_is_stored(kind, action, message):
    agent = kind(Counter())
    agent.act(np.zeros(2, np.float32))
    with pytest.raises(ValueError, match=message):
        agent.observe(1.0, np.ones(2, np.float32), False, False, action=action)
    assert agent.replay.added == 1 and agent.env_steps == 0
    agent.observe(1.0, np.ones(2, np.float32), False, False)
    assert agent.env_steps == 1


def test_measured_actions_may_be_slightly_outside():
    agent = tfdpg.TD3(Counter(), **SMALL)
    agent.act(np.zeros(2, np.float32))
    agent.observe(1.0, np.ones(2, np.float32), False, False, action=np.array([1.00005]))
    assert agent.replay.action(np.array([0])) == 1


def test_an_executed_action_of_another_shape_is_named():
    class Wrong(Limited):
        def step(self, action):
            *result, info = super().step(action)
            return *result, info | {"executed_action": [0.1, 0.2]}

    agent = tfdpg.TD3(Counter(), **SMALL)
    with pytest.raises(ValueError, match=r'`info\["executed_action"\]` must be of shape \(1,\).* Received: array'):
        fit_briefly(agent, Wrong(), epochs=1, steps_per_epoch=30)
