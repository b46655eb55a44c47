"""Networks with normalisation layers, and agents without target networks."""

import gymnasium as gym
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdpg
from tests.agents.roster import AGENTS, EAGER, SMALL, fit_briefly, needs, parametrize_agents
from tfdpg.networks import TransitionBatch

SGD = keras.optimizers.SGD(0.1)

KINDS = {
    "layer": {"norm": "layer"},
    "batch": {"norm": "batch"},
    "blocks": {"blocks": 2, "hidden_units": (8,)},
    "crossq": {"norm": "batch", "target_networks": False},
    "no targets": {"target_networks": False},
}
CROSSQ = KINDS["crossq"] | {"beta_1": 0.5}


def quickly(first, *others):
    """Return the parameters; all but the first are slow tests."""
    return [first, *(pytest.param(other, marks=pytest.mark.slow) for other in others)]


@pytest.mark.parametrize("kind", quickly("batch", "layer", "blocks"))
@parametrize_agents("TD3")
def test_acting_in_numpy_keras_and_the_export_agree(make, kind, tmp_path):
    for option in KINDS[kind]:
        needs(make, option)
    env = gym.make("Pendulum-v1")
    agent = make(env, **KINDS[kind] | EAGER)
    fit_briefly(agent, env, epochs=1, steps_per_epoch=25)
    env.observation_space.seed(0)
    observations = np.stack([env.observation_space.sample() for _ in range(7)])
    acted = agent.act(observations, explore=False)
    assert agent.data.actor.weights_from is not None
    np.testing.assert_allclose(agent.data.actor.pi(observations), acted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(agent.predict(observations), acted, rtol=1e-4, atol=1e-5)
    policy = tfdpg.load(agent.export(tmp_path / "model"))
    np.testing.assert_allclose(policy(observations), acted, rtol=1e-4, atol=1e-5)
    if kind == "batch" and make is not AGENTS["TD7"]:  # whose policy has layer normalisation
        training = agent.pi(observations, training=True)
        assert np.abs(training - acted).max() > 1e-3  # in training mode, the statistics are those of the batch


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@parametrize_agents("TD3")
def test_loaded_agents_continue_as_the_saved_ones_do(make, kind, tmp_path):
    for option in KINDS[kind]:
        needs(make, option)
    env = gym.make("Pendulum-v1")
    without = (
        make is AGENTS["D4PG"] and "target_networks" in KINDS[kind]
    )  # the roster's options are for target networks
    agent = make(env, **KINDS[kind] | ({"polyak": 0.0, "target_update_every": 100} if without else {}))
    fit_briefly(agent, env, epochs=1, steps_per_epoch=40)
    agent.save(tmp_path / "agent")
    again = tfdpg.load_agent(tmp_path / "agent")
    assert agent.learn(updates=5) == again.learn(updates=5)
    for old, new in zip(agent.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert bool(agent.targets) == KINDS[kind].get("target_networks", True)


def random_batch(seed, size=8):
    rng = np.random.default_rng(seed)
    numbers = [rng.normal(size=(size, 3)), rng.uniform(-2, 2, (size, 1)), rng.normal(size=size), np.full(size, 0.9)]
    arrays = [*numbers, np.ones(size), rng.normal(size=(size, 3))]
    return TransitionBatch(*(tf.constant(array, tf.float32) for array in arrays))


def test_one_joint_pass_uses_joint_statistics_and_updates_them_once():
    agent = tfdpg.TD3("Pendulum-v1", **SMALL | CROSSQ)
    batch = random_batch(0)
    q = agent.networks["q1"]
    next_action = tf.constant(np.random.default_rng(1).uniform(-2, 2, (8, 1)), tf.float32)
    parts = [batch.observation, batch.next_observation], [batch.action, next_action]
    whole = q([tf.concat(part, axis=0) for part in parts], training=True)
    before = [np.array(layer.mean) for layer in q.layers if hasattr(layer, "warm_up")]
    value, value_t = batch.ask_both(q, batch.action, q, next_action)
    np.testing.assert_allclose(tf.concat([value, value_t], axis=0), whole, rtol=1e-5, atol=1e-6)
    alone = q([batch.observation, batch.action], training=True)
    assert np.abs(value - alone).max() > 1e-3
    first = next(layer for layer in q.layers if hasattr(layer, "warm_up"))
    assert first.updates == 3 and len(before) == 2


def test_an_update_of_crossq_equals_the_written_out_gradient():
    agent = tfdpg.TD3("Pendulum-v1", **SMALL | CROSSQ | {"q_optimizer": SGD, "beta_1": 0.9})
    batch = random_batch(0)
    action_t = agent.target_action(batch, tf.constant(1, tf.int64))
    critics = [agent.networks["q1"], agent.networks["q2"]]
    start = [q.get_weights() for q in critics]
    x = tf.concat([batch.observation, batch.next_observation], axis=0)
    a = tf.concat([batch.action, action_t], axis=0)
    with tf.GradientTape(persistent=True) as tape:
        values = [q([x, a], training=True) for q in critics]
        target = batch.reward + 0.9 * tf.minimum(values[0][8:], values[1][8:])
        losses = [tf.reduce_mean(tf.square(value[:8] - tf.stop_gradient(target))) for value in values]
    gradients = [
        tape.gradient(loss, [w.value for w in q.trainable_weights]) for q, loss in zip(critics, losses, strict=True)
    ]
    for q, weights in zip(critics, start, strict=True):
        q.set_weights(weights)
    expected = [
        [w - 0.1 * g for w, g in zip([w.numpy() for w in q.trainable_weights], part, strict=True)]
        for q, part in zip(critics, gradients, strict=True)
    ]
    measured = agent.update(batch, tf.constant(1, tf.int64))
    np.testing.assert_allclose(tf.reduce_mean(measured["loss_q"]), sum(losses), rtol=1e-5)
    for q, weights in zip(critics, expected, strict=True):
        for now, previous in zip(q.trainable_weights, weights, strict=True):
            np.testing.assert_allclose(now.numpy(), previous, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"blocks": 1}, "`hidden_units` .*one number.*`blocks`"),
        ({"blocks": 1, "hidden_units": (8,), "norm": "layer"}, "`norm` does .*`blocks` have LayerNorm"),
        ({"target_networks": False, "polyak": 0.9}, "`polyak` does .*`target_networks` is"),
        ({"norm": "batch", "recurrent": "gru"}, "`norm='batch'` is .*without a memory"),
        ({"norm": "instance"}, "`norm` must be"),
        ({"norm": "layer", "hidden_units": ()}, "`norm` does .*no hidden layers"),
        ({"norm": "batch", "batch_size": 1}, "`batch_size` .*2 where `norm` is 'batch'"),
        ({"beta_1": 1.0}, r"`beta_1` must .*\[0, 1\).*beta_1=1.0"),
        ({"beta_1": 1.5}, r"`beta_1` must .*\[0, 1\).*beta_1=1.5"),
    ],
)
def test_options_that_contradict_each_other_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        tfdpg.TD3("Pendulum-v1", **options)


def test_beta_1_is_passed_to_adam():
    agent = tfdpg.DDPG("Pendulum-v1", **SMALL, beta_1=0.5)
    assert {optimizer.beta_1 for optimizer in agent.optimizers.values()} == {0.5}


@pytest.mark.slow
def test_recurrent_agents_work_without_target_networks():
    memory = {"recurrent": "rnn", "recurrent_units": 4, "sequence_length": 3, "burn_in": 1, "norm": "layer"}
    env = gym.make("Pendulum-v1")
    agent = tfdpg.TD3(env, **SMALL | memory, target_networks=False)
    fit_briefly(agent, env, epochs=1, steps_per_epoch=30)
    before = agent.networks["q1"].get_weights()
    assert np.isfinite(agent.learn(updates=2)["loss"]) and agent.targets == {}
    assert all(np.isfinite(w).all() for w in agent.get_weights())
    assert any(not np.array_equal(a, b) for a, b in zip(before, agent.networks["q1"].get_weights(), strict=True))
