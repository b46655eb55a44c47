"""`python -m tests.fuzz saved 637` repeats a case; `python -m tests.fuzz saved 0 10000` runs some, and counts."""

import collections
import contextlib
import gc
import importlib
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

BATCH = 500
"""Cases of one process: TensorFlow keeps some memory of each agent."""


def run(stream, number):
    """Runs a case; gives its outcome, or raises with notes that say how to repeat it."""
    case, done = importlib.import_module(f"tests.fuzz.{stream}").case, []
    try:
        with tempfile.TemporaryDirectory() as place:
            return case(number, Path(place), done), done
    except BaseException as error:
        error.add_note(f"python -m tests.fuzz {stream} {number}: {'; '.join(map(str, done))}")
        raise


def run_here(stream, first, stop):
    """Runs cases in this process, and writes a line for each."""
    for number in range(first, stop):
        print("case", number, flush=True)
        try:
            outcome, done = run(stream, number)
            print("end", number, outcome, "; ".join(map(str, done)).replace("\n", " "), flush=True)
        except Exception:
            print("failed", number, "\n", traceback.format_exc(), flush=True)
        except BaseException as error:  # hangs, or leaves
            print("failed", number, repr(error), *error.__notes__, flush=True)
        if number % 20 == 0:
            with contextlib.suppress(KeyError):
                sys.modules["keras"].backend.clear_session()
            gc.collect()


def run_batches(stream, first, stop):
    """Runs cases in processes; gives how often each outcome was, and the numbers of those that failed."""
    counts, failed, began = collections.Counter(), [], time.monotonic()
    while first < stop:
        command = [sys.executable, "-m", "tests.fuzz", stream, str(first), str(min(first + BATCH, stop)), "here"]
        number, ended = first - 1, None
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as process:
            for line in process.stdout:
                match line.split(maxsplit=3):
                    case ["case", number, *_]:
                        number = int(number)
                    case ["end", number, outcome, *_]:
                        ended = number = int(number)
                        counts[outcome] += 1
                    case ["failed", number, *_]:
                        ended = number = int(number)
                        failed.append(number)
                        print(line, end="", flush=True)
                    case _:
                        print(line, end="", flush=True)
        if process.returncode and ended != number:
            print(f"failed {number}: the process ended with {process.returncode}", flush=True)
            failed.append(number)
        first = max(number, first) + 1
    print(f"{stream}: {dict(counts)}, failed: {failed}, {time.monotonic() - began:.0f} s", flush=True)
    return counts, failed


def main(stream, first, stop=None, how=None):
    if stop is None:
        print(*run(stream, int(first)), sep="\n")
    elif how == "here":
        run_here(stream, int(first), int(stop))
    else:
        return bool(run_batches(stream, int(first), int(stop))[1])


if __name__ == "__main__":
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "OMP_NUM_THREADS": "1"}
    sys.exit(main(*sys.argv[1:]))
