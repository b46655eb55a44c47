"""Render equations with the copy of KaTeX in `_static/katex`, so that the pages need no network access."""

from typing import Any

from docutils import nodes


def setup(app: Any) -> dict[str, Any]:
    """Register the renderer `katex`; Sphinx calls this function."""
    app.add_html_math_renderer("katex", (_visit_math, None), (_visit_math, None))
    app.connect("html-page-context", _add_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _visit_math(self: Any, node: nodes.math | nodes.math_block) -> None:
    """Write an equation as TeX, which `render.js` replaces."""
    tag = "div" if isinstance(node, nodes.math_block) else "span"
    self.body.append(f"{self.starttag(node, tag, '', CLASS='math notranslate')}{self.encode(node.astext())}</{tag}>")
    raise nodes.SkipNode


def _add_files(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Load KaTeX on the pages that have equations."""
    if app.env.domains.math_domain.has_equations(pagename):
        app.add_css_file("katex/katex.min.css")
        app.add_js_file("katex/katex.min.js", loading_method="defer")
        app.add_js_file("katex/render.js", loading_method="defer")
