"""Every Python block of the pages runs; the blocks of a page share one namespace."""

import contextlib
import re

import gymnasium as gym
import numpy as np
import pytest

import tfdpg
from tests.agents.roster import brief
from tests.docs.pages import PAGES, fences, found_on
from tests.docs.substitutions import PYTHON, prepare
from tests.serve.conftest import serving

PYTHON_PAGES = [page for page in PAGES if fences(page, "python")]


@brief
@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PYTHON_PAGES if page != "docs/trackers.md"])  # see test_trackers.py
def test_the_code_runs(page, tmp_path, monkeypatch):
    if page == "docs/goals.md":
        pytest.importorskip("gymnasium_robotics")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    names = prepare(page, tmp_path)
    with contextlib.ExitStack() as exit_stack:
        substitutions = dict(PYTHON)
        if page == "docs/serving.md":
            ports = exit_stack.enter_context(serving(tmp_path / "exported_models/td3-halfcheetah")).ports
            substitutions |= {"localhost:8501": f"localhost:{ports.rest}", "localhost:8500": f"localhost:{ports.grpc}"}
        for block in fences(page, "python"):
            code = block.code
            for text, replacement in substitutions.items():
                code = code.replace(text, replacement)
            exec(compile("\n" * block.line + code, page, "exec"), names)
    if page == "docs/custom-networks.md":
        np.testing.assert_allclose(names["target"], [10.9, 1.0], rtol=1e-6)


def test_a_block_that_uses_tfdpg_imports_it():
    def lacking(page):
        blocks = [block for block in fences(page, "python") if re.search(r"\btfdpg\.", block.code)]
        return [block.line for block in blocks if not re.search(r"^(import|from) tfdpg\b", block.code, re.MULTILINE)]

    assert found_on(PYTHON_PAGES, lacking) == {}


def test_every_substitution_is_used():
    code = "\n".join(block.code for page in PYTHON_PAGES for block in fences(page, "python"))
    assert [text for text in PYTHON if text not in code] == []


def test_the_interactive_session_has_the_output_of_the_agent(tmp_path):
    code = PAGES["docs/serving.md"].split("<!-- the session -->")[1].split("```python")[1].split("```")[0]
    agent = tfdpg.TD3(gym.make("Pendulum-v1"), hidden_units=(8,), jit_compile=False)
    observations = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, -0.5]], np.float32)
    names = {"directory": str(agent.export(tmp_path / "model"))}
    exec(compile(code, "serving.md", "exec"), names)
    actions = names["run"]("pi", x=observations)
    np.testing.assert_allclose(actions, agent.predict(observations), rtol=1e-4, atol=1e-5)
    for name, network in (("q1", agent.networks["q1"]), ("q2", agent.networks["q2"])):
        values = names["run"](name, x=observations, a=actions)
        np.testing.assert_allclose(values, network([observations, actions]), rtol=1e-4, atol=1e-5)
    names["session"].close()
    assert len([line for line in code.splitlines() if line and not line.startswith("import")]) == 6
