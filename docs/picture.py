"""Draws the picture of the README: the learning curve of a run, and what its export answers.

python docs/picture.py
"""

import csv
import json
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parent.parent
CURVE = ROOT / "examples/results/td3-HalfCheetah-v5-0.csv"
EXPORT = ROOT / "exported_models/td3-halfcheetah/1"
PICTURE = ROOT / "docs/_static/entrance.svg"

LEFT, RIGHT, TOP, BOTTOM = 70, 480, 50, 260
"""Where the axes of the curve are."""
STEPS, LOWEST, HIGHEST = 1_000_000, -1_000, 10_000
"""Where they end, and where that of returns begins."""
INK, GREY, BLUE, PALE = "#1f2933", "#7b8794", "#1769aa", "#e8f1f8"


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

    parts = [text(LEFT, 26, "TD3 on HalfCheetah-v5, seed 0", size=14)]
    for value in range(0, HIGHEST + 1, 2_000):
        _, y = place(0, value)
        parts += [line(LEFT, y, RIGHT, y, stroke="#e4e7eb"), text(LEFT - 8, y + 4, f"{value:,}", size=11, anchor="end")]
    for steps in range(0, STEPS + 1, 250_000):
        x, _ = place(steps, LOWEST)
        parts += [line(x, BOTTOM, x, BOTTOM + 5), text(x, BOTTOM + 20, f"{steps:,}", size=11, anchor="middle")]
    parts += [line(LEFT, BOTTOM, RIGHT, BOTTOM)]
    path = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in points())
    parts.append(f'<polyline points="{path}" fill="none" stroke="{BLUE}" stroke-width="2" stroke-linejoin="round"/>')
    x, y = place(*points()[-1])
    parts += [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{BLUE}"/>',
        text(x, y - 12, f"{points()[-1][1]:,.0f}", anchor="end", fill=BLUE),
        text((LEFT + RIGHT) / 2, BOTTOM + 42, "environment steps", size=12, anchor="middle"),
        text(LEFT + 8, TOP + 14, "evaluation return, mean of 10 episodes", size=11, fill=GREY),
    ]
    return parts


def box() -> list[str]:
    """The export: a box with its signatures, what goes in and what comes out."""
    facts = json.loads((EXPORT / "tfdpg.json").read_text())
    width, act_dim = (facts[f"{kind}_space"]["shape"][0] for kind in ("observation", "action"))
    mono = "ui-monospace, Menlo, Consolas, monospace"
    parts = [
        text(570, 26, EXPORT.relative_to(ROOT).as_posix(), size=14),
        f'<rect x="570" y="{TOP}" width="340" height="{BOTTOM - TOP}" rx="8" fill="{PALE}" stroke="{BLUE}"/>',
        text(588, 76, "a SavedModel with the signatures", size=12, fill=GREY),
    ]
    signatures = {
        "pi(x)": f"actions [batch, {act_dim}]",
        "q1(x, a)": "values [batch]",
        "q2(x, a)": "values [batch]",
    }
    for row, (signature, outcome) in enumerate(signatures.items()):
        y = 112 + 36 * row
        parts += [
            text(588, y, signature, size=15, font=mono),
            line(692, y - 5, 736, y - 5, stroke=BLUE, more='stroke-width="1.5" marker-end="url(#head)"'),
            text(748, y, outcome, size=13, font=mono),
        ]
    parts += [
        text(588, 224, f"x: raw observations [batch, {width}]", size=12),
        text(588, 244, f"a: actions [batch, {act_dim}], in the environment's units", size=12),
        text(570, BOTTOM + 42, "for TensorFlow Serving and plain TensorFlow", size=12),
    ]
    return parts


def picture() -> str:
    """The picture as SVG."""
    size = 'markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto"'
    head = f'<marker id="head" {size}><path d="M0,0 L8,4 L0,8 z" fill="{BLUE}"/></marker>'
    parts = [f"<defs>{head}</defs>", '<rect width="940" height="320" fill="#ffffff"/>', *curve(), *box()]
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 940 320" width="940" height="320">',
            *parts,
            "</svg>",
            "",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(picture())
