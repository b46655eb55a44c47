"""`copy.deepcopy` of an agent equals saving and loading it."""

import copy
import pickle

import keras
import numpy as np
import pytest

import tfdpg
from tests.agents.roster import EAGER, brief, needs, parametrize_agents
from tests.environments import Counter, RandomWalk

pytestmark = brief


def fitted(make, **changes):
    agent = make(RandomWalk(length=7), normalize_observations=True, **changes)
    agent.fit(RandomWalk(length=7), epochs=1, steps_per_epoch=60, verbose=0)
    return agent


def assert_equal(a, b):
    for x, y in zip(a.get_weights(), b.get_weights(), strict=True):
        np.testing.assert_array_equal(x, y)


@parametrize_agents("DDPG")
def test_a_copy_continues_as_the_saved_agent_does(make, tmp_path):
    agent = fitted(make, **EAGER)
    agent.save(tmp_path / "agent")
    other = copy.deepcopy(agent)
    assert type(other) is type(agent) and other.options == agent.options and other.environment == agent.environment
    before = (60, agent.updates, 1, agent.replay.size)
    loaded = tfdpg.load_agent(tmp_path / "agent")
    for each in (agent, other, loaded):
        assert (each.env_steps, each.updates, each.epoch, each.replay.size) == before
        each.learn(updates=2)
        assert_equal(each, agent)
    for each in (other, loaded):  # the unfinished episode continues
        each.fit(RandomWalk(length=7), epochs=2, initial_epoch=1, steps_per_epoch=20, verbose=0)
        assert_equal(each, other)
    assert (other.replay.state()["opened"], other.replay.added) == (77 + 77 // 7, 80 + 12)


@parametrize_agents("DDPG")
@pytest.mark.slow
def test_a_copy_is_independent(make):
    needs(make, "replay")
    agent = fitted(make, replay="prioritized", q_optimizer=keras.optimizers.SGD(0.01, momentum=0.9))
    other = copy.deepcopy(agent)
    third = copy.deepcopy(agent)
    agent.fit(RandomWalk(length=7), epochs=3, initial_epoch=1, steps_per_epoch=40, verbose=0)
    assert (other.env_steps, agent.env_steps) == (60, 140)
    for each in (other, third):
        each.learn(updates=20)  # with the priorities, moments and momenta of the time of the copy
    assert_equal(other, third)
    assert any(not np.array_equal(*pair) for pair in zip(other.get_weights(), agent.get_weights(), strict=True))


class Shaper:
    """Counts its calls."""

    calls = 0

    def __call__(self, reward, step, steps):
        self.calls += 1
        return reward


def test_callables_are_copied_too():
    options = {"hidden_units": (4,), "update_after": 99, "reward_shaper": Shaper()}
    agent = fitted(lambda env, **others: tfdpg.TD3(env, **options, **others))
    other = copy.deepcopy(agent)
    assert other.options.reward_shaper.calls == 60 and other.options.reward_shaper is not agent.options.reward_shaper


def test_custom_networks_are_copied_too():
    pi = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, activation="tanh")])
    agent = tfdpg.TD3(Counter(), hidden_units=(4,), pi=pi, jit_compile=False)
    other = copy.deepcopy(agent)
    assert other.networks["pi"] is not pi
    other.networks["pi"].set_weights([0 * weight for weight in pi.get_weights()])
    assert np.abs(pi.get_weights()[0]).max() > 0


def test_a_replay_buffer_in_files_cannot_be_copied(tmp_path):
    agent = tfdpg.TD3(Counter(), hidden_units=(4,), replay_dir=tmp_path)
    with pytest.raises(ValueError, match="`replay_dir`.*save and load"):
        copy.deepcopy(agent)


def test_agents_cannot_be_pickled_and_policies_can(on_pendulum):
    agent = tfdpg.TD3(Counter(), hidden_units=(4,))
    for dump in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError, match=r"agent\.save.*load_agent.*copy\.deepcopy"):
            dump(agent)
    policy = tfdpg.load(on_pendulum)
    observation = np.ones((3, 3), np.float32)
    for again in (pickle.loads(pickle.dumps(policy)), copy.deepcopy(policy)):
        np.testing.assert_array_equal(again(observation), policy(observation))
