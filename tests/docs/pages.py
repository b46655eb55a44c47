"""README.md and the pages under docs/, as the tests read them."""

import importlib.util
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "README.md", *(file for file in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in file.parts)]
PAGES = {file.relative_to(ROOT).as_posix(): file.read_text() for file in FILES}


class Fence(NamedTuple):
    """A fenced block."""

    language: str
    code: str
    line: int


def fences(page, language):
    """The fenced blocks of a page in a language."""
    found = re.finditer(r"^```(\S*)[^\n]*\n(.*?)^```$", PAGES[page], re.DOTALL | re.MULTILINE)
    blocks = [Fence(one[1], one[2], PAGES[page][: one.start(2)].count("\n")) for one in found]
    return [block for block in blocks if block.language == language]


def prose(page):
    """The text of a page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", PAGES[page], flags=re.DOTALL | re.MULTILINE)


def spans(page):
    """What is code in the text of a page."""
    return re.findall(r"`([^`\n]+)`", prose(page))


def table(page, first):
    """The rows of the table whose first column is named so, as lists of cells."""
    lines = prose(page).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return rows


def anchors(page):
    """What links to a page may point at."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def module(path):
    """A module of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
