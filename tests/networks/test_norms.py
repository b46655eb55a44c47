"""Normalisation layers compared with written-out formulas and with Keras' layers where they exist."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.test_spec import ACTION, OBSERVATIONS
from tfdpg import Spec, networks
from tfdpg.networks.renormalization import BatchRenormalization

X = np.array([[1.0, -4.0], [2.0, 0.0], [6.0, 1.0]], np.float32)
GAMMA = np.array([2.0, 0.5], np.float32)
BETA = np.array([-1.0, 3.0], np.float32)
MEAN = np.array([0.5, 90.0], np.float32)
VARIANCE = np.array([0.01, 4.0], np.float32)


def layer_with(updates, **options):
    layer = BatchRenormalization(**options)
    layer.build((None, 2))
    layer.set_weights([GAMMA, BETA, MEAN, VARIANCE, np.float32(updates)])
    return layer


def test_inference_uses_the_running_statistics():
    layer = layer_with(0, epsilon=0.25)
    expected = (X - MEAN) / np.sqrt(VARIANCE + 0.25) * GAMMA + BETA
    np.testing.assert_allclose(layer(X), expected, rtol=1e-5)
    np.testing.assert_array_equal(layer.mean, MEAN)


@pytest.mark.parametrize("updates", [9, 10])
def test_training_renormalises_after_the_warm_up(updates):
    layer = layer_with(updates, epsilon=0.25, momentum=0.8, r_max=3.0, d_max=5.0, warm_up=10)
    mean = X.mean(axis=0)
    std = np.sqrt(X.var(axis=0) + 0.25)
    running = np.sqrt(VARIANCE + 0.25)
    r = np.ones(2)
    d = np.zeros(2)
    if updates >= 10:
        r = np.clip(std / running, 1 / 3, 3)
        d = np.clip((mean - MEAN) / running, -5, 5)
        assert r[0] == 3 and 1 / 3 < r[1] < 3 and d[1] == -5 and abs(d[0]) < 5
    expected = ((X - mean) / std * r + d) * GAMMA + BETA
    np.testing.assert_allclose(layer(X, training=True), expected, rtol=1e-5)
    np.testing.assert_allclose(layer.mean, 0.8 * MEAN + 0.2 * mean, rtol=1e-5)
    np.testing.assert_allclose(layer.variance, 0.8 * VARIANCE + 0.2 * X.var(axis=0), rtol=1e-5)
    assert layer.updates == updates + 1


def test_running_statistics_equal_to_the_batch_change_nothing():
    layer = layer_with(10, warm_up=10)
    layer.mean.assign(X.mean(axis=0) + 0.3)
    layer.variance.assign(X.var(axis=0) * 1.5)
    np.testing.assert_allclose(layer(X, training=False), layer(X, training=True), rtol=1e-4)


def test_during_warm_up_outputs_and_gradients_equal_keras_batch_normalisation():
    results = []
    pull = np.random.default_rng(0).normal(size=X.shape).astype(np.float32)
    for layer in (BatchRenormalization(), keras.layers.BatchNormalization()):
        layer.build((None, 2))
        layer.gamma.assign(GAMMA)
        layer.beta.assign(BETA)
        x = tf.constant(X)
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = layer(x, training=True)
            loss = tf.reduce_sum(output * pull)
        gradients = tape.gradient(loss, [x, layer.gamma.value, layer.beta.value])
        results.append([output, *gradients, *(np.array(w.value) for w in layer.non_trainable_weights[:2])])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_r_and_d_have_no_gradient():
    layer = layer_with(10, warm_up=10, epsilon=0.25)
    x = tf.constant(X)
    pull = np.random.default_rng(0).normal(size=X.shape)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(layer(x, training=True) * pull)
    mean = X.mean(axis=0)
    std = np.sqrt(X.var(axis=0) + 0.25)
    running = np.sqrt(VARIANCE + 0.25)
    upstream = pull * GAMMA * np.clip(std / running, 1 / 3, 3)
    normalized = (X - mean) / std
    by_hand = (upstream - upstream.mean(axis=0) - normalized * (upstream * normalized).mean(axis=0)) / std
    np.testing.assert_allclose(tape.gradient(loss, x), by_hand, rtol=1e-4, atol=1e-5)


def test_a_frozen_layer_keeps_its_statistics_and_inputs_must_be_rows():
    layer = layer_with(10)
    layer.trainable = False
    np.testing.assert_array_equal(layer(X, training=True), layer(X))
    np.testing.assert_array_equal(layer.mean, MEAN)
    with pytest.raises(ValueError, match=r"must be `\[batch, n\]`"):
        BatchRenormalization()(np.zeros((2, 3, 4), np.float32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "Batch"}, '`norm` must be "layer", "batch" or None'),
        ({"norm": "batch", "torso": "control"}, '`torso` must be "mlp" beside `norm`'),
        ({"blocks": 2}, r"`blocks` .*0 beside hidden_units=\(256"),
    ],
)
def test_builders_reject_networks_that_cannot_be_normalised(options, message):
    with pytest.raises(ValueError, match=message):
        networks.mlp_actor(Spec(OBSERVATIONS["box"], ACTION), **options)


def test_the_statistics_are_saved(tmp_path):
    inputs = keras.Input((2,))
    model = keras.Model(inputs, layer_with(7, r_max=2.5)(inputs))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(X), model(X))
    np.testing.assert_array_equal(again(X, training=True), model(X, training=True))
    assert again.layers[-1].get_config()["r_max"] == 2.5


def test_batch_normalisation_layers_are_where_crossq_has_them():
    spec = Spec(OBSERVATIONS["box"], ACTION)
    for network in (
        networks.mlp_actor(spec, norm="batch", hidden_units=(6, 5)),
        networks.mlp_critic(spec, norm="batch", hidden_units=(6, 5)),
    ):
        kinds = (keras.layers.Dense, BatchRenormalization)
        names = [type(layer).__name__[0] for layer in network.layers if isinstance(layer, kinds)]
        widths = [layer.gamma.shape[0] for layer in network.layers if isinstance(layer, BatchRenormalization)]
        assert "".join(names).startswith("BDBDB") and widths[1:] == [6, 5]
        assert [layer.activation.__name__ for layer in network.layers if isinstance(layer, kinds[0])][:2] == [
            "relu"
        ] * 2


def test_a_residual_block_matches_its_equation():
    spec = Spec(OBSERVATIONS["box"], ACTION)
    q = networks.mlp_critic(spec, hidden_units=(3,), blocks=1)
    rng = np.random.default_rng(0)
    q.set_weights([rng.normal(size=w.shape) for w in q.get_weights()])
    w, b, gamma, beta, w1, b1, w2, b2, gamma_out, beta_out, kernel, bias = q.get_weights()
    assert w1.shape == (3, 12) and w2.shape == (12, 3)
    x = rng.normal(size=(4, len(w) - 2))
    a = rng.uniform(-1, 1, (4, 2))
    observation = x.reshape(4, *spec.observation_space.shape)

    def norm(x, gamma, beta):
        return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-3) * gamma + beta

    h = np.concatenate([x, (a - spec.center) / spec.action_scale], axis=1) @ w + b
    h = h + np.maximum(norm(h, gamma, beta) @ w1 + b1, 0) @ w2 + b2
    expected = (norm(h, gamma_out, beta_out) @ kernel + bias)[:, 0]
    np.testing.assert_allclose(q([observation, a]), expected, rtol=1e-3)


def test_statistics_stay_float32_in_mixed_precision():
    spec = Spec(OBSERVATIONS["box"], ACTION)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        pi = networks.mlp_actor(spec, norm="batch", hidden_units=(6,))
    finally:
        keras.config.set_dtype_policy("float32")
    x = np.random.default_rng(0).normal(100, 1, (32, *spec.observation_space.shape)).astype(np.float32)
    assert pi(x, training=True).dtype == tf.float32
    layers = [layer for layer in pi.layers if isinstance(layer, BatchRenormalization)]
    np.testing.assert_allclose(layers[0].mean, 1.0, atol=0.05)
    assert {layer.mean.dtype for layer in layers} == {"float32"} and len(layers) == 2
