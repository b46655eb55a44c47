"""Runs a benchmark's script in a process of its own, pinned to some cores."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

THREADS = "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"


def in_pinned_process(script: str, cores: Sequence[int], *arguments: str) -> Any:
    """What the script prints as its last line, JSON. It may use a thread for each core; its errors are shown.

    Raises:
        SystemExit: it failed.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # which the process inherits; a `preexec_fn` is not safe if there are other threads
    try:
        process = subprocess.run(
            [sys.executable, script, *arguments],
            env={**os.environ, **dict.fromkeys(THREADS, str(len(cores))), "TF_CPP_MIN_LOG_LEVEL": "3"},
            stdout=subprocess.PIPE,
            text=True,
        )
    finally:
        os.sched_setaffinity(0, before)
    if process.returncode:
        sys.exit(f"{script} {' '.join(arguments)} failed, see above. Other libraries: pip install -e '.[benchmark]'")
    return json.loads(process.stdout.splitlines()[-1])


def count(text: str) -> int:
    """A positive integer of the command line."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1. Received: {number}")
    return number


def use_these_cores_in_torch() -> None:
    """Torch looks at neither the cores nor, once it has been imported, at the variables.

    `torch._dynamo` of torch 2.14 crashes if it is imported after TensorFlow, which Stable-Baselines3 imports.
    """
    import torch
    import torch._dynamo

    torch.set_num_threads(len(os.sched_getaffinity(0)))
