"""Links to the reference, and from it to the documentation of other libraries.

- In docstrings and on all pages, code that names an object of the reference links to it: `tfdpg.Spec`, `agent.fit`; and
  so does code that names an option of a function: `TD3(gamma)`.
- A type in a signature links to the name under which it is documented, not under which its module defines it.
- `external.txt` has the addresses of types of other libraries. (Sphinx's own `intersphinx` needs network access.)
"""

import importlib
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

NAME = re.compile(r"(tfdpg|[Aa]gent)((?:\.(?!json)[A-Za-z]\w*)+)")
OPTION = re.compile(r"([\w.]+)\((\w+)\)")
EXTERNAL = {
    name: address
    for address, *names in map(str.split, Path(__file__).with_name("external.txt").read_text().splitlines())
    for name in names
}
"""The addresses of types, by their names."""


def setup(app: Any) -> dict[str, Any]:
    """Register the links; Sphinx calls this function."""
    app.add_transform(LinkCode)
    app.connect("doctree-read", _shorten_types)
    app.connect("missing-reference", _resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class LinkCode(SphinxTransform):
    """Replace code that names an object of tfdpg by a reference to it."""

    default_priority = 400
    outside = nodes.title, nodes.reference, nodes.rubric, addnodes.pending_xref, addnodes.desc_signature

    def apply(self, **kwargs: Any) -> None:
        """Replace the code of a page."""
        for literal in list(self.document.findall(nodes.literal)):
            code = literal.astext()
            if self._is_outside(literal):
                continue
            if found := NAME.fullmatch(code):
                target = ("tfdpg" if found[1] == "tfdpg" else "tfdpg.Agent") + found[2]
                literal.replace_self(reference("py", "obj", target, literal.deepcopy()))
            elif found := OPTION.fullmatch(code):
                literal.replace_self(reference("std", "tfdpg-option", f"{found[1]}.{found[2]}", literal.deepcopy()))

    def _is_outside(self, node: nodes.Node) -> bool:
        """Return whether a node is in a title or in another reference."""
        while node.parent is not None:
            node = node.parent
            if isinstance(node, self.outside):
                return True
        return False


def _shorten_types(app: Any, doctree: nodes.document) -> None:
    """Show types in descriptions without their modules, as signatures do, and attributes under that name."""
    for node in doctree.findall(addnodes.pending_xref):
        shown = node.children[0]
        if isinstance(shown, addnodes.literal_emphasis | addnodes.literal_strong) and "." in shown.astext():
            shown.children = [nodes.Text(shown.astext().rpartition(".")[2])]
    for name in doctree.findall(nodes.field_name):
        if name.astext() == "Variables":
            name.children = [nodes.Text("Attributes")]


def reference(domain: str, kind: str, target: str, content: nodes.Node) -> nodes.Element:
    """Return a reference to an object of a domain; its content stays if there is no such object."""
    return addnodes.pending_xref(
        "", content, refdomain=domain, reftype=kind, reftarget=target, refexplicit=True, refwarn=False
    )


def _resolve(app: Any, env: Any, node: addnodes.pending_xref, content: nodes.Node) -> nodes.Node | None:
    """Resolve a name under which an object is not documented."""
    if node.get("refdomain") != "py":
        return None
    domain = env.domains.python_domain
    target = node["reftarget"]
    first, _, rest = target.partition(".")
    for known, member in ((target, ""), (target.rpartition(".")[2], ""), (first, f".{rest}")):
        names = _aliases(domain).get(known, set())
        if len(names) == 1:
            (name,) = names
            found = domain.resolve_xref(env, node["refdoc"], app.builder, "obj", name + member, node, content)
            if found is not None:
                return found
    if target in EXTERNAL:
        return nodes.reference("", "", content, internal=False, refuri=EXTERNAL[target], reftitle=target)
    return None


def _aliases(domain: Any) -> dict[str, set[str]]:
    """Return the names of documented classes and functions by their paths in modules, and of classes by short names."""
    if not hasattr(domain, "aliases"):
        domain.aliases = defaultdict(set)
        for name, entry in domain.objects.items():
            if entry.aliased or entry.objtype not in ("class", "exception", "function"):
                continue
            documented = _imported(name)
            short = name.rpartition(".")[2]
            domain.aliases[f"{documented.__module__}.{documented.__qualname__}"].add(name)
            if short[0].isupper():
                domain.aliases[short].add(name)
    return domain.aliases


def _imported(name: str) -> Any:
    """Return the object of a name such as `tfdpg.losses.td_loss`. A part is an attribute or a module."""
    path, *parts = name.split(".")
    found: Any = importlib.import_module(path)
    for part in parts:
        path += f".{part}"
        found = getattr(found, part) if hasattr(found, part) else importlib.import_module(path)
    return found
