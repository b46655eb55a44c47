"""Critics that are called together, subsets of them, and one loss for several optimizers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

import tfdpg
from tests.agents.roster import SMALL
from tfdpg.networks import Critics, TransitionBatch, smallest

SPEC = tfdpg.Spec(spaces.Box(-9, 9, (2,)), spaces.Box(-1, 1, (1,)))
RNG = np.random.default_rng(0)
S, A, S2, A2 = (tf.constant(RNG.normal(size=(5, n)), tf.float32) for n in (2, 1, 2, 1))
BATCH = TransitionBatch(S, A, A[:, 0], A[:, 0], tf.ones(5), S2)


@pytest.fixture(scope="module")
def agent():
    return tfdpg.TD3(SPEC, **SMALL | {"batch_size": 5}, critics=4)


def test_values_are_stacked(agent):
    critics, targets = Critics.of("q", agent.networks), Critics.of("q", agent.targets)
    assert critics.names == ("q1", "q2", "q3", "q4")
    expected = np.stack([q([S, A]) for q in critics])
    np.testing.assert_allclose(BATCH.ask(critics, A), expected, rtol=1e-6)
    values, values_t = BATCH.ask_both(critics, A, targets, A2)
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    np.testing.assert_allclose(values_t, np.stack([q([S2, A2]) for q in targets]), rtol=1e-6)
    np.testing.assert_allclose(smallest(values), expected.min(axis=0), rtol=1e-6)
    np.testing.assert_allclose(BATCH.ask(critics[1:3], A), expected[1:3], rtol=1e-6)
    np.testing.assert_array_equal(critics.by_name(values)["q4"], values[3])
    np.testing.assert_allclose(BATCH.mean(values), expected.mean(axis=1), rtol=1e-5)


def test_a_subset_is_drawn_in_the_update_and_calls_no_other_critics(agent):
    critics = Critics.of("q", agent.networks)
    weights = [q.trainable_variables[0] for q in critics]

    @tf.function(jit_compile=True)
    def ask(indices):
        with tf.GradientTape() as tape:
            values = BATCH.ask(critics[indices], A)
            total = tf.reduce_sum(values)
        return values, tape.gradient(total, [weight.value for weight in weights])

    expected = np.stack([q([S, A]) for q in critics])
    for drawn in ([3, 1], [0, 2]):
        values, gradients = ask(tf.constant(drawn))
        np.testing.assert_allclose(values, expected[drawn], rtol=1e-5)
        assert [bool(np.any(gradient)) for gradient in gradients] == [i in drawn for i in range(4)]
    graph = tf.function(lambda drawn: BATCH.ask(critics[drawn], A)).get_concrete_function(tf.constant([3, 1])).graph
    assert [each.type for each in graph.get_operations()].count("MatMul") == 4  # two layers of two critics
    values, values_t = BATCH.ask_both(critics, A, critics[[2]], A2)
    assert values.shape == (4, 5) and values_t.shape == (1, 5)
    in_order = tf.function(lambda order: BATCH.ask_both(critics, A, critics[order], A))(tf.constant([3, 2, 1, 0]))
    np.testing.assert_allclose(in_order[1], np.stack([q([S2, A]) for q in critics])[::-1], rtol=1e-5)


def test_a_subset_of_critics_of_different_kinds_and_outputs():
    def critic(activation):
        parts = [keras.Input((2,)), keras.Input((1,))]
        x = keras.layers.Dense(3, activation)(keras.layers.Concatenate()(parts))
        return keras.Model(parts, keras.layers.Dense(1)(x))

    critics = Critics({"q1": critic("tanh"), "q2": critic("relu")})
    values = BATCH.ask(critics[tf.constant([1])], A)
    np.testing.assert_allclose(values, [np.ravel(critics.networks["q2"]([S, A]))], rtol=1e-6)


def test_one_loss_of_several_critics_has_the_gradient_of_each():
    steps = []
    for joint in (True, False):
        agent = tfdpg.TD3(SPEC, **SMALL | {"batch_size": 5, "l2": 0.1, "seed": 0})
        with agent.minimize("q1", "q2") as step:
            losses = BATCH.mean(tf.square(BATCH.ask(agent.critics, A)))
            step(losses) if joint else step(*tf.unstack(losses))
        steps.append(agent.get_weights())
    for one, other in zip(*steps, strict=True):
        np.testing.assert_array_equal(one, other)
