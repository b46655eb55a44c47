"""Draw the pictures of the pages: the learning curve and the export in the README, and the architecture.

python docs/picture.py
"""

import csv
import json
import re
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parent.parent
CURVE = ROOT / "examples/results/td3-HalfCheetah-v5-0.csv"
EXPORT = ROOT / "exported_models/td3-halfcheetah/1"
PICTURE = ROOT / "docs/_static/entrance.svg"
LAYERS_PAGE = ROOT / "docs/architecture.md"
ARCHITECTURE = ROOT / "docs/_static/architecture.svg"

WIDE = 480
"""The width of the picture in the README: a phone shows it at three quarters of its size, with legible text."""
LEFT, RIGHT, TOP, BOTTOM = 58, 438, 54, 236
"""Where the axes of the curve are."""
STEPS, LOWEST, HIGHEST = 1_000_000, -1_000, 10_000
"""Where they end, and where that of returns begins."""
PAPER, INK, GREY, GRID = "#ffffff", "#1f2933", "#616e7c", "#e4e7eb"
BLUE, PALE, GREEN, PALE_GREEN = "#1769aa", "#e8f1f8", "#2e7d4f", "#e6f4ea"
DARK = {
    PAPER: "#131416",
    INK: "#e4e7eb",
    GREY: "#a3afbb",
    GRID: "#323f4b",
    BLUE: "#63b3ed",
    PALE: "#16324a",
    GREEN: "#6fcf97",
    PALE_GREEN: "#173726",
}
"""The colours in place of the others where the page is dark."""
MONO = "ui-monospace, Menlo, Consolas, monospace"


def points() -> list[tuple[float, float]]:
    """Environment steps and the mean return of the evaluation, epoch for epoch."""
    with open(CURVE) as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return [(float(row["env_steps"]), float(row["val_return"])) for row in rows]


def text(
    x: float, y: float, words: str, *, size: int = 13, anchor: str = "start", fill: str = INK, font: str = ""
) -> str:
    """A line of text."""
    family = font or "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
    return (
        f'<text x="{x:g}" y="{y:g}" font-family="{family}" font-size="{size}" text-anchor="{anchor}" fill="{fill}">'
        f"{escape(words)}</text>"
    )


def line(x1: float, y1: float, x2: float, y2: float, *, stroke: str = GREY, more: str = "") -> str:
    """A straight line."""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{stroke}" {more}/>'


def curve() -> list[str]:
    """The learning curve with its axes."""

    def place(steps: float, value: float) -> tuple[float, float]:
        height = (value - LOWEST) / (HIGHEST - LOWEST)
        return LEFT + (RIGHT - LEFT) * steps / STEPS, BOTTOM - (BOTTOM - TOP) * height

    parts = [
        text(8, 20, "TD3 on HalfCheetah-v5, seed 0", size=15),
        text(8, 41, "evaluation return (mean of 10 episodes)", fill=GREY),
    ]
    for value in range(0, HIGHEST + 1, 2_000):
        _, y = place(0, value)
        parts += [line(LEFT, y, RIGHT, y, stroke=GRID), text(LEFT - 8, y + 4, f"{value:,}", size=12, anchor="end")]
    for steps in range(0, STEPS + 1, 250_000):
        x, _ = place(steps, LOWEST)
        parts += [line(x, BOTTOM, x, BOTTOM + 5), text(x, BOTTOM + 19, f"{steps:,}", size=12, anchor="middle")]
    parts += [line(LEFT, BOTTOM, RIGHT, BOTTOM)]
    path = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in points())
    parts.append(f'<polyline points="{path}" fill="none" stroke="{BLUE}" stroke-width="2" stroke-linejoin="round"/>')
    x, y = place(*points()[-1])
    parts += [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{BLUE}"/>',
        text(x, y - 12, f"{points()[-1][1]:,.0f}", size=14, anchor="end", fill=BLUE),
        text((LEFT + RIGHT) / 2, BOTTOM + 39, "environment steps", anchor="middle", fill=GREY),
    ]
    return parts


def box() -> list[str]:
    """The export: a box with its signatures, what goes in and what comes out."""
    facts = json.loads((EXPORT / "tfdpg.json").read_text())
    width, act_dim = (facts[f"{kind}_space"]["shape"][0] for kind in ("observation", "action"))
    left, top, height = 8, 328, 168
    parts = [
        text(left, top - 13, EXPORT.relative_to(ROOT).as_posix(), size=15),
        rectangle(left, top, WIDE - 2 * left, height),
        text(left + 16, top + 26, "SavedModel for TensorFlow Serving and TensorFlow, with", fill=GREY),
    ]
    signatures = {
        "pi(x)": f"actions [batch, {act_dim}]",
        "q1(x, a)": "values [batch]",
        "q2(x, a)": "values [batch]",
    }
    for row, (signature, outcome) in enumerate(signatures.items()):
        y = top + 55 + 26 * row
        parts += [
            text(left + 16, y, signature, size=15, font=MONO),
            arrow((left + 112, y - 5), (left + 152, y - 5)),
            text(left + 168, y, outcome, size=15, font=MONO),
        ]
    return [
        *parts,
        text(left + 16, top + 135, f"x: raw observations [batch, {width}]"),
        text(left + 16, top + 154, f"a: actions [batch, {act_dim}], in the environment's units"),
    ]


def layers() -> list[tuple[str, list[str]]]:
    """The companions, and the layers of the core with their packages, the highest first, of the architecture page."""
    page = LAYERS_PAGE.read_text()
    companions = page.partition("| companion |")[2].partition("\n\n")[0]
    parts: dict[str, list[str]] = {"": re.findall(r"^\| `(\w+)` \|", companions, re.MULTILINE)}
    for row in reversed(re.findall(r"^\| (\d) \| `([^`]+)` \|", page, re.MULTILINE)):
        parts[row[0]] = row[1].split() + parts.get(row[0], [])
    return list(parts.items())


def numpy_only() -> set[str]:
    """The packages that import no TensorFlow, according to the architecture page."""
    found = re.search(r"The packages\s+`([^`]+)`\s+import no TensorFlow", LAYERS_PAGE.read_text())
    return set(found[1].split()) if found else set()


def rectangle(x: float, y: float, width: float, height: float, fill: str = PALE, stroke: str = BLUE) -> str:
    """A box with rounded corners."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" stroke="{stroke}"/>'


def arrow(*points: tuple[float, float]) -> str:
    """An arrow along straight lines through points."""
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{BLUE}" stroke-width="1.5" marker-end="url(#head)"/>'


COLUMNS = 20, 210, 400, 590, 780
"""The left sides of the boxes of a flow."""
WIDTH, HEIGHT = 140, 62
"""The size of such a box."""


def stage(column: int, y: float, title: str, where: str, numpy: bool = False) -> list[str]:
    """A stage of a flow: a box with its name and the package that has it.

    Args:
        column: the position in the row, from 0.
        y: the upper side.
        title: what it is, in one or two lines.
        where: the package.
        numpy: whether it is computed without TensorFlow.
    """
    middle = COLUMNS[column] + WIDTH / 2
    fill, stroke = (PALE_GREEN, GREEN) if numpy else (PALE, BLUE)
    lines = title.split("\n")
    first = y + 27 - 8 * (len(lines) - 1)
    return [
        rectangle(COLUMNS[column], y, WIDTH, HEIGHT, fill, stroke),
        *(text(middle, first + 16 * row, each, anchor="middle") for row, each in enumerate(lines)),
        text(middle, y + 51, where, size=10, anchor="middle", fill=GREY, font=MONO),
    ]


def training_flow() -> list[str]:
    """The flow of data in training, with the weights that return to the behaviour policy."""
    y, below = 86, 200
    left = COLUMNS
    right = [x + WIDTH for x in COLUMNS]
    parts = [
        text(20, 28, "Training", size=15),
        *stage(0, y, "environment", "Gymnasium", numpy=True),
        *stage(1, y, "act, observe", "training.environment", numpy=True),
        *stage(2, y, "replay buffer", "replay", numpy=True),
        *stage(3, y, "minibatches:\nsample and pack", "replay", numpy=True),
        *stage(4, y, "updates in\none compiled call", "training.learning"),
        *stage(4, below, "metrics", "training.learning", numpy=True),
        *stage(3, below, "callbacks", "training.callbacks"),
        *stage(2, below, "checkpoints", "training.checkpoints"),
        arrow((left[1], y + 20), (right[0] + 2, y + 20)),
        arrow((right[0], y + 42), (left[1] - 2, y + 42)),
        text(185, y + 15, "action", size=10, anchor="middle"),
        text(185, y + 76, "observation, reward", size=10, anchor="middle"),
    ]
    for column in (1, 2, 3):
        parts.append(arrow((right[column], y + 31), (left[column + 1] - 2, y + 31)))
    return [
        *parts,
        arrow((850, y), (850, 62), (280, 62), (280, y - 2)),
        text(565, 56, "weights of the behaviour policy", size=11, anchor="middle"),
        arrow((800, y + HEIGHT), (800, 170), (660, 170), (660, y + HEIGHT + 2)),
        text(730, 185, "TD errors as priorities", size=11, anchor="middle"),
        arrow((870, y + HEIGHT), (870, below - 2)),
        arrow((left[4], below + 31), (right[3] + 2, below + 31)),
        arrow((left[3], below + 31), (right[2] + 2, below + 31)),
    ]


def export_flow() -> list[str]:
    """The flow from networks to exported files."""
    y = 318
    parts = [
        text(20, 302, "Export", size=15),
        *stage(0, y, "components\nand copies", "components, networks"),
        *stage(1, y, "evaluation policy,\nsignatures", "components, export"),
        *stage(2, y, "SavedModel,\npolicy.npz", "export"),
        *stage(3, y, "verification against\nthe agent", "export.verify"),
        *stage(4, y, "TF Serving, ONNX,\nLiteRT, C, NumPy", "export, exported"),
    ]
    return parts + [arrow((x + WIDTH, y + 31), (x + WIDTH + 48, y + 31)) for x in COLUMNS[:-1]]


NOTES = {
    "": "companions, which the core never imports",
    "6": "settings that were chosen from experiments",
    "5": "Agent; one file for each algorithm: declaration and update",
    "4": "sub-packages: environment, learning, callbacks, checkpoints, data",
    "3": "signatures, SavedModel, verification",
    "2": "Keras models; declarations; reading exported models",
    "1": "pure functions; noise; replay buffer; NumPy inference",
}


def packages() -> list[str]:
    """The layers with their packages, the highest at the top."""
    parts = [
        text(20, 426, "Packages: a module imports only from lower layers, or from its own package", size=15),
        rectangle(614, 413, 14, 14, PALE_GREEN, GREEN),
        text(634, 425, "imports no TensorFlow", size=11),
        rectangle(774, 413, 14, 14),
        text(794, 425, "may import TensorFlow", size=11),
    ]
    without_tensorflow = numpy_only()
    for row, (layer, names) in enumerate(layers()):
        y = 444 + 40 * row
        x = 40.0
        parts.append(text(24, y + 20, layer, size=13, fill=GREY, anchor="middle"))
        for name in names:
            width = 7.2 * len(name) + 14
            fill, stroke = (PALE_GREEN, GREEN) if name in without_tensorflow else (PALE, BLUE)
            parts.append(rectangle(x, y, width, 30, fill, stroke))
            parts.append(text(x + width / 2, y + 19, name, size=12, anchor="middle", font=MONO))
            x += width + 6
        if layer in NOTES:
            parts.append(text(x + 8, y + 19, NOTES[layer], size=11, fill=GREY))
    return parts


def svg(width: int, height: int, parts: list[str]) -> str:
    """A picture with a light and a dark set of colours, of which the browser takes the one that the page has."""
    size = 'markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto"'
    head = f'<marker id="head" {size}><path d="M0,0 L8,4 L0,8 z" fill="{BLUE}"/></marker>'
    extent = f'width="{width}" height="{height}"'
    rules = [f'[{use}="{light}"] {{ {use}: {dark} }}' for light, dark in DARK.items() for use in ("fill", "stroke")]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {extent}>',
            "<style>@media (prefers-color-scheme: dark) {",
            *rules,
            "}</style>",
            f"<defs>{head}</defs>",
            f'<rect {extent} fill="{PAPER}"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def picture() -> str:
    """The picture of the README as SVG."""
    return svg(WIDE, 506, [*curve(), *box()])


def architecture() -> str:
    """The picture of the architecture page as SVG."""
    return svg(940, 770, [*training_flow(), *export_flow(), *packages()])


if __name__ == "__main__":
    PICTURE.write_text(picture())
    ARCHITECTURE.write_text(architecture())
