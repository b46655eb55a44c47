"""`copy.deepcopy` of an agent equals saving and loading it."""

import copy
import pickle
import subprocess
import sys
from typing import Any

import cloudpickle
import keras
import numpy as np
import pytest
from gymnasium import spaces

import tfdpg
from tests.agents.roster import EAGER, brief, needs, parametrize_agents
from tests.environments import Counter, RandomWalk
from tests.exported.test_shipped import FOLDER
from tfdpg import Spec

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


@keras.saving.register_keras_serializable("test_copies")
class Twice(keras.layers.Layer):
    """A user's layer."""

    def call(self, x):
        return 2 * x


def own_policy():
    ends = keras.layers.Rescaling(1.5, -0.5)
    return keras.Sequential([keras.Input((3,)), Twice(), keras.layers.Dense(1, activation="tanh"), ends])


MEMORY = {"recurrent": "lstm", "recurrent_units": (4, 3), "remembers": ("observation", "action", "reward")}
PARTS = Spec(
    spaces.Dict(y=spaces.Box(-1, 1, (2,)), kind=spaces.Discrete(3), z=spaces.Box(0, 255, (2, 2), np.uint8)),
    spaces.Box(-2, 1, (2,)),
)
POLICIES = {
    "TD3": {},
    "parts": {"spec": PARTS, "norm": "layer", "normalize_observations": True},
    "lstm": MEMORY | {"normalize_observations": True, "act_noise": 0.2, "noise": "ou"},
    "gru": {"recurrent": "gru"},
    "batch": {"norm": "batch", "activation": "elu"},
    "categorical": {"agent": "D4PG", "v_min": -9, "v_max": 9},
    "mixture": {"agent": "D4PG", "critic": "mixture"},
    "TD7": {"agent": "TD7"},
    "ACER": {"agent": "ACER", "shared_torso": True},
    "discrete": {"agent": "ACER", "spec": Spec(spaces.Box(-1, 1, (3,)), spaces.Discrete(3, start=1))},
    "compiled": {"activation": "gelu", "recurrent": "lstm"},
    "own": {"pi": own_policy},
}
QUICK = "parts", "lstm", "own"


def agent_of(kind):
    """Return an agent with other than its initial weights and statistics."""
    options: dict[str, Any] = {name: value() if callable(value) else value for name, value in POLICIES[kind].items()}
    spec = options.pop("spec", Spec(spaces.Box(-1, 1, (3,)), spaces.Box(-2, 1, (1,))))
    agent = getattr(tfdpg, options.pop("agent", "TD3"))(spec, seed=3, **{"hidden_units": (8,)} | options)
    rng = np.random.default_rng(1)
    agent.set_weights([weight + rng.uniform(0, 0.3, np.shape(weight)) for weight in agent.get_weights()])
    return agent


def act(policy, observations):
    """Return the actions and change the state of a policy."""
    actions = []
    for observation in observations:
        actions.append(policy(observation))
        policy.received(np.ones(3))
    policy.end(np.array([True, False, False]))
    return np.array(actions)


def batches(spec):
    """Return five batches of three observations; a number of one of them is not finite."""
    spec.observation_space.seed(0)
    rows = [[spec.observation_space.sample() for _ in range(3)] for _ in range(5)]
    if not spec.is_dict:
        rows[1][2][0] = np.nan
        return np.array(rows)
    return [{name: np.stack([row[name] for row in batch]) for name in spec.shapes} for batch in rows]


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in POLICIES]
)
@pytest.mark.parametrize("seed", [5, pytest.param(None, marks=pytest.mark.slow)])
def test_policies_are_pickled_and_copied_in_the_middle_of_an_episode(kind, seed):
    agent = agent_of(kind)
    policy = agent.policy(seed)
    observations = batches(agent.spec)
    for each in (policy, copy.deepcopy(policy)):  # before the first call, and after it
        act(each, observations)
        others = [copy.deepcopy(each), *(pickles.loads(pickles.dumps(each)) for pickles in (pickle, cloudpickle))]
        expected = act(each, observations)
        agent.set_weights([2 * weight for weight in agent.get_weights()])
        for other in others:
            np.testing.assert_array_equal(act(other, observations), expected)
    assert len(np.unique(np.nan_to_num(expected))) > 2


def test_exported_policies_in_numpy_are_pickled():
    policy = tfdpg.load(FOLDER / "td3-lstm-pendulum").numpy()
    observations = batches(policy.spec)
    act(policy, observations)
    again, other = pickle.loads(pickle.dumps(policy)), copy.deepcopy(policy)
    expected = act(policy, observations)
    for each in (again, other):
        np.testing.assert_array_equal(act(each, observations), expected)


def test_another_process_needs_no_tensorflow(tmp_path):
    agent = agent_of("parts")
    observation = batches(agent.spec)[0]
    for seed in (None, 5):
        policy = agent.policy(seed)
        (tmp_path / "policy").write_bytes(pickle.dumps((policy, observation)))
        code = (
            "import pickle, sys; sys.modules['tensorflow'] = sys.modules['keras'] = None;"  # importing them fails
            "policy, observation = pickle.load(open('policy', 'rb')); print(policy(observation).tolist())"
        )
        found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert found.stdout == f"{policy(observation).tolist()}\n"


def test_a_policy_with_a_layer_of_the_user_is_pickled_for_a_process_without_it(tmp_path, monkeypatch):
    policy = agent_of("own").policy()
    expected = policy(np.ones(3))
    pickled = pickle.dumps(policy)
    monkeypatch.delitem(keras.saving.get_custom_objects(), "test_copies>Twice")
    np.testing.assert_array_equal(pickle.loads(pickled)(np.ones(3)), expected)


def test_agents_cannot_be_pickled_and_policies_can(on_pendulum):
    agent = tfdpg.TD3(Counter(), hidden_units=(4,))
    for dump in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError, match=r"agent\.save.*load_agent.*copy\.deepcopy"):
            dump(agent)
    policy = tfdpg.load(on_pendulum)
    observation = np.ones((3, 3), np.float32)
    for again in (pickle.loads(pickle.dumps(policy)), copy.deepcopy(policy)):
        np.testing.assert_array_equal(again(observation), policy(observation))
