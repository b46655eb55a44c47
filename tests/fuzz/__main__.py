"""`python -m tests.fuzz saved 637` repeats a case; `python -m tests.fuzz saved 0 10000` runs some, and counts."""

import os
import sys

from tests.fuzz import run, run_many

if __name__ == "__main__":
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "OMP_NUM_THREADS": "1"}
    stream, *numbers = sys.argv[1:]
    if len(numbers) == 1:
        print(run(stream, *map(int, numbers)))
    else:
        sys.exit(bool(run_many(stream, *map(int, numbers))))
