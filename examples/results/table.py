"""Write the tables and pictures of docs/results.md from the files in this directory.

python examples/results/table.py           # writes them
python examples/results/table.py --check   # exits with 1 if they do not match the files
"""

import argparse
import csv
import functools
import hashlib
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tfdpg.plotting.curves import LearningCurve, command, interpolate, points
from tfdpg.plotting.scores import RANDOM_AND_TD3, Statistic, bootstrap_interval, interquartile_mean, score, task

RESULTS = Path(__file__).parent
RESULTS_OF_OTHERS = RESULTS / "published.csv"
PAGE = RESULTS.parents[1] / "docs/results.md"
BEGIN = "<!-- written by examples/results/table.py -->"
END = "<!-- by hand again -->"
STEPS = {100_000: "100k", 300_000: "300k", 1_000_000: "1M"}
"""The environment steps at which scores are taken, besides the end of a run."""

Key = TypeVar("Key")

MUJOCO = ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Humanoid")
VERSIONS = "v4", "v5"
"""The versions of these tasks. Published returns are of the first."""
PUBLISHED: dict[str, dict[str, Sequence[float]]] = {
    "td3": {
        "paper (v1)": (9637, 3564, 4683, 4372),
        "CleanRL (v4)": (9583, 3135, 4058),
        "Tianshou (v3)": (10201, 3472, 3982, 5116),
        "PFRL (v2)": (10417, 3691, 4431, 4753),
    },
    "ddpg": {
        "OurDDPG (v1)": (8577, 1860, 3098, 889),
        "CleanRL (v4)": (10374, 1577, 1240),
        "Tianshou (v3)": (11719, 2197, 1401, 990),
    },
}
"""Published returns of TD3 and DDPG after 1,000,000 steps, on the first tasks of `MUJOCO`."""
TIME = "minutes of training per task, on one core"
AFTER = "Published after 1,000,000 steps"
SOURCES = {
    "td3": f"{AFTER}: Fujimoto et al. 2018, and PFRL, the largest value of the mean curve; CleanRL; Tianshou.",
    "ddpg": f"{AFTER}: OurDDPG of Fujimoto et al. 2018, the largest value of the mean curve; CleanRL; Tianshou.",
}
CHOICE = "choice-"
"""The prefix of the kinds that were compared to choose a recipe."""
DRAWN = {"FlashSAC": "^", "TD7": "*", "CrossQ": "s", "SimbaV2": "D", "SAC": "o"}
"""The published algorithms in pictures, with one update per step, and their markers."""
OLDER = {
    "acer-inverted-double-pendulum": "ACER on InvertedDoublePendulum-v5, seed 0",
    "acer-lunar-lander": "ACER on LunarLander-v3, seeds 0, 1 and 2",
    "acer-pendulum": "ACER on Pendulum-v1, seeds 0, 1 and 2",
    "d4pg-cheetah-run": "D4PG and TD3 on cheetah-run, seed 0",
    "d4pg-walker-walk": "D4PG and TD3 on walker-walk, seed 0",
    "td3-halfcheetah": "TD3 on HalfCheetah-v5, seeds 0 and 1",
    "td3-lunar-lander": "TD3 on LunarLanderContinuous-v3, seed 0",
}
"""The titles of the pictures that are drawn from `from_plots.csv`."""
COLOURS = 10
"""The number of colours. Places from this number on have the same colours with dashed lines."""
WIDTH, LINE = 5.4, 62
"""The width of a picture in inches, and the characters of a line below it. Text is legible on a phone at this width."""
DARK = {
    "#ffffff": "#131416",
    "#333333": "#e4e7eb",
    "#666666": "#a3afbb",
    "#999999": "#6b7682",
    "#ebebeb": "#323f4b",
    "#0173b2": "#4fb3f6",
    "#029e73": "#2cc79a",
}
"""The colours of a picture, and the colours that replace them on dark pages."""


class Result(NamedTuple):
    """A file of evaluations.

    Attributes:
        kind: how it was trained, the first part of the file's name.
        env: the environment's id.
        curve: evaluation returns over environment steps.
        rate: the median steps per second of its epochs, without the evaluations.
        seconds: seconds per 1,000 steps, with the evaluations; None if the file does not state them.
    """

    kind: str
    env: str
    curve: LearningCurve
    rate: float
    seconds: float | None

    @property
    def method(self) -> str:
        """The kind, without the number of steps that it may end in."""
        return self.kind.removesuffix("-100k")


class Published(NamedTuple):
    """Published returns of an algorithm.

    Attributes:
        name: the algorithm, and its updates per environment step if there are several.
        steps: the environment steps after which the returns were measured.
        returns: mean returns, by task; empty where only the score was published.
        score: the mean normalised score.
        cells: the score and the interquartile mean, with their intervals.
        note: what to know about the numbers.
    """

    name: str
    steps: int
    returns: dict[str, float]
    score: float
    cells: tuple[str, str]
    note: str


def published() -> list[Published]:
    """Return the content of `published.csv`."""
    lines = RESULTS_OF_OTHERS.read_text().splitlines()
    found = []
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        updates = int(row["updates_per_step"])
        name = row["algorithm"] if updates == 1 else f"{row['algorithm']}, {updates} updates per step"
        returns = {each: float(row[each]) for each in MUJOCO if row[each]}
        cells = f"{float(row['mean']):.2f}", "–"
        if row["iqm"]:
            mean, iqm = ([float(row[f"{name}{end}"]) for end in ("", "_low", "_high")] for name in ("mean", "iqm"))
            cells = with_interval(*mean), with_interval(*iqm)
        found.append(Published(name, int(row["steps"]), returns, float(row["mean"]), cells, row["note"]))
    return found


def with_interval(value: float, low: float, high: float) -> str:
    """Format a score and the ends of its interval."""
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


def load(directory: Path) -> list[Result]:
    """Load the results of `tfdpg train` in a directory.

    Raises:
        ValueError: a file is not named after its command.
    """
    results = []
    for file in sorted(directory.glob("*.csv")):
        if words := command(file):
            env, seed = (words[words.index(flag) + 1] for flag in ("--env", "--seeds"))
            kind = file.stem.removesuffix(f"-{re.sub('[/:]', '-', env)}-{seed}")
            if kind == file.stem:
                raise ValueError(f"{file} should be named <kind>-<env>-<seed>.csv, after its command")
            settings = {"agent": kind, "env": env, "seed": int(seed)}
            curve = LearningCurve(file, settings, *points(file, "env_steps", "val_return"))
            steps, rates = points(file, "env_steps", "steps_per_second")
            trained = np.sum(np.diff(steps, prepend=0) / rates)
            pace = seconds(file, steps[-1], trained)
            results.append(Result(kind, env, curve, float(np.median(rates)), pace))
    return results


def seconds(file: Path, steps: float, trained: float) -> float | None:
    """Return the seconds per 1,000 steps, including evaluations, according to the header of a result file.

    If the header states fewer seconds than the steps alone took, the run was resumed. The result is then None.

    Args:
        file: the file.
        steps: the steps of the run.
        trained: the seconds that they took without evaluations.
    """
    said = re.search(r"^# commit .*; (\d+) s since it was last begun", file.read_text(), re.MULTILINE)
    return 1000 * int(said[1]) / steps if said and int(said[1]) >= trained else None


def groups(results: Iterable[Result], key: Callable[[Result], Key]) -> dict[Key, list[Result]]:
    """Group results by a key."""
    found: dict[Key, list[Result]] = {}
    for result in results:
        found.setdefault(key(result), []).append(result)
    return found


def scores(results: Sequence[Result], steps: float | None) -> list[float]:
    """Return the scores of the runs that reach `steps`; if `steps` is None, of all runs at their ends."""
    curves = [result.curve for result in results]
    found = [score(curve.x, curve.y, curve.x[-1] if steps is None else steps) for curve in curves]
    return [value for value in found if value is not None]


def number(value: float, beside: float | None = None) -> str:
    """Format a return, or a spread with as many digits as the return `beside` it."""
    digits = 0 if abs(value if beside is None else beside) >= 100 else 1
    return f"{value:,.{digits}f}".replace("-", "\N{MINUS SIGN}")


def cell(results: Sequence[Result], steps: float | None) -> str:
    """Format the mean score, the standard deviation of several scores, and their number if some are missing."""
    found = scores(results, steps)
    if not found:
        return "–"
    mean = float(np.mean(found))
    spread = f" ± {number(float(np.std(found, ddof=1)), mean)}" if len(found) > 1 else ""
    return number(mean) + spread + (f" ({len(found)})" if len(found) < len(results) else "")


def length(results: Sequence[Result]) -> str:
    """Format the number of steps of the runs, as a range if they differ."""
    ends = sorted({int(result.curve.x[-1]) for result in results})
    return f"{ends[0]:,}" if len(ends) == 1 else f"{ends[0]:,} to {ends[-1]:,}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table and an empty line."""
    lines = [head, ["---"] * len(head), *rows]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]


def of_kind(kind: str, results: Sequence[Result]) -> list[str]:
    """Return the lines with the tables of a kind."""
    by_source: dict[str, dict[str, float]] = {
        source: dict(zip(MUJOCO, values, strict=False)) for source, values in PUBLISHED.get(kind, {}).items()
    }
    by_env = dict(sorted(groups(results, lambda result: result.env).items()))
    known = {source: values for source, values in by_source.items() if {task(env) for env in by_env} & set(values)}
    rows, others = [], []
    for env, runs in by_env.items():
        largest = interpolate([run.curve for run in runs])[1].mean(axis=0).max()
        own = [cell(runs, steps) for steps in STEPS] + [f"**{cell(runs, None)}**", number(largest)]
        rows.append([env, str(len(runs)), length(runs), *own])
        others.append([env, *(number(values[task(env)]) if task(env) in values else "–" for values in known.values())])
    lines = [f"## {kind}", "", *table(["environment", "seeds", "steps", *STEPS.values(), "end", "largest"], rows)]
    return [*lines, SOURCES[kind], "", *table(["environment", *known], others)] if known else lines


def normalized(results: Sequence[Result], steps: int) -> dict[str, float]:
    """Return the mean score of each of the five tasks that has a run of `steps`; 0 is random actions, 1 is TD3."""
    found = {name: scores([each for each in results if task(each.env) == name], steps) for name in MUJOCO}
    ranges = {name: RANDOM_AND_TD3[name] for name in MUJOCO if found[name]}
    return {name: (float(np.mean(found[name])) - low) / (high - low) for name, (low, high) in ranges.items()}


def aggregate(results: Sequence[Result], steps: int) -> tuple[str, str]:
    """Format the mean and the interquartile mean of the normalised scores, with 95 % intervals over seeds.

    An interval needs two seeds of each of the five tasks, and the interquartile mean three. If tasks are missing, their
    names follow the mean.
    """
    found = normalized(results, steps)
    mean = f"{np.mean(list(found.values())):.2f}" if found else "–"
    if len(found) < len(MUJOCO):
        return mean + f" ({len(found)} of {len(MUJOCO)}: {', '.join(found)})" * bool(found), "–"
    runs, tasks, weights = [], [], []
    for name in MUJOCO:
        low, high = RANDOM_AND_TD3[name]
        of_task = scores([each for each in results if task(each.env) == name], steps)
        runs += [(value - low) / (high - low) for value in of_task]
        tasks += [name] * len(of_task)
        weights += [1 / (len(MUJOCO) * len(of_task))] * len(of_task)
    values, fewest = np.array(runs), min(tasks.count(name) for name in MUJOCO)
    if fewest > 1:
        mean = with_bootstrap(values, tasks, lambda drawn: drawn @ weights)
    return mean, with_bootstrap(values, tasks, interquartile_mean) if fewest > 2 else "–"


def with_bootstrap(values: np.ndarray, tasks: Sequence[str], statistic: Statistic) -> str:
    """Format a statistic over runs and its bootstrap interval, which is stratified by task."""
    low, high = bootstrap_interval(values, tasks, statistic)
    return with_interval(float(statistic(values)), float(low), float(high))


def comparisons(results: Sequence[Result]) -> list[str]:
    """Return a table for each version of the tasks and each of `STEPS`, with published returns in those of v4."""
    lines = []
    for version in VERSIONS:
        own = groups((each for each in results if env_version(each.env) == version), lambda each: each.method)
        others = published() if version == VERSIONS[0] else []
        for steps in STEPS:
            rows = []
            for method, runs in own.items():
                by_task = groups(runs, lambda run: task(run.env))
                cells = [cell(by_task.get(each, []), steps) for each in MUJOCO]
                if set(cells) != {"–"}:
                    rows.append([f"**{method}**", *cells, *(f"**{each}**" for each in aggregate(runs, steps))])
            for other in others:
                if other.steps == steps:
                    cells = [number(other.returns[each]) if each in other.returns else "–" for each in MUJOCO]
                    note = f" ({other.note})" if other.note else ""
                    rows.append([other.name + note, *cells, *other.cells])
            lines += [f"### {version}, after {steps:,} steps", ""]
            lines += table(["", *MUJOCO, "mean score", "interquartile mean"], rows)
    return lines


def env_version(env: str) -> str | None:
    """Return the version of one of the five tasks; None for any other environment."""
    return env.rpartition("-")[2] if task(env) in MUJOCO else None


def ablations(results: Sequence[Result]) -> list[str]:
    """Return the table of the runs with a changed setting, sorted by environment."""
    rows = []
    for (env, kind), runs in sorted(groups(results, lambda each: (each.env, each.kind)).items()):
        known = [run.seconds for run in runs if run.seconds is not None]
        pace = f"{np.mean(known):.1f}" if known else "–"
        rows.append([env, kind, str(len(runs)), length(runs), cell(runs, 100_000), f"**{cell(runs, None)}**", pace])
    return table(["environment", "changed", "seeds", "steps", "100k", "end", "s per 1,000 steps"], rows)


def choices(results: Sequence[Result]) -> list[str]:
    """Return the table from which a recipe is chosen: returns by task, and the mean normalised rank, 0 for the best.

    A return is the mean of the last four evaluations, over seeds. Kinds that lack a task are left out.
    """
    kinds = groups((each for each in results if each.kind.startswith(CHOICE)), lambda each: each.kind)
    envs = sorted({each.env for runs in kinds.values() for each in runs})
    found = {
        kind: [float(np.mean([run.curve.y[-4:] for run in runs if run.env == env])) for env in envs]
        for kind, runs in kinds.items()
        if {run.env for run in runs} == set(envs)
    }
    returns = np.array(list(found.values()))
    if len(found) < 2:
        return []
    ranks = (returns[:, None] < returns[None]).sum(axis=1) / (len(found) - 1)
    rows = [
        [kind.removeprefix(CHOICE), str(min(len(g) for g in groups(kinds[kind], lambda each: each.env).values()))]
        + [number(value) for value in values]
        + [f"**{rank:.2f}**"]
        for (kind, values), rank in sorted(zip(found.items(), ranks.mean(axis=1), strict=True), key=lambda row: row[1])
    ]
    return ["## Choice of a recipe", "", *table(["", "seeds", *envs, "mean normalised rank"], rows)]


def score_curves(results: Sequence[Result]) -> dict[str, tuple[int, LearningCurve, LearningCurve]]:
    """Return the mean normalised score of each method with runs on all five tasks, over steps and over time.

    A curve ends where the shortest run ends. All runs of a method on a task count as the fastest one, because other
    work made some of them slower.

    Returns:
        For each method and version of the tasks: the place of its colour, and the curves over steps and over minutes.
    """
    fastest = {
        key: max(run.rate for run in runs)
        for key, runs in groups(results, lambda each: (each.method, task(each.env))).items()
    }
    curves = {}
    for (version, method), runs in sorted(
        groups(results, lambda each: (env_version(each.env) or "", each.method)).items()
    ):
        by_task = groups(runs, lambda each: task(each.env))
        if version in VERSIONS and set(by_task) == set(MUJOCO):
            steps = min((run.curve.x for run in runs), key=lambda x: x[-1])
            y = np.array([np.mean(list(normalized(runs, each).values())) for each in steps])
            rates = [fastest[method, name] for name in MUJOCO]
            minutes = steps * np.mean([1 / rate for rate in rates]) / 60
            place = places(results)[runs[0].kind] + COLOURS * VERSIONS.index(version)
            label = f"{method} ({version})"
            curves[label] = place, LearningCurve(RESULTS, {}, steps, y), LearningCurve(RESULTS, {}, minutes, y)
    return curves


def pictures(results: Sequence[Result]) -> dict[Path, tuple[str, dict[str, list[LearningCurve]]]]:
    """Return, for each picture, a digest of the data that it shows, and its curves."""
    drawn = {}
    colours = places(results)
    for runs in dict(sorted(groups(results, lambda result: result.env).items())).values():
        curves = {kind: [each.curve for each in of] for kind, of in groups(runs, lambda each: each.kind).items()}
        others = points_of_others(runs[0].env)
        data = repr((others, {kind: colours[kind] for kind in curves})).encode() + b"".join(
            run.curve.path.name.encode() + run.curve.x.tobytes() + run.curve.y.tobytes() for run in runs
        )
        name = re.sub("[/:]", "-", runs[0].env)
        drawn[RESULTS / f"{name}.svg"] = hashlib.sha256(data).hexdigest(), curves
    return drawn


def points_of_others(env: str) -> dict[str, list[tuple[int, float]]]:
    """Published returns on a task, at the steps after which they were measured, by the names in `DRAWN`."""
    found: dict[str, list[tuple[int, float]]] = {}
    for other in published():
        if other.name in DRAWN and task(env) in other.returns:
            found.setdefault(other.name, []).append((other.steps, other.returns[task(env)]))
    return found


def score_pictures(results: Sequence[Result]) -> dict[Path, tuple[str, Callable[[], Any]]]:
    """Return, for the pictures of scores over steps and over time, a digest and a function that draws the figure."""
    curves = score_curves(results)
    others: dict[str, list[tuple[int, float]]] = {}
    for other in published():
        if other.name in DRAWN:
            others.setdefault(other.name, []).append((other.steps, other.score))
    drawn = {}
    for place_in, (name, x, points_shown) in enumerate((("steps", "env_steps", others), ("time", TIME, {}))):
        shown = {label: (place, of[place_in]) for label, (place, *of) in curves.items()}
        data = repr(
            (
                points_shown,
                [(label, place, curve.x.tolist(), curve.y.tolist()) for label, (place, curve) in shown.items()],
            )
        )
        figure = functools.partial(figure_of_scores, shown, x, points_shown)
        drawn[RESULTS / f"score-{name}.svg"] = hashlib.sha256(data.encode()).hexdigest(), figure
    return drawn if curves else {}


def figure_of_scores(
    shown: dict[str, tuple[int, LearningCurve]], x: str, others: dict[str, list[tuple[int, float]]]
) -> Any:
    """Return the figure of mean normalised scores, with published ones."""
    from tfdpg.plotting.figures import draw

    curves = {label: [curve] for label, (_, curve) in shown.items()}
    colours = {label: place for label, (place, _) in shown.items()}
    figure = draw(curves, x, "mean normalised score", show_counts=False, places=colours)
    add_points(figure, others, max(curve.x[-1] for _, curve in shown.values()))
    return with_legend(figure, "0 is random actions, 1 is TD3 after 1,000,000 steps.")


def older() -> dict[Path, tuple[str, dict[str, np.ndarray]]]:
    """For each picture of `from_plots.csv` a digest, and the rows (steps, mean, low, high) of its curves."""
    drawn = {}
    file = RESULTS / "from_plots.csv"
    lines = file.read_text().splitlines() if file.exists() else []
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    for name in OLDER:
        curves: dict[str, list[list[float]]] = {}
        for row in rows:
            if row["figure"] == name:
                values = [float(row[each] or "nan") for each in ("env_steps", "mean", "low", "high")]
                curves.setdefault(row["curve"], []).append(values)
        if curves:
            digest = hashlib.sha256(repr((OLDER[name], curves)).encode()).hexdigest()
            drawn[RESULTS / f"{name}.svg"] = digest, {curve: np.array(points) for curve, points in curves.items()}
    return drawn


def places(results: Sequence[Result]) -> dict[str, int]:
    """Return the place of each kind's colour in the palette, the same in all pictures.

    Kinds that differ only in their numbers of steps have the same colour.
    """
    methods = {result.kind: result.kind.removesuffix("-100k") for result in results}
    order = sorted(set(methods.values()))
    return {kind: order.index(method) for kind, method in methods.items()}


def figure_of(curves: dict[str, list[LearningCurve]], colours: dict[str, int]) -> Any:
    """Return the figure of the learning curves on a task, with published returns.

    Args:
        curves: the runs of each kind.
        colours: the place of each kind's colour in the palette.
    """
    from tfdpg.plotting.figures import draw, limit_bottom

    title = next(iter(curves.values()))[0].settings["env"]
    figure = draw(curves, "env_steps", "val_return", title, places=colours)
    add_points(figure, points_of_others(title), max(curve.x[-1] for runs in curves.values() for curve in runs))
    limit_bottom(figure.axes[0], curves)
    several = [len(runs) > 2 for runs in curves.values()]
    note = "Mean and 95 % confidence interval over seeds (Student's t)." if any(several) else ""
    return with_legend(figure, note + " Fewer than three seeds: single curves." * (any(several) and not all(several)))


def add_points(figure: Any, others: dict[str, list[tuple[int, float]]], last: float) -> None:
    """Draw published values until the environment step `last`."""
    for name, found in others.items():
        shown = np.array([(x / 1000, y) for x, y in found if x <= last]).reshape(-1, 2)
        if len(shown):
            label = f"{name}, published"
            figure.axes[0].plot(*shown.T, DRAWN[name], color="#666666", mfc="none", ms=6, label=label)


def figure_of_older(title: str, curves: dict[str, np.ndarray]) -> Any:
    """Return the figure of curves from an older picture, which were means over seeds with their range."""
    from tfdpg.plotting.figures import draw

    runs = {name: [LearningCurve(RESULTS, {}, rows[:, 0], rows[:, 1])] for name, rows in curves.items()}
    figure = draw(runs, "env_steps", "val_return", title, show_counts=False)
    (axes,) = figure.axes
    for drawn, rows in zip(list(axes.lines), curves.values(), strict=True):
        if not np.isnan(rows[:, 2:]).all():
            axes.fill_between(rows[:, 0] / 1000, rows[:, 2], rows[:, 3], color=drawn.get_color(), alpha=0.2, lw=0)
            drawn.set_label(f"{drawn.get_label()}: mean and range over the seeds")
    return with_legend(figure, "")


def with_legend(figure: Any, note: str) -> Any:
    """Return the figure with the width of a picture, and with its legend in two columns and a note below."""
    figure.legends[0].remove()
    handles, labels = figure.axes[0].get_legend_handles_labels()
    note = textwrap.fill(note, LINE)
    lines = -(-len(labels) // 2) + note.count("\n") + bool(note)
    figure.set_size_inches(WIDTH, 3.6 + 0.24 * lines)
    style = {"frameon": False, "fontsize": 10.5, "title_fontsize": 10.5, "alignment": "left", "labelcolor": "#333333"}
    legend = figure.legend(handles, labels, loc="outside lower left", ncols=2, title=note, borderaxespad=0, **style)
    legend.get_title().set_color("#666666")
    return figure


def save(figure: Any, picture: Path, digest: str) -> None:
    """Write a figure as SVG, with the digest of its data and with colours for dark pages."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tfdpg"}):
        figure.savefig(picture, metadata={"Description": digest, "Date": None})
    rules = [
        f'[style*="{use}: {light}"] {{ {use}: {dark} !important }}'
        for light, dark in DARK.items()
        for use in ("fill", "stroke")
    ]
    style = "\n".join(["<style>@media (prefers-color-scheme: dark) {", *rules, "}</style>"])
    picture.write_text(re.sub(r"(<svg .*?>\n)", rf"\1{style}\n", picture.read_text(), count=1, flags=re.DOTALL))


def written(results: Sequence[Result], changed: Sequence[Result]) -> str:
    """Return the generated part of the page, from the line `BEGIN` to the line `END`."""
    kinds = groups(results, lambda result: result.kind)
    lines = ["## Mean scores", "", *comparisons(results)]
    lines += [line for kind, runs in kinds.items() for line in of_kind(kind, runs)]
    lines += ["## Pictures", ""]
    for picture, (_, curves) in pictures(results).items():
        env = next(iter(curves.values()))[0].settings["env"]
        methods = ", ".join(dict.fromkeys(kind.removesuffix("-100k") for kind in curves))
        lines += [f"![Evaluation return on {env}: {methods}](../examples/results/{picture.name})", ""]
    lines += choices(changed)
    if changed:
        lines += ["## Ablations and choices", "", *ablations(changed)]
    return "\n".join([BEGIN, "", *lines, END])


def stale(page: str, results: Sequence[Result]) -> list[str]:
    """Return the names of the page and the pictures that do not match the files."""
    names = [] if PAGE.exists() and PAGE.read_text() == page else [str(PAGE)]
    drawn: dict[Path, tuple[str, Any]] = {**score_pictures(results), **pictures(results), **older()}
    digests = {picture: digest for picture, (digest, _) in drawn.items()}
    return names + [
        str(file) for file, digest in digests.items() if not file.exists() or digest not in file.read_text()
    ]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, and exit with 1 if something would change")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Write the page and the pictures, or check that they match the files."""
    check = parser().parse_args(argv).check
    results = load(RESULTS)
    changed = load(RESULTS / "ablation")
    before, rest = PAGE.read_text().split(BEGIN)
    page = before + written(results, changed) + rest.split(END)[1]
    old = stale(page, results)
    if check and old:
        sys.exit(f"Not what the results give: {', '.join(old)}. Write them with: python examples/results/table.py")
    if check:
        return
    PAGE.write_text(page)
    for picture, (digest, figure) in score_pictures(results).items():
        if str(picture) in old:
            save(figure(), picture, digest)
    for picture, (digest, curves) in pictures(results).items():
        if str(picture) in old:
            save(figure_of(curves, places(results)), picture, digest)
    for picture, (digest, curves) in older().items():
        if str(picture) in old:
            save(figure_of_older(OLDER[picture.stem], curves), picture, digest)
    print("\n".join(f"wrote {name}" for name in old) or "nothing changed")


if __name__ == "__main__":
    main()
