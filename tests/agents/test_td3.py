"""TD3's update compared with arithmetic by hand."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

import tfdpg
from tests.agents.by_hand import (
    BATCH,
    PI,
    Q1,
    Q2,
    SPEC,
    A,
    S,
    adam_first_step,
    expected_target,
    linear,
    linear_agent,
    set_targets,
)
from tests.environments import Identity


def test_a_critic_update_matches_the_paper():
    agent = linear_agent()
    set_targets(agent)
    measured = agent.update(BATCH, tf.constant(1, tf.int64))
    target = expected_target(agent, 1)
    assert target[1] == -1.0  # terminated: y = R
    for name, weights in (("q1", Q1), ("q2", Q2)):
        q = weights[0] * S + weights[1] * A
        gradient = np.array([np.mean(2 * (q - target) * S), np.mean(2 * (q - target) * A)])
        moved = np.array(weights) - adam_first_step(gradient, 0.1)
        np.testing.assert_allclose(agent.networks[name].get_weights()[0][:, 0], moved, rtol=1e-4)
        np.testing.assert_allclose(measured[name], q, rtol=1e-5)
    losses = sum((w[0] * S + w[1] * A - target) ** 2 for w in (Q1, Q2))
    np.testing.assert_allclose(measured["loss_q"], losses, rtol=1e-5)


def test_the_policy_and_the_targets_are_updated_after_the_delay():
    agent = linear_agent()
    before = [w for network in (agent.networks["pi"], *agent.targets.values()) for w in network.get_weights()]
    measured = agent.update(BATCH, tf.constant(1, tf.int64))
    after = [w for network in (agent.networks["pi"], *agent.targets.values()) for w in network.get_weights()]
    assert np.isnan(measured["loss_pi"]).all()
    for x, y in zip(before, after, strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_policy_update_maximises_q1_before_the_targets_are_updated():
    agent = linear_agent()
    measured = agent.update(BATCH, tf.constant(2, tf.int64))
    q1 = agent.networks["q1"].get_weights()[0][:, 0]  # the critic is updated first
    np.testing.assert_allclose(measured["loss_pi"], -(q1[0] * S + q1[1] * PI * S), rtol=1e-5)
    moved = PI - adam_first_step(np.mean(-q1[1] * S), 0.01)
    np.testing.assert_allclose(agent.networks["pi"].get_weights()[0], [[moved]], rtol=1e-5)
    for name, old in (("pi", PI), ("q1", Q1), ("q2", Q2)):
        online = agent.networks[name].get_weights()[0][:, 0]
        np.testing.assert_allclose(
            agent.targets[name].get_weights()[0][:, 0], 0.9 * np.array(old) + 0.1 * online, rtol=1e-5
        )


def test_each_loss_updates_its_own_weights_only():
    agent = linear_agent()
    before = {name: network.get_weights()[0] for name, network in agent.networks.items()}
    agent.update_policy(BATCH, tf.constant(2, tf.int64))
    moved = {
        name for name, network in agent.networks.items() if not np.array_equal(before[name], network.get_weights()[0])
    }
    assert moved == {"pi"}
    before = agent.get_weights()
    with agent.minimize("q1") as step:
        step(tf.reduce_mean(BATCH.ask(agent.networks["q1"], BATCH.ask(agent.pi))))
    moved = [not np.array_equal(old, new) for old, new in zip(before, agent.get_weights(), strict=True)]
    assert sum(moved) == 1 and not np.array_equal(
        agent.networks["q1"].get_weights()[0], agent.targets["q1"].get_weights()[0]
    )


def test_smoothing_noise_is_drawn_for_each_sample_and_dimension():
    spec = tfdpg.Spec(
        spaces.Box(-1, 1, (1,)), spaces.Box(np.array([-1.0, -5.0]), np.array([1.0, 5.0]), dtype=np.float64)
    )
    agent = tfdpg.TD3(spec, hidden_units=(4,), batch_size=20_000, target_noise=0.2)
    noise = agent.smoothing_noise(tf.constant(3, tf.int64)).numpy()
    np.testing.assert_allclose(noise.std(axis=0), [0.2, 1.0], rtol=0.03)
    assert abs(np.corrcoef(noise.T)[0, 1]) < 0.03
    assert not np.array_equal(noise, agent.smoothing_noise(tf.constant(4, tf.int64)).numpy())
    np.testing.assert_array_equal(noise, agent.smoothing_noise(tf.constant(3, tf.int64)).numpy())


def test_the_delay_counts_across_update_phases():
    agent = linear_agent(update_every=1, start_steps=0, update_after=0, batch_size=2)
    moves = []
    for step in range(6):
        agent.act(np.array([1.0 + step], np.float32))
        agent.observe(1.0, np.array([2.0 + step], np.float32), False, False)
        before = agent.networks["pi"].get_weights()[0]
        agent.learn()
        moves.append(not np.array_equal(before, agent.networks["pi"].get_weights()[0]))
    assert agent.updates == 6
    assert moves == [False, True] * 3


def test_the_delay_continues_after_loading(tmp_path):
    agent = linear_agent(update_every=1, start_steps=0, update_after=0, run_eagerly=True)
    agent.act(np.zeros(1, np.float32))
    agent.observe(1.0, np.ones(1, np.float32), False, False)
    assert "loss_pi" not in agent.learn()
    agent.save(tmp_path / "agent")
    assert "loss_pi" in tfdpg.load_agent(tmp_path / "agent").learn(updates=1)


def test_exploration_noise_stays_in_the_box_and_scales_with_it():
    spec = tfdpg.Spec(
        spaces.Box(-1, 1, (1,)), spaces.Box(np.array([-1.0, -10.0]), np.array([1.0, 10.0]), dtype=np.float64)
    )
    agent = tfdpg.TD3(spec, hidden_units=(4,), start_steps=0, act_noise=0.1)
    observations = np.zeros((20_000, 1), np.float32)
    actions = agent.data.behaviour.exploration.explore(np.zeros((20_000, 2), np.float32), 1.0, np.random.default_rng(0))
    np.testing.assert_allclose(actions.std(axis=0), [0.1, 1.0], rtol=0.03)
    noisy_agent = tfdpg.TD3(spec, hidden_units=(4,), start_steps=0, act_noise=5.0, replay_size=50_000)
    assert all(spec.action_space.contains(row) for row in noisy_agent.act(observations))


def test_start_steps_are_uniform_and_then_the_policy_acts():
    agent = tfdpg.TD3(SPEC, hidden_units=(4,), start_steps=100, act_noise=0.0)
    actions = []
    for _ in range(150):
        actions.append(agent.act(np.zeros(1, np.float32))[0])
        agent.observe(0.0, np.zeros(1, np.float32), False, False)
    assert np.std(actions[:100]) > 0.8
    np.testing.assert_allclose(actions[100:], np.repeat(agent.predict(np.zeros((1, 1)))[0], 50), rtol=1e-5)


def test_q_may_return_a_column():
    agent = linear_agent()  # its Dense(1) critics return [batch, 1]
    assert agent.networks["q1"]([np.zeros((3, 1)), np.zeros((3, 1))]).shape == (3, 1)


def test_custom_networks_keep_their_weights_and_are_saved(tmp_path):
    agent = linear_agent()
    np.testing.assert_allclose(agent.networks["pi"].get_weights()[0], [[PI]], rtol=1e-6)
    agent.save(tmp_path / "agent")
    again = tfdpg.load_agent(tmp_path / "agent")
    assert set(again.parts.given) == {"pi", "q1", "q2"}
    np.testing.assert_array_equal(again.networks["q2"].get_weights()[0], agent.networks["q2"].get_weights()[0])


def test_a_missing_critic_is_named():
    with pytest.raises(ValueError, match="`q1` and `q2` go together"):
        tfdpg.TD3(SPEC, q1=linear([keras.Input((1,)), keras.Input((1,))], Q1))


@pytest.mark.slow
def test_an_adapted_normalization_layer_learns_acts_and_is_exported(tmp_path):
    normalization = keras.layers.Normalization()
    normalization.adapt(np.array([[1.0], [3.0], [5.0]]))
    encoder = keras.Sequential([keras.Input((1,)), normalization])
    agent = tfdpg.TD3(SPEC, encoder=encoder, hidden_units=(4,), batch_size=4, jit_compile=False)
    agent.act(np.ones(1, np.float32))
    agent.observe(1.0, np.zeros(1, np.float32), True, False)
    agent.learn(updates=2)
    agent.export(tmp_path / "model")
    agent.save(tmp_path / "agent")
    observation = np.array([2.0], np.float32)
    np.testing.assert_allclose(tfdpg.load(tmp_path / "model")(observation), agent(observation), rtol=1e-4)
    np.testing.assert_array_equal(tfdpg.load_agent(tmp_path / "agent")(observation), agent(observation))


def test_options_without_effect_are_rejected():
    encoder = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="`encoder` needs a built-in network. Received: pi, q1, q2, encoder="):
        linear_agent(encoder=encoder)
    for name, value in (("hidden_units", (64, 64)), ("activation", "tanh")):
        with pytest.raises(ValueError, match=f"`{name}` does .*pi, q1, q2 are your own"):
            linear_agent(**{name: value})


def test_a_subclassed_policy_is_built_saved_and_loaded(tmp_path):
    @keras.saving.register_keras_serializable("tfdpg-test")
    class Policy(keras.Model):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.dense = keras.layers.Dense(1, activation="tanh")

        def call(self, x):
            return self.dense(x)

    agent = tfdpg.TD3(SPEC, pi=Policy(), hidden_units=(4,), batch_size=4, run_eagerly=True)
    agent.act(np.ones(1, np.float32))
    agent.observe(1.0, np.zeros(1, np.float32), True, False)
    agent.learn(updates=2)
    agent.save(tmp_path / "agent")
    agent.export(tmp_path / "model")
    observation = np.array([2.0], np.float32)
    np.testing.assert_array_equal(tfdpg.load_agent(tmp_path / "agent")(observation), agent(observation))
    np.testing.assert_allclose(tfdpg.load(tmp_path / "model")(observation), agent(observation), rtol=1e-5)


def test_networks_that_cannot_be_loaded_are_rejected():
    class Unregistered(keras.layers.Layer):
        def call(self, x):
            return x

    x = keras.Input((1,))
    for layer, what in (
        (Unregistered(), "Keras says"),
        (keras.layers.Lambda(lambda x: 2 * x, name="twice"), "'twice' is a Lambda.*keras.ops"),
        (keras.layers.Activation(lambda x: 2 * x, name="twice"), "'twice' .*with a lambda.*keras"),
    ):
        with pytest.raises(ValueError, match=f"`pi` .*{what}") as caught:
            tfdpg.TD3(SPEC, pi=keras.Model(x, layer(keras.layers.Dense(1)(x))))
        assert "@keras.saving.register_keras_serializable()" in str(caught.value)
        assert "safe_mode" not in str(caught.value) and "unsafe" not in str(caught.value)
    doubled = keras.ops.add(keras.layers.Dense(1)(x), keras.ops.tanh(x))  # the alternative that the message recommends
    tfdpg.TD3(SPEC, pi=keras.Model(x, doubled))
    with pytest.raises(ValueError, match="`encoder` must be a keras.Model"):
        tfdpg.TD3(SPEC, encoder="cnn")


def test_a_custom_policy_acts_inside_the_box(tmp_path):
    agent = linear_agent()  # its linear policy leaves the box [-1, 3] for large observations
    observations = np.array([[100.0], [-100.0], [1.0]], np.float32)
    expected = [[3.0], [-1.0], [PI]]
    agent.export(tmp_path / "model")
    policy = tfdpg.load(tmp_path / "model")
    for act in (agent, agent.predict, agent.policy(), policy, lambda x: agent.act(x, explore=False)):
        np.testing.assert_allclose(act(observations), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "argument, value",
    [
        ("policy_delay", 0),
        ("critics", 0),
        ("policy_gradient", "mean"),
        ("target_noise", -1.0),
        ("target_noise_decay", 2),
    ],
)
def test_arguments_of_td3_out_of_range_are_named(argument, value):
    with pytest.raises(ValueError, match=rf"`{argument}` must .*Received: {argument}="):
        tfdpg.TD3(SPEC, **{argument: value})


def test_identity_is_learnt():
    env = Identity()
    agent = tfdpg.TD3(
        env,
        hidden_units=(32, 32),
        batch_size=64,
        start_steps=200,
        update_after=100,
        pi_lr=3e-3,
        q_lr=3e-3,
        jit_compile=False,
    )
    agent.fit(env, epochs=1, steps_per_epoch=1000, verbose=0)
    assert agent.evaluate(Identity(), episodes=20)["return"] > -0.02
