"""Write the lists of options into the pages, between `<!-- options: NAME -->` and `<!-- end of options -->`.

NAME is an agent, `fit` or `distributed.fit`. Run it after an option has changed:

    python docs/option_tables.py
"""

import dataclasses
import itertools
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tfdpg.agents.options import OPTIONS, ExportOptions
from tfdpg.cli.run_options import GROUPS
from tfdpg.distributed.options import DistributedFitOptions, Distribution
from tfdpg.options import Not, Only, Structural, options_of
from tfdpg.options import Option as Declared
from tfdpg.training.options import FitOptions, OfflineOptions

DOCS = Path(__file__).parent
PAGES = [*sorted((DOCS / "options").glob("*.md")), DOCS / "cluster.md"]
END = "<!-- end of options -->"
MARKED = re.compile(rf"(<!-- options: (\S+) -->)\n.*?{END}", re.DOTALL)
WIDTH = 150
KINDS: dict[str, Any] = {
    **OPTIONS,
    "fit": FitOptions,
    "fit_offline": OfflineOptions,
    "export": ExportOptions,
    "distributed.fit": DistributedFitOptions,
}
"""The options of each function that takes options, by the name of the function in the pages."""
TITLES = {
    "exploration": "Exploration",
    "schedule": "Update schedule",
    "returns": "Returns and target networks",
    "memory": "Recurrent networks",
    "optimisers": "Optimizers",
    "observations": "Normalisation of observations",
    "replay": "Replay buffer",
    "machine": "Seed, compilation and device",
    "objects": "Python objects",
}
"""The headings of groups whose titles are too short for a page."""


class Option(NamedTuple):
    """An option, as texts; the default of one that must be given is empty."""

    group: str
    name: str
    type: str
    default: str
    help: str

    @property
    def kind(self) -> str:
        """Its type and its default."""
        return f"{self.type}, default `{self.default}`" if self.default else self.type


def options(name: str, kinds: dict[str, Any] | None = None) -> list[Option]:
    """Return the options of `tfdpg.<name>`, those of a group one after the other, the common groups first.

    In a group, options of several agents come before those of one agent; objects are sorted by their types.

    Args:
        name: "TD3" or another name of `KINDS`.
        kinds: the classes of options by name; None is `KINDS`, but without the options of `fit` for "distributed.fit".
    """
    kind = (kinds or KINDS | {"distributed.fit": Distribution})[name]
    declared = options_of(kind)
    titles = [*GROUPS, "objects"]
    titles += [option.group for option in declared if option.group not in titles]
    fields = [field.name for field in dataclasses.fields(kind)]

    def place(option: Declared) -> tuple[Any, ...]:
        within = (option.type_text.lower(), option.name) if option.is_object else (fields.index(option.name),)
        return titles.index(option.group), *within

    return [
        Option(option.group, option.name, option.type_text, default_text(option.default), option.help + notes(option))
        for option in sorted(declared, key=place)
    ]


def notes(option: Declared) -> str:
    """Return the sentences about an option that its marks stand for, with a space before each."""
    sentences = []
    conditions = [mark.others for mark in option.marks if isinstance(mark, Only)]
    if conditions:
        texts = (" or ".join(itertools.starmap(condition, others.items())) for others in conditions)
        sentences.append(f" Requires {', and '.join(texts)}.")
    if Structural in option.marks:
        sentences.append(" Cannot be changed in a saved agent.")
    return "".join(sentences)


def condition(name: str, allowed: Not | tuple[Any, ...]) -> str:
    """Return a condition of `Only` as text."""
    if isinstance(allowed, Not):
        return f"`{name}` other than " + " or ".join(f"`{default_text(value)}`" for value in allowed.values)
    return " or ".join(f"`{name}={default_text(value)}`" for value in allowed)


def groups(found: Sequence[Option]) -> Iterator[tuple[str, list[Option]]]:
    """Yield the headings of the groups of some options, and the options of each group."""
    for group, members in itertools.groupby(found, key=lambda option: option.group):
        yield TITLES.get(group, group[:1].upper() + group[1:]), list(members)


def default_text(default: Any) -> str:
    """Return a default as Python, large integers with underscores; nothing for none."""
    if default is dataclasses.MISSING:
        return ""
    if isinstance(default, str):
        return f'"{default}"'
    return f"{default:_}" if type(default) is int and default >= 10_000 else repr(default)


def page_with_lists(page: Path) -> str:
    """Return the text of a page with its lists as the code declares them now."""
    return MARKED.sub(lambda found: f"{found[1]}\n{lists(found[2])}\n{END}", page.read_text())


def lists(name: str) -> str:
    """Return a Markdown list for each group of options, below the heading of the group if there are several."""
    found = list(groups(options(name)))
    blocks = []
    for title, members in found:
        blocks += [f"## {title}"] * (len(found) > 1) + ["\n".join(item(option) for option in members)]
    return "\n" + "\n\n".join(blocks) + "\n"


def item(option: Option) -> str:
    """Return an option as an item of a Markdown list. Lines are not broken inside code."""
    text = f"- `{option.name}` ({option.kind}): {option.help}"
    text = re.sub(r"`[^`]+`", lambda code: code[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def main() -> None:
    """Write the lists into all pages."""
    for page in PAGES:
        page.write_text(page_with_lists(page))


if __name__ == "__main__":
    main()
