"""A long run neither grows nor compiles again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LONG_RUN = """
import os, sys, keras, gymnasium as gym, tfdpg
from tensorflow.python.framework import func_graph

traced, trace = [], func_graph.func_graph_from_py_func
def counting(name, *args, **kwargs):
    traced.append(name)
    return trace(name, *args, **kwargs)
func_graph.func_graph_from_py_func = counting

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

env = gym.make("Pendulum-v1")
agent = tfdpg.TD3(env, hidden_units=(8,), batch_size=16, start_steps=500, update_after=500, gradient_steps=10,
                  replay_size=20_000, jit_compile=True)
options = {"validation_env": gym.make("Pendulum-v1"), "validation_episodes": 2, "verbose": 1}
options["callbacks"] = [keras.callbacks.CSVLogger(sys.argv[1], append=True), keras.callbacks.TerminateOnNaN()]
agent.fit(env, epochs=4, steps_per_epoch=10_000, **options)
agent.predict([[0.0, 0.0, 0.0]])
before, functions = resident(), len(traced)
agent.fit(env, epochs=24, initial_epoch=4, steps_per_epoch=10_000, **options)
agent.predict([[0.0, 0.0, 0.0]] * 7)
growth = resident() / before - 1
assert agent.env_steps == 240_000
assert growth < 0.02, f"memory grew by {growth:.2%}"
assert functions > 0 and traced[functions:] == [], traced[functions:]
print("flat", file=sys.stderr)
"""


@pytest.mark.hours
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory from Linux' /proc")
def test_200_000_steps_take_no_more_memory_and_compile_nothing_again(tmp_path):
    environment = os.environ | {"XLA_FLAGS": f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"}
    command = [sys.executable, "-c", LONG_RUN, str(tmp_path / "progress.csv")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.stderr.endswith("flat\n"), result.stderr
    assert len(list(tmp_path.glob("*cpu_after_optimizations.txt"))) == 1
