"""A type checker knows the options of the public functions."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

USER = Path(__file__).parent / "typed" / "user.py"


@pytest.mark.slow
def test_a_type_checker_finds_the_planted_mistakes_and_nothing_else():
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(USER)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    found = {1 + problem["range"]["start"]["line"] for problem in json.loads(done.stdout)["generalDiagnostics"]}
    lines = USER.read_text().splitlines()
    assert len(lines) <= 40
    assert found == {number for number, line in enumerate(lines, 1) if "# mistake" in line} and len(found) == 3
