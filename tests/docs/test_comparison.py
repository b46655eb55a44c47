"""What the comparison with other libraries says about tfdpg is true."""

import configparser
import re

import pytest

import tfdpg
from tests.docs.pages import PAGES, ROOT, prose, table
from tfdpg.agents import AGENTS
from tfdpg.agents.options import OPTIONS
from tfdpg.formats.convert import FORMATS
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


def rows_of(text):
    """Return the first cell of each row of the first table in a text."""
    lines = text[text.index("\n| ") :].strip().split("\n\n")[0].splitlines()
    return [line.split("|")[1].strip() for line in lines[2:]]


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
    have_her = {name for name in AGENTS if "her" in {option.name for option in options_of(OPTIONS[name])}}
    assert have_her == {"DDPG", "TD3", "D4PG", "TD7"}


def test_both_tables_have_the_same_rows():
    first, second = prose(PAGE).split("<!-- comparison -->")[1].split("## Other libraries")
    assert rows_of(first) == rows_of(second) and len(rows_of(first)) == len(cells(PAGE))


def test_the_speeds_are_those_of_the_page_on_performance():
    measured = table("docs/speed.md", "steps per second, one core")
    rows = table(PAGE, "steps per second, one core")
    assert len(rows) == len(measured) == 2
    for row, expected in zip(rows, measured, strict=True):
        assert row[1:] == [cell.split(" (")[0] for cell in expected[1:]]  # without the ranges
    calls = {row[0]: row[1] for row in table("docs/speed.md", "[256, 256], µs a call")}
    quoted = re.search(r"takes (\S+) µs for one observation, and `predict` of Stable-Baselines3 (\S+) µs", prose(PAGE))
    assert quoted and quoted[1] == calls["signature, `tf.saved_model.load`"]
    assert quoted[2] == calls["Stable-Baselines3, `predict`"]
    assert f"takes {calls['`tfdpg.load(...).numpy()`']} µs in NumPy" in " ".join(prose(PAGE).split())


def test_the_returns_are_those_of_the_results():
    for score in ("8,655", "9,583"):
        assert score in prose(PAGE) and score in PAGES["docs/results.md"]
