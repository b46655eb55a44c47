"""Run a benchmark script in a separate process that is pinned to some cores."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

THREADS = "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"


def in_pinned_process(script: str, cores: Sequence[int], *arguments: str) -> Any:
    """Run a script, and return the JSON value of its last output line.

    The script may use one thread per core. Its error output is shown.

    Raises:
        SystemExit: the script failed.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # inherited by the process; a `preexec_fn` is not safe if there are other threads
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
    """Parse a positive integer of the command line."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1. Received: {number}")
    return number


def use_these_cores_in_torch() -> None:
    """Let torch use one thread for each core of this process.

    Torch ignores the cores to which the process is pinned and, once it is imported, the environment variables.

    `torch._dynamo` of torch 2.14 crashes if it is imported after TensorFlow, which Stable-Baselines3 imports.
    """
    import torch
    import torch._dynamo

    torch.set_num_threads(len(os.sched_getaffinity(0)))
