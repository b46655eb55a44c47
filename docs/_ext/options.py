"""The directive `options-table`: the options of an agent, of `fit` or of `distributed.fit`, as they are declared.

```{options-table} TD3
```
"""

import inspect
import itertools
import re
import types
import typing
from typing import Any, NamedTuple

import docstring_parser
from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList


class Option(NamedTuple):
    """An option, as texts; the default of one that must be given is empty."""

    group: str
    name: str
    type: str
    default: str
    help: str


def options(name: str) -> list[Option]:
    """The options of `tfdpg.<name>` in the order of their declaration, those of a group one after the other.

    Args:
        name: "TD3" or another agent, "fit", or "distributed.fit" (those that `fit` does not have).
    """
    import tfdpg

    skipped = {"self"}
    if name == "distributed.fit":
        documented: Any = tfdpg.distributed.fit
        skipped |= {"agent"} | set(inspect.signature(tfdpg.Agent.fit).parameters)
    else:
        documented = tfdpg.Agent.fit if name == "fit" else getattr(tfdpg, name)
    function = documented.__init__ if inspect.isclass(documented) else documented
    described = docstring_parser.parse(inspect.getdoc(documented) or "").params
    helps = {one.arg_name: " ".join((one.description or "").split()) for one in described}
    return [
        Option("", parameter.name, type_text(parameter.annotation), default_text(parameter.default), helps[one])
        for one, parameter in inspect.signature(function).parameters.items()
        if one not in skipped
    ]


def type_text(annotation: Any) -> str:
    """A type as people write it: without modules, but for Keras'."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " | ".join(type_text(one) for one in typing.get_args(annotation))
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"\bkeras\.(?:\w+\.)*(?=[A-Z])", "keras:", text.replace("NoneType", "None"))
    text = re.sub(r"\b(?:\w+\.)+(?=[A-Z])", "", text)
    return text.replace("keras:", "keras.").replace("'", '"')


def default_text(default: Any) -> str:
    """A default as Python, large integers with underscores; nothing for none."""
    if default is inspect.Parameter.empty:
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
    lines = ["| option | type | default | what it does |", "|---|---|---|---|"]
    for option in members:
        cells = f"`{option.name}`", code(option.type), code(option.default), option.help
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return lines


def code(text: str) -> str:
    """A text as Markdown's code; nothing as nothing."""
    return f"`{text}`" if text else ""


def setup(app: Any) -> dict[str, Any]:
    """Sphinx calls this."""
    app.add_directive("options-table", OptionsTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
