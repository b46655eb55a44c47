"""Docstrings are written with Markdown's code; Sphinx reads reStructuredText. This turns the one into the other."""

import inspect
import re
import textwrap
from collections.abc import Collection
from typing import Any

FENCED = re.compile(r"^( *)```(\w*)\n(.*?)\n *```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"(`[^`]+`)")
NAME = re.compile(r"`[A-Za-z]\w*(?:\.[A-Za-z]\w*)*`")


def to_rst(text: str, parameters: Collection[str] = ()) -> str:
    """Fenced code becomes code blocks, and `code` literals; bars elsewhere, which would be marks, become text.

    Args:
        text: the docstring.
        parameters: the names of parameters. Other names become references to objects of the reference.
    """
    parts, end = [], 0
    for fence in FENCED.finditer(text):
        block = f"{fence[1]}.. code-block:: {fence[2] or 'text'}\n\n{textwrap.indent(fence[3], '    ')}\n"
        parts += [_marks(text[end : fence.start()], parameters), block]
        end = fence.end()
    return "".join(parts) + _marks(text[end:], parameters)


def _marks(text: str, parameters: Collection[str]) -> str:
    """Doubles the backticks of code, which then stays on one line and ends before a letter; escapes bars elsewhere."""
    parts = CODE.split(text)
    for i, part in enumerate(parts):
        if i % 2:
            is_name = NAME.fullmatch(part) and part.strip("`") not in parameters
            code = f":py:obj:{part}" if is_name else f"`{' '.join(part.split())}`"
            before = "\\ " if is_name and parts[i - 1][-1:].isalnum() else ""
            parts[i] = before + code + ("\\ " if parts[i + 1][:1].isalnum() else "")
        else:
            parts[i] = part.replace("|", r"\|")
    return "".join(parts)


def setup(app: Any) -> dict[str, Any]:
    """Sphinx calls this. Before napoleon, which reads sections of reStructuredText."""
    app.connect("autodoc-process-docstring", _convert, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _convert(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    try:
        parameters = [*inspect.signature(obj).parameters]
    except (TypeError, ValueError):
        parameters = []
    lines[:] = to_rst("\n".join(lines), parameters).split("\n")
