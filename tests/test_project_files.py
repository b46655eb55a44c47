"""The files at the top level agree: versions, dates, links and the sections of the changelog."""

import configparser
import re

import pytest
import yaml

from tests.docs.pages import ROOT, WIDTH, anchors

FILES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
SECTIONS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
"""The headings of Keep a Changelog, in the order in which they appear here."""


def parse_changelog(text):
    """Return the versions of a changelog: for each, its heading and the headings of its sections."""
    headings = re.findall(r"^(##|###) (.+)$", text, re.MULTILINE)
    found = []
    for level, title in headings:
        if level == "##":
            found.append((title, []))
        else:
            found[-1][1].append(title)
    return found


def test_the_newest_version_is_that_of_the_package():
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(ROOT / "setup.cfg")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    titles = [title for title, _ in parse_changelog((ROOT / "CHANGELOG.md").read_text()) if title != "Unreleased"]
    assert titles[0] == f"{setup['metadata']['version']} - {citation['date-released']}"
    assert citation["version"] == setup["metadata"]["version"] and citation["license"] == setup["metadata"]["license"]


def test_the_changelog_has_the_sections_of_keep_a_changelog():
    changelog = parse_changelog((ROOT / "CHANGELOG.md").read_text())
    versions = [title for title, _ in changelog if title != "Unreleased"]
    dated = [re.fullmatch(r"(\d+)\.(\d+)\.(\d+) - (\d{4}-\d\d-\d\d)", title) for title in versions]
    assert all(dated), versions
    numbers = [tuple(map(int, match.groups()[:3])) for match in dated]
    assert numbers == sorted(numbers, reverse=True)
    for title, sections in changelog:
        assert sections == [section for section in SECTIONS if section in sections], title


@pytest.mark.parametrize("name", FILES)
def test_links_and_files_exist(name):
    text = re.sub(r"^ *```.*?^ *```$", "", (ROOT / name).read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if target.startswith(("https://", "#")):
            continue
        assert (ROOT / path).is_file(), target
        assert not anchor or anchor in anchors(path), target
    for path in re.findall(r"`((?:docs|examples|tests|tfdpg|\.ci)/[\w/.-]+)`", text):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("name", FILES)
def test_lines_are_short(name):
    text = (ROOT / name).read_text()
    assert [line for line in text.splitlines() if len(line) > 150] == []
    code = "\n".join(re.findall(r"^ *```\w+\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE))
    assert [line for line in code.splitlines() if len(line) > WIDTH] == []
