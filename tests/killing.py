"""Kill runs of the command line, resume them, and compare them with an uninterrupted run.

The killed process has one thread, like the process of the tests.
"""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from tfdpg import cli, export
from tfdpg.training.callbacks import read_step_file

ONE_THREAD = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
TIMES = ("steps_per_second", "Time")


def started(words):
    environment = os.environ | ONE_THREAD | {"PYTHONPATH": os.pathsep.join(sys.path)}
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-m", "tfdpg", *map(str, words)], env=environment, **silent)


def train_killed(words, run, steps, kills, seed):
    """Train to the end, killing the process a moment after random steps: in an update, a callback or an export.

    Returns:
        The environment steps at which the process was killed.
    """
    rng = random.Random(seed)
    at = []
    for wanted in sorted(rng.randrange(steps) for _ in range(kills)):
        process = started(["train", "--resume", run] if run.exists() else ["train", *words])
        while process.poll() is None and not (at_least(run, wanted) and time.sleep(rng.random() / 4) is None):
            time.sleep(0.001)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        _, errors = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), errors.decode()
        at.append(read_step_file(run / "trained.txt")[0])
    assert cli.main(["train", "--resume", str(run)]) == 0
    return at


def at_least(run, steps):
    return (run / "trained.txt").exists() and read_step_file(run / "trained.txt")[0] >= steps


def assert_equal_runs(run, other):
    """Assert that the newest checkpoint, the tables without times, the best and the final policy are identical."""
    for kind in ("checkpoints", "best", "export"):
        directories = [export.versions(each / kind)[-1:] for each in (run, other)]
        assert directories[0] == directories[1], (kind, directories)
    steps = str(export.versions(run / "checkpoints")[-1])
    saved = [each / "checkpoints" / steps for each in (run, other)]
    states = [json.loads((each / "checkpoint.json").read_text()) for each in saved]
    assert states[0]["state"] == states[1]["state"]
    names = [sorted(path.name for path in each.glob("*.npz")) for each in saved]
    assert names[0] == names[1]
    for name in names[0]:
        with np.load(saved[0] / name) as arrays, np.load(saved[1] / name) as others:
            for key in arrays.files:
                np.testing.assert_array_equal(arrays[key], others[key], f"{name}: {key}", strict=True)
    for name, delimiter in (("progress.csv", ","), ("progress.txt", "\t")):
        assert table(run / name, delimiter) == table(other / name, delimiter)
    for kind in ("best", "export"):
        described, others = (export.metadata(export.latest_version(each / kind)) for each in (run, other))
        assert described.get("scores") == others.get("scores") and described["env_steps"] == others["env_steps"]
        assert described["files"]["policy.npz"] == others["files"]["policy.npz"]


def table(file: Path, delimiter):
    with open(file, newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter=delimiter))
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]
