"""Parsing of README.md and the pages under docs/ for the tests."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "README.md", *(file for file in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in file.parts)]
WIDTH = 88
"""The columns of the code on the pages."""
PAGES = {file.relative_to(ROOT).as_posix(): file.read_text() for file in FILES}


def found_on(pages, check):
    """Return what a check finds on each page, by page: a test asserts {} and so reports the faults of all pages."""
    return {page: faults for page in pages if (faults := list(check(page)))}


class Fence(NamedTuple):
    """A fenced code block of a page."""

    language: str
    code: str
    line: int


def fences(page, language):
    """Return the fenced blocks of a page in a language."""
    found = re.finditer(r"^```(\S*)[^\n]*\n(.*?)^```$", PAGES[page], re.DOTALL | re.MULTILINE)
    blocks = [Fence(one[1], one[2], PAGES[page][: one.start(2)].count("\n")) for one in found]
    return [block for block in blocks if block.language == language]


def prose(page):
    """Return the text of a page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", PAGES[page], flags=re.DOTALL | re.MULTILINE)


def spans(page):
    """Return the inline code of a page."""
    return re.findall(r"`([^`\n]+)`", prose(page))


def table(page, first):
    """Return the rows of the table whose first column has this name, as lists of cells."""
    lines = prose(page).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return rows


def anchors(page):
    """Return the anchors of a page."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def formatted(path):
    """Return the lines of a Python file as ruff formats them at the width of the code on the pages."""
    command = [sys.executable, "-m", "ruff", "format", "--line-length", str(WIDTH), "--stdin-filename", path, "-"]
    code = (ROOT / path).read_text()
    return subprocess.run(command, input=code, capture_output=True, text=True, check=True).stdout.splitlines()


def module(path):
    """Import a module from docs/, which is not a package."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
