"""An unavailable `device`, and Keras' dtype policy. tests/test_gpu.py has the tests of several devices."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

import tfdpg
from tests.agents.roster import AGENTS, EAGER
from tests.commands import QUIET, train
from tests.environments import Counter
from tfdpg.components import minimize


@pytest.mark.parametrize("make", AGENTS.values(), ids=AGENTS)
def test_an_unavailable_device_is_rejected(make):
    with pytest.raises(ValueError, match=r"`device` must .*'cpu:0'.*device='gpu:0'.*tensorflow\[and-cuda\].*leave out"):
        make(Counter(), device="gpu:0")
    with pytest.raises(ValueError, match="`device` must .*device='cpu:7'$"):
        make(Counter(), device="cpu:7")


def test_the_command_line_names_the_remedy_where_there_is_no_gpu(tmp_path, capsys):
    assert train("--run-dir", tmp_path / "run", "--device", "gpu:0", *QUIET) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("tfdpg: `device` must be") and "pip install 'tensorflow[and-cuda]'" in shown
    assert shown.count("\n") == 1 and not (tmp_path / "run").exists()


HALF_PRECISION = ["mixed_float16", "mixed_bfloat16"]
CASES = [("DDPG", "mixed_bfloat16", False), ("ACER", "mixed_float16", False)]
LONG = [("TD7", "mixed_float16", True), ("ACER", "mixed_bfloat16", True)]
CASES += [
    pytest.param(name, precision, True, marks=[pytest.mark.hours] * ((name, precision, True) in LONG))
    for precision in HALF_PRECISION
    for name in AGENTS
]


@pytest.mark.slow
@pytest.mark.parametrize("name, policy, jit", CASES)
def test_mixed_precision_learns_acts_and_exports(name, policy, jit, tmp_path):
    env = Counter()
    keras.config.set_dtype_policy(policy)
    try:
        agent = AGENTS[name](env, jit_compile=jit, **({} if jit else EAGER))
        agent.fit(env, epochs=1, steps_per_epoch=40, verbose=0)
        assert agent.pi.layers[2].compute_dtype == policy.removeprefix("mixed_")
        assert {variable.dtype for variable in agent.pi.variables} == {"float32"}
        before = agent.get_weights()
        logs = agent.learn(updates=3)
        assert np.isfinite(list(logs.values())).all()
        moved = [not np.array_equal(a, b) for a, b in zip(before, agent.get_weights(), strict=True)]
        assert sum(moved) > len(moved) / 2
        agent.save(tmp_path / "agent")
        again = tfdpg.load_agent(tmp_path / "agent")
        agent.learn(updates=3)
        again.learn(updates=3)
        for x, y in zip(agent.get_weights(), again.get_weights(), strict=True):
            np.testing.assert_array_equal(x, y)
        seen = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
        exported = tfdpg.load(agent.export(tmp_path / "model"))
    finally:
        keras.config.set_dtype_policy("float32")
    np.testing.assert_allclose(exported(seen), agent.predict(seen), rtol=0, atol=2e-2)


@pytest.mark.slow
def test_discrete_actions_are_exported_in_half_precision(tmp_path):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        agent = tfdpg.ACER(tfdpg.Spec(Counter().observation_space, spaces.Discrete(3)), hidden_units=(8,))
        exported = tfdpg.load(agent.export(tmp_path / "model"))
    finally:
        keras.config.set_dtype_policy("float32")
    assert exported(np.ones((2, 2), np.float32)).dtype == np.int64


def test_half_precision_outputs_of_custom_networks_are_rejected():
    policy = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, "tanh", dtype="mixed_float16")])
    with pytest.raises(ValueError, match="`pi` must return float32; .* float16"):
        tfdpg.TD3(Counter(), pi=policy)


def test_float16_losses_are_scaled_and_their_gradients_are_not():
    network = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    network.set_weights([np.ones((1, 1)), np.zeros(1)])
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=1024.0)
    optimizer.build(network.trainable_variables)
    with minimize(([network], optimizer)) as step:
        step(1e-6 * tf.reduce_sum(network(tf.ones((1, 1)))))
    np.testing.assert_allclose(network.get_weights()[0], 1 - 0.5e-6, rtol=0, atol=6e-8)
