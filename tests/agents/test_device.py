"""`device` and Keras' dtype policy. Two logical CPUs represent two devices; a GPU is tested where one is available."""

import os
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

import tfdpg
from tests.agents.roster import AGENTS, EAGER
from tests.environments import Counter
from tfdpg.components import minimize

SESSION = """
import sys, warnings
import numpy as np, tensorflow as tf
cpus = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
import tfdpg
from tests.agents.roster import AGENTS
from tests.environments import Counter

device, directory, *names = sys.argv[1:]
for name in names:
    env = Counter()
    agent = AGENTS[name](env, device=device, jit_compile=True, update_every=5)
    agent.fit(env, epochs=1, steps_per_epoch=40, validation_env=Counter(), validation_episodes=1, verbose=0)
    assert agent.updates >= 30
    agent.save(f"{directory}/{name}")
    for agent in (agent, tfdpg.load_agent(f"{directory}/{name}")):
        networks = (agent.networks | agent.copies).values()
        places = {variable.value.device for network in networks for variable in network.variables}
        places |= {variable.value.device for optimizer in agent.optimizers.values() for variable in optimizer.variables}
        places |= {agent.learner.counter.device}
        assert len(places) == 1 and places.pop().lower().endswith(device), places
        agent.learn(updates=2)
    actions = agent.predict(np.ones((3, 2), np.float32))
    policy = tfdpg.load(agent.export(f"{directory}/{name}-model"))
    np.testing.assert_allclose(policy(np.ones((3, 2), np.float32)), actions, rtol=1e-4, atol=1e-5)
    print(name)
"""


def run_agents(names, device, directory, hidden="-1"):
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES=hidden)
    command = [sys.executable, "-c", SESSION, device, str(directory), *names]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.stdout.split() == list(names), result.stderr


@pytest.mark.slow
def test_variables_and_updates_are_on_the_second_cpu(tmp_path):
    run_agents(list(AGENTS), "cpu:1", tmp_path)


def gpus():
    return shutil.which("nvidia-smi") and subprocess.run(["nvidia-smi", "-L"], capture_output=True).stdout.strip()


@pytest.mark.gpu
@pytest.mark.skipif(not gpus(), reason="there is no GPU")
def test_variables_and_updates_are_on_a_gpu(tmp_path):
    run_agents(AGENTS, "gpu:0", tmp_path, hidden="0")


@pytest.mark.parametrize("make", AGENTS.values(), ids=AGENTS)
def test_an_unavailable_device_is_rejected(make):
    with pytest.raises(ValueError, match="`device` must .*'cpu:0'.*device='gpu:0'"):
        make(Counter(), device="gpu:0")


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
