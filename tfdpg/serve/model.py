"""A version of a model in a session of the kind that TensorFlow Serving uses."""
# pyright: reportAttributeAccessIssue=false
# Protocol buffer modules create their classes when they are imported.

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow_serving.apis import prediction_log_pb2

from tfdpg import export
from tfdpg.export.tf_agents import place
from tfdpg.export.verify import open_session
from tfdpg.export.warmup import WARMUP_FILE
from tfdpg.serve.errors import RequestError
from tfdpg.serve.limits import Limits
from tfdpg.spec import Leaf, Spec, check_representable

DEFAULT = "serving_default"
AXES = {"batch": "batch size", "time": "number of time steps"}
"""The names of the axes in `tfdpg.json`, and what messages call their sizes."""


class Tensor:
    """An input or an output of a signature.

    Args:
        info: its `TensorInfo`.
        axes: its shape in `tfdpg.json`, where an axis of any size has a name.
        may_miss: whether numbers may be missing: NaN or infinite.
        discrete: the Discrete or MultiDiscrete part of the observation that it is; None for other tensors.
    """

    def __init__(self, info: Any, axes: list[Any], may_miss: bool = False, discrete: Leaf | None = None):
        self.may_miss = may_miss
        self._discrete = discrete
        self.name = info.name
        self.dtype = np.dtype(tf.dtypes.as_dtype(info.dtype).as_numpy_dtype)
        self.axes = axes
        self._shape = tf.TensorShape(info.tensor_shape)

    def check(self, name: str, value: np.ndarray) -> None:
        """Raise `RequestError` if an array has another type or shape, or a number that is not allowed."""
        if value.dtype != self.dtype:
            raise RequestError(f"input tensor {name}: expects to be {self.dtype} but {value.dtype} is provided")
        if not self._shape.is_compatible_with(value.shape):
            raise RequestError(f"input tensor {name}: expects shape {self._shape} but {value.shape} is provided")
        if value.dtype.kind == "f" and not self.may_miss and not (finite := np.isfinite(value)).all():
            raise RequestError(f"input tensor {name}: expects finite numbers but {value[~finite].flat[0]} is provided")
        if self._discrete is not None:
            try:
                check_representable(self._discrete, value)
            except ValueError as error:
                raise RequestError(f"input tensor {name}: {error}") from error


class Signature:
    """An exported function. It can be called from any thread.

    Args:
        name: its name.
        definition: its `SignatureDef`.
        description: its entry in `tfdpg.json`.
        session: a session with the model.
        spec: the spaces.
    """

    def __init__(
        self,
        name: str,
        definition: Any,
        description: Mapping[str, Any],
        session: tf.compat.v1.Session,
        spec: Spec,
    ):
        holds = spec.missing == "hold"
        discrete = {key: leaf for leaf in spec.leaves if leaf.dtype == "int32" for key in (leaf.name, place(leaf))}

        def tensors(kind: str) -> dict[str, Tensor]:
            facts = {each["name"]: each for each in description[kind]}
            missing = {key: holds and each.get("unit") == "observation" for key, each in facts.items()}
            named = getattr(definition, kind).items()
            return {key: Tensor(info, facts[key]["shape"], missing[key], discrete.get(key)) for key, info in named}

        self.name = name
        self.inputs = tensors("inputs")
        self.outputs = tensors("outputs")
        self._call = session.make_callable(
            [tensor.name for tensor in self.outputs.values()], [tensor.name for tensor in self.inputs.values()]
        )

    def check_names(self, names: Iterable[str]) -> None:
        """Raise `RequestError` unless the names are those of the inputs."""
        given = sorted(names)
        expected = ",".join(sorted(self.inputs))
        if unknown := sorted(set(given) - self.inputs.keys()):
            raise RequestError(
                f"input tensor alias not found in signature: {unknown[0]}. "
                f"Inputs expected to be in the set {{{expected}}}."
            )
        if missing := sorted(self.inputs.keys() - set(given)):
            raise RequestError(
                f"input size does not match signature: {len(given)}!={len(self.inputs)} len({{{','.join(given)}}}) != "
                f"len({{{expected}}}). Sent extra: {{}}. Missing but required: {{{','.join(missing)}}}."
            )

    def __call__(
        self, inputs: Mapping[str, np.ndarray], limits: Limits | None = None, bytes_per_value: int | None = None
    ) -> dict[str, np.ndarray]:
        """Return the outputs by name.

        Args:
            inputs: the inputs by name.
            limits: the limits on the rows and on the size of the outputs, which are checked before anything is
                computed.
            bytes_per_value: the size of an element in the response; None uses the size of its type.

        Raises:
            RequestError: an input is missing, unknown, of another type or shape, or has a number that is not allowed;
                the sizes of two inputs differ; a limit is exceeded; or the computation fails.
        """
        self.check_names(inputs)
        for name, expected in self.inputs.items():
            expected.check(name, inputs[name])
        if limits is not None:
            self._check_size(self._free_axes(inputs), limits, bytes_per_value)
        try:
            outputs = self._call(*(inputs[name] for name in self.inputs))
        except tf.errors.OpError as error:
            code = "INVALID_ARGUMENT" if isinstance(error, tf.errors.InvalidArgumentError) else "INTERNAL"
            # TensorFlow puts the names of operations before the reason, and the graph after it
            lines = [line.strip() for line in error.message.partition("\n\t [[{{node")[0].splitlines()]
            reason = next((line for line in reversed(lines) if line), "the computation failed")
            raise RequestError(reason, code) from error
        return dict(zip(self.outputs, outputs, strict=True))

    def _check_size(self, sizes: Mapping[str, int], limits: Limits, bytes_per_value: int | None) -> None:
        """Raise `RequestError` if there are too many rows, or if the outputs would be too large."""
        if (rows := sizes.get("batch", 1) * sizes.get("time", 1)) > limits.rows:
            raise RequestError(
                f"The request has {rows} rows; the server accepts at most {limits.rows} (--max-rows)",
                "RESOURCE_EXHAUSTED",
            )
        size = 0
        for output in self.outputs.values():
            count = math.prod(axis if isinstance(axis, int) else sizes[axis] for axis in output.axes)
            size += count * (bytes_per_value or output.dtype.itemsize)
        if size > limits.response_bytes:
            raise RequestError(
                f"The response would have about {size} bytes; the server answers with at most {limits.response_bytes}"
                " (--max-response-mib)",
                "RESOURCE_EXHAUSTED",
            )

    def _free_axes(self, inputs: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Return the sizes of the axes that the request determines: `batch`, `time` and `levels`."""
        sizes = dict[str, int]()
        origins = dict[str, str]()
        for name, value in inputs.items():
            axes = self.inputs[name].axes
            if not axes and value.dtype.kind == "i":  # the value is itself the number of rows
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


class Model:
    """A version of a model. Its session ends with the last request that holds it.

    Args:
        directory: the directory of the version.
        trusted: whether to load it even if its operations have side effects.

    Attributes:
        version: the number of the version.
        definitions: the `SignatureDef`s of the SavedModel.
        signatures: the signatures that can be called.

    Raises:
        FileNotFoundError: the model was not exported by tfdpg.
        ExportError: a file is damaged or missing, the model cannot be loaded or is refused, or it cannot answer its
            warm-up requests.
    """

    def __init__(self, directory: Path, trusted: bool = False):
        metadata = export.metadata(directory)
        description = metadata["signatures"]
        spec = Spec.from_json(metadata)
        description = {DEFAULT: description["pi"], **description}
        # compute in the thread of the request: for a small network, waking other threads takes longer
        config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=-1)
        session, self.definitions = open_session(directory, config, trusted)
        try:
            self.version = int(directory.name)
            self.signatures = {
                name: Signature(name, definition, description[name], session, spec)
                for name, definition in self.definitions.items()
                if not name.startswith("__")
            }
            self._warm_up(directory)
        except BaseException:
            session.close()
            raise

    def signature(self, name: str) -> Signature:
        """Return a signature; an empty name stands for the default, `pi`.

        Raises:
            RequestError: the model has no such signature.
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
