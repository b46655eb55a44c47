"""One compiled call does many updates, and compiles once."""

import os
import subprocess
import sys

import keras
import pytest

from tfdpg.training.updates import wants_xla

ROUNDS = """
import gymnasium as gym, keras, sys, tfdpg
env = gym.make("Pendulum-v1")
agent = tfdpg.TD3(env, hidden_units=(8,), batch_size=8, start_steps=10, update_after=10, jit_compile=True)
agent.fit(env, epochs=1, steps_per_epoch=60, verbose=0)
for updates in (1, 7, 50, 51):
    agent.learn(updates)
agent.fit(env, epochs=1, steps_per_epoch=210, validation_env=gym.make("Pendulum-v1"), validation_episodes=1, verbose=0)
assert agent.updates == 40 + 109 + 200, agent.updates
print(agent.train_function.experimental_get_tracing_count())
"""


def test_rounds_of_any_length_trace_and_compile_once(tmp_path):
    environment = os.environ | {"XLA_FLAGS": f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"}
    result = subprocess.run([sys.executable, "-c", ROUNDS], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["1"]
    compiled = list(tmp_path.glob("*cpu_after_optimizations.txt"))
    assert len(compiled) == 1, [path.name for path in compiled]


@pytest.mark.parametrize(
    "layer, wanted",
    [(keras.layers.Conv2D(2, 3), False), (keras.layers.DepthwiseConv2D(3), False), (keras.layers.Flatten(), True)],
)
def test_xla_is_for_networks_without_convolutions(layer, wanted):
    inner = keras.Sequential([keras.Input((8, 8, 1)), layer])
    outer = keras.Sequential([keras.Input((8, 8, 1)), inner, keras.layers.Flatten(), keras.layers.Dense(1)])
    assert wants_xla([outer]) is wanted
