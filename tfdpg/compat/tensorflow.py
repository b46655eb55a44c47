"""Imports TensorFlow without its start-up messages. Written for TensorFlow 2.21.

If a later version writes its messages in another way, they appear on standard error again; nothing else stops working.
"""

import importlib
import os
import sys
import tempfile


def import_tensorflow() -> None:
    """Import TensorFlow and Keras without the messages that TensorFlow writes when it starts.

    TensorFlow writes some messages before it reads its log level, so standard error is discarded during the import. If
    the environment variable `TF_CPP_MIN_LOG_LEVEL` is not set, it becomes "3", which hides later messages such as those
    about missing GPU libraries. Set it to "0" to see all messages. Nothing changes if TensorFlow is already imported.
    """
    if "tensorflow" in sys.modules or os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") == "0":
        return
    try:
        stderr = os.dup(2)
    except OSError:  # this process has no standard error
        return
    with tempfile.TemporaryFile() as messages:
        try:
            if sys.stderr is not None:
                sys.stderr.flush()
            os.dup2(messages.fileno(), 2)
            importlib.import_module("keras")
            importlib.import_module("tensorflow")
        except BaseException:
            messages.seek(0)
            os.write(stderr, messages.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
