"""Files of results that other programs wrote: which columns have the steps and the returns, and what to call them."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

STEPS = "env_steps"
"""The usual column of the x axis, and the first of the names below."""
RETURN = "val_return"
"""The usual column of the y axis, and the first of the names below."""
USUAL = {
    STEPS: (
        *("envsteps", "totalenvsteps", "totalenvinteracts", "environmentsteps", "numenvsteps", "totaltimesteps"),
        *("timestepstotal", "numtimesteps", "timesteps", "timestep", "globalstep", "totalsteps", "steps", "step"),
        *("frames", "totalframes"),
    ),
    RETURN: (
        *("valreturn", "averagetestepret", "testepret", "evalreturn", "evaluationreturn", "testreturn", "meanreturn"),
        *("averagereturn", "return", "returnmean", "episodereturn", "episodicreturn", "averageepret", "epret"),
        *("meanreward", "averagereward", "episodereturnmean", "episoderewardmean", "eprewmean", "episodereward"),
        *("episodicreward", "reward", "rewards", "score", "r", "value"),
    ),
}
"""The letters of usual names of columns, of which the first that a file has is taken: evaluations come first."""
MONITOR = {"r", "l"}
"""The columns of a monitor of Gymnasium and Stable-Baselines3 with an episode's return and its length."""
EVALUATIONS = ("eval", "test", "val")
NAMELESS = {"progress", "monitor", "log", "results", "eval", "evaluation", "evaluations", "data"}
"""The names of files that do not name what they contain; the directory does."""
SEED = re.compile(r"(^|[-_ .])(seed|run|s)[-_ ]?\d+$|(?<!\de)[-_ ]\d{1,3}$", re.IGNORECASE)
"""The end of a name in which the seeds of a configuration differ, but not the exponent of 1e-3."""


def settings(file: Path) -> dict[str, Any]:
    """Return what the files of a configuration have in common, and the seed: there is nothing but their names.

    The name is that of the file, or of the first directory above it that names something, without a number of a seed
    at its end.
    """
    path = file.absolute()
    for part in (path.with_name(path.stem.removesuffix(".monitor")), *path.parents):
        name = SEED.sub("", part.name)
        if name and not name.isdecimal() and name.lower() not in NAMELESS:
            return {"table": name, "directory": str(part.parent), "seed": str(path)}
    return {"table": str(file), "seed": str(path)}


def column(names: Sequence[str], wanted: str, is_usual: bool) -> str | None:
    """Return the column of a table for an axis; None if there is none.

    Args:
        names: the names of the columns.
        wanted: the name of the column, or several with commas between them, of which the first that exists is taken.
        is_usual: whether the usual names of other programs may take the place of `env_steps` and `val_return`.
    """
    given = wanted.split(",")
    if found := [name for name in given if name in names]:
        return found[0]
    for usual in USUAL.get(given[0], ()) if is_usual else ():
        found = [name for name in names if _letters(name.rpartition("/")[2]) == usual]
        if found:
            return next((name for name in found if name.lower().startswith(EVALUATIONS)), found[0])
    return None


def missing(file: Path, wanted: str, names: Iterable[str], is_usual: bool) -> ValueError:
    """Return the error for a table without a column for an axis."""
    has = f"It has: {', '.join(names)}"
    if not is_usual or wanted not in USUAL:
        return ValueError(f"{file} has no column {wanted!r}. {has}")
    flag, what = ("--x", "steps") if wanted == STEPS else ("--y", "returns")
    return ValueError(f"{file} has no column with a usual name of {what}. Name it with `{flag}`. {has}")


def _letters(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower())
