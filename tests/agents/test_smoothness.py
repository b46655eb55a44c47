"""The option `smoothness`: its term of the policy's loss, and what it does to a policy."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

import tfdpg
from examples.sac import SAC, SACOptions
from tests.agents import test_ddpg, test_td3
from tests.agents.by_hand import BATCH, PI, S2, SPEC, S, adam_first_step
from tests.agents.roster import AGENTS, SMALL, fit_briefly
from tests.environments import Counter, RandomWalk, Reach
from tfdpg.components import smoothness_penalty
from tfdpg.networks import SequenceBatch, TransitionBatch, stateless_normal
from tfdpg.options import takes_options
from tfdpg.ranges import NonNegative

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


class Parts(Counter):
    """Observations with a scalar, an image and a float64 part."""

    def __init__(self):
        super().__init__()
        parts = spaces.Box(-1, 1, ()), spaces.Box(0, 255, (2, 2, 1), np.uint8), spaces.Box(-9, 9, (3,), np.float64)
        self.observation_space = spaces.Tuple(parts)


def samples(space, batch_size):
    """Return observations of a space in the form of `train_on_batch` and `predict`."""
    if isinstance(space, spaces.Dict):
        return {name: samples(part, batch_size) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(samples(part, batch_size) for part in space)
    return np.stack([space.sample() for _ in range(batch_size)])


def near(observations, seed, number):
    """Return observations with the noise of update `number`."""
    parts = keras.tree.flatten(observations)
    floats = [part for part in parts if part.dtype.kind == "f"]
    normal = stateless_normal((sum(part.size for part in floats),), tf.constant([-1 - seed, number], tf.int64)).numpy()
    noises = iter(np.split(normal, np.cumsum([part.size for part in floats])[:-1]))
    return keras.tree.map_structure(
        lambda part: (
            part + 0.2 * part.std(axis=0) * next(noises).reshape(part.shape) if part.dtype.kind == "f" else part
        ),
        observations,
    )


@pytest.mark.parametrize(
    "kind, make",
    [
        ("D4PG", RandomWalk),
        ("DDPG", Reach),
        ("DDPG", Parts),
        pytest.param("TD3", Reach, marks=pytest.mark.slow),
        pytest.param("TD7", Reach, marks=pytest.mark.slow),
        pytest.param("TD7", RandomWalk, marks=pytest.mark.slow),
        pytest.param("TD7", Parts, marks=pytest.mark.slow),
    ],
)
def test_the_loss_of_the_policy_has_the_terms_for_each_kind_of_observation(kind, make):
    env = make()
    env.observation_space.seed(0)
    spec = tfdpg.Spec.of(env)
    observations, following = (samples(env.observation_space, 8) for _ in range(2))
    batch = {"observations": observations, "next_observations": following, "rewards": np.ones(8)}
    batch |= {"actions": np.zeros((8, spec.act_dim)), "terminations": np.arange(8) % 2}
    number = 2 if kind in ("TD3", "TD7") else 1  # the first update of the policy
    plain, smooth = (AGENTS[kind](env, run_eagerly=True, smoothness=weight, seed=3) for weight in (0.0, 20.0))
    action, *others = (plain.predict(each) for each in (observations, following, near(observations, 3, number)))
    temporal, spatial = (np.mean(((action - other) / spec.action_scale) ** 2) for other in others)
    losses = [[agent.train_on_batch(batch) for _ in range(number)][-1]["loss_pi"] for agent in (plain, smooth)]
    assert spatial > 0 < temporal
    np.testing.assert_allclose(losses[1] - losses[0], 20 * (temporal + 5 * spatial), rtol=1e-3)


def test_the_next_observation_is_n_steps_later():
    agent = tfdpg.DDPG(Counter(length=7), **SMALL, n_step=3, smoothness=1.0)
    fit_briefly(agent, Counter(length=7), epochs=1, steps_per_epoch=30)
    packed, _ = agent.data.minibatch_builder(agent.updates, 1)
    batch = agent.data.unpack(tuple(tf.constant(part[0]) for part in packed))
    step = np.array(batch.observation)[:, 1]
    following = np.array(batch.ask_following(lambda at: at.observation, batch.observation))[:, 1]
    np.testing.assert_array_equal(following, np.minimum(step + 3, 7))
    assert 7 in following and 3 in following - step


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


@pytest.mark.slow
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
    spec = tfdpg.Spec(spaces.Discrete(3), SPEC.action_space)
    agent = tfdpg.DDPG(spec, **SMALL | {"batch_size": 2}, smoothness=1.0)
    first, last = (tf.constant(numbers, tf.int32) for numbers in ([0, 1], [0, 2]))
    batch = TransitionBatch(first, *[tf.zeros(2)] * 4, last)
    actions = [np.array(agent.pi(each)) for each in (first, last)]
    expected = np.square((actions[0] - actions[1]) / SCALE).mean(axis=-1)
    np.testing.assert_allclose(smoothness_penalty(agent, batch, counter(1)), expected, rtol=1e-5)
    assert expected[0] == 0 < expected[1]


class SmoothSACOptions(SACOptions):
    smoothness: NonNegative = 0.0
    """weight of the penalty."""


class SmoothSAC(SAC):
    """An own algorithm with a stochastic policy, whose mean actions are to be smooth."""

    @takes_options(SmoothSACOptions)
    def __init__(self, env, options):
        super().__init__(env, options)

    def penalty(self, batch, number):
        return smoothness_penalty(self, batch, number, lambda at: self.sample(at.ask(self.networks["pi"]), 0.0)[0])


def test_an_own_algorithm_with_a_stochastic_policy_penalises_its_mean_actions():
    agent = SmoothSAC(SPEC, **SMALL | {"batch_size": 2}, smoothness=0.5, seed=4)
    observations = (np.float32(each).reshape(-1, 1) for each in (S, S2, S + noise_by_hand(4, 6)))
    action, *others = (agent.predict(each)[:, 0] for each in observations)
    temporal, spatial = (((action - other) / SCALE) ** 2 for other in others)
    np.testing.assert_allclose(agent.penalty(BATCH, counter(6)), 0.5 * (temporal + 5 * spatial), rtol=1e-3)
    assert (temporal > 0).all()
