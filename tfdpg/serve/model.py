"""A version of a model, in the session that TensorFlow Serving would run it in."""
# pyright: reportAttributeAccessIssue=false
# Modules of protocol buffers make their classes when they are imported.

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow_serving.apis import prediction_log_pb2

from tfdpg import export
from tfdpg.export.verify import open_session
from tfdpg.export.warmup import WARMUP_FILE
from tfdpg.serve.limits import Limits

DEFAULT = "serving_default"
AXES = {"batch": "batch size", "time": "number of time steps"}
"""What an axis of `tfdpg.json` is called in messages."""


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
    """An exported function, ready to be called from any thread.

    Args:
        name: its name.
        definition: its `SignatureDef`.
        description: what `tfdpg.json` says about it.
        session: a session with the model.
    """

    def __init__(self, name: str, definition: Any, description: Mapping[str, Any], session: tf.compat.v1.Session):
        self.name = name
        self._shapes = {
            key: {each["name"]: each["shape"] for each in description[key]} for key in ("inputs", "outputs")
        }
        self.inputs = {key: _input(tensor) for key, tensor in definition.inputs.items()}
        self.outputs = {key: _input(tensor).dtype for key, tensor in definition.outputs.items()}
        self._call = session.make_callable(
            [tensor.name for tensor in definition.outputs.values()],
            [tensor.name for tensor in definition.inputs.values()],
        )

    def check(self, names: Iterable[str]) -> None:
        """Raises `RequestError` unless the names are those of the inputs."""
        given = sorted(names)
        expected = sorted(self.inputs)
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

    def check_size(self, inputs: Mapping[str, np.ndarray], limits: Limits, bytes_per_value: int | None = None) -> None:
        """Refuse inputs that have too many rows, or whose outputs would be too large, before anything is computed.

        Args:
            inputs: the inputs by name.
            limits: what is accepted.
            bytes_per_value: the bytes of an element of the response; None stands for those of its type.

        Raises:
            RequestError: a limit is exceeded, or the batch sizes of two inputs differ.
        """
        for name, expected in self.inputs.items():
            expected.check(name, inputs[name])
        sizes = self._free_axes(inputs)
        if (rows := sizes.get("batch", 1) * sizes.get("time", 1)) > limits.rows:
            raise RequestError(
                f"The request has {rows} rows; the server accepts at most {limits.rows} (--max-rows)",
                "RESOURCE_EXHAUSTED",
            )
        size = 0
        for name, dtype in self.outputs.items():
            count = math.prod(each if isinstance(each, int) else sizes[each] for each in self._shapes["outputs"][name])
            size += count * (bytes_per_value or dtype.itemsize)
        if size > limits.response_bytes:
            raise RequestError(
                f"The response would have about {size} bytes; the server answers with at most {limits.response_bytes}"
                " (--max-response-mib)",
                "RESOURCE_EXHAUSTED",
            )

    def _free_axes(self, inputs: Mapping[str, np.ndarray]) -> dict[str, int]:
        """The sizes of the axes that a request chooses: `batch`, `time` and `levels`."""
        sizes = dict[str, int]()
        origins = dict[str, str]()
        for name, value in inputs.items():
            axes = self._shapes["inputs"][name]
            if not axes and value.dtype.kind == "i":  # a number of rows
                axes = ["batch"]
                lengths = (int(value),)
                if lengths[0] < 0:
                    raise RequestError(f"input tensor {name}: must not be negative. Received: {lengths[0]}")
            elif not value.ndim and axes:
                raise RequestError(f"input tensor {name}: expects a list of numbers but a single number is provided")
            else:
                lengths = value.shape[-len(axes) :]
            # `levels` may have one row for the whole batch, and in older exports no batch axis
            for axis, length in zip(axes[-len(lengths) :], lengths, strict=True) if lengths else ():
                is_broadcast = length == 1 and axes[-1] == "levels"
                if isinstance(axis, int) or (is_broadcast and axis == "batch"):
                    continue
                if sizes.setdefault(axis, length) != length:
                    raise RequestError(
                        f"input tensors {origins[axis]} and {name}: must have the same {AXES.get(axis, axis)}. "
                        f"Received: {sizes[axis]} and {length}"
                    )
                origins[axis] = name
        return sizes

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
            raise RequestError(_reason(error.message), code) from error
        return dict(zip(self.outputs, outputs, strict=True))


class Model:
    """A version of a model. Its session ends with the last request that holds it.

    Args:
        directory: the version's directory.
        trusted: whether to load it whatever its operations do.

    Attributes:
        version: its number.
        definitions: the signatures, as the SavedModel has them.
        signatures: those that can be called.

    Raises:
        FileNotFoundError: tfdpg did not export it.
        ExportError: a file is damaged or missing, it does not load or is refused, or does not answer its warm-up
            requests.
    """

    def __init__(self, directory: Path, trusted: bool = False):
        description = export.metadata(directory)["signatures"]
        description = {DEFAULT: description["pi"], **description}
        # a request's own thread computes: to wake others for a small network takes longer than the network
        config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=-1)
        session, self.definitions = open_session(directory, config, trusted)
        try:
            self.version = int(directory.name)
            self.signatures = {
                name: Signature(name, definition, description[name], session)
                for name, definition in self.definitions.items()
                if not name.startswith("__")
            }
            self._warm_up(directory)
        except BaseException:
            session.close()
            raise

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
        except (DecodeError, ValueError, TypeError, KeyError, tf.errors.OpError) as error:
            raise export.ExportError(f"The exported model in {directory} does not answer: {error}") from error


def _reason(message: str) -> str:
    """Why a computation failed: TensorFlow's message has the operations' names before it and the graph after it."""
    lines = [line.strip() for line in message.partition("\n\t [[{{node")[0].splitlines()]
    return next((line for line in reversed(lines) if line), "the computation failed")


def _input(tensor: Any) -> Input:
    dtype = np.dtype(tf.dtypes.as_dtype(tensor.dtype).as_numpy_dtype)
    return Input(dtype, tf.TensorShape(tensor.tensor_shape))
