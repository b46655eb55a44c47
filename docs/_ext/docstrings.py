"""Docstrings are written with Markdown's code; Sphinx reads reStructuredText. This turns the one into the other.

TensorFlow's `TensorLike`, which is a union of a dozen types, stays a name in signatures.
"""

import re
import textwrap
from typing import Any

FENCED = re.compile(r"^( *)```(\w*)\n(.*?)\n *```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"(`[^`]+`)")
TENSOR_LIKE = re.compile(r"[\w.~]*Tensor \| [\w.~]*TensorProtocol \| .*?generic")


def to_rst(text: str) -> str:
    """Fenced code becomes code blocks, and `code` literals; bars elsewhere, which would be marks, become text."""
    parts, end = [], 0
    for fence in FENCED.finditer(text):
        block = f"{fence[1]}.. code-block:: {fence[2] or 'text'}\n\n{textwrap.indent(fence[3], '    ')}\n"
        parts += [_marks(text[end : fence.start()]), block]
        end = fence.end()
    return "".join(parts) + _marks(text[end:])


def _marks(text: str) -> str:
    """Doubles the backticks of code, which then stays on one line and ends before a letter; escapes bars elsewhere."""
    parts = CODE.split(text)
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = f"`{' '.join(part.split())}`" + ("\\ " if parts[i + 1][:1].isalnum() else "")
        else:
            parts[i] = part.replace("|", r"\|")
    return "".join(parts)


def setup(app: Any) -> dict[str, Any]:
    """Sphinx calls this. Before napoleon, which reads sections of reStructuredText."""
    app.connect("autodoc-process-docstring", _convert, priority=400)
    app.connect("autodoc-process-signature", _shorten)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _convert(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = to_rst("\n".join(lines)).split("\n")


def _shorten(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    return TENSOR_LIKE.sub("TensorLike", signature) if signature else signature, returns
