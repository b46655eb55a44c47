"""The reference describes every parameter, and its links and types are correct."""

import dataclasses
import inspect
import re
import sys

import tfdpg
from tests.docs.pages import PAGES, ROOT, fences, found_on, module, table
from tfdpg import ranges

sys.path.insert(0, str(ROOT / "docs" / "_ext"))
references = module("docs/_ext/references.py")
REFERENCE = [page for page in PAGES if page.startswith(("docs/api/", "docs/options/"))]


def documented():
    """Return the functions and classes of the reference by name; methods that are shown have names of their own."""
    found = {}
    for page in REFERENCE:
        for block in fences(page, "{eval-rst}"):
            found |= _documented(block.code)
    return found


def _documented(text):
    found = {}
    for entry in re.split(r"^(?=\.\. )", text, flags=re.MULTILINE):
        directive = re.match(r"\.\. auto(class|function|module|exception):: ([\w.]+)", entry)
        if directive is None:
            continue
        kind, name = directive.groups()
        holder = references._imported(name)
        members = re.findall(r":(?:special-)?members:(.*)", entry)
        shown = [each.strip() for names in members for each in names.split(",") if each.strip()]
        shown += re.findall(r"auto(?:method|property):: (\w+)", entry)
        if ":members:\n" in entry + "\n":
            shown += [each for each in getattr(holder, "__all__", dir(holder)) if not each.startswith("_")]
        if kind != "module":
            found[name] = holder
        for each in shown:
            member = inspect.getattr_static(holder, each)
            if callable(member) and not member.__module__.startswith("tfdpg"):
                continue
            if callable(member) or isinstance(member, (classmethod, staticmethod)):
                found[f"{name}.{each}"] = getattr(holder, each)
    return found


def descriptions(name, entry):
    """Return the docstrings that may describe the parameters of an entry: its own, and those that it inherits."""
    texts = [inspect.getdoc(entry) or ""]
    owner, _, short = name.rpartition(".")
    if inspect.isclass(entry):
        texts += [inspect.getdoc(base) or "" for base in entry.__mro__[1:-1] if base.__module__.startswith("tfdpg")]
    elif inspect.isclass(holder := references._imported(owner)):
        texts += [inspect.getdoc(getattr(base, short, None)) or "" for base in holder.__mro__[1:-1]]
    return "\n".join(texts)


def parameters(entry):
    """Return the names of the parameters of a function, or of the constructor of a class."""
    try:
        found = inspect.signature(entry).parameters.values()
    except (TypeError, ValueError):
        return []
    options = getattr(entry.__init__ if inspect.isclass(entry) else entry, "options_class", None)
    names = [each for each in found if "Never" not in str(each.annotation) and each.name not in ("self", "args")]
    if options is not None:
        fields = {field.name for field in dataclasses.fields(options)}
        names = [each for each in names if each.name not in fields]
    if inspect.isclass(entry):
        names = [each for each in names if each.kind is not each.VAR_KEYWORD]
    return [each.name for each in names]


ENTRIES = documented()


def test_every_parameter_is_described():
    def not_described(name):
        text = descriptions(name, ENTRIES[name])
        names = parameters(ENTRIES[name])
        return [each for each in names if not re.search(rf"^\s+\**{each}: |`{each}`", text, re.MULTILINE)]

    assert len(ENTRIES) > 200 and found_on(ENTRIES, not_described) == {}


def test_the_first_line_of_returns_is_no_type():
    """Sphinx takes what precedes a colon there for the type of the result."""

    def types(name):
        lines = re.findall(r"^Returns:\n +(.*)$", inspect.getdoc(ENTRIES[name]) or "", re.MULTILINE)
        return [line for line in lines if re.search(r":(\s|$)", line)]

    assert found_on(ENTRIES, types) == {}


def test_the_reference_has_what_the_pages_use():
    """The names that the pages about extending tfdpg, and the examples they explain, import from it."""
    files = [PAGES[f"docs/{page}.md"] for page in ("custom-networks", "changing-a-loss", "adding-an-algorithm")]
    files += [(ROOT / f"examples/{name}.py").read_text() for name in ("sac", "conservative_td3")]
    used = set()
    for text in files:
        for source, names in re.findall(r"^from (tfdpg[\w.]*) import (\([^)]*\)|.*)", text, re.MULTILINE):
            used |= {f"{source}.{name}" for name in re.findall(r"\w+", names)}
    objects = {id(references._imported(name)) for name in ENTRIES}
    text = "\n".join(PAGES[page] for page in REFERENCE)
    missing = {name for name in used if id(references._imported(name)) not in objects}
    assert {name for name in missing if f"`{name.rpartition('.')[2]}`" not in text and name not in text} == set()
    assert len(used) > 15


def test_pages_import_from_the_packages_of_tfdpg_and_not_from_modules_inside_them():
    deep = {
        (page, found)
        for page, text in PAGES.items()
        for found in re.findall(r"^ *(?:from|import) (tfdpg\.\w+\.[\w.]+)", text, re.MULTILINE)
    }
    assert deep == set()


def test_every_loss_is_in_the_reference():
    assert {f"tfdpg.losses.{name}" for name in tfdpg.losses.__all__} == set(
        re.findall(r":: (tfdpg\.losses\.\w+)", PAGES["docs/api/losses.md"])
    )


def test_the_table_of_types_is_correct():
    rows = table("docs/api/components.md", "type")
    assert {name.strip("`"): text for name, text in rows} == {
        name: ranges.describe_type(kind)
        for name, kind in vars(ranges).items()
        if isinstance(getattr(kind, "__metadata__", (None,))[0], ranges.Within)
    }


def test_signatures_have_no_parameters_that_accept_nothing():
    signatures = module("docs/_ext/signatures.py")
    shown = [
        signatures._shorten(None, "method", "", getattr(tfdpg.Agent, name), None, text, None)[0]
        for name, text in {
            "learn": "(*positional: ~typing.Never, updates: int | None = None, **unknown: ~typing.Never)",
            "predict": "(observations: ~typing.Any, **unknown: ~typing.Never)",
        }.items()
    ]
    assert shown == ["(*, updates: int | None = None)", "(observations: ~typing.Any)"]
    short, _ = signatures._shorten(None, "class", "", tfdpg.TD3, None, "(env, *, ...)", None)
    assert short == "(env: ~typing.Any, *, seed: int | None = 0, **options)"
