import ast
import inspect
import re
from pathlib import Path

from tfdpg import distributed
from tfdpg.distributed.plan import OPTIONS

SECTION = (Path(__file__).parents[2] / "README.md").read_text().split("\n## On a Ray cluster")[1].split("\n## ")[0]


def test_every_option_is_there_with_its_default():
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", SECTION, re.MULTILINE)
    parameters = inspect.signature(distributed.fit).parameters
    assert [name for name, _ in rows] == list(OPTIONS)
    assert all(ast.literal_eval(value) == parameters[name].default for name, value in rows)
