"""Deleting an agent frees its graphs."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tensorflow.python.framework.func_graph import FuncGraph

from tests.agents import cells
from tests.agents.roster import AGENTS, fit_briefly
from tests.environments import Counter

COMPILED = {"run_eagerly": False, "jit_compile": False}  # XLA keeps its compiled programs
AGENTS = AGENTS | {"LSTM": lambda env: cells.recurrent_agent(env, recurrent="lstm", recurrent_units=3, **COMPILED)}


def graphs():
    gc.collect()
    return {id(each) for each in gc.get_objects() if isinstance(each, FuncGraph)}


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.hours] * (n in ("ACER", "TD7"))) for n in AGENTS])
def test_graphs_are_freed_with_their_agent(name, tmp_path):
    before = graphs()
    agent = AGENTS[name](Counter())
    fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=30)
    agent.export(tmp_path / "model")
    assert agent.updates
    during = graphs() - before
    assert during
    del agent
    assert not graphs() & during


MEASURED = """
import gc, json, sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
import keras
from tests.agents.test_graph_cleanup import AGENTS, Counter, fit_briefly

sizes = []
for i in range(int(sys.argv[1])):
    agent = list(AGENTS.values())[i % len(AGENTS)](Counter())
    fit_briefly(agent, Counter(), epochs=1, steps_per_epoch=30)
    del agent
    keras.utils.clear_session()
    gc.collect()
    sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
print(json.dumps(sizes))
"""


@pytest.mark.hours
def test_a_hundred_agents_use_no_more_memory_than_twenty():
    """`keras.utils.clear_session` frees TensorFlow's kernels, of which each variable name needs one."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, "100"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    sizes = json.loads(done.stdout.splitlines()[-1])
    assert max(sizes[-10:]) < 1.02 * max(sizes[10:20]), sizes
