"""The directive `options-table`: the options of an agent, of `fit` or of `distributed.fit`, as they are declared.

```{options-table} TD3
```
"""

import dataclasses
import itertools
from typing import Any, NamedTuple

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList

from tfdpg.agents.options import OPTIONS
from tfdpg.cli.flags import GROUPS
from tfdpg.distributed.options import Distribution
from tfdpg.options import options_of
from tfdpg.training.options import FitOptions


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
        Option(option.group, option.name, option.kind_in_words, default_text(option.default), option.help)
        for option in declared
    ]


def default_text(default: Any) -> str:
    """A default as Python, large integers with underscores; nothing for none."""
    if default is dataclasses.MISSING:
        return ""
    if isinstance(default, str):
        return f'"{default}"'
    return f"{default:_}" if type(default) is int and default >= 10_000 else repr(default)


class OptionsTable(Directive):
    """A table for each group of options, with a heading above it if the group has a name."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Lays the tables out as Markdown, which is what the helps are written in."""
        parent = nodes.container()
        for group, members in itertools.groupby(options(self.arguments[0]), key=lambda option: option.group):
            if group:
                parent += nodes.rubric(group, group)
            self.state.nested_parse(StringList(table(list(members)), source=__file__), 0, parent)
        return parent.children


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


def setup(app: Any) -> dict[str, Any]:
    """Sphinx calls this."""
    app.add_directive("options-table", OptionsTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
