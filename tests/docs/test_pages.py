"""The pages are consistent: links, files, the figure, the table of agents, the layers and the public names."""

import functools
import re

import tfdpg
from tests.docs.pages import PAGES, ROOT, WIDTH, anchors, fences, formatted, found_on, module, prose, spans, table
from tests.test_layers import COMPANIONS, LAYERS, NUMPY_ONLY


def test_the_readme_is_short():
    assert len(PAGES["README.md"].splitlines()) <= 150


def test_lines_are_short():
    def long_lines(page):
        return [line for line in PAGES[page].splitlines() if len(line) > 150 and not line.startswith("|")]

    assert found_on(PAGES, long_lines) == {}


def test_code_is_narrow():
    """Wider code scrolls in its box on a screen of 1,280 pixels."""

    def wide_lines(page):
        blocks = re.findall(r"^```(\w+)[^\n]*\n(.*?)^```$", PAGES[page], re.DOTALL | re.MULTILINE)
        return [line for _, code in blocks for line in code.splitlines() if len(line) > WIDTH]

    assert found_on(PAGES, wide_lines) == {}


def test_images_are_drawings_with_colours_for_dark_pages():
    """Text in a wider image is too small on a phone; the picture of the architecture scrolls in its box instead."""

    def wrong_images(page):
        images = [(ROOT / page).parent / path for path in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", prose(page))]
        return [f"{image.name}: {wrong}" for image in images for wrong in faults(image)]

    def faults(image):
        if image.name == "notebook.png":  # a screenshot, which the text around it describes
            return ["not below 50 kB"] if image.stat().st_size >= 50_000 else []
        if image.suffix != ".svg":
            return ["not an SVG"]
        text = image.read_text()
        width = float(re.search(r'viewBox="0 0 ([\d.]+) ', text)[1])
        texts = ["@media (prefers-color-scheme: dark)"]
        if image.parent.name == "results":
            texts.append("mean normalised score" if image.stem.startswith("score-") else ">evaluation return<")
            texts.append("minutes of training" if image.stem == "score-time" else ">environment steps (thousands)<")
        wrong = [f"without {each}" for each in texts if each not in text]
        wrong += ["not below 150 kB"] if len(text) >= 150_000 else []
        return wrong + (["wider than 480"] if width > 480 and image.name != "architecture.svg" else [])

    assert found_on(PAGES, wrong_images) == {}


def test_link_targets_exist():
    anchors_of = functools.cache(anchors)

    def leads_nowhere(page, target):
        path, _, anchor = target.partition("#")
        file = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        return not file.is_file() or anchor and anchor not in anchors_of(file.relative_to(ROOT).as_posix())

    def dead_links(page):
        targets = re.findall(r"\]\(([^)\s]+)\)", prose(page))
        return [each for each in targets if not each.startswith("https://") and leads_nowhere(page, each)]

    assert found_on(PAGES, dead_links) == {}


def test_the_files_of_a_page_exist():
    def missing(page):
        named = re.findall(r"\b(?:examples|tests|tfdpg|exported_models/td3-halfcheetah)/[\w/.-]*\w", prose(page))
        return [path for path in named if not (ROOT / path).exists()]

    assert found_on(PAGES, missing) == {}


def test_the_models_of_a_page_exist():
    """They are in `exported_models/`, or the page writes them there; clients request one of these."""
    assert found_on(PAGES, missing_models) == {}


def missing_models(page):
    text = PAGES[page]
    written = set(
        re.findall(r"(?:export\(\"|ExportBest\(\"|tfdpg export \S+ (?:\\\n +)?)exported_models/([\w-]+)", text)
    )
    named = set(re.findall(r"\bexported_models/([\w-]+)", text)) - written
    named |= set(re.findall(r"model_spec\.name.*=.*\"((?:ddpg|td3|d4pg|acer|td7)-[\w-]+)\"", text))
    return {name for name in named if not (ROOT / "exported_models" / name).is_dir()}


def test_the_readme_links_to_every_page():
    pages = {page for page in PAGES if page.count("/") == 1} - {"docs/index.md"}
    assert pages <= set(re.findall(r"\]\(([^)#]+)", PAGES["README.md"]))


def test_the_picture_shows_the_results():
    picture = module("docs/picture.py")
    assert picture.PICTURE.read_text() == picture.picture() and picture.PICTURE.stat().st_size < 100_000
    assert f"{picture.points()[-1][1]:,.0f}" == "8,796"
    assert f"]({picture.PICTURE.relative_to(ROOT)})" in PAGES["README.md"]


def test_the_picture_of_the_architecture_shows_the_layers():
    picture = module("docs/picture.py")
    assert picture.ARCHITECTURE.read_text() == picture.architecture()
    expected = {name: str(layer) for name, layer in LAYERS.items()} | dict.fromkeys(set(COMPANIONS) - {"__main__"}, "")
    assert {name: layer for layer, names in picture.layers() for name in names} == expected
    assert picture.numpy_only() == set(NUMPY_ONLY)
    assert f"](_static/{picture.ARCHITECTURE.name})" in PAGES["docs/architecture.md"]


def test_the_returns_of_the_readme_are_those_of_the_pages():
    rows = table("README.md", "agent")
    assert [re.search(r"`(\w+)`", row[0])[1] for row in rows] == ["DDPG", "TD3", "D4PG", "TD7", "ACER"]
    for name, paper, _, score in rows:
        page = re.search(r"\((.*)\)", name)[1]
        assert re.search(r"\*\*.*?\*\*", score)[0][:-2] in PAGES[page].replace(" and **", " and **")
        assert re.search(r"\((.*)\)", paper)[1] in PAGES[page]


def test_the_api_has_every_public_name():
    api = "\n".join(text for page, text in PAGES.items() if page.startswith("docs/api/"))
    assert {name for name in tfdpg.__all__ if not re.search(rf":: tfdpg\.{name}\b", api)} == set()


def test_the_layers_are_as_documented():
    architecture = [(int(row[0]), set(row[1].strip("`").split())) for row in table("docs/architecture.md", "layer")]
    layers = {part: layer for layer, parts in architecture for part in parts}
    assert layers == LAYERS and sum(len(parts) for _, parts in architecture) == len(LAYERS)
    companions = {
        row[0].strip("`"): set(row[2].strip("`").split()) for row in table("docs/architecture.md", "companion")
    }
    assert companions == {part: set(others) for part, others in COMPANIONS.items() if part != "__main__"}


def test_the_documented_logs_are_those_of_a_training_run():
    written = {log for span in spans("docs/callbacks.md") for log in span.split() if re.fullmatch(r"[a-z_0-9]+", log)}
    for agent in ("TD3", "TD7", "ACER"):
        metrics = getattr(tfdpg, agent)("CartPole-v1" if agent == "ACER" else "Pendulum-v1").metrics
        assert {metric.name for metric in metrics} <= written


def test_the_steps_for_an_algorithm_quote_its_file():
    written = {line for file in ("examples/sac.py", "tfdpg/agents/td7.py") for line in formatted(file)}
    quoted = [line for block in fences("docs/adding-an-algorithm.md", "py") for line in block.code.splitlines()]
    assert len(quoted) > 80 and [line for line in quoted if line not in written] == []
