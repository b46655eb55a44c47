"""Lists of options in the reference, with a link target for each option.

- The description of a function that takes options ends with the list of its options, in groups. The options of an
  agent are on its page `options/<name>.md`, with a heading for each group.
- The directive `options` makes such a list, and `summary` a line about a class with a link to it.
- In the marked lists of the Markdown pages (see `option_tables.py`), each option becomes a link to its entry, or on the
  page of an agent the entry itself.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import references
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective

sys.path.insert(0, str(Path(__file__).parents[1]))

import option_tables  # noqa: E402 (its directory has been added to the path)

from tfdpg.agents.options import OPTIONS  # noqa: E402

CODE = re.compile(r"`([^`]+)`")
PAGES = {"fit": "/options/fit", "fit_offline": "/options/fit", "distributed.fit": "/cluster"}
"""The pages that explain the options of a function."""


def setup(app: Any) -> dict[str, Any]:
    """Register the directives and the changes of docstrings and pages; Sphinx calls this function."""
    app.add_directive("options", OptionLists)
    app.add_directive("summary", Summary)
    app.add_object_type("tfdpg-option", "tfdpg-option", objname="option")
    app.connect("source-read", _replace_lists)
    app.connect("autodoc-process-docstring", _replace_lines, priority=450)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class OptionLists(SphinxDirective):
    """A list of the options of a function or of one of their groups: `.. options:: TD3 Exploration`.

    With the flag `links`, the names are links to the entries of another list. Otherwise this list has the entries.
    """

    required_arguments = 1
    optional_arguments = 1
    final_argument_whitespace = True
    option_spec = {"links": directives.flag}

    def run(self) -> list[nodes.Node]:
        """Make the list, with the title of each group above it if the list has several groups."""
        name, *group = self.arguments
        is_repeated = "links" in self.options
        found = option_tables.options(name, None if is_repeated else option_tables.KINDS)
        made: list[nodes.Node] = []
        chosen = [(title, members) for title, members in option_tables.groups(found) if not group or title == group[0]]
        if not chosen:
            raise self.error(f"{name} has no group {group}")
        for title, members in chosen:
            if len(chosen) > 1:
                made.append(nodes.rubric(title, title))
            made.append(nodes.definition_list("", *(self._item(name, each, is_repeated) for each in members)))
            made[-1]["classes"].append("options")
        return made

    def _item(self, owner: str, option: option_tables.Option, is_repeated: bool) -> nodes.definition_list_item:
        target = f"{owner}.{option.name}"
        term = nodes.term()
        name = nodes.strong("", "", nodes.literal(option.name, option.name))
        if is_repeated:
            term += _reference(target, name)
        else:
            term["ids"].append(target)
            self.state.document.note_explicit_target(term)
            domain = self.env.domains.standard_domain
            domain.note_object("tfdpg-option", target, target, location=term)
            index = addnodes.index(entries=[("single", f"{option.name} (option of {owner})", target, "", None)])
            term += [index, name]
        term += nodes.Text(" – ")
        term += nodes.inline("", "", *self._inlines(owner, option.kind), classes=["option-type"])
        body = nodes.paragraph("", "", *self._inlines(owner, _capitalised(option.help)))
        return nodes.definition_list_item("", term, nodes.definition("", body))

    def _inlines(self, owner: str, text: str) -> Iterator[nodes.Node]:
        """Yield the nodes of a text with `code`. Code that is an option of the same function links to its entry."""
        for i, part in enumerate(CODE.split(text)):
            if i % 2:
                yield _reference(f"{owner}.{part}", nodes.literal(part, part))
            elif part:
                yield nodes.Text(part)


class Summary(SphinxDirective):
    """A line about a class, with a link to its entry: `.. summary:: tfdpg.TD3`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make a definition list of one item, from the first sentence of the docstring."""
        module, _, name = self.arguments[0].rpartition(".")
        documented = getattr(sys.modules[module], name)
        link = references.reference("py", "class", self.arguments[0], nodes.literal(name, self.arguments[0]))
        text = inspect.getdoc(documented).split("\n")[0].partition(": ")[2]
        body = nodes.paragraph("", _capitalised(text))
        item = nodes.definition_list_item("", nodes.term("", "", link), nodes.definition("", body))
        return [nodes.definition_list("", item)]


def _capitalised(text: str) -> str:
    """Capitalise a help text that begins with a word."""
    return text[:1].upper() + text[1:] if re.match(r"[a-z]+\b(?![_.])", text) else text


def _reference(target: str, content: nodes.Node) -> nodes.Node:
    """Return a reference to the entry of an option."""
    return references.reference("std", "tfdpg-option", target, content)


def _replace_lists(app: Any, docname: str, source: list[str]) -> None:
    """Replace the marked lists of a Markdown page by directives, below the same headings."""

    def directives_of(found: re.Match[str]) -> str:
        name = found[2]
        if name not in OPTIONS:
            return f"```{{options}} {name}\n:links:\n```"
        titles = [title for title, _ in option_tables.groups(option_tables.options(name))]
        return "\n\n".join(f"## {title}\n\n```{{options}} {name} {title}\n```" for title in titles)

    source[0] = option_tables.MARKED.sub(directives_of, source[0])


def name_of(documented: Any) -> str | None:
    """Return the name in `option_tables.KINDS` of a function that takes options; None for another object."""
    taker = documented.__init__ if inspect.isclass(documented) else documented
    kind = getattr(taker, "options_class", None)
    return next((name for name, each in option_tables.KINDS.items() if each is kind), None)


def _replace_lines(app: Any, what: str, name: str, documented: Any, options: Any, lines: list[str]) -> None:
    """Replace the lines of options in a docstring by a list behind it, or for an agent by a link to its page."""
    if (owner := name_of(documented)) is None:
        return
    if what == "class":
        link = "keyword arguments, which are described below in groups. See also :doc:`/options`."
        lines[:] = [re.sub(r"options: .*", rf"\\*\\*options: {link}", line) for line in lines]
        return
    names = {option.name for option in option_tables.options(owner, option_tables.KINDS)}
    lines[:] = [line for line in lines if line.strip().partition(": ")[0] not in names]
    lines[:] = inspect.cleandoc("\n".join(lines)).split("\n")
    more = f", which :doc:`{PAGES[owner]}` explains" if owner in PAGES else ""
    lines += ["", f"The options are keyword arguments{more}.", "", f".. options:: {owner}", ""]
