"""A version of a model, in the session that TensorFlow Serving would run it in."""
# pyright: reportAttributeAccessIssue=false
# Modules of protocol buffers make their classes when they are imported.

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from tfdpg import export
from tfdpg.export.verify import open_session
from tfdpg.export.warmup import WARMUP_FILE

DEFAULT = "serving_default"


class RequestError(ValueError):
    """A request that cannot be answered.

    Attributes:
        code: why, by the name of a gRPC status.
    """

    def __init__(self, message: str, code: str = "INVALID_ARGUMENT"):
        super().__init__(message)
        self.code = code


class Input(NamedTuple):
    """An input of a signature: its type, and its shape, in which any size will do that is None."""

    dtype: np.dtype
    shape: tf.TensorShape

    def check(self, name: str, value: np.ndarray) -> None:
        """Raises `RequestError` for an array of another type or shape."""
        if value.dtype != self.dtype:
            raise RequestError(f"input tensor {name}: expects to be {self.dtype} but {value.dtype} is provided")
        if not self.shape.is_compatible_with(value.shape):
            raise RequestError(f"input tensor {name}: expects shape {self.shape} but {value.shape} is provided")
        check_finite(name, value)


def check_finite(name: str, value: np.ndarray) -> None:
    """Raises `RequestError` for an array that holds NaN or an infinity."""
    if value.dtype.kind == "f" and not (finite := np.isfinite(value)).all():
        raise RequestError(f"input tensor {name}: expects finite numbers but {value[~finite].flat[0]} is provided")


class Signature:
    """An exported function, ready to be called from any thread."""

    def __init__(self, name: str, definition: Any, session: tf.compat.v1.Session):
        self.name = name
        self.inputs = {key: _input(tensor) for key, tensor in definition.inputs.items()}
        self.outputs = tuple(definition.outputs)
        self._call = session.make_callable(
            [tensor.name for tensor in definition.outputs.values()],
            [tensor.name for tensor in definition.inputs.values()],
        )

    def check(self, names: Iterable[str]) -> None:
        """Raises `RequestError` unless the names are those of the inputs."""
        given, expected = sorted(names), sorted(self.inputs)
        if unknown := [name for name in given if name not in self.inputs]:
            raise RequestError(
                f"input tensor alias not found in signature: {unknown[0]}. "
                f"Inputs expected to be in the set {{{','.join(expected)}}}."
            )
        if missing := [name for name in expected if name not in given]:
            raise RequestError(
                f"input size does not match signature: {len(given)}!={len(expected)} len({{{','.join(given)}}}) != "
                f"len({{{','.join(expected)}}}). Sent extra: {{}}. Missing but required: {{{','.join(missing)}}}."
            )

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name.

        Raises:
            RequestError: an input is missing, unknown, of another type or shape; they do not fit together; or the
                computation fails.
        """
        self.check(inputs)
        for name, expected in self.inputs.items():
            expected.check(name, inputs[name])
        try:
            outputs = self._call(*(inputs[name] for name in self.inputs))
        except tf.errors.OpError as error:
            code = "INVALID_ARGUMENT" if isinstance(error, tf.errors.InvalidArgumentError) else "INTERNAL"
            raise RequestError(error.message.partition("\n")[0], code) from error
        return dict(zip(self.outputs, outputs, strict=True))


class Model:
    """A version of a model. Its session ends with the last request that holds it.

    Args:
        directory: the version's directory.

    Attributes:
        version: its number.
        definitions: the signatures, as the SavedModel has them.
        signatures: those that can be called.

    Raises:
        FileNotFoundError: tfdpg did not export it.
        ExportError: a file is damaged or missing, it does not load, or does not answer its warm-up requests.
    """

    def __init__(self, directory: Path):
        export.metadata(directory)
        # a request's own thread computes: to wake others for a small network takes longer than the network
        config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=-1)
        session, self.definitions = open_session(directory, config)
        self.version = int(directory.name)
        self.signatures = {
            name: Signature(name, definition, session)
            for name, definition in self.definitions.items()
            if not name.startswith("__")
        }
        self._warm_up(directory)

    def signature(self, name: str) -> Signature:
        """A signature by its name; the default is `pi`.

        Raises:
            RequestError: there is none.
        """
        if (name or DEFAULT) not in self.signatures:
            raise RequestError(f'Serving signature name: "{name}" not found in signature def')
        return self.signatures[name or DEFAULT]

    def _warm_up(self, directory: Path) -> None:
        try:
            for record in tf.data.TFRecordDataset(str(directory / WARMUP_FILE)).as_numpy_iterator():
                request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
                inputs = {name: tf.make_ndarray(tensor) for name, tensor in request.inputs.items()}
                self.signature(request.model_spec.signature_name)(inputs)
        except (RequestError, tf.errors.OpError) as error:
            raise export.ExportError(f"The exported model in {directory} does not answer: {error}") from error


def _input(tensor: Any) -> Input:
    dtype = np.dtype(tf.dtypes.as_dtype(tensor.dtype).as_numpy_dtype)
    return Input(dtype, tf.TensorShape(tensor.tensor_shape))
