import gymnasium as gym
import keras
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

import tfdpg
from tests.acting.test_acting import in_numpy
from tests.agents.roster import EAGER, SMALL
from tests.test_spec import ACTION, OBSERVATIONS
from tfdpg import Spec, networks
from tfdpg.networks import custom
from tfdpg.networks.heads import Value

SPEC = Spec(spaces.Box(-1, 1, (3,)), ACTION)


def check_actor(spec, pi):
    custom.check_width(spec, "pi", pi, takes_action=False, width=spec.act_dim)


def critic(units=1, seed=0, **kwargs):
    inputs = [keras.Input((3,)), keras.Input((2,))]
    x = keras.layers.Concatenate()(inputs)
    output = keras.layers.Dense(units, kernel_initializer=keras.initializers.GlorotUniform(seed), **kwargs)(x)
    return keras.Model(inputs, output)


@pytest.mark.parametrize("space", OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_built_in_networks_fit_every_space(space):
    spec = Spec(space, ACTION)
    check_actor(spec, networks.mlp_actor(spec, hidden_units=(8,)))
    custom.check_critics(
        spec, {name: networks.mlp_critic(spec, hidden_units=(8,), seed=i) for i, name in enumerate(("q1", "q2"))}
    )


def test_the_actor_reaches_both_bounds_of_an_asymmetric_box():
    pi = networks.mlp_actor(SPEC, hidden_units=())
    for sign, bound in ((1e3, SPEC.high), (-1e3, SPEC.low)):
        pi.set_weights([np.zeros((3, 2)), np.full(2, sign)])
        np.testing.assert_allclose(pi(np.zeros((1, 3)))[0], bound, atol=1e-6)


def test_the_critic_sees_actions_scaled_to_one():
    q = networks.mlp_critic(SPEC, hidden_units=())
    q.set_weights([np.array([[0], [0], [0], [1], [10]]), np.zeros(1)])
    values = q([np.zeros((3, 3)), np.stack([SPEC.low, SPEC.center, SPEC.high])])
    np.testing.assert_allclose(values, [-11, 0, 11], atol=1e-5)


def test_seeds_fix_the_weights():
    a, b, c = (networks.mlp_actor(SPEC, hidden_units=(8, 8), seed=seed).get_weights() for seed in (1, 1, 2))
    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert not np.array_equal(a[0], c[0])
    assert not np.array_equal(a[2][:3], a[0][:3, :8])


def test_an_encoder_is_copied_with_its_weights():
    encoder = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
    pi = networks.mlp_actor(SPEC, hidden_units=(8,), encoder=encoder)
    np.testing.assert_array_equal(pi.weights[0], encoder.weights[0])
    assert pi.weights[0] is not encoder.weights[0]


def test_a_wrong_shape_is_rejected_with_the_expected_one():
    with pytest.raises(ValueError, match=r"`pi` must .*\(batch, 2\).*\(batch, 5\)"):
        check_actor(SPEC, keras.Sequential([keras.Input((3,)), keras.layers.Dense(5)]))
    with pytest.raises(ValueError, match=r"`q1` must .*\(batch, 1\).*\(batch, 4\)"):
        custom.check_critics(SPEC, {"q1": critic(4)})
    with pytest.raises(ValueError, match=r"`pi` cannot be called.*\(batch, 3\)"):
        check_actor(SPEC, keras.Sequential([keras.Input((7,)), keras.layers.Dense(2)]))
    with pytest.raises(ValueError, match="`pi` must be a keras.Model"):
        check_actor(SPEC, lambda x: x)


def test_equal_or_shared_critics_are_rejected():
    with pytest.raises(ValueError, match=r"different weights.*\(5, 1\)"):
        custom.check_critics(SPEC, {"q1": critic(seed=1), "q2": critic(seed=1)})
    q = critic()
    with pytest.raises(ValueError, match="share weights"):
        custom.check_separate({"q1": q, "q2": q})
    body = keras.layers.Dense(4)
    x = keras.Input((3,))
    pi, other = (keras.Model(x, keras.layers.Dense(2)(body(x))) for _ in range(2))
    with pytest.raises(ValueError, match="`pi` and `q1` .* share weights"):
        custom.check_separate({"pi": pi, "q1": other})
    custom.check_critics(SPEC, {"q1": critic(seed=1), "q2": critic(seed=2)})


def test_the_value_layer_is_a_dense_layer_of_one_unit(rng, tmp_path):
    features = tf.constant(rng.normal(size=(7, 5)), tf.float32)
    dense = keras.layers.Dense(1)
    value = Value()
    results = []
    for layer in (dense, value):
        layer.build((None, 5))
        layer.set_weights([np.arange(5, dtype=np.float32)[:, None], np.ones(1)])
        with tf.GradientTape() as tape:
            tape.watch(features)
            output = layer(features)
            loss = tf.reduce_sum(tf.reshape(output, [-1]) ** 2)
        results.append([tf.reshape(output, [-1]), *tape.gradient(loss, [features, *layer.trainable_weights])])
    for expected, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)
    q = networks.mlp_critic(SPEC, hidden_units=(4,))
    q.save(tmp_path / "q.keras")
    inputs = [rng.normal(size=(3, 3)), rng.normal(size=(3, 2))]
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "q.keras")(inputs), q(inputs))


def test_the_normaliser_matches_its_equation():
    layer = networks.Normalizer(epsilon=0.5, clip=2.0)
    layer.build((None, 2))
    layer.mean.assign([1.0, -1.0])
    layer.variance.assign([4.0, 0.25])
    np.testing.assert_allclose(layer(np.array([[3.5, -1.5], [100.0, -100.0]])), [[1.0, -0.5], [2.0, -2.0]])


def test_the_numpy_actor_normalises_as_keras_does():
    normalizer = networks.Normalizer(epsilon=0.1, clip=1.5)
    pi = networks.mlp_actor(SPEC, hidden_units=(8,), normalizer=normalizer, seed=2)
    normalizer.mean.assign([0.2, -0.3, 0.5])
    normalizer.variance.assign([0.04, 0.5, 2.0])
    seen = np.array([[0.1, 0.9, -0.7], [-1.0, 1.0, 0.3]], np.float32)
    np.testing.assert_allclose(in_numpy(SPEC, pi)((seen,)), pi(seen), rtol=1e-5, atol=1e-6)


def ends_in(*layers):
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), *layers])


WIDE = Spec(spaces.Box(-1, 1, (3,), np.float32), spaces.Box(np.float32([-50, -1]), np.float32([1500, 1])))
TANH = keras.layers.Activation("tanh")
SIGMOID = keras.layers.Activation("sigmoid")


@pytest.mark.parametrize(
    "network, layer",
    [
        (ends_in(TANH), "Rescaling(scale=[775.0, 1.0], offset=[725.0, 0.0])"),
        (ends_in(SIGMOID), "Rescaling(scale=[1550.0, 2.0], offset=[-50.0, -1.0])"),
        (ends_in(TANH, keras.layers.Rescaling(2.0)), "Rescaling(scale=[387.5, 0.5], offset=[725.0, 0.0])"),
        (ends_in(keras.layers.ReLU()), "Let its outputs reach both bounds."),
    ],
    ids=["tanh", "sigmoid", "a rescaled tanh", "ReLU"],
)
def test_a_policy_that_cannot_reach_the_bounds_gives_a_warning_with_the_remedy(network, layer):
    with pytest.warns(UserWarning, match="cannot reach the bounds") as caught:
        tfdpg.DDPG(WIDE, pi=network)
    assert layer in str(caught[0].message)


def test_policies_that_reach_the_bounds_give_no_warning():
    for network in (ends_in(), ends_in(TANH, keras.layers.Rescaling([775.0, 1.0], [725.0, 0.0]))):
        tfdpg.DDPG(WIDE, pi=network)


def test_a_normaliser_in_custom_networks_has_the_statistics_of_the_agent(tmp_path):
    env = gym.make("Pendulum-v1", max_episode_steps=20)
    x = keras.Input((3,))
    tanh = keras.layers.Dense(1, activation="tanh")(tfdpg.networks.Normalizer()(x))
    policy = keras.Model(x, keras.layers.Rescaling(2.0)(tanh))
    agent = tfdpg.DDPG(env, pi=policy, **SMALL, **EAGER)
    agent.fit(env, epochs=1, steps_per_epoch=40, verbose=0)
    (mean,) = {tuple(layer.mean.numpy()) for layer in agent.data.normalizers}
    np.testing.assert_allclose(mean, agent.data.observation_statistics.mean, rtol=1e-6)
    assert agent.data.observation_statistics.count > 20 and np.abs(mean).max() > 0
    agent.save(tmp_path / "agent")
    again = tfdpg.load_agent(tmp_path / "agent")
    observations = np.float32([[1, 0, 3], [0, 1, -3]])
    np.testing.assert_array_equal(again.predict(observations), agent.predict(observations))
    exported = tfdpg.load(agent.export(tmp_path / "model"))
    np.testing.assert_allclose(exported(observations), agent.predict(observations), rtol=1e-5)
    wrong = keras.Model(x, tfdpg.networks.Normalizer()(keras.layers.Dense(1)(x)))
    with pytest.raises(ValueError, match="must receive the 3 features"):
        tfdpg.DDPG(env, pi=wrong, **SMALL)
