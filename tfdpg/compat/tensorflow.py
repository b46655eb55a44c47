"""TensorFlow, imported once it is known that it is needed."""

import importlib
import os
import sys


def import_tensorflow() -> None:
    """Imports TensorFlow without the lines that it writes to standard error before its log level counts."""
    if "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.stderr.flush()
    stderr = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        importlib.import_module("keras")
        importlib.import_module("tensorflow")
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
