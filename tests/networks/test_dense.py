"""Layers that cost less in compiled updates compute the same as Keras' layers, with fewer products of matrices."""

import contextlib
import copy
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

import tfdpg
from tfdpg.networks import BatchRenormalization, is_on_cpu, lean_products, numpy_policy
from tfdpg.networks.dense import Activation, Dense

ROWS = 8
SPEC = tfdpg.Spec(spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32))


@pytest.fixture(autouse=True)
def seeded():
    keras.utils.set_random_seed(0)


def joined():
    """A network of three inputs that are concatenated, the first one after a layer of its own."""
    inputs = [keras.Input((width,)) for width in (5, 64, 3)]
    first = Dense(6, activation="elu")(inputs[0])
    x = Dense(7, activation="elu")(keras.layers.Concatenate()([first, *inputs[1:]]))
    return keras.Model(inputs, Dense(1)(Activation("elu")(Dense(4)(x))))


def normalized():
    """A network whose input and hidden layer have batch normalisation."""
    x = first = keras.Input((11,))
    for units in (6, 1):
        norm = BatchRenormalization(warm_up=1)
        x = Dense(units, kernel_initializer=keras.initializers.RandomNormal(seed=units))(norm(x))
    return keras.Model(first, x)


def numbers(network, seed=1):
    rng = np.random.default_rng(seed)
    network.set_weights([rng.normal(1, 0.5, weight.shape).astype(np.float32) for weight in network.weights])
    made = [tf.constant(rng.normal(size=(ROWS, *x.shape[1:])), tf.float32) for x in network.inputs]
    return made if len(made) > 1 else made[0]


def compiled(network, is_lean, training=False, wanted=None):
    """A compiled function: the output, and the gradients of its squares for the weights, or for `wanted` of inputs."""

    @tf.function(jit_compile=True, autograph=False)
    def run(inputs):
        with lean_products(is_lean), tf.GradientTape() as tape:
            tape.watch(inputs)
            output = network(inputs, training=training)
            loss = tf.reduce_mean(tf.square(output))
        sources = [each.value for each in network.trainable_variables] if wanted is None else wanted(inputs)
        return output, tape.gradient(loss, sources)

    return run


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("make", [joined, normalized])
@pytest.mark.parametrize("wanted", [pytest.param(None, marks=pytest.mark.slow), lambda inputs: inputs])
def test_outputs_gradients_and_statistics_are_those_of_keras(make, training, wanted):
    network = make()
    inputs = numbers(network)
    results = []
    for is_lean in (False, True):
        here = copy.deepcopy(network)
        here.set_weights(network.get_weights())
        output, gradients = compiled(here, is_lean, training, wanted)(inputs)
        results.append([output, *tf.nest.flatten(gradients), *[w.numpy() for w in here.non_trainable_variables]])
    plain, lean = results
    assert max(float(tf.reduce_max(tf.abs(each))) for each in plain) > 0.1
    assert len(plain) == len(lean) > 2
    for one, other in zip(plain, lean, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=3e-5)  # some gradients are sums that cancel


def test_gradients_of_gradients_are_those_of_keras():
    network = joined()
    inputs = numbers(network)

    def penalty(is_lean):
        @tf.function(jit_compile=True, autograph=False)
        def run(inputs):
            with lean_products(is_lean), tf.GradientTape() as outer:
                with tf.GradientTape() as tape:
                    tape.watch(inputs[1])
                    value = tf.reduce_sum(network(inputs))
                loss = tf.reduce_sum(tf.square(tape.gradient(value, inputs[1])))
            return outer.gradient(loss, [each.value for each in network.trainable_variables if each.shape == (73, 7)])

        return run(inputs)

    (plain,), (lean,) = penalty(False), penalty(True)
    assert np.abs(plain).max() > 0.01
    np.testing.assert_allclose(plain, lean, rtol=1e-4, atol=1e-6)


def product_shapes(function, inputs):
    """The shapes of the products of matrices that XLA computes, by its optimised program."""
    text = function.experimental_get_compiler_ir(inputs)(stage="optimized_hlo")
    return re.findall(r"= f32\[([\d,]+)\]\S* dot\(", text)


def test_parts_of_the_input_that_need_no_gradient_get_none():
    network = joined()
    inputs = numbers(network)
    whole = f"{ROWS},{6 + 64 + 3}"
    assert whole in product_shapes(compiled(network, is_lean=False), inputs)
    lean = product_shapes(compiled(network, is_lean=True), inputs)
    assert whole not in lean
    assert f"{ROWS},6" in lean


def test_normalised_inputs_get_no_gradient_when_scale_and_shift_are_trained():
    network = normalized()
    inputs = numbers(network)
    whole = f"{ROWS},11"
    assert whole in product_shapes(compiled(network, is_lean=False, training=True), inputs)
    assert whole not in product_shapes(compiled(network, is_lean=True, training=True), inputs)


def test_rows_that_were_concatenated_are_not_taken_apart():
    dense = Dense(3)
    x = tf.ones([2, 64])
    plain = dense(tf.concat([x, 2 * x], axis=0))

    @tf.function(jit_compile=True, autograph=False)
    def run(x):
        with lean_products(), tf.GradientTape() as tape:
            tape.watch(x)
            output = dense(tf.concat([x, 2 * x], axis=0))
        return output, tape.gradient(output, x)

    output, gradient = run(x)
    np.testing.assert_allclose(output, plain, rtol=1e-5)
    np.testing.assert_allclose(gradient, np.tile(3 * dense.kernel.numpy().sum(axis=1), (2, 1)), rtol=1e-5)


@pytest.mark.parametrize(("columns", "scales", "shifts"), [(1, 3, 3), (3, 1, 3), (3, 3, 1), (1, 1, 3)])
def test_scales_and_shifts_that_are_broadcast_are_not_taken_for_those_of_columns(columns, scales, shifts):
    dense = Dense(2)
    x, scale, shift = tf.ones([4, columns]), tf.range(1.0, scales + 1), tf.range(2.0, shifts + 2)
    plain = dense(x * scale + shift)

    @tf.function(jit_compile=True, autograph=False)
    def run(x):
        with lean_products():
            return dense(x * scale + shift)

    np.testing.assert_allclose(run(x), plain, rtol=1e-5)


def test_elu_is_exact_to_the_rounding_of_one():
    x = tf.constant(np.concatenate([np.linspace(-30, 5, 10_001), [0, -1e-8, 1e-8, -200, 200]]), tf.float32)

    @tf.function(jit_compile=True, autograph=False)
    def run(x):
        with lean_products(), tf.GradientTape() as tape:
            tape.watch(x)
            y = Activation("elu")(x)
        return y, tape.gradient(y, x)

    y, slope = run(x)
    exact = x.numpy().astype(np.float64)
    np.testing.assert_allclose(y, np.where(exact > 0, exact, np.expm1(np.minimum(exact, 0))), rtol=0, atol=2e-7)
    np.testing.assert_allclose(slope, np.where(exact > 0, 1, np.exp(np.minimum(exact, 0))), rtol=0, atol=2e-7)


def test_numpy_computes_the_layer_but_not_a_subclass_of_it():
    class Doubled(Dense):
        def call(self, inputs, training=None):
            return 2 * super().call(inputs, training=training)

    def policy(kind):
        x = keras.Input((3,))
        return keras.Model(x, kind(2)(x))

    assert numpy_policy(SPEC, policy(Dense), None) is not None
    assert numpy_policy(SPEC, policy(Doubled), None) is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, True),
        pytest.param({"device": "cpu:0"}, True, marks=pytest.mark.slow),
        ({"jit_compile": False}, False),
        pytest.param({"run_eagerly": True}, False, marks=pytest.mark.slow),
    ],
)
def test_updates_that_xla_compiles_for_a_cpu_are_lean(monkeypatch, options, expected):
    monkeypatch.setattr("tfdpg.training.learning.updates.lean_products", lambda is_lean: used.append(is_lean) or lean())
    used, lean = [], contextlib.nullcontext
    agent = tfdpg.TD3(SPEC, hidden_units=(4,), batch_size=5, **options)
    rng = np.random.default_rng(0)
    agent.train_on_batch(
        {
            "observations": rng.normal(size=(5, 3)),
            "next_observations": rng.normal(size=(5, 3)),
            "actions": rng.uniform(-1, 1, (5, 2)),
            "rewards": rng.normal(size=5),
            "terminations": np.zeros(5),
        }
    )
    assert set(used) == {expected}


def test_a_device_is_a_cpu_by_its_name_or_if_there_is_no_gpu(monkeypatch):
    assert is_on_cpu("cpu:0") and is_on_cpu("/device:CPU:1") and not is_on_cpu("gpu:0")
    for gpus in ([], ["a GPU"]):
        monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind, gpus=gpus: gpus)
        assert is_on_cpu(None) == (not gpus)
