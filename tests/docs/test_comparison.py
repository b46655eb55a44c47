"""What the comparison with other libraries says about tfdpg is true."""

import configparser
import re

import pytest

import tfdpg
from tests.docs.pages import PAGES, ROOT, prose
from tfdpg.agents import AGENTS
from tfdpg.agents.options import OPTIONS
from tfdpg.export.convert import FORMATS
from tfdpg.options import options_of

PAGE = "docs/comparison.md"
METADATA = configparser.ConfigParser(interpolation=None)
METADATA.read(ROOT / "setup.cfg")


def cells(page):
    """Return the cells about tfdpg by the first column of the comparison of a page."""
    lines = prose(page).split("<!-- comparison -->")[1].strip().split("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    assert rows[0][:2] == ["", "tfdpg"]
    return {row[0]: row[1] for row in rows[2:]}


def agents_with(option):
    return {name for name in AGENTS if option in {each.name for each in options_of(OPTIONS[name])}}


@pytest.mark.parametrize("page", [PAGE, "README.md"])
def test_the_agents_are_those_of_the_library(page):
    found = cells(page)
    assert set(found["deterministic policy gradients"].split(", ")) == set(AGENTS) - {"ACER"}
    assert set(found["recurrent off-policy agents"].split(", ")) == agents_with("recurrent") - {"ACER"}
    assert {"SAC", "PPO", "DQN"}.isdisjoint(tfdpg.__all__)
    assert found["SAC"] == "example only" and (ROOT / "examples/sac.py").is_file() and found["PPO"] == "no"


def test_the_other_cells_about_tfdpg():
    found = cells(PAGE)
    assert set(found["prioritised replay"].split(", ")) == agents_with("replay")
    assert set(found["other export formats"].lower().split(", ")) == set(FORMATS)
    assert found["training on several machines"].lower() in METADATA["options.extras_require"]
    requires = re.findall(r"\d\.(\d+)", METADATA["options"]["python_requires"])
    assert found["Python"] == f"3.{requires[0]} to 3.{int(requires[1]) - 1}"
    assert f"tfdpg {METADATA['metadata']['version']} with" in PAGES[PAGE]
    assert "her" not in {option.name for name in AGENTS for option in options_of(OPTIONS[name])}


def test_the_ratios_are_those_of_the_page_on_performance():
    ratios = re.findall(r"(\d\.\d\d)", prose(PAGE).split("## Speed")[1])
    assert len(ratios) == 4 and all(f"{ratio} (" in PAGES["docs/speed.md"] for ratio in ratios)
