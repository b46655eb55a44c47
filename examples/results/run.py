"""Repeat a training run whose result is in this directory, or train a run of the queue.

    python examples/results/run.py --list
    python examples/results/run.py td3-HalfCheetah-v5-0
    python examples/results/run.py ablation/no-delay-Hopper-v5-0 --overwrite

The script takes the command from the first line of `examples/results/NAME.csv` or, if this file does not exist yet,
from the line NAME of `queue.txt`. It writes the evaluations to a file of the same format next to the run directory, and
prints their scores beside those of the committed file. An interrupted run is resumed.

Evaluations are the same to the last digit only at the commit that the file names, with its package versions, on the
same kind of processor. Put `taskset -c 0` before the command to keep the run on one core.
"""

import argparse
import csv
import dataclasses
import importlib.metadata
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tfdpg.cli.training import parse_training_flags
from tfdpg.plotting.curves import COMMAND, command, points
from tfdpg.plotting.scores import score

RESULTS = Path(__file__).parent
PACKAGES = ("tensorflow", "keras", "gymnasium", "mujoco", "numpy")
"""The packages whose versions are in the head of a file."""
STEPS = (100_000, 300_000, 1_000_000)
"""The environment steps at which scores are compared, besides the end."""


def queued() -> dict[str, str]:
    """Return the arguments of `tfdpg train` for each name in `queue.txt`."""
    lines = (RESULTS / "queue.txt").read_text().splitlines()
    return dict(line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))


def names() -> dict[str, str]:
    """Return the arguments of `tfdpg train` by name, for the runs that have a result and for the queued runs."""
    recorded = {file.relative_to(RESULTS).with_suffix("").as_posix(): command(file) for file in RESULTS.rglob("*.csv")}
    return queued() | {name: shlex.join(words) for name, words in sorted(recorded.items()) if words}


def train(arguments: str, run_dir: Path) -> tuple[Path, float]:
    """Train a run, or resume it if it was interrupted; return its directory and the seconds that this took.

    Raises:
        ValueError: the directory contains a run of another command.
        CalledProcessError: `tfdpg train` failed.
    """
    agent, *words = shlex.split(arguments)
    (config,) = parse_training_flags(agent, words)[1]
    run = run_dir / f"seed-{config.seed}"
    begin = ["train", agent, *words, "--run-dir", str(run_dir), "--verbose", "2"]
    if (run / "run.json").exists():
        previous = json.loads((run / "run.json").read_text())
        wanted = json.loads(json.dumps(dataclasses.asdict(config)))
        del previous["options"]["verbose"], wanted["options"]["verbose"]
        if previous != wanted:
            raise ValueError(f"{run} is of another command. Choose another --run-dir, or remove it.")
        begin = ["train", "--resume", str(run), *["--trusted"] * bool(config.external_references)]
    settings = {"OMP_NUM_THREADS": "1", "MUJOCO_GL": "disabled"}
    began = time.time()
    subprocess.run([sys.executable, "-m", "tfdpg", *begin], env=settings | os.environ, check=True)
    return run, time.time() - began


def write(run: Path, out: Path, arguments: str, seconds: float) -> None:
    """Write the evaluations of a run, below the command, the commit and the versions that produced them."""
    with (run / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    printed_columns = ("epoch", "env_steps", "return", "steps_per_second")
    columns = [name for name in rows[0] if name in printed_columns or name.startswith("val_")]
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude", "*"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    on = "one core" if cores == 1 else f"{cores} cores"
    with out.open("w", newline="") as file:
        file.write(f"{COMMAND}{arguments}\n# commit {commit}; {versions}; ")
        file.write(f"{seconds:.0f} s since it was last begun, on {on}\n")
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def compare(new: Path, old: Path) -> str:
    """Return the scores of two result files side by side, and how many of their first evaluations are the same."""
    x, y = points(new, "env_steps", "val_return")
    old_x, old_y = points(old, "env_steps", "val_return")
    lines = [f"{'':>26}{'new':>12}{'committed':>12}{'difference':>12}"]
    places = {f"at {steps:,} steps": (score(x, y, steps), score(old_x, old_y, steps)) for steps in STEPS}
    places["at the end"] = score(x, y, x[-1]), score(old_x, old_y, old_x[-1])
    places["largest evaluation"] = y.max(), old_y.max()
    for name, (ours, theirs) in places.items():
        if ours is not None and theirs is not None:
            lines.append(f"{name:>26}{ours:12,.1f}{theirs:12,.1f}{ours - theirs:+12,.1f}")
    shared = min(len(y), len(old_y))
    same = (x[:shared] == old_x[:shared]) & (y[:shared] == old_y[:shared])
    first = shared if same.all() else int(np.argmin(same))
    return "\n".join([*lines, f"the first {first} of {len(old_y)} evaluations are the same to the last digit"])


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", help="<kind>-<env>-<seed>, or ablation/<kind>-<env>-<seed>")
    parser.add_argument("--list", action="store_true", help="list the names, with their commands")
    parser.add_argument("--run-dir", type=Path, help="the directory of the run; the default is runs/NAME")
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--out", type=Path, help="the file to write; the default is RUN_DIR.csv")
    target.add_argument("--overwrite", action="store_true", help="write examples/results/NAME.csv")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Train the run of the command line, and compare its scores with the committed ones."""
    args = parser().parse_args(argv)
    known = names()
    if args.list or args.name is None:
        for name, arguments in known.items():
            print(f"{name}{'' if (RESULTS / f'{name}.csv').exists() else ' (to be made)'}: {arguments}")
        return
    if args.name not in known and (file := RESULTS / f"{args.name}.csv").exists():
        sys.exit(f"{args.name} was not made by `tfdpg train`. It begins with: {file.read_text().partition(chr(10))[0]}")
    if args.name not in known:
        sys.exit(f"There is no {args.name!r} in {RESULTS} or its queue.txt; --list shows all names.")
    committed = RESULTS / f"{args.name}.csv"
    run_dir = args.run_dir or Path("runs") / args.name
    out = committed if args.overwrite else args.out or run_dir.with_name(f"{run_dir.name}.csv")
    if out.resolve() == committed.resolve() and committed.exists() and not args.overwrite:
        sys.exit(f"{out} is a committed result, which only --overwrite replaces.")
    try:
        run, seconds = train(known[args.name], run_dir)
    except ValueError as error:
        sys.exit(str(error))
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
    write(run, new := run_dir / "results.csv", known[args.name], seconds)
    if committed.exists():
        print(compare(new, committed))
    out.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(new, out)
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
