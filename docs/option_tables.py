"""Write the tables of options into the pages, between `<!-- options: NAME -->` and `<!-- end of options -->`.

NAME is an agent, `fit` or `distributed.fit`. Run it after an option has changed:

    python docs/option_tables.py
"""

import dataclasses
import itertools
import re
from pathlib import Path
from typing import Any, NamedTuple

from tfdpg.agents.options import OPTIONS
from tfdpg.cli.run_options import GROUPS
from tfdpg.distributed.options import Distribution
from tfdpg.options import options_of
from tfdpg.training.options import FitOptions

DOCS = Path(__file__).parent
PAGES = [*sorted((DOCS / "options").glob("*.md")), DOCS / "cluster.md"]
END = "<!-- end of options -->"
MARKED = re.compile(rf"(<!-- options: (\S+) -->)\n.*?{END}", re.DOTALL)


class Option(NamedTuple):
    """An option, as texts; the default of one that must be given is empty."""

    group: str
    name: str
    type: str
    default: str
    help: str


def options(name: str) -> list[Option]:
    """The options of `tfdpg.<name>`, those of a group one after the other, the common groups first.

    Args:
        name: "TD3" or another agent, "fit", or "distributed.fit" (those that `fit` does not have).
    """
    kinds: dict[str, Any] = {"fit": FitOptions, "distributed.fit": Distribution, **OPTIONS}
    titles = [*GROUPS, "objects"]
    declared = sorted(options_of(kinds[name]), key=lambda option: titles.index(option.group))
    return [
        Option(option.group, option.name, option.type_text, default_text(option.default), option.help)
        for option in declared
    ]


def default_text(default: Any) -> str:
    """A default as Python, large integers with underscores; nothing for none."""
    if default is dataclasses.MISSING:
        return ""
    if isinstance(default, str):
        return f'"{default}"'
    return f"{default:_}" if type(default) is int and default >= 10_000 else repr(default)


def page_with_tables(page: Path) -> str:
    """The text of a page with its tables as the code declares them now."""
    return MARKED.sub(lambda found: f"{found[1]}\n{tables(found[2])}\n{END}", page.read_text())


def tables(name: str) -> str:
    """A Markdown table for each group of options, with the group's name above it if it has one."""
    blocks = []
    for group, members in itertools.groupby(options(name), key=lambda option: option.group):
        blocks += [f"**{group}**"] * bool(group) + ["\n".join(table(list(members)))]
    return "\n" + "\n\n".join(blocks) + "\n"


def table(members: list[Option]) -> list[str]:
    """The lines of a Markdown table of options."""
    lines = ["| option | what it takes | default | what it does |", "|---|---|---|---|"]
    for option in members:
        cells = f"`{option.name}`", option.type, code(option.default), option.help
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return lines


def code(text: str) -> str:
    """A text as Markdown's code; nothing as nothing."""
    return f"`{text}`" if text else ""


def main() -> None:
    """Write the tables into all pages."""
    for page in PAGES:
        page.write_text(page_with_tables(page))


if __name__ == "__main__":
    main()
