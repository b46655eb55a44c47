"""The option `smoothness`: its term of the policy's loss, and what it does to a policy."""

import gymnasium
import numpy as np
import pytest
import tensorflow as tf

import tfdpg
from tests.agents import test_ddpg, test_td3
from tests.agents.by_hand import BATCH, PI, S2, SPEC, S, adam_first_step
from tests.agents.roster import AGENTS, SMALL, fit_briefly
from tests.environments import Counter, RandomWalk
from tfdpg.components import smoothness_penalty
from tfdpg.networks import SequenceBatch, TransitionBatch, stateless_normal

SCALE = 2.0
"""The action scale of `SPEC`."""


def counter(number):
    return tf.constant(number, tf.int64)


def noise_by_hand(seed, number):
    """The noise of update `number` for the observations 1 and 2, whose standard deviation is 1/2."""
    normal = stateless_normal((2,), tf.constant([-1 - seed, number], tf.int64)).numpy()
    return 0.2 * 0.5 * normal


@pytest.mark.parametrize("kind", ["DDPG", "TD3"])
def test_a_policy_update_follows_the_temporal_and_the_spatial_term(kind):
    make = {"DDPG": test_ddpg, "TD3": test_td3}[kind].linear_agent
    agent = make(smoothness=0.3, seed=7)
    measured = agent.update(BATCH, counter(2))
    q1 = agent.networks["q1"].get_weights()[0][:, 0]
    noise = noise_by_hand(7, 2)
    penalty = 0.3 * ((PI * (S - S2) / SCALE) ** 2 + 5 * (PI * noise / SCALE) ** 2)
    np.testing.assert_allclose(measured["loss_pi"], penalty - (q1[0] * S + q1[1] * PI * S), rtol=1e-5)
    slope = np.mean(2 * penalty / PI - q1[1] * S)
    np.testing.assert_allclose(agent.pi.get_weights()[0], [[PI - adam_first_step(slope, 0.01)]], rtol=1e-5)


def test_the_noise_depends_on_the_seed_and_the_update():
    def penalty(seed, number):
        return np.array(smoothness_penalty(test_td3.linear_agent(smoothness=1.0, seed=seed), BATCH, counter(number)))

    np.testing.assert_array_equal(penalty(1, 5), penalty(1, 5))
    assert not np.array_equal(penalty(1, 5), penalty(1, 6)) and not np.array_equal(penalty(1, 5), penalty(2, 5))


@pytest.mark.parametrize("kind", ["D4PG", "TD7"])
def test_the_term_is_added_to_the_loss_of_the_policy(kind):
    losses = []
    for smoothness in (0.0, 0.5):
        agent = AGENTS[kind](RandomWalk(), run_eagerly=True, smoothness=smoothness)
        rng = np.random.default_rng(0)
        batch = {name: rng.normal(size=(8, 2)) for name in ("observations", "next_observations")}
        batch |= {"actions": rng.uniform(-1, 1, (8, 1)), "rewards": np.ones(8), "terminations": np.zeros(8)}
        logs = [agent.train_on_batch(batch) for _ in range(2)]  # TD7's second update is the policy's first one
        losses.append(logs[1 if kind == "TD7" else 0]["loss_pi"])
    assert losses[1] > losses[0]


def test_integers_and_constant_features_have_no_noise():
    observation = {
        "x": tf.constant([[0.0, 5.0], [4.0, 5.0]]),
        "image": tf.constant([[3], [9]], tf.uint8),
        "y": tf.constant([-1.0, 1.0]),
    }
    batch = TransitionBatch(observation, *[tf.zeros(2)] * 4, observation)
    noisy = batch.with_noise(0.2, counter([3, 4])).observation
    normal = stateless_normal((6,), counter([3, 4])).numpy()  # in the order of the keys: x, then y
    np.testing.assert_allclose(noisy["x"], [[0.4 * normal[0], 5], [4 + 0.4 * normal[2], 5]], rtol=1e-5)
    np.testing.assert_allclose(noisy["y"], [-1 + 0.2 * normal[4], 1 + 0.2 * normal[5]], rtol=1e-5)
    np.testing.assert_array_equal(noisy["image"], observation["image"])


def test_in_sequences_the_next_action_is_that_of_the_next_step():
    offsets = tf.constant([[1.0, 1, 1], [1, 1, 0]])  # the second episode ends after two steps
    acted = tf.constant([1.0, 1, 1, 1, 1, 0])
    batch = SequenceBatch(*[tf.zeros(0)] * 4, offsets, 0, *[tf.zeros(6)] * 4, acted)
    output = tf.constant([[0.0], [1], [2], [3], [4], [5]])
    following = batch.ask_following(lambda at: at, output)
    np.testing.assert_array_equal(following[:, 0], [1, 2, 2, 4, 4, 5])


@pytest.mark.parametrize("kind", ["DDPG", pytest.param("TD3", marks=pytest.mark.slow)])
def test_recurrent_agents_compare_the_actions_of_successive_steps(kind, rng):
    recurrent = {"recurrent": "gru", "recurrent_units": 3, "remembers": ("observation",), "stored_state": False}
    lengths = {"sequence_length": 4, "burn_in": 1, "batch_size": 2}
    agent = AGENTS[kind](RandomWalk(), **recurrent | lengths, smoothness=0.5, seed=9)
    masks = np.ones((2, 5))
    masks[1, 3:] = 0  # the second episode ends after three steps, of which two are learnt from
    observations = rng.normal(size=(2, 6, 2)).astype(np.float32)
    observations[1, 4:] = 1e3  # these rows belong to no episode, and do not count in the deviation of the noise
    packed = agent.data.pack(
        {"observations": observations, "actions": np.zeros((2, 5, 1)), "rewards": np.zeros((2, 5))}
        | {"terminations": np.zeros((2, 5)), "masks": masks}
    )
    batch = agent.data.unpack(tuple(tf.constant(part[0]) for part in packed))
    penalty = np.reshape(smoothness_penalty(agent, batch, counter(3)), (2, 4))
    normal = stateless_normal((24,), counter([-10, 3])).numpy().reshape(2, 6, 2)
    near = observations + 0.2 * np.concatenate([observations[0], observations[1, :4]]).std(axis=0) * normal
    actions, near_actions = (agent.predict(each)[:, 1:5, 0] for each in (observations, near))
    spatial = 5 * (actions - near_actions) ** 2
    temporal = np.pad(np.diff(actions, axis=1) ** 2, [(0, 0), (0, 1)])
    np.testing.assert_allclose(penalty[0], 0.5 * (temporal + spatial)[0], rtol=1e-4)
    np.testing.assert_allclose(penalty[1, :2], 0.5 * (temporal * [1, 0, 0, 0] + spatial)[1, :2], rtol=1e-4)


@pytest.mark.parametrize("kind", ["DDPG", pytest.param("D4PG", marks=pytest.mark.slow)])
def test_a_larger_weight_makes_a_policy_smoother(kind, rng):
    observations = rng.normal(size=(100, 2)).astype(np.float32)
    spread = []
    for smoothness in (0.0, 1e4):
        agent = AGENTS[kind](RandomWalk(), pi_lr=0.02, smoothness=smoothness)
        fit_briefly(agent, RandomWalk(), epochs=1, steps_per_epoch=150)
        spread.append(agent.predict(observations).std())
    assert spread[1] < 0.05 < 0.2 < spread[0]


def test_an_agent_with_noise_in_its_loss_continues_exactly_after_loading(tmp_path):
    agent = tfdpg.TD3(Counter(as_dict=True), **SMALL, smoothness=1.0)
    fit_briefly(agent, Counter(as_dict=True), epochs=1, steps_per_epoch=20)
    agent.save(tmp_path / "agent")
    loaded = tfdpg.load_agent(tmp_path / "agent")
    for each in (agent, loaded):
        each.learn(updates=3)
    for weight, expected in zip(loaded.get_weights(), agent.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, expected)


def test_an_observation_without_floats_has_only_the_temporal_term():
    spec = tfdpg.Spec(gymnasium.spaces.Discrete(3), SPEC.action_space)
    agent = tfdpg.DDPG(spec, **SMALL | {"batch_size": 2}, smoothness=1.0)
    first, last = (tf.constant(numbers, tf.int32) for numbers in ([0, 1], [0, 2]))
    batch = TransitionBatch(first, *[tf.zeros(2)] * 4, last)
    actions = [np.array(agent.pi(each)) for each in (first, last)]
    expected = np.square((actions[0] - actions[1]) / SCALE).mean(axis=-1)
    np.testing.assert_allclose(smoothness_penalty(agent, batch, counter(1)), expected, rtol=1e-5)
    assert expected[0] == 0 < expected[1]
