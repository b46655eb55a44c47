"""Pendulum with observations in MultiBinary, nested Dict and Tuple spaces, from training to exports."""

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TransformObservation

import tfdpg
from tests.agents.roster import EAGER, SMALL, brief, fit_briefly
from tests.export.runtimes import client

pytestmark = brief
ANGLE = spaces.Box(-1, 1, (2,), np.float32)
SPEED = spaces.Box(-8, 8, (1,), np.float32)


def bits(observation):
    return (observation[:, None] > [-0.5, 0.5]).astype(np.int8)


def nested(observation):
    signs = (observation > 0).astype(np.int8)
    return {"arm": {"angle": observation[:2], "signs": signs}, "speed": (observation[2:], int(signs[2]))}


def pair(observation):
    return observation[:2], {"speed": observation[2:]}


SPACES = {
    "MultiBinary": (bits, spaces.MultiBinary([3, 2]), {"x": (3, 2)}),
    "Dict": (
        nested,
        spaces.Dict(
            arm=spaces.Dict(angle=ANGLE, signs=spaces.MultiBinary(3)), speed=spaces.Tuple([SPEED, spaces.Discrete(2)])
        ),
        {"arm__angle": (2,), "arm__signs": (3,), "speed__0": (1,), "speed__1": ()},
    ),
    "Tuple": (pair, spaces.Tuple([ANGLE, spaces.Dict(speed=SPEED)]), {"x__0": (2,), "x__1__speed": (1,)}),
}
each_space = pytest.mark.parametrize("kind", SPACES)
dict_quickly = pytest.mark.parametrize(
    "kind", [kind if kind == "Dict" else pytest.param(kind, marks=pytest.mark.slow) for kind in SPACES]
)


def pendulum(kind):
    function, space, _ = SPACES[kind]
    return TransformObservation(gym.make("Pendulum-v1", max_episode_steps=20), function, space)


def leaves(kind, observations):
    """Return the arrays of observations as a client of an export sends them."""
    rows = [SPACES[kind][0](observation) for observation in observations]
    if kind == "MultiBinary":
        return {"x": np.array(rows, np.float32)}
    if kind == "Tuple":
        return {"x__0": np.array([row[0] for row in rows]), "x__1__speed": np.array([row[1]["speed"] for row in rows])}
    return {
        "arm__angle": np.array([row["arm"]["angle"] for row in rows]),
        "arm__signs": np.array([row["arm"]["signs"] for row in rows], np.float32),
        "speed__0": np.array([row["speed"][0] for row in rows]),
        "speed__1": np.array([row["speed"][1] for row in rows], np.int32),
    }


@pytest.fixture(scope="module")
def trained():
    """An agent for each space, for tests that do not change it."""
    agents = {}

    def of(kind):
        if kind not in agents:
            agents[kind] = tfdpg.TD3(pendulum(kind), **SMALL | EAGER)
            fit_briefly(agents[kind], pendulum(kind), epochs=2, steps_per_epoch=25)
        return agents[kind]

    return of


@pytest.fixture(scope="module")
def plain():
    """The first ten observations of the environment without a wrapper."""
    agent = tfdpg.TD3(gym.make("Pendulum-v1", max_episode_steps=20), **SMALL | {"start_steps": 50, "update_after": 50})
    fit_briefly(agent, gym.make("Pendulum-v1", max_episode_steps=20), epochs=1, steps_per_epoch=10)
    return agent.replay.transitions()["observations"][:10]


OBSERVATIONS = np.random.default_rng(0).uniform([-1, -1, -8], [1, 1, 8], (3, 3)).astype(np.float32)


@each_space
def test_nothing_is_wrong_with_the_space(kind, capsys):
    assert tfdpg.check(pendulum(kind), steps=50) == []
    shown = capsys.readouterr().out
    assert all(name in shown for name in SPACES[kind][2])


@each_space
def test_the_replay_buffer_holds_the_observations_by_name(kind, trained, plain):
    stored = trained(kind).replay.transitions()["observations"]
    stored = stored if isinstance(stored, dict) else {"x": stored}
    assert {name: values.shape[1:] for name, values in stored.items()} == SPACES[kind][2]
    np.testing.assert_equal({name: values[:10] for name, values in stored.items()}, leaves(kind, plain))


@dict_quickly
def test_vector_environments_store_what_single_ones_do(kind):
    """The episodes of a sub-environment are seeded alike, and the actions are the same."""
    stored = []
    for make in (gym.Env, *AutoresetMode):
        env = pendulum(kind) if make is gym.Env else SyncVectorEnv([lambda: pendulum(kind)], autoreset_mode=make)
        agent = tfdpg.DDPG(env, **SMALL | {"start_steps": 50, "update_after": 50})
        fit_briefly(agent, env, epochs=1, steps_per_epoch=42)
        stored.append(agent.replay.transitions())
        np.testing.assert_equal(stored[-1], stored[0])


def test_an_environment_in_other_processes():
    env = AsyncVectorEnv([lambda: pendulum("Dict")] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    agent = tfdpg.DDPG(env, **SMALL | EAGER)
    fit_briefly(agent, env, epochs=1, steps_per_epoch=50)
    assert np.isfinite(agent.evaluate(env, episodes=2)["return"])
    env.close()


@pytest.mark.parametrize("kind", ["Dict", pytest.param("Tuple", marks=pytest.mark.slow)])
def test_training_resumes_where_it_was_saved(kind, trained, tmp_path):
    agent = tfdpg.TD3(pendulum(kind), **SMALL | EAGER)
    fit_briefly(agent, pendulum(kind), epochs=1, steps_per_epoch=25)
    agent.save(tmp_path / "agent")
    agent = tfdpg.load_agent(tmp_path / "agent")
    assert agent.spec.observation_space == SPACES[kind][1]
    fit_briefly(agent, pendulum(kind), epochs=2, initial_epoch=1, steps_per_epoch=25)
    np.testing.assert_equal(agent.get_weights(), trained(kind).get_weights())
    np.testing.assert_equal(agent.replay.transitions(), trained(kind).replay.transitions())


@dict_quickly
def test_exports_take_the_parts_by_name(kind, trained, tmp_path):
    agent = trained(kind)
    directory = agent.export(tmp_path / "model")
    inputs = leaves(kind, OBSERVATIONS)
    own = [SPACES[kind][0](observation) for observation in OBSERVATIONS]
    expected = np.stack([agent.predict(observation) for observation in own])
    pi = tf.saved_model.load(str(directory)).signatures["pi"]
    assert set(pi.structured_input_signature[1]) == SPACES[kind][2].keys()
    np.testing.assert_allclose(pi(**{name: tf.constant(x) for name, x in inputs.items()})["pi"], expected, rtol=1e-4)
    policy = tfdpg.load(tmp_path / "model")
    for loaded in (policy, policy.numpy()):
        np.testing.assert_allclose([loaded(observation) for observation in own], expected, rtol=1e-4)
        np.testing.assert_allclose(loaded(policy.spec.nested(inputs)), expected, rtol=1e-4)  # a batch
    assert np.shape(policy.q1(policy.spec.nested(inputs), expected)) == (3,)
    scores = [tfdpg.evaluate(each, pendulum(kind), episodes=1)["return"] for each in (policy, agent)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-4)


@pytest.mark.slow
def test_a_runtime_without_tensorflow_takes_the_parts_by_name(trained, tmp_path):
    agent = trained("Dict")
    directory = agent.export(tmp_path / "model", format="onnx")
    inputs = leaves("Dict", OBSERVATIONS)
    expected = agent.predict(agent.spec.nested(inputs))
    (found,) = client("onnx", directory, [inputs | {"a": expected}], tmp_path)
    np.testing.assert_allclose(found["pi"]["pi"], expected, rtol=1e-4)


@each_space
def test_callables_receive_observations_of_the_environment(kind):
    env = pendulum(kind)
    seen = []

    def policy(observation):
        seen.append(env.observation_space.contains(observation))
        return np.zeros(1)

    tfdpg.evaluate(policy, env, episodes=1)
    assert len(seen) == 20 and all(seen)


@dict_quickly
def test_recorded_transitions_are_data(kind, tmp_path):
    agent = tfdpg.DDPG(pendulum(kind), **SMALL | {"start_steps": 50, "update_after": 50}, recorders=[tmp_path / "data"])
    fit_briefly(agent, pendulum(kind), epochs=1, steps_per_epoch=40)
    again = tfdpg.DDPG(pendulum(kind), **SMALL | EAGER)
    again.fit_offline(tmp_path / "data", epochs=1, steps_per_epoch=1, verbose=0)
    stored = agent.replay.transitions()
    np.testing.assert_equal(again.replay.transitions(), stored)
    parts = {name: stored[name] for name in ("observations", "next_observations")}
    if kind != "MultiBinary":
        parts = {name: agent.spec.nested(arrays) for name, arrays in parts.items()}
    data = {**stored, **parts}
    other = tfdpg.DDPG(pendulum(kind), **SMALL | EAGER)
    other.fit_offline(data, epochs=1, steps_per_epoch=1, verbose=0)
    np.testing.assert_equal(other.replay.transitions(), stored)


@each_space
def test_minibatches_of_ones_own(kind):
    agent = tfdpg.DDPG(pendulum(kind), **SMALL | EAGER)
    observations = agent.spec.nested(leaves(kind, np.resize(OBSERVATIONS, (8, 3))))
    batch = {"observations": observations, "actions": np.zeros((8, 1)), "rewards": np.ones(8)}
    batch |= {"next_observations": observations, "terminations": np.zeros(8)}
    assert np.isfinite(agent.train_on_batch(batch)["loss_q"])
