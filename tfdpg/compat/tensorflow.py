"""Undocumented interfaces of TensorFlow, and its import without start-up messages.

Written for TensorFlow 2.21, and tested with 2.18.
"""

import functools
import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from typing import Any


def import_tensorflow() -> None:
    """Import TensorFlow and Keras without the messages that TensorFlow writes when it starts.

    TensorFlow writes some messages before it reads its log level, so standard error is discarded during the import. If
    the environment variable `TF_CPP_MIN_LOG_LEVEL` is not set, it becomes "3", which hides later messages such as those
    about missing GPU libraries. Set it to "0" to see all messages. Nothing changes if TensorFlow is already imported.

    If a later version writes its messages in another way, they appear on standard error again; nothing else stops
    working.
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


def saved_model_from_bytes(content: bytes) -> Any:
    """Decode `saved_model.pb` without loading the model. Without this, exported models cannot be checked and loaded.

    Raises:
        google.protobuf.message.DecodeError: the content is not a `SavedModel`.
    """
    protos: Any = importlib.import_module("tensorflow.core.protobuf.saved_model_pb2")
    return protos.SavedModel.FromString(content)


def tensor_from_bytes(content: bytes) -> Any:
    """Decode a `TensorProto` as an array. Without this, exported models cannot be converted to other formats.

    Raises:
        google.protobuf.message.DecodeError: the content is not a `TensorProto`.
    """
    tf: Any = importlib.import_module("tensorflow")
    protos: Any = importlib.import_module("tensorflow.core.framework.tensor_pb2")
    return tf.make_ndarray(protos.TensorProto.FromString(content))


def lite_schema() -> Any:
    """Return the module of the classes of LiteRT's file format. Without it, there is no export to LiteRT."""
    return importlib.import_module("tensorflow.lite.python.schema_py_generated")


def lite_converter_error() -> type[Exception]:
    """Return the exception that TensorFlow's LiteRT converter raises for an operation that LiteRT does not have.

    Without it, a policy with a critic that LiteRT cannot compute is not exported to LiteRT without that critic.
    """
    return importlib.import_module("tensorflow.lite.python.convert_phase").ConverterError


def call_concrete(function: Any, arguments: Any) -> Any:
    """Call a concrete function, without the comparison of its arguments with its signature, which takes 0.05 ms.

    Without it, `function(*arguments)` does the same.
    """
    tf: Any = importlib.import_module("tensorflow")
    return function._call_flat(tf.nest.flatten(arguments), function.captured_inputs)


def notify_of_reads(variables: Iterable[Any], on_read: Callable[[], None]) -> None:
    """Call a function before one of these `tf.Variable`s is read or assigned, until `stop_notifying` is called.

    Without it, what users read from networks and optimizers during `fit` is from before the newest updates.
    """
    for variable in variables:
        variable.__dict__["_on_read"] = on_read
        variable.__class__ = _notifying(type(variable))


def stop_notifying(variables: Iterable[Any]) -> None:
    """End what `notify_of_reads` began."""
    for variable in variables:
        variable.__class__ = type(variable).__bases__[0]
        del variable.__dict__["_on_read"]


@functools.cache
def _notifying(kind: type) -> type:
    """Return a class of variables like `kind`, whose handle is used after a notification."""

    def handle(self: Any) -> Any:
        self.__dict__["_on_read"]()
        return self.__dict__["_handle"]

    return type(kind.__name__, (kind,), {"_handle": property(handle)})


def report_access(variable: Any) -> None:
    """Tell `tf.custom_gradient` that a `tf.Variable` is read, although a tensor stands for it.

    Without it, a custom gradient leaves out the variables that its function reads without taking them as arguments.
    """
    importlib.import_module("tensorflow.python.eager.tape").variable_accessed(variable)
