"""Damaged files and random command lines: each case is given by its number, and can be repeated by it."""

import collections
import concurrent.futures
import faulthandler
import importlib
import multiprocessing
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

BATCH, SECONDS = 500, 300
"""Cases of one process, since TensorFlow keeps some memory of each agent; and the time of a case that hangs."""


def run(stream, number):
    """Runs a case; gives its outcome, or raises with a note that says how to repeat it."""
    case = importlib.import_module(f"tests.fuzz.{stream}").case
    done = []
    faulthandler.dump_traceback_later(SECONDS, exit=True, file=sys.__stderr__)
    try:
        with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return case(number, Path(place), done)
    except BaseException as error:
        error.add_note(f"python -m tests.fuzz {stream} {number}: {'; '.join(map(str, done))}")
        raise
    finally:
        faulthandler.cancel_dump_traceback_later()


def run_many(stream, first, stop):
    """Runs cases in processes, and tells how often each outcome was; gives the numbers of those that failed."""
    counts = collections.Counter()
    failed = []
    pool = None
    how = multiprocessing.get_context("spawn")
    for number in range(first, stop):
        pool = pool or concurrent.futures.ProcessPoolExecutor(1, how, max_tasks_per_child=BATCH)
        try:
            counts[pool.submit(run, stream, number).result()] += 1
        except KeyboardInterrupt:
            break
        except BaseException as error:
            print(f"failed {number}:", *traceback.format_exception(error), flush=True)
            failed.append(number)
            pool = None if isinstance(error, concurrent.futures.BrokenExecutor) else pool
    print(f"{stream}: {dict(counts)}, failed: {failed}", flush=True)
    return failed
