"""A policy's memory while collecting and while it is evaluated."""

import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import tfdpg
from tests.environments import Counter
from tests.recurrent_policies import counting_policy
from tfdpg.replay import ReplayBuffer
from tfdpg.replay.segments import as_one_segment
from tfdpg.training.environment.collector import Collector
from tfdpg.training.environment.schedule import Schedule
from tfdpg.training.evaluation import EvaluationPolicy

SPEC = tfdpg.Spec.of(Counter())


def collecting(shaper=None, start_steps=0, **options):
    behaviour = counting_policy(SPEC, **options)
    schedule = Schedule(start_steps=start_steps, update_after=100, update_every=1, gradient_steps=None)
    buffer = ReplayBuffer(SPEC, 100, step_width=behaviour.step_width, has_predecessors=True)
    return Collector(SPEC, buffer, schedule, behaviour, 0, shaper), buffer, behaviour


def run(collector, env, observation, steps):
    """Steps a single environment, whose episodes are reset by hand where they end."""
    for _ in range(steps):
        observation, *outcome, _ = env.step(collector.act(observation, explore=True))
        collector.observe(outcome[0], observation, *outcome[1:], None)
        if outcome[1]:
            observation, _ = env.reset()
    return observation


@pytest.mark.parametrize("mode", AutoresetMode)
def test_each_sub_environment_remembers_its_episode(mode):
    envs = SyncVectorEnv([lambda: Counter(length=2), lambda: Counter(length=3)], autoreset_mode=mode)
    collector, buffer, behaviour = collecting()
    observations, _ = envs.reset(seed=0)
    for _ in range(9):
        taken = collector.act(observations, explore=True)
        at_start = observations[:, 1] == 0
        recurrent_inputs = behaviour.network.recurrent_inputs[-1]
        np.testing.assert_array_equal(recurrent_inputs[at_start], 0)
        observations, reward, terminated, truncated, info = envs.step(taken)
        final = observations if mode == AutoresetMode.DISABLED else info.get("final_obs")
        collector.observe(reward, observations, terminated, truncated, final)
        if mode == AutoresetMode.DISABLED and terminated.any():
            observations, _ = envs.reset(options={"reset_mask": terminated})
    stored = buffer.transitions()
    t = stored["observations"][:, 1:]
    assert len(t) > 10
    np.testing.assert_array_equal(stored["states"], t)  # it depends on the episode's earlier observations
    np.testing.assert_allclose(stored["actions"], (t + 1) / 10, rtol=1e-6)


def test_rewards_are_remembered_as_the_environment_gives_them():
    collector, buffer, behaviour = collecting(shaper=lambda reward, step, steps: 10 * reward)
    env = Counter(length=4)
    run(collector, env, env.reset()[0], 6)
    assert [recurrent_inputs[0, 1] for recurrent_inputs in behaviour.network.recurrent_inputs] == [0, 1, 2, 3, 0, 1]
    assert buffer.transitions()["rewards"][:4].tolist() == [10, 20, 30, 40]


def test_random_steps_are_stored_with_their_states():
    collector, buffer, _ = collecting(start_steps=3)
    env = Counter(length=9)
    run(collector, env, env.reset()[0], 5)
    stored = buffer.transitions()
    assert stored["states"][:, 0].tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(stored["actions"][3:, 0], [0.4, 0.5], rtol=1e-6)


def test_a_memory_is_saved_and_restored():
    collector, buffer, behaviour = collecting()
    env = Counter(length=9)
    observation = run(collector, env, env.reset()[0], 3)
    state = json.loads(json.dumps(collector.state()))
    other, other_ring, remembers = collecting()
    other_ring.restore(buffer.state(), [as_one_segment(buffer)])
    other.restore(state)
    run(other, env, observation, 1)
    np.testing.assert_array_equal(remembers.network.recurrent_inputs[0], [[np.float32(0.3), 3, 3]])
    assert other_ring.size == 5  # the episode went on


def test_a_reset_in_the_middle_of_an_episode_resets_the_state():
    collector, _, behaviour = collecting()
    env = Counter(length=9)
    run(collector, env, env.reset()[0], 3)
    run(collector, env, env.reset()[0], 2)
    assert [recurrent_inputs[0, 2] for recurrent_inputs in behaviour.network.recurrent_inputs] == [0, 1, 2, 0, 1]
    collector.close_episodes()
    run(collector, env, env.reset()[0], 1)
    assert behaviour.network.recurrent_inputs[-1].tolist() == [[0, 0, 0]]


def test_an_evaluation_keeps_the_state_and_resets_it_at_the_start():
    envs = SyncVectorEnv([lambda: Counter(length=2), lambda: Counter(length=5)])
    behaviour = counting_policy(SPEC)
    policy = EvaluationPolicy(behaviour, 0.0, 0)
    scores = []
    for _ in range(2):
        behaviour.network.recurrent_inputs.clear()
        scores.append(tfdpg.evaluate(policy, envs, 3, max_ep_len=4))
        recurrent_inputs = np.array(behaviour.network.recurrent_inputs)
        assert recurrent_inputs[:, 0, 2].tolist() == [0, 1, 0, 1] and recurrent_inputs[:, 1, 2].tolist() == [0, 1, 2, 3]
        assert recurrent_inputs[:, 1, 1].tolist() == [0, 1, 2, 3]  # rewards
        policy(np.zeros((2, 2), np.float32))  # what it does in between does not matter
    assert scores[0] == scores[1]


def test_the_state_is_reset_in_all_sub_environments_or_some():
    behaviour = counting_policy(SPEC)
    policy = EvaluationPolicy(behaviour, 0.0, 0)
    policy.reset()
    for reset in (lambda: None, lambda: policy.reset([1]), lambda: policy.reset(np.array([True, False])), policy.reset):
        policy(np.zeros((2, 2), np.float32))
        reset()
    policy(np.zeros((2, 2), np.float32))
    counts = [recurrent_inputs[:, 2].tolist() for recurrent_inputs in behaviour.network.recurrent_inputs]
    assert counts == [[0, 0], [1, 1], [2, 0], [0, 1], [0, 0]]


def test_a_policy_that_explores_takes_the_action_that_was_executed():
    behaviour = counting_policy(SPEC)
    policy = EvaluationPolicy(behaviour, 0.0, 0)
    observation = np.zeros((2, 2), np.float32)
    policy(observation)
    policy.reset([1])
    policy(observation, action_before=[[0.7], [0.7]])
    assert behaviour.network.recurrent_inputs[-1].tolist() == [[np.float32(0.7), 0, 1], [0, 0, 0]]
    with pytest.raises(ValueError, match="`reward` must be of shape"):
        policy.received(np.zeros(3))


def test_anything_that_wants_to_know_is_told_of_rewards_and_ends():
    class RecordingPolicy:
        def __init__(self):
            self.rewards = []
            self.ends = []
            self.resets = 0

        def reset(self):
            self.resets += 1

        def received(self, reward):
            self.rewards += reward.tolist()

        def end(self, ended):
            self.ends += ended.tolist()

        def __call__(self, observation):
            return np.zeros(1, np.float32)

    policy = RecordingPolicy()
    tfdpg.evaluate(policy, Counter(length=2), 2)
    assert (policy.rewards, policy.ends, policy.resets) == ([1, 2, 1, 2], [False, True] * 2, 1)


def test_an_agent_is_evaluated_by_its_policy():
    class Agent:
        spec = SPEC

        def __call__(self, observation):
            raise AssertionError("predicts from a zero state")

        def policy(self):
            return EvaluationPolicy(behaviour, 0.0, 0)

    behaviour = counting_policy(SPEC)
    assert tfdpg.evaluate(Agent(), Counter(length=3), 1)["return"] == 6
    assert len(behaviour.network.recurrent_inputs) == 3


def test_training_warnings_leave_the_memory_alone():
    env = gym.make("Pendulum-v1", max_episode_steps=5)
    agent = tfdpg.TD3(env, hidden_units=(4,), start_steps=0, update_after=100, jit_compile=False)
    from tfdpg.training.training_warnings import actions_at_bounds

    actor = lambda packed: np.concatenate([packed[-1][:, -1:], packed[-1][:, -1:] + 2], axis=1)  # noqa: E731
    observation, _ = env.reset(seed=0)
    agent.act(observation)
    agent.data.behaviour = counting_policy(agent.spec, actor=actor)
    agent.data.actor = actor
    agent.data.behaviour.greedy((np.zeros((1, 3), np.float32),))
    assert actions_at_bounds(agent) == {"actions_at_bounds": 0.0}  # the next action would be at its bound
    assert agent.data.behaviour.policy_state.state.tolist() == [[0, 0, 2]]
