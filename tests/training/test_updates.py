"""One compiled call does many updates, and compiles once."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdpg.components import FusedAdam, minimize, run_if, trainable_variables, update_copy
from tfdpg.networks import stateless_normal
from tfdpg.training.learning.updates import should_use_xla

SCRIPT = """
import gymnasium as gym, keras, sys, tfdpg
env = gym.make("Pendulum-v1")
agent = tfdpg.TD3(env, hidden_units=(8,), batch_size=8, start_steps=10, update_after=10, jit_compile=True, {memory})
agent.fit(env, epochs=1, steps_per_epoch=60, verbose=0)
for updates in (1, 7, 50, 51):
    agent.learn(updates=updates)
agent.fit(env, epochs=1, steps_per_epoch=210, validation_env=gym.make("Pendulum-v1"), validation_episodes=1, verbose=0)
assert agent.updates == 40 + 109 + 200, agent.updates
print(*(updates.function.experimental_get_tracing_count() for updates in agent.learner._compiled.values()))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "memory",
    ["", pytest.param("recurrent='lstm', recurrent_units=4, burn_in=3, n_step=2", marks=pytest.mark.hours)],
    ids=["", "lstm"],
)
def test_rounds_of_any_length_trace_and_compile_once(memory, tmp_path):
    environment = os.environ | {"XLA_FLAGS": f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(memory=memory)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == ["1", "1"]  # `fit` uses a flat tensor, and `learn` variables
    modules = [path.read_text() for path in tmp_path.glob("*cpu_after_optimizations.txt")]
    assert len(modules) == 2
    for module in modules:
        assert " while(" in module
        assert " conditional(" not in module, "XLA copies each weight that a conditional changes, in every update"


def test_normal_numbers_are_normal_and_the_same_under_xla():
    key = tf.constant([7, 3], tf.int64)
    functions = [tf.function(lambda key: stateless_normal((50_000, 2), key), jit_compile=jit) for jit in (False, True)]
    plain, compiled = (function(key).numpy() for function in functions)
    np.testing.assert_allclose(plain, compiled, rtol=1e-4, atol=1e-5)
    assert np.isfinite(plain).all() and abs(plain.mean()) < 0.01
    assert plain.std() == pytest.approx(1, abs=0.01)
    assert (plain**4).mean() == pytest.approx(3, abs=0.1)
    assert abs(np.corrcoef(plain.T)[0, 1]) < 0.01
    assert not np.array_equal(plain, functions[0](key + 1).numpy())


@pytest.mark.parametrize("jit", [False, True])
def test_what_is_not_due_does_not_run_and_gives_nan(jit):
    variable = tf.Variable(1.0)

    @tf.function(jit_compile=jit)
    def step(is_due):
        return run_if(is_due, lambda: tf.fill([3], variable.assign_add(1.0)), 3)

    np.testing.assert_array_equal(step(tf.constant(False)), [np.nan] * 3)
    assert variable.numpy() == 1
    np.testing.assert_array_equal(step(tf.constant(True)), [2, 2, 2])
    assert variable.numpy() == 2


def test_own_losses_of_a_network_count():
    kernels = []
    for factor in (0.0, 10.0):
        network = keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(1, kernel_regularizer=keras.regularizers.L2(factor))]
        )
        network.set_weights([np.ones((1, 1)), np.zeros(1)])
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build(network.trainable_variables)
        with minimize(([network], optimizer)) as step:
            step(tf.reduce_mean(network(tf.ones((1, 1)))))
        kernels.append(float(network.get_weights()[0][0, 0]))
    np.testing.assert_allclose(kernels, [1 - 0.01, 1 - 0.01 * (1 + 2 * 10)], rtol=1e-5)


@pytest.mark.parametrize("clipping", [{}, {"global_clipnorm": 0.1}, {"clipvalue": 0.05}], ids=str)
def test_adam_in_one_operation_is_keras_s_over_many_steps(clipping):
    rng = np.random.default_rng(0)
    start = rng.normal(size=(3, 2))
    gradients = rng.normal(size=(50, 3, 2)) * [1.0, 1e-4]
    ends = []
    for kind in (keras.optimizers.Adam, FusedAdam):
        variable = keras.Variable(start, dtype="float32")
        optimizer = kind(0.01, **clipping)
        optimizer.build([variable])
        for gradient in gradients.astype(np.float32):
            optimizer.apply([tf.constant(gradient)], [variable])
        ends.append([variable.numpy(), *(np.asarray(each) for each in optimizer.variables)])
    assert np.abs(ends[0][0] - start).min() > 1e-3 and int(optimizer.iterations) == 50
    for theirs, ours in zip(*ends, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-9)  # Keras takes 1 − 0.999 in two precisions
    if not clipping:
        m = v = np.zeros(start.shape)
        w = start.copy()
        for t, g in enumerate(gradients, 1):
            m = m + 0.1 * (g - m)
            v = v + 0.001 * (g**2 - v)
            w -= 0.01 * m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-7 / np.sqrt(1 - 0.999**t))
        np.testing.assert_allclose(ends[1][0], w, rtol=0, atol=1e-6)


def test_regularizers_of_networks_that_share_a_layer_count_once():
    x = keras.Input((1,))
    shared = keras.layers.Dense(1, kernel_regularizer=keras.regularizers.L2(10.0), kernel_initializer="ones")(x)
    networks = [keras.Model(x, keras.layers.Dense(1, kernel_initializer="ones")(shared)) for _ in range(2)]
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(trainable_variables(networks))
    with minimize((networks, optimizer)) as step:
        step(sum(tf.reduce_mean(q(tf.ones((1, 1)))) for q in networks))
    np.testing.assert_allclose(networks[1].get_weights()[0], 1 - 0.01 * (2 + 2 * 10), rtol=1e-5)


def test_polyak_moves_weights_and_copies_statistics():
    online, target = (keras.Sequential([keras.Input((2,)), keras.layers.BatchNormalization()]) for _ in range(2))
    online.set_weights([np.full(2, 3.0), np.full(2, 4.0), np.full(2, 5.0), np.full(2, 6.0)])
    target.trainable = False  # what is averaged depends on the source
    update_copy(target, online, 0.9)
    np.testing.assert_allclose(target.get_weights(), [[1.2, 1.2], [0.4, 0.4], [5, 5], [6, 6]], rtol=1e-6)


@pytest.mark.parametrize(
    "layer, wanted",
    [(keras.layers.Conv2D(2, 3), False), (keras.layers.DepthwiseConv2D(3), False), (keras.layers.Flatten(), True)],
)
def test_xla_is_for_networks_without_convolutions(layer, wanted):
    inner = keras.Sequential([keras.Input((8, 8, 1)), layer])
    outer = keras.Sequential([keras.Input((8, 8, 1)), inner, keras.layers.Flatten(), keras.layers.Dense(1)])
    assert should_use_xla([outer]) is wanted
